package kubelet

import (
	"strings"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/volume"
)

// Place returns the meaning of a directory below a root. It only parses the text:
//
//	<root>/plugins/kubernetes.io/flexvolume/<vendor>/<driver>/mounts/<name>   a global mount
//	<root>/pods/<uid>/volumes/<vendor>~<driver>/<name>                        a pod's mount
//	<root>/pods/<uid>/volume-subpaths/<volume>/<container>/<index>            a part of a volume, for a container
//
// Other directories below <root>/plugins/ and <root>/pods/<uid>/volumes/<plugin>/ belong to other drivers.
func (l Layout) Place(root, dir string) volume.Place {
	rest, ok := strings.CutPrefix(dir, strings.TrimSuffix(root, "/")+"/")
	if !ok {
		return volume.Place{}
	}
	part := strings.Split(rest, "/")
	name := part[len(part)-1]
	switch {
	case part[0] == "plugins" && dir == GlobalDir(root, l.Driver, name):
		return volume.Place{Kind: volume.Staged, Name: name}
	case part[0] == "plugins":
		return volume.Place{OtherDriver: len(part) > 2 && !strings.HasPrefix(rest, "plugins/kubernetes.io/flexvolume/"+l.Driver+"/")}
	case part[0] != "pods" || len(part) < 5:
		return volume.Place{}
	case dir == PodDir(root, l.Driver, part[1], name):
		return volume.Place{Kind: volume.Published, Name: name, Pod: part[1]}
	}
	if part[2] == "volume-subpaths" && len(part) == 6 {
		return volume.Place{Bind: true, Pod: part[1]}
	}
	return volume.Place{OtherDriver: part[2] == "volumes" && part[3] != strings.Replace(l.Driver, "/", "~", 1)}
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

// PodDir returns kubelet's directory for a pod's mount, or "" as GlobalDir.
func PodDir(root, driver, uid, name string) string {
	vendor, short, ok := strings.Cut(driver, "/")
	if !ok || root == "" || !flexvolume.IsComponent(vendor) || !flexvolume.IsComponent(short) || !flexvolume.IsComponent(uid) || !flexvolume.IsComponent(name) {
		return ""
	}
	return strings.TrimSuffix(root, "/") + "/pods/" + uid + "/volumes/" + vendor + "~" + short + "/" + name
}
