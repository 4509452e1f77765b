package kubelet

import "strings"

// IsCgroupRoot says whether a control group of that name is the one below which kubelet
// puts those of its pods, whichever of its two drivers named it.
func IsCgroupRoot(name string) bool {
	return name == "kubepods" || name == "kubepods.slice" || strings.HasSuffix(name, "-kubepods.slice")
}

// PodOfCgroup returns the uid in the name of a pod's control group, or "".
func PodOfCgroup(name string) string {
	if slice, ok := strings.CutSuffix(name, ".slice"); ok {
		_, uid, ok := strings.Cut(slice, "-pod")
		if !ok {
			return ""
		}
		return strings.ReplaceAll(uid, "_", "-") // systemd's names keep "-" for what lies above
	}
	uid, _ := strings.CutPrefix(name, "pod")
	if uid == name {
		return ""
	}
	return uid
}
