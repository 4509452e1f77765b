//go:build vm

package lvm

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/volume"
)

// A killed lvchange leaves a device without a table. It affects no other volume of the group, counts as
// inactive, and the next activation repairs it.
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

// A killed pvmove leaves its volume suspended and its own device without a table, or its volume on a mirror.
// Neither is deactivated, and pvmove --abort repairs both.
func TestVMMoved(t *testing.T) {
	l := newLab(t)
	for _, m := range []string{"dm-delay", "dm-mirror"} {
		l.sh("modprobe", m)
	}
	slow := l.slow(l.disks[2])
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
		l.interruptMove(slow, "moved", c.until)
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
	is(t, l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "new"}, 8*mib, ""), nil, "vg0-moved lies on space that the metadata counts as free")
	if s := l.Survey(t.Context(), "vg0", false); !slices.ContainsFunc(s.Devices, func(d join.Device) bool { return d.Name == "moved" && d.Misplaced != "" }) {
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

// The power fails during pvmove, and a thick snapshot is among the moved volumes. LVM loads its table before that of
// pvmove0 is live, which fails; pvmove and pvmove --abort fail, too. The remedy makes all of them work. LVM also loads it
// for its origin, if that is not moved itself.
func TestVMMovedSnapshot(t *testing.T) {
	l := newLab(t)
	for _, m := range []string{"dm-delay", "dm-mirror", "dm-snapshot"} {
		l.sh("modprobe", m)
	}
	slow := l.slow(l.disks[2])
	l.sh("lvcreate", "-q", "-y", "-ay", "-Zn", "-Wn", "-L", "32M", "-n", "moved", "vg0", l.disks[0])
	l.sh("lvcreate", "-q", "-y", "-s", "-L", "8M", "-n", "snap", "vg0/moved", l.disks[0])
	l.sh("lvcreate", "-q", "-y", "-ay", "-Zn", "-Wn", "-L", "8M", "-n", "stays", "vg0", l.disks[1])
	l.sh("lvcreate", "-q", "-y", "-s", "-L", "8M", "-n", "snap2", "vg0/stays", l.disks[0])
	l.interruptMove(slow, "", func(_, mirror devmapper.Mapped) bool { return mirror.Live && !l.named("vg0-stays").Suspended })
	l.Invalidate("")
	origin := l.present("stays") // its snapshot is moved
	is(t, l.Deactivate(t.Context(), l.lock, origin, l.device(origin)), nil, "pvmove moves vg0/snap2")
	for range 4 {
		l.sh("sh", "-c", "dmsetup ls | awk '/^vg0/ { print $1 }' | xargs -rn1 dmsetup remove --noudevsync 2>/dev/null; true")
	}
	l.restart(Group{})
	lv := l.present("moved")
	is(t, l.Activate(t.Context(), l.lock, origin), nil, "dmsetup resume vg0-pvmove0")
	l.sh("dmsetup", "resume", "--noudevsync", "vg0-pvmove0")
	l.activate(origin)
	l.activate(lv)
	l.sh("pvmove", "-q", "--abort")
	l.sh("lvremove", "-q", "-y", "vg0/snap", "vg0/snap2")
	l.Invalidate("")
	l.deactivate(lv)
	l.deactivate(origin)
}

// slow adds a disk with slow writes to the group.
func (l *lab) slow(disk string) string {
	l.Helper()
	sectors, err := strconv.Atoi(l.sh("blockdev", "--getsz", disk))
	if err != nil {
		l.Fatal(err)
	}
	l.sh("dmsetup", "create", "--noudevsync", "slow", "--table", fmt.Sprintf("0 %d delay %s 2048 0 %s 2048 100", sectors-2048, disk, disk))
	l.sh("dmsetup", "mknodes")
	l.sh("vgextend", "-q", "vg0", "/dev/mapper/slow")
	return "/dev/mapper/slow"
}

// interruptMove kills a pvmove of a volume, "" = all, from the first disk when the devices of the volume and of the
// move are in that state.
func (l *lab) interruptMove(to, name string, until func(moved, mirror devmapper.Mapped) bool) {
	l.Helper()
	args := []string{"-q", "-i", "1", l.disks[0], to}
	if name != "" {
		args = append([]string{"-n", name}, args...)
	}
	move := exec.Command("pvmove", args...)
	if err := move.Start(); err != nil {
		l.Fatal(err)
	}
	ok := false
	for end := time.Now().Add(2 * time.Minute); !ok && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		ok = until(l.named("vg0-moved"), l.named("vg0-pvmove0"))
	}
	move.Process.Kill()
	move.Wait()
	if !ok {
		l.Fatalf("%+v %+v", l.named("vg0-moved"), l.named("vg0-pvmove0"))
	}
}

