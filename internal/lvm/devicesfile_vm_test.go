//go:build vm

package lvm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// With a devices file, as on RHEL, LVM ignores filters. A hanging disk of vg1 must not stop vg0.
func TestVMDevicesFile(t *testing.T) {
	l := newLab(t)
	sectors, err := strconv.Atoi(l.sh("blockdev", "--getsz", l.disks[2]))
	if err != nil {
		t.Fatal(err)
	}
	const under = "/dev/mapper/under"
	l.sh("dmsetup", "create", "--noudevsync", "under", "--table", fmt.Sprintf("0 %d linear %s 2048", sectors-2048, l.disks[2]))
	l.sh("dmsetup", "mknodes")
	l.sh("vgcreate", "-q", "vg1", under)
	restore := l.host("devices/use_devicesfile=1")
	t.Cleanup(func() {
		exec.Command("dmsetup", "resume", "--noudevsync", "under").Run()
		restore()
		os.RemoveAll("/etc/lvm/devices")
	})
	for _, disk := range []string{l.disks[0], l.disks[1], under} {
		l.sh("lvm", "lvmdevices", "--adddev", disk)
	}
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "8M", "-n", "there", "vg1")
	lv := l.lv("data", "8M")
	if there, err := l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: "there"}); err != nil || there.Presence != volume.Present {
		t.Fatalf("got %+v %v", there, err)
	}
	l.commandTimeout = 10 * time.Second
	l.sh("dmsetup", "suspend", "--nolockfs", "--noudevsync", "under")
	begun := time.Now()
	l.Invalidate("")
	d := l.activate(l.present("data"))
	if err := l.Extend(t.Context(), l.lock, lv, d, 16*mib); err != nil {
		t.Error(err)
	}
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "new"}, 8*mib, ""); err != nil {
		t.Error(err)
	}
	l.sh("rm", "/dev/vg0/data")
	l.activate(lv) // vgmknodes
	l.deactivate(lv)
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("it took %s", took)
	}
	if blocks := l.Blocks(); len(blocks) != 0 {
		t.Errorf("blocked: %v", blocks)
	}
	// The next flexd has read neither group.
	l.restart(Group{})
	l.CallDeadline = 20 * time.Second
	l.present("new")
	_, err = l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: "there"})
	is(t, err, ErrFailed, "PVs are missing among", under)
	if blocks := l.Blocks(); errors.Is(err, ErrNoVG) || len(blocks) != 0 {
		t.Errorf("%v, blocked: %v", err, blocks)
	}
	l.sh("dmsetup", "resume", "--noudevsync", "under")
	file, err := os.ReadFile("/etc/lvm/devices/system.devices")
	if err != nil || !strings.Contains(string(file), under) {
		t.Errorf("the devices file: %q %v", file, err)
	}
	l.Invalidate("")
	l.present("new")
}
