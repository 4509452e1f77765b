package kubelet

import "strings"

// IsCgroupRoot reports whether a control group of that name is the parent of kubelet's
// pods, with either of its two cgroup drivers.
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
		return strings.ReplaceAll(uid, "_", "-") // "-" separates the parents in systemd's names
	}
	uid, _ := strings.CutPrefix(name, "pod")
	if uid == name {
		return ""
	}
	return uid
}
