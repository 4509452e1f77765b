package kubelet

import (
	"strings"

	"github.com/flexd/flexd/internal/flexvolume"
)

// A Place is one of kubelet's directories for a volume of this driver.
type Place struct {
	Staged bool   // the global mount; false: a pod's mount
	PodUID string // of a pod's mount
	Driver string // "vendor/driver"
	Name   string // PV name, or the pod's own name of an inline volume
}

// ParsePlace recognises kubelet's two kinds of directory below root:
//
//	<root>/plugins/kubernetes.io/flexvolume/<vendor>/<driver>/mounts/<name>
//	<root>/pods/<uid>/volumes/<vendor>~<driver>/<name>
//
// The driver is "vendor/driver"; "" accepts any. It only parses the text.
func ParsePlace(root, driver, dir string) (Place, bool) {
	rest, ok := strings.CutPrefix(dir, strings.TrimSuffix(root, "/")+"/")
	if !ok || root == "" {
		return Place{}, false
	}
	var place Place
	part := strings.Split(rest, "/")
	switch {
	case len(part) == 7 && part[0] == "plugins" && part[1] == "kubernetes.io" && part[2] == "flexvolume" && part[5] == "mounts":
		place.Staged = true
		place.Driver = part[3] + "/" + part[4]
		place.Name = part[6]
		if !flexvolume.IsComponent(part[3]) || !flexvolume.IsComponent(part[4]) {
			return Place{}, false
		}
	case len(part) == 5 && part[0] == "pods" && part[2] == "volumes":
		vendor, name, ok := strings.Cut(part[3], "~")
		if !ok || strings.Contains(name, "~") || !flexvolume.IsComponent(part[1]) || !flexvolume.IsComponent(vendor) || !flexvolume.IsComponent(name) {
			return Place{}, false
		}
		place.PodUID = part[1]
		place.Driver = vendor + "/" + name
		place.Name = part[4]
	default:
		return Place{}, false
	}
	if !flexvolume.IsComponent(place.Name) || driver != "" && place.Driver != driver {
		return Place{}, false
	}
	return place, true
}

// IsSubPath reports whether a directory is one at which kubelet binds a part of a volume
// for a container: <root>/pods/<uid>/volume-subpaths/<volume>/<container>/<index>.
func IsSubPath(root, dir string) bool {
	rest, ok := strings.CutPrefix(dir, strings.TrimSuffix(root, "/")+"/")
	part := strings.Split(rest, "/")
	return ok && len(part) == 6 && part[0] == "pods" && part[2] == "volume-subpaths"
}

// IsOtherDriver reports whether a directory belongs to the volumes of another driver, of any
// kind: it is below <root>/plugins/, or below <root>/pods/<uid>/volumes/<plugin>/.
func IsOtherDriver(root, driver, dir string) bool {
	rest, ok := strings.CutPrefix(dir, strings.TrimSuffix(root, "/")+"/")
	part := strings.Split(rest, "/")
	switch {
	case !ok:
		return false
	case part[0] == "plugins" && len(part) > 2:
		return !strings.HasPrefix(rest, "plugins/kubernetes.io/flexvolume/"+driver+"/")
	}
	return len(part) >= 5 && part[0] == "pods" && part[2] == "volumes" && part[3] != strings.Replace(driver, "/", "~", 1)
}

// GlobalDir returns kubelet's global mount directory of a volume, or "" if the name or the
// driver cannot be part of a path.
func GlobalDir(root, driver, name string) string {
	vendor, short, ok := strings.Cut(driver, "/")
	if !ok || root == "" || !flexvolume.IsComponent(vendor) || !flexvolume.IsComponent(short) || !flexvolume.IsComponent(name) {
		return ""
	}
	return strings.TrimSuffix(root, "/") + "/plugins/kubernetes.io/flexvolume/" + driver + "/mounts/" + name
}

// PodDir returns kubelet's directory for a pod's mount, or "" like GlobalDir.
func PodDir(root, driver, uid, name string) string {
	vendor, short, ok := strings.Cut(driver, "/")
	if !ok || root == "" || !flexvolume.IsComponent(vendor) || !flexvolume.IsComponent(short) || !flexvolume.IsComponent(uid) || !flexvolume.IsComponent(name) {
		return ""
	}
	return strings.TrimSuffix(root, "/") + "/pods/" + uid + "/volumes/" + vendor + "~" + short + "/" + name
}
