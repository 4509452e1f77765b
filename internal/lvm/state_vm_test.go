//go:build vm

package lvm

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// Ensure that unusable volumes are refused with the reason.
func TestVMForeign(t *testing.T) {
	l := newLab(t)
	l.sh("lvcreate", "-q", "-y", "-L", "64M", "-T", "vg0/pool")
	l.sh("lvcreate", "-q", "-y", "-V", "128M", "-T", "vg0/pool", "-n", "thin")
	l.sh("lvcreate", "-q", "-s", "vg0/thin", "-n", "snap")
	l.sh("lvcreate", "-q", "-y", "-L", "8M", "-n", "ro", "-pr", "-Zn", "-Wn", "vg0")
	l.sh("lvcreate", "-q", "-y", "-L", "8M", "-n", "origin", "-Zn", "-Wn", "vg0")
	l.sh("lvcreate", "-q", "-y", "-L", "8M", "-s", "vg0/origin", "-n", "cow")
	l.sh("lvcreate", "-q", "-y", "--type", "raid1", "-m1", "-L", "8M", "-n", "mirrored", "vg0")
	for _, c := range []struct{ name, why string }{
		{"pool", "is a pool"},
		{"pool_tdata", "an internal volume of LVM"},
		{"pool_tmeta", "an internal volume of LVM"},
		{"lvol0_pmspare", "an internal volume of LVM"},
		{"mirrored_rimage_0", "an internal volume of LVM"},
	} {
		if lv := l.lookUp(c.name); lv.Presence != volume.Foreign || !strings.Contains(lv.Reason, c.why) {
			t.Errorf("%s: got %+v", c.name, lv)
		}
	}
	l.save(t, "kinds", 1)

	snap := l.present("snap")
	l.sh("lvchange", "-an", "vg0/thin")
	l.activate(snap) // it has the skip flag
	l.deactivate(snap)
	if ro := l.present("ro"); !ro.ReadOnly || !l.activate(ro).ReadOnly {
		t.Errorf("got %+v %+v", ro, l.device(ro))
	}
	cow := l.present("cow")
	err := l.Extend(t.Context(), l.lock, cow, volume.Device{}, 16*mib)
	if err == nil || !strings.Contains(err.Error(), "snapshot") {
		t.Errorf("got %v", err)
	}
	for name, want := range map[string]string{"cow": "snapshot", "origin": "has snapshots", "mirrored": "", "thin": ""} {
		lv := l.present(name)
		if why := l.activate(lv).Unsound; want == "" && why != "" || !strings.Contains(why, want) {
			t.Errorf("%s: got %q", name, why)
		}
	}
	m, _, _ := l.find(l.present("thin").UUID)
	for _, key := range []string{m.UUID + "-tpool", dmUUID(l.lookUp("pool").UUID) + "-tpool"} {
		if d, err := l.DM.Device(devmapper.Key{UUID: key}); err == nil {
			if id, err := l.Identify(t.Context(), d.Number); id.UUID != "" || err != nil {
				t.Errorf("a pool's own device is the volume %+v (%v)", id, err)
			}
		}
	}
}

// Ensure that a device node that is missing or wrong is repaired, or reported if it cannot be repaired.
func TestVMNodes(t *testing.T) {
	l := newLab(t)
	one, two := l.lv("one-x", "8M"), l.lv("two", "8M")
	d := l.activate(one)
	other := l.activate(two)
	for _, harm := range []string{
		"rm -f /dev/vg0/one-x /dev/mapper/vg0-one--x",
		"rm -rf /dev/vg0",
		"ln -sf " + other.Path + " /dev/vg0/one-x",
	} {
		l.sh("sh", "-c", harm)
		if got := l.device(one); got.Link != "" || got.Number != d.Number {
			t.Errorf("%s: got %+v", harm, got)
		}
		l.activate(one)
	}
	for path, harms := range map[string][]string{"/dev/vg0/one-x": {"echo x >", "mkdir"}, "/dev/mapper/vg0-one--x": {"echo x >"}, "/dev/vg0": {"echo x >"}} {
		for _, harm := range harms {
			l.sh("sh", "-c", "rm -rf $0; "+harm+" $0", path)
			is(t, l.Activate(t.Context(), l.lock, one), nil, "LVM does not replace "+path+", ")
			l.sh("mv", path, "/dev/away")
			l.activate(one)
			l.sh("rm", "-r", "/dev/away")
		}
	}
}

// Ensure that a device in use is never removed, and that its user is named.
func TestVMBusy(t *testing.T) {
	l := newLab(t)
	lv := l.lv("held", "16M")
	d := l.activate(lv)
	f, err := os.Open(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	l.count("")
	var busy *mount.BusyError
	if err := l.Deactivate(t.Context(), l.lock, lv, d); !errors.As(err, &busy) || len(busy.Holders) == 0 || busy.Holders[0].Pid != os.Getpid() {
		t.Errorf("got %v", err)
	}
	if got := l.count(""); got != 0 {
		t.Errorf("%d commands", got)
	}
	f.Close()
	l.deactivate(lv)
}

// host adds a line to the host's own configuration of LVM; restore takes it back.
func (l *lab) host(line string) (restore func()) {
	l.Helper()
	const file = "/etc/lvm/lvmlocal.conf"
	was, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(was, "\n"+line+"\n"...), 0o644)
	}
	if err != nil {
		l.Fatal(err)
	}
	return func() {
		if err := os.WriteFile(file, was, 0o644); err != nil {
			l.Error(err)
		}
	}
}

