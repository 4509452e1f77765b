//go:build vm

package lvm

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// An origin and its thick snapshots, which device-mapper shows, are deactivated together, unless one of them
// is unknown or open.
func TestVMThickSnapshots(t *testing.T) {
	l := newLab(t)
	l.lvm("lvcreate -q -y -an -Zn -Wn -L 8M -n or-igin vg0", "lvcreate -q -y -s -L 4M -n s1 vg0/or-igin", "lvcreate -q -y -s -L 4M -n s2 vg0/or-igin",
		"lvcreate -q -y -Zn -Wn -L 8M -n other vg0", "lvcreate -q -y -s -L 4M -n s3 vg0/other")
	l.sh("lvchange", "-y", "-an", "vg0/or-igin")
	names := []string{"or-igin", "s1", "s2"}
	if got := l.present("s1").Family; len(got) != 2 {
		t.Errorf("family: %+v", got)
	}
	l.activate(l.present("s1"))
	for _, name := range names {
		var got []string
		for _, r := range l.device(l.present(name)).Relatives {
			got = append(got, r.Name.LV)
		}
		want := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
		if !slices.Equal(got, want) {
			t.Errorf("relatives of %s: got %v, want %v", name, got, want)
		}
	}

	s1 := l.present("s1")
	f, err := os.Open(l.device(l.present("or-igin")).Path)
	if err != nil {
		t.Fatal(err)
	}
	l.count("")
	d := l.device(s1)
	if r := d.Relatives[0]; r.Open != 1 {
		t.Errorf("got %+v", r)
	}
	if err := l.Deactivate(t.Context(), l.lock, s1, d); err == nil || !strings.Contains(err.Error(), "vg0/or-igin") || errors.As(err, new(*mount.BusyError)) {
		t.Errorf("the origin is open: %v", err)
	}
	f.Close()
	if err := l.Deactivate(t.Context(), l.lock, s1, volume.Device{}); err == nil || !strings.Contains(err.Error(), "together with vg0/or-igin") {
		t.Errorf("the origin is not known: %v", err)
	}
	if n := l.count(""); n != 0 {
		t.Errorf("%d commands", n)
	}
	l.deactivate(s1)
	for _, name := range names {
		if d := l.device(l.present(name)); d.Activity != volume.Inactive {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if d := l.device(l.present("s3")); d.Activity != volume.Active {
		t.Errorf("s3 belongs to another origin: %+v", d)
	}
}

// The disk of a thick snapshot fails for a moment while its origin is changed: the kernel cannot write there that the
// contents are lost, and the next activation would make it look valid. It stays active until it is removed. One that
// was only full is deactivated, and is lost after its next activation, too.
func TestVMLostSnapshot(t *testing.T) {
	l := newLab(t)
	disk, reload := l.fragile("disk", l.disks[2])
	l.sh("vgextend", "-q", "vg0", disk)
	l.lvm("lvcreate -q -y -Zn -Wn -L 8M -n target vg0 "+l.disks[0], "lvcreate -q -y -s -L 8M -n merging vg0/target "+disk,
		"lvcreate -q -y -Zn -Wn -L 8M -n origin vg0 "+l.disks[0], "lvcreate -q -y -s -L 8M -n failed vg0/origin "+disk,
		"lvcreate -q -y -Zn -Wn -L 8M -n other vg0 "+l.disks[0], "lvcreate -q -y -s -L 4M -n full vg0/other "+l.disks[1])
	pod, err := os.Open("/dev/vg0/target")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pod.Close() })
	l.sh("lvconvert", "-q", "--merge", "vg0/merging") // at the next activation
	lvs := map[string]volume.LV{}
	l.Invalidate("")
	for _, name := range []string{"origin", "failed", "other", "full", "target"} {
		lvs[name] = l.present(name)
	}
	reload(true)
	for _, name := range []string{"origin", "other", "target"} {
		l.sh("dd", "if=/dev/zero", "of="+l.device(lvs[name]).Path, "bs=1M", "count=8", "oflag=direct", "conv=notrunc", "status=none")
	}
	gives := func(when string) {
		t.Helper()
		for _, name := range []string{"failed", "full"} {
			if d := l.device(lvs[name]); d.Activity == volume.Active && !strings.Contains(d.Reason, "its contents are lost") {
				t.Errorf("%s: %s: got %+v", when, name, d)
			}
		}
	}
	gives("at once")
	for _, back := range []bool{false, true} {
		if back {
			reload(false)
		}
		l.Invalidate("")
		for _, name := range []string{"origin", "failed"} {
			lv := lvs[name]
			err := l.Deactivate(t.Context(), l.lock, lv, l.device(lv))
			is(t, err, nil, "stays active")
			if d := l.device(lv); d.Activity != volume.Active {
				t.Fatalf("%s: got %+v", name, d)
			}
			if back {
				is(t, err, nil, "the contents of the snapshot vg0/failed are lost", "the disk of the snapshot says that it is valid", "lvremove vg0/failed")
			}
		}
	}
	l.deactivate(l.present("full"))
	is(t, l.Activate(t.Context(), l.lock, l.present("full")), nil, "vg0-full is an invalid snapshot, so its contents are lost")
	gives("activated again")
	l.deactivate(l.present("other"))
	l.sh("lvremove", "-q", "-y", "vg0/failed")
	l.Invalidate("")
	l.deactivate(l.present("origin"))

	pod.Close()
	lv := lvs["target"]
	err = l.Deactivate(t.Context(), l.lock, lv, l.device(lv))
	is(t, err, nil, "the snapshot vg0/merging, which is to be merged into target, are lost")
	l.found("merging", l.differ(nil, nil), "merge-pending target: and its contents are lost")
	l.lv("later", "4M") // is still there after the remedy
	_, remedy, _ := strings.Cut(err.Error(), "cancel the merge: ")
	remedy, _, _ = strings.Cut(remedy, " (with thin pools")
	l.sh("sh", "-c", "cd "+l.dir+"; yes | ("+remedy+")")
	l.Invalidate("")
	l.present("later")
	l.Invalidate("")
	l.deactivate(l.present("target"))
}
