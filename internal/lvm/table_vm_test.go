//go:build vm

package lvm

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/volume"
)

// A killed lvchange leaves a device without a table. It loses no other volume of
// the group, counts as inactive, and the next activation repairs it.
func TestVMNoTable(t *testing.T) {
	l := newLab(t)
	lv, other := l.lv("da-ta", "8M"), l.lv("other", "8M")
	l.activate(other)
	l.restart(Group{}) // it has never seen the device with a table
	uuid := dmUUID(lv.UUID)
	for _, load := range []bool{false, true} {
		l.sh("dmsetup", "create", "--noudevsync", "--notable", "-u", uuid, "vg0-da--ta")
		if load {
			l.sh("dmsetup", "load", "vg0-da--ta", "--table", "0 16384 linear "+l.disks[0]+" 2048")
		}
		if d := l.device(l.present("da-ta")); d.Activity != volume.Inactive {
			t.Errorf("got %+v", d)
		}
		l.found("no table", l.differ(nil, nil), "active-unclaimed other")
		l.activate(lv)
		l.deactivate(lv)
	}
}

// pvmove that is killed leaves its volume suspended and its own device without a
// table, or its volume on a mirror. Neither is deactivated, and both are over
// after pvmove --abort.
func TestVMMoved(t *testing.T) {
	l := newLab(t)
	for _, m := range []string{"dm-delay", "dm-mirror"} {
		l.sh("modprobe", m)
	}
	sectors, err := strconv.Atoi(l.sh("blockdev", "--getsz", l.disks[2]))
	if err != nil {
		t.Fatal(err)
	}
	l.sh("dmsetup", "create", "--noudevsync", "slow", "--table", fmt.Sprintf("0 %d delay %s 2048 0 %s 2048 100", sectors-2048, l.disks[2], l.disks[2]))
	l.sh("dmsetup", "mknodes")
	l.sh("vgextend", "-q", "vg0", "/dev/mapper/slow")
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "32M", "-n", "moved", "vg0", l.disks[0])
	other := l.lv("other", "8M")
	l.activate(other)
	for _, c := range []struct {
		until func(moved, mirror devmapper.Mapped) bool
		says  string
	}{
		{func(moved, mirror devmapper.Mapped) bool { return moved.Suspended && mirror.Name != "" && !mirror.Live }, "is suspended"},
		{func(moved, mirror devmapper.Mapped) bool { return !moved.Suspended && mirror.Live }, "pvmove --abort"},
	} {
		l.Invalidate("")
		lv := l.present("moved")
		l.activate(lv)
		move := exec.Command("pvmove", "-q", "-i", "1", "-n", "moved", l.disks[0], "/dev/mapper/slow")
		if err := move.Start(); err != nil {
			t.Fatal(err)
		}
		ok := false
		for end := time.Now().Add(2 * time.Minute); !ok && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			ok = c.until(l.named("vg0-moved"), l.named("vg0-pvmove0"))
		}
		move.Process.Kill()
		move.Wait()
		if !ok {
			t.Fatalf("%s: %+v %+v", c.says, l.named("vg0-moved"), l.named("vg0-pvmove0"))
		}
		l.restart(Group{})
		if d := l.device(l.present("moved")); d.Activity != volume.Active || d.Suspended != (c.says == "is suspended") {
			t.Errorf("%s: got %+v", c.says, d)
		}
		if s := l.Survey(t.Context(), "vg0", false); s.Kernel != "" || s.Metadata != "" || len(s.Devices) != 2 || len(s.Volumes) != 2 {
			t.Errorf("%s: survey: %+v", c.says, s)
		}
		l.count("")
		err := l.Deactivate(t.Context(), l.lock, lv, l.device(lv))
		is(t, err, nil, c.says)
		if n := l.count("lvchange"); n != 0 {
			t.Errorf("%s: %d commands", c.says, n)
		}
		l.sh("pvmove", "-q", "--abort")
		l.Invalidate("")
		l.deactivate(lv)
	}

	// With the metadata of before, LVM counts as free where the volume lies now.
	lv := l.present("moved")
	l.activate(lv)
	old := filepath.Join(l.dir, "old")
	l.sh("vgcfgbackup", "-q", "-f", old, "vg0")
	l.sh("pvmove", "-q", "-i", "1", "-n", "moved", l.disks[0], l.disks[1])
	moved := filepath.Join(l.dir, "moved")
	l.sh("vgcfgbackup", "-q", "-f", moved, "vg0")
	l.sh("vgcfgrestore", "-q", "-y", "--force", "-f", old, "vg0")
	l.Invalidate("")
	is(t, l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "new"}, 8*mib, ""), nil, "vg0-moved lies on space that its metadata counts as free")
	if s := l.Survey(t.Context(), "vg0", false); !slices.ContainsFunc(s.Devices, func(d join.Device) bool { return d.Name == "moved" && d.OnFree }) {
		t.Errorf("survey: %+v", s)
	}
	is(t, l.Deactivate(t.Context(), l.lock, lv, l.device(lv)), nil, "vg0-moved lies on space that the metadata counts as free", "It stays active")

	// The same if it was extended since.
	l.sh("vgcfgrestore", "-q", "-y", "--force", "-f", moved, "vg0")
	l.sh("lvextend", "-q", "-L", "40M", "vg0/moved")
	l.sh("vgcfgrestore", "-q", "-y", "--force", "-f", moved, "vg0")
	l.Invalidate("")
	is(t, l.Deactivate(t.Context(), l.lock, lv, l.device(lv)), nil, "It stays active")
	l.sh("lvchange", "-q", "--refresh", "vg0/moved")
	l.deactivate(lv)
}

// named is the device of that name, or none.
func (l *lab) named(name string) devmapper.Mapped {
	all, _ := l.DM.List()
	for _, m := range all {
		if m.Name == name {
			m, _ = l.DM.Device(devmapper.Key{UUID: m.UUID})
			return m
		}
	}
	return devmapper.Mapped{}
}