// Older metadata is restored: a removed volume has the space of a moved one again; a RAID is linear again.
// With the newest metadata, the devices of all types of volumes are at their places.
func TestVMMisplaced(t *testing.T) {
	l := newLab(t)
	for _, m := range []string{"dm-mirror", "dm-raid", "raid1"} {
		l.sh("modprobe", m)
	}
	l.sh("vgextend", "-q", "vg0", l.disks[2])
	old, newest := filepath.Join(l.dir, "old"), filepath.Join(l.dir, "newest")
	restore := func(file string) {
		l.sh("vgcfgrestore", "-q", "-y", "--force", "-f", file, "vg0")
		l.Invalidate("")
	}
	for _, c := range []struct {
		name   string
		create []string
		change [][]string
		says   string
	}{
		{"moved", []string{"-L", "32M", l.disks[0]}, [][]string{{"lvremove", "-q", "-y", "vg0/gone"}, {"pvmove", "-q", "-i", "1", "-n", "moved", l.disks[0], l.disks[1]}}, "lies on space that the metadata gives to vg0/gone"},
		{"copied", []string{"--type", "raid1", "-m1", "-L", "32M"}, [][]string{{"lvconvert", "-q", "-y", "-m0", "vg0/copied"}}, "lies on space that the metadata gives to vg0/copied_rimage_"},
		{"thrice", []string{"--type", "raid1", "-m2", "-L", "32M"}, [][]string{{"lvconvert", "-q", "-y", "-m1", "vg0/thrice"}}, "has 2 copies or stripes, and the metadata says 3"},
	} {
		l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "64M", "-n", "gone", "vg0", l.disks[1])
		words := append([]string{"-q", "-y", "-an", "-Zn", "-Wn", "-n", c.name}, c.create[:len(c.create)-1]...)
		last := c.create[len(c.create)-1]
		if strings.HasPrefix(last, "/") {
			words = append(words, "vg0", last)
		} else {
			words = append(words, last, "vg0")
		}
		l.sh(append([]string{"lvcreate"}, words...)...)
		l.Invalidate("")
		lv := l.present(c.name)
		l.activate(lv)
		for until := time.Now().Add(2 * time.Minute); len(c.create) > 3 && !strings.HasPrefix(strings.TrimSpace(l.sh("lvs", "--noheadings", "-o", "sync_percent", "vg0/"+c.name)), "100"); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%s: not in sync", c.name)
			}
		}
		l.sh("vgcfgbackup", "-q", "-f", old, "vg0")
		for _, words := range c.change {
			l.sh(words...)
		}
		l.sh("vgcfgbackup", "-q", "-f", newest, "vg0")
		restore(old)
		is(t, l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "new"}, 8*mib, ""), nil, "vg0-"+c.name, c.says)
		is(t, l.Extend(t.Context(), l.lock, lv, l.device(lv), 64*mib), nil, "vg0-"+c.name, c.says)
		is(t, l.Deactivate(t.Context(), l.lock, lv, l.device(lv)), nil, c.says, "It stays active")
		if s := l.Survey(t.Context(), "vg0", false); !slices.ContainsFunc(s.Devices, func(d join.Device) bool { return d.Name == c.name && strings.Contains(d.Misplaced, c.says) }) {
			t.Errorf("%s: survey: %+v", c.name, s)
		}
		restore(newest)
		if s := l.Survey(t.Context(), "vg0", false); slices.ContainsFunc(s.Devices, func(d join.Device) bool { return d.Misplaced != "" }) {
			t.Errorf("%s: survey: %+v", c.name, s)
		}
		if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "new"}, 8*mib, ""); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		l.deactivate(lv)
		l.sh("vgchange", "-q", "-an", "vg0")
		l.sh("lvremove", "-q", "-y", "vg0")
		l.Invalidate("")
	}

	// A stack of devices, of which only the lowest are on disks.
	for _, part := range []string{"data", "meta"} {
		l.sh("lvcreate", "-q", "-y", "-Zn", "-Wn", "--nosync", "--type", "raid1", "-m1", "-L", "32M", "-n", part, "vg0")
	}
	l.sh("modprobe", "dm-thin-pool")
	l.sh("lvconvert", "-q", "-y", "-Zn", "--type", "thin-pool", "--poolmetadata", "vg0/meta", "vg0/data")
	l.sh("lvcreate", "-q", "-y", "-V", "64M", "--thinpool", "data", "-n", "thin", "vg0")
	l.sh("vgchange", "-q", "-ay", "vg0")
	l.Invalidate("")
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "new"}, 8*mib, ""); err != nil {
		t.Error(err)
	}
	if s := l.Survey(t.Context(), "vg0", true); len(s.Devices) < 2 || slices.ContainsFunc(s.Devices, func(d join.Device) bool { return d.Misplaced != "" }) {
		t.Errorf("survey: %+v", s)
	}
}

// An lvconvert -m0 was killed after it wrote the metadata: the present table, to which a pod would continue
// to write, is not that of the metadata.
func TestVMMisplacedType(t *testing.T) {
	l := newLab(t)
	l.sh("modprobe", "dm-mirror")
	lv := l.lv("a", "8M")
	d := l.activate(lv)
	dir := t.TempDir()
	l.sh("mkfs.ext4", "-q", d.Path)
	l.sh("mount", d.Path, dir)
	t.Cleanup(func() { exec.Command("umount", dir).Run() })
	claim := []join.Claim{{UUID: lv.UUID, LV: "a", Dir: dir, Phase: volume.Held, For: "pod a"}}
	// Both copies are the volume's own space.
	l.sh("sh", "-ec", `d=vg0-a; linear=$(dmsetup table $d); at=${linear#*linear }
		swap() { dmsetup suspend --nolockfs --noudevsync $d; dmsetup load $d --table "$1"; }
		swap "0 16384 mirror core 2 1024 nosync 2 $at $at"; dmsetup resume --noudevsync $d; swap "$linear"`)
	l.Invalidate("")
	l.found("killed", l.differ(claim, nil), "stale-mapping a: has a mirror table, and the metadata says linear")
	l.found("killed", l.differ(claim, nil), "stale-mapping a: : dmsetup resume vg0-a; only if older metadata")
	is(t, l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "new"}, 4*mib, ""), nil, "vg0-a has a mirror table", "flexd check says how to resume it")
	is(t, l.Deactivate(t.Context(), l.lock, lv, volume.Device{}), nil, "vg0-a")
	l.sh("dmsetup", "resume", "--noudevsync", "vg0-a")
	l.found("resumed", l.differ(claim, nil))
	l.sh("umount", dir)
	l.Invalidate("")
	l.deactivate(lv)
}

// named returns the device with a name, or none.
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
