//go:build vm

package node

import (
	"os"
	"slices"
	"syscall"
	"testing"
)

// beforeReboot leaves two running pods for the power cut.
func (f *flow) beforeReboot() {
	f.attach("false")
	f.want("wanted", "wanted")
	f.want("gone", "gone")
	f.runs("wanted", "wanted starts")
	f.runs("gone", "gone starts")
	f.well()
	syscall.Sync() // containerd's own files; what the pods have written is on disk
	cut = !f.Failed()
}

// TestReboot is the second boot: of the two pods that ran at the power cut, one is still wanted. Systemd is
// process 1.
func TestReboot(t *testing.T) {
	n := &node{attaches: "false"}
	f := newFlow(t, n)
	f.must(bootUp())
	f.forget("gone")
	f.must(command("lvchange", "-q", "--setautoactivation", "y", vg+"/wanted", vg+"/gone")) // as an operator's, or made by an LVM before 2.03.12
	f.must(command("vgchange", "-q", "-aay", vg))                                           // as LVM does it at boot
	if _, err := os.Stat(podDir("gone")); err != nil {
		t.Fatalf("kubelet has nothing to clean up: %v", err)
	}
	boot := f.active()
	f.must(n.startFlexd())
	f.must(n.startContainerd())
	f.must(n.startKubelet())

	f.runs("wanted", "wanted starts", "wanted starts")
	f.ended("gone")
	f.mounted("wanted")
	f.forget("wanted")
	f.ended("wanted")
	// What LVM has activated at boot is flexd's to deactivate when a pod has used it.
	want := slices.DeleteFunc(slices.Clone(boot), func(lv string) bool { return lv == "wanted" })
	f.await("an end of what was used, and of nothing else", func() bool {
		return len(f.mounts()) == 0 && slices.Equal(f.active(), want)
	})
	if !slices.Contains(want, "gone") {
		t.Errorf("LVM activated %v at boot: not the volume that no pod wants any more", boot)
	}
	f.well()
	if !t.Failed() && !testing.Short() {
		t.Run("DaemonSet", func(t *testing.T) { newFlow(t, n).daemonSet() })
	}
}
