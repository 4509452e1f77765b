package kubelet

import "strings"

// IsCgroupRoot reports whether a control group with this name is the parent of the control groups of
// pods, with either of kubelet's cgroup drivers.
func IsCgroupRoot(name string) bool {
	return name == "kubepods" || name == "kubepods.slice" || strings.HasSuffix(name, "-kubepods.slice")
}

// PodOfCgroup returns the uid in the name of a pod's control group, or "".
func PodOfCgroup(name string) string {
	if slice, ok := strings.CutSuffix(name, ".slice"); ok {
		_, uid, _ := strings.Cut(slice, "-pod")
		return strings.ReplaceAll(uid, "_", "-") // "-" separates the parents in systemd's names
	}
	if uid, ok := strings.CutPrefix(name, "pod"); ok {
		return uid
	}
	return ""
}
