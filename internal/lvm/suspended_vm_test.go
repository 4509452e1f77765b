//go:build vm

package lvm

import (
	"errors"
	"os/exec"
	"testing"
	"time"
)

// A disk of the group is suspended while requests wait for it: the errors, also that of the check, name the command
// that resumes it, and it works.
func TestVMSuspendedDisk(t *testing.T) {
	l := newLab(t)
	disk, _ := l.fragile("disk", l.disks[2])
	t.Cleanup(func() { exec.Command("dmsetup", "resume", "--noudevsync", "disk").Run() })
	l.sh("vgextend", "-q", "vg0", disk)
	l.lvm("lvcreate -q -y -Zn -Wn -L 8M -n data vg0 " + disk)
	lv := l.present("data")
	l.CallDeadline = 10 * time.Second
	l.sh("dmsetup", "suspend", "--nolockfs", "--noudevsync", "disk")
	if err := exec.Command("dd", "if=/dev/vg0/data", "of=/dev/null", "bs=4k", "count=1", "iflag=direct").Start(); err != nil {
		t.Fatal(err)
	}
	l.Invalidate("")
	_, err := l.LookUp(t.Context(), lv.Name)
	is(t, err, nil, "vg0 is blocked", "dmsetup resume disk")
	is(t, errors.New(l.Survey(t.Context(), "vg0", true).Metadata), nil, "vg0 is blocked", "dmsetup resume disk")
	l.sh("dmsetup", "resume", "--noudevsync", "disk")
	eventually(t, "the group works again", func() bool { _, err := l.LookUp(t.Context(), lv.Name); return err == nil })
}