// Ensure that each state of a group has its own answer.
func TestVMGroups(t *testing.T) {
	l := newLab(t)
	lv := l.lv("data", "8M")
	_, err := l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: "data"})
	is(t, err, ErrNoVG, "vg1")
	l.save(t, "novg", 1)

	// Removed by an operator, and locked by another process where LVM must not wait.
	gone := l.lv("gone", "4M")
	l.sh("lvremove", "-q", "-y", "vg0/gone")
	err = l.Activate(t.Context(), l.lock, gone)
	is(t, err, ErrNoLV, "vg0/gone", "does not exist any more")
	l.save(t, "nolv", 2)
	config := l.host("global/wait_for_locks=0")
	held, err := os.Create("/run/lock/lvm/V_vg0")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	err = l.Activate(t.Context(), l.lock, lv)
	is(t, err, ErrLocked, "it is locked")
	l.save(t, "locked", 1)
	l.Invalidate("")
	_, err = l.LookUp(t.Context(), lv.Name)
	is(t, err, ErrLocked)
	held.Close()
	config()

	l.sh("vgexport", "-q", "vg0")
	l.Invalidate("")
	if got := l.lookUp("data"); got.Presence != volume.Foreign || !strings.Contains(got.Reason, "exported") {
		t.Errorf("got %+v", got)
	}
	l.save(t, "exported", 1)
	err = l.Activate(t.Context(), l.lock, lv)
	is(t, err, ErrExported)
	l.sh("vgimport", "-q", "vg0")

	l.sh("vgchange", "-q", "-y", "--systemid", "other", "vg0")
	l.Invalidate("")
	_, err = l.LookUp(t.Context(), lv.Name)
	is(t, err, ErrForeignSystem, "another machine", "other")
	l.save(t, "systemid", 1)
	err = l.Activate(t.Context(), l.lock, lv)
	is(t, err, ErrForeignSystem)
	l.sh("vgchange", "-q", "-y", "--config", `global/system_id_source="lvmlocal" local/system_id="other"`, "--systemid", "", "vg0")

	// A disk that is missing.
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "8M", "-n", "there", "vg0", l.disks[1])
	l.sh("dd", "if="+l.disks[0], "of="+l.dir+"/label", "bs=1M", "count=2")
	l.sh("dd", "if=/dev/zero", "of="+l.disks[0], "bs=1M", "count=2", "conv=fsync")
	l.Invalidate("")
	if got := l.lookUp("data"); got.Presence != volume.Foreign || !strings.Contains(got.Reason, "missing") {
		t.Errorf("got %+v", got)
	}
	l.save(t, "partial", 1)
	l.activate(l.present("there"))
	if err := l.Activate(t.Context(), l.lock, lv); err == nil || l.device(lv).Activity != volume.Inactive {
		t.Errorf("a partial volume is active: %v", err)
	}
	if got := l.lookUp("none"); got.Presence != volume.Absent || got.Reason == "" {
		t.Errorf("got %+v", got)
	}
	l.sh("dd", "if="+l.dir+"/label", "of="+l.disks[0], "bs=1M", "count=2", "conv=fsync")
	l.Invalidate("")
	l.present("data")

	// Two groups of one name.
	only := `devices/filter=["a|^` + l.disks[2] + `$|","r|.*|"]`
	l.sh("vgchange", "-q", "-an", "vg0") // LVM looks whether there is a directory /dev/vg0
	os.RemoveAll("/dev/vg0")
	l.sh("vgcreate", "-q", "--config", only, "vg0", l.disks[2])
	l.Invalidate("")
	_, err = l.LookUp(t.Context(), lv.Name)
	is(t, err, ErrTwoVGs, "vgrename")
	l.save(t, "twovgs", 1)

	// A shared one without lvmlockd.
	l.sh("vgremove", "-q", "-y", "--config", only, "vg0")
	file := l.dir + "/metadata"
	l.sh("vgcfgbackup", "-q", "-f", file, "vg0")
	l.sh("sed", "-i", `s/"READ", "WRITE"\]/"READ"]/; 0,/flags = \[\]/s//flags = ["WRITE_LOCKED"]\nlock_type = "sanlock"\nlock_args = "1.0.0:lvmlock"/`, file)
	l.sh("vgcfgrestore", "-q", "-f", file, "vg0")
	l.Invalidate("")
	_, err = l.LookUp(t.Context(), lv.Name)
	is(t, err, ErrShared, "lvmlockd")
	l.save(t, "shared", 1)
	err = l.Activate(t.Context(), l.lock, lv)
	is(t, err, ErrShared)
}
