package procfs

import "testing"

func TestOfPod(t *testing.T) {
	for cgroup, want := range map[string]bool{
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-1.scope": true,
		"0::/kubepods/besteffort/pod1/1": true,
		"0::/kubepods":                   true,
		"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-1.slice": true,
		"0::/kubelet/kubepods/pod1":                                         true,
		"0::/../../kubepods.slice/x":                                        true, // seen from another cgroup namespace
		"2:cpu:/\n1:name=systemd:/kubepods/pod1\n0::/":                      true,
		"0::/system.slice/kubelet.service":                                  false,
		"0::/kubelet.slice/kubelet.service":                                 false,
		"0::/system.slice/docker-1.scope":                                   false, // a kubelet in a container
		"0::/system.slice/k3s.service":                                      false,
		"0::/podruntime.slice/kubelet.service":                              false,
		"0::/system.slice/mykubepods.service":                               false,
		"0::/system.slice/my-kubepods-x.service":                            false,
		"0::/":                                                              false,
		"":                                                                  false,
	} {
		if got := OfPod(cgroup); got != want {
			t.Errorf("%q: %v", cgroup, got)
		}
	}
}
