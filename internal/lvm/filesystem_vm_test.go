//go:build vm

package lvm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// The content of volumes: this package makes and finds the devices; package mount reads, formats, mounts and
// grows them.

// created is the uuid of a volume that flexd created.
const created volume.UUID = "created"

// A user is a lab with the operations of a lane.
type user struct {
	*lab
	mount.Ops
}

func newUser(t *testing.T) *user {
	u := &user{newLab(t), mount.Ops{Runner: run.NewExec()}}
	u.sh("vgremove", "-qq", "-y", "vg0")
	u.sh("vgcreate", "-q", "-s", "64k", "vg0", u.disks[0], u.disks[1])
	t.Cleanup(func() {
		exec.Command("sh", "-c", "umount "+u.dir+"/*").Run() // what a failed test left
	})
	return u
}

// in gives a subtest the same disks.
func (u *user) in(t *testing.T) *user {
	return &user{&lab{T: t, Provider: u.Provider, recorder: u.recorder, disks: u.disks, dir: u.dir, lock: u.lock}, u.Ops}
}

// active returns the device of a volume, which it activates.
func (u *user) active(name string) volume.Device {
	u.Helper()
	return u.activate(u.present(name))
}

func (u *user) probe(d volume.Device, at string) volume.FS {
	u.Helper()
	fs, err := u.Probe(u.Context(), u.lock, d, at, created, "")
	if err != nil {
		u.Fatal(err)
	}
	return fs
}

func (u *user) format(d volume.Device, fsType string, opts ...string) {
	u.Helper()
	if err := u.Format(u.Context(), u.lock, mount.Formatting{Device: d, Type: fsType, Opts: opts}, func() error { return nil }); err != nil {
		u.Fatal(err)
	}
}

// land mounts a device at a directory of that name.
func (u *user) land(d volume.Device, fsType, name string) (dir string, err error) {
	u.Helper()
	dir = filepath.Join(u.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		u.Fatal(err)
	}
	on, _ := u.mounts(d)
	return dir, u.Mount(u.Context(), u.lock, mount.MountSpec{Device: d, FSType: fsType, Dir: dir, Root: u.dir, First: len(on) == 0}, func() error { return nil })
}

func (u *user) mustLand(d volume.Device, fsType, name string) string {
	u.Helper()
	dir, err := u.land(d, fsType, name)
	if err != nil {
		u.Fatal(err)
	}
	return dir
}

func (u *user) unmount(d volume.Device, dir string) {
	u.Helper()
	if err := u.Unmount(u.Context(), u.lock, dir, d.Number, true); err != nil {
		u.Fatal(err)
	}
}

// mounts returns where a device is mounted, and with which options.
func (u *user) mounts(d volume.Device) (dirs []string, super []string) {
	u.Helper()
	table, err := mounttable.Own()
	if err != nil {
		u.Fatal(err)
	}
	for _, e := range table.OfDevice(d.Number, d.Path) {
		dirs, super = append(dirs, e.Dir), e.Super
	}
	return dirs, super
}

// written returns the number of sectors ever written to a device.
func (u *user) written(d volume.Device) string {
	u.Helper()
	u.sh("blockdev", "--flushbufs", d.Path)
	return strings.Fields(u.sh("cat", "/sys/dev/block/"+d.Number+"/stat"))[6]
}

// must fails unless a file contains these words.
func (u *user) must(file, words string) {
	u.Helper()
	if b, err := os.ReadFile(file); err != nil || string(b) != words {
		u.Errorf("%s: got %q, %v", file, b, err)
	}
}

func (u *user) put(file, words string) {
	u.Helper()
	f, err := os.Create(file)
	if err != nil {
		u.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(words); err != nil {
		u.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		u.Fatal(err)
	}
}

// Operations with filesystems on volumes of one group, one after the other: a group for each would take
// longer than the tests.
func TestVMFilesystems(t *testing.T) {
	u := newUser(t)
	for _, c := range []struct {
		name string
		test func(*user)
	}{
		{"recycled extents", recycledExtents}, // first: it needs to know where the next volume will lie
		{"missing part", missingPart},
		{"full pool", fullPool},
		{"snapshots", snapshots},
		{"grow", grow},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(u.in(t)) })
	}
}

// Ensure that a snapshot is used beside its mounted origin if the kernel can distinguish them, and refused
// otherwise; that nothing is written to a read-only one; and that one with the skip flag is used like others.
func snapshots(u *user) {
	u.lvm(
		"lvcreate -qq -y -Zn -Wn -L 64M -n ext4 vg0",
		"lvcreate -qq -y -Zn -Wn -L 320M -n xfs vg0",
		"lvcreate -qq -y -Zn -Wn -L 128M -n btrfs vg0",
		"lvcreate -qq -y -L 64M -T vg0/pool",
		"lvcreate -qq -y -V 64M -T vg0/pool -n thin",
	)
	types := map[string]string{"ext4": "ext4", "xfs": "xfs", "btrfs": "btrfs", "thin": "ext4"}
	origin := map[string]volume.Device{}
	for name, fsType := range types {
		origin[name] = u.active(name)
		var args []string
		if fsType == "ext4" { // what it zeroes later would fill the snapshots
			args = []string{"-E", "lazy_itable_init=0,lazy_journal_init=0"}
		}
		u.format(origin[name], fsType, args...)
		u.put(u.mustLand(origin[name], fsType, name)+"/file", "of "+name)
	}
	u.lvm(
		"lvcreate -qq -y -s -L 16M -n xfs.s vg0/xfs",
		"lvcreate -qq -y -s -pr -L 16M -n xfs.ro vg0/xfs",
		"lvcreate -qq -y -s -pr -L 16M -n ext4.ro vg0/ext4",
		"lvcreate -qq -y -s -L 16M -n btrfs.s vg0/btrfs",
		"lvcreate -qq -y -s -n thin.s vg0/thin",
	)
	for _, name := range []string{"ext4.ro", "xfs.s", "xfs.ro", "btrfs.s", "thin.s"} {
		u.T.Run(name, func(t *testing.T) {
			u := u.in(t)
			of, kind, _ := strings.Cut(name, ".")
			fsType := types[of]
			lv := u.present(name)
			if thin := of == "thin"; thin && u.device(lv).Activity != volume.Inactive {
				t.Error("the skip flag is not set: the test proves nothing")
			}
			d := u.activate(lv)
			if (kind == "ro") != d.ReadOnly {
				t.Fatalf("got %+v", d)
			}
			if fs := u.probe(d, ""); fs.Content != volume.Filesystem || fs.Type != fsType {
				t.Errorf("got %+v", fs)
			}
			before := u.written(d)
			dir, err := u.land(d, fsType, name)
			if fsType == "btrfs" {
				var refusal *mount.Refusal
				if !errors.As(err, &refusal) || !strings.Contains(err.Error(), "vg0-btrfs)") || !strings.Contains(err.Error(), "vg0-"+name+")") {
					t.Errorf("got %v", err)
				}
				if on, _ := u.mounts(d); len(on) != 0 {
					t.Errorf("mounted at %v", on)
				}
				if on, _ := u.mounts(origin[of]); len(on) != 1 {
					t.Errorf("the origin is mounted at %v", on)
				}
				u.unmount(origin[of], filepath.Join(u.dir, of))
				dir, err = u.land(d, fsType, name)
				defer u.mustLand(origin[of], fsType, of)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer u.unmount(d, dir)
			u.must(dir+"/file", "of "+of)
			on, super := u.mounts(d)
			if len(on) != 1 || on[0] != dir || slices.Contains(super, "nouuid") != (fsType == "xfs") {
				t.Errorf("mounted at %v with %v", on, super)
			}
			if kind == "ro" {
				if super[0] != "ro" {
					t.Errorf("got %v", super)
				}
				if got := u.written(d); got != before {
					t.Errorf("%s sectors were written, before: %s", got, before)
				}
			} else {
				u.put(dir+"/file", "of "+name)
			}
			if fs := u.probe(d, dir); fs.Content != volume.Filesystem {
				t.Errorf("got %+v", fs)
			}
		})
	}
	for name := range types {
		u.must(filepath.Join(u.dir, name, "file"), "of "+name)
	}

	// One that overflowed is in error, and reads as nothing: which is not blank.
	u.lvm("lvcreate -qq -y --config activation/monitoring=0 -s -L 4M -n over vg0/ext4") // dmeventd would unmount it
	d := u.active("over")
	dir := u.mustLand(d, "ext4", "over")
	if fs := u.probe(d, dir); fs.Content != volume.Filesystem {
		u.Errorf("got %+v", fs)
	}
	u.sh("dd", "if=/dev/urandom", "of="+filepath.Join(u.dir, "ext4", "much"), "bs=1M", "count=12", "conv=fsync")
	if u.try("dd", "if=/dev/zero", "of="+dir+"/more", "bs=1M", "count=1", "conv=fsync") {
		u.Error("it takes data: the test proves nothing")
	}
	if fs := u.probe(d, dir); fs.Content != volume.FilesystemFailed {
		u.Errorf("got %+v", fs)
	}
	if err := u.Unmount(u.Context(), u.lock, dir, d.Number, true); !errors.Is(err, mount.ErrUnwritten) {
		u.Errorf("umount: got %v", err)
	}
	if fs, err := u.Probe(u.Context(), u.lock, d, "", created, ""); err == nil {
		u.Errorf("probe: got %+v", fs)
	}
	d.Unsound = "" // what Device says of any snapshot
	if err := u.Format(u.Context(), u.lock, mount.Formatting{Device: d, Type: "ext4", Repeat: true}, func() error { return nil }); err == nil {
		u.Error("an overflowed snapshot was formatted")
	}
	for name, d := range origin {
		u.unmount(d, filepath.Join(u.dir, name))
	}
}

// Ensure that the data of a removed volume is found on its extents and not formatted, that the documented
// remedy works, and that volumes made by flexd are blank.
func recycledExtents(u *user) {
	const size = 320 * mib
	old := u.active(u.lv("old", fmt.Sprint(size, "b")).Name.LV)
	u.format(old, "ext4", "-b", "1024")
	u.deactivate(u.present("old"))
	u.lvm(
		"lvremove -qq -y vg0/old",
		fmt.Sprintf("lvcreate -qq -y -Zn -Wn -L %db -n new vg0", size),
	)
	d := u.active("new")
	if fs := u.probe(d, ""); fs.Content != volume.Filesystem {
		u.Errorf("got %+v: the extents are not the old volume's, the test proves nothing", fs)
	}
	u.sh("dd", "if=/dev/zero", "of="+d.Path, "bs=1M", "count=8", "conv=fsync")
	const found = "a backup superblock of ext4 at offset 8389632"
	if fs := u.probe(d, ""); fs.Content != volume.ForeignContent || !strings.Contains(fs.What, found) {
		u.Errorf("got %+v", fs)
	}
	var refusal *mount.Refusal
	if err := u.Format(u.Context(), u.lock, mount.Formatting{Device: d, Type: "xfs"}, func() error { return nil }); !errors.As(err, &refusal) ||
		!strings.Contains(err.Error(), found) || !strings.Contains(refusal.Hint, "blkdiscard -z /dev/vg0/new") {
		u.Errorf("got %v", err)
	}

	u.sh("dd", "if=/dev/urandom", "of="+d.Path, "bs=1M", "seek=9", "count=1", "conv=fsync")
	u.deactivate(u.present("new"))
	u.lvm("lvremove -qq -y vg0/new")
	if err := u.Create(u.Context(), u.lock, volume.Name{VG: "vg0", LV: "ours"}, size, ""); err != nil {
		u.Fatal(err)
	}
	d = u.active("ours")
	if fs := u.probe(d, ""); fs.Content != volume.Blank {
		u.Errorf("got %+v", fs)
	}
	b := make([]byte, 1<<20)
	f, err := os.Open(d.Path)
	if err != nil {
		u.Fatal(err)
	}
	_, err = f.ReadAt(b, 9*mib)
	f.Close() // nothing else may have it open when it is formatted
	if err != nil || !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
		u.Errorf("the extents are not the old volume's, the test proves nothing (%v)", err)
	}
	if err := u.Format(u.Context(), u.lock, mount.Formatting{Device: d, Type: "ext4", Created: created}, func() error { return nil }); err != nil {
		u.Error(err)
	}
}

// Ensure that a volume with a missing part is neither used nor formatted, even if it reads as zeros.
func missingPart(u *user) {
	const sectors = 64 * mib / 512
	lv := u.lv("part", "64M")
	d := u.activate(lv)
	for _, target := range []string{"zero", "error"} {
		for _, start := range []int{0, sectors - 8192} {
			text := fmt.Sprintf("0 %d zero\n%d 8192 %s\n", sectors-8192, sectors-8192, target)
			if start == 0 {
				text = fmt.Sprintf("0 8192 %s\n8192 %d zero\n", target, sectors-8192)
			}
			u.sh("sh", "-c", "printf '"+text+"' | dmsetup load --noudevsync vg0-part && dmsetup resume --noudevsync vg0-part")
			now := u.device(lv)
			if !now.Unusable || now.Unsound == "" || now.Number != d.Number {
				u.Errorf("%s at %d: got %+v", target, start, now)
			}
			before := u.written(now)
			var refusal *mount.Refusal
			if err := u.Format(u.Context(), u.lock, mount.Formatting{Device: now, Type: "ext4", Repeat: true}, func() error { return nil }); !errors.As(err, &refusal) {
				u.Errorf("%s at %d: got %v", target, start, err)
			}
			if target == "error" {
				now.Unsound, now.Unusable = "", false
				if fs, err := u.Probe(u.Context(), u.lock, now, "", created, ""); err == nil {
					u.Errorf("%s at %d: got %+v", target, start, fs)
				}
			}
			if got := u.written(now); got != before {
				u.Errorf("%s at %d: %s sectors were written, before: %s", target, start, got, before)
			}
		}
	}
}

// Ensure that an mkfs in a full pool fails, and can be repeated when there is space.
func fullPool(u *user) {
	u.lvm(
		"lvcreate -qq -y -L 8M --errorwhenfull y -T vg0/full",
		"lvcreate -qq -y -V 64M -T vg0/full -n a",
		"lvcreate -qq -y -V 320M -T vg0/full -n b",
	)
	a, b := u.active("a"), u.present("b")
	u.activate(b) // before the pool is full: then it is refused
	u.try("dd", "if=/dev/zero", "of="+a.Path, "bs=1M", "count=32", "oflag=direct")
	d := u.device(b)
	if !d.Unusable || !strings.Contains(d.Reason, "full") {
		u.Errorf("got %+v", d)
	}
	d.Unusable = false // it may fill up a moment later
	for _, fsType := range []string{"xfs", "btrfs", "ext4"} {
		err := u.Format(u.Context(), u.lock, mount.Formatting{Device: d, Type: fsType, Repeat: true}, func() error { return nil })
		if err == nil {
			u.Fatalf("%s was made without room for it", fsType)
		}
		u.Log(err)
		if fs, err := u.Probe(u.Context(), u.lock, d, "", created, ""); err == nil && fs.Content == volume.Filesystem {
			u.Errorf("%s: got %+v", fsType, fs)
		}
	}
	u.lvm("lvextend -qq -y -L +64M vg0/full")
	if err := u.Format(u.Context(), u.lock, mount.Formatting{Device: d, Type: "ext4", Repeat: true}, func() error { return nil }); err != nil {
		u.Fatal(err)
	}
	u.put(u.mustLand(d, "ext4", "b")+"/file", "b")
}

// Ensure that a mounted volume and its filesystem are extended after any interruption, and that rounding
// causes no further extensions.
func grow(u *user) {
	u.lvm(
		"lvcreate -qq -y -Zn -Wn -L 129M -n g-ext4 vg0",
		"lvcreate -qq -y -Zn -Wn -L 320M -n g-xfs vg0",
		"lvcreate -qq -y -Zn -Wn -L 256M -n g-btrfs vg0",
	)
	for name, c := range map[string]struct {
		size   int64 // of the device at first
		little int64 // that much more is less than the filesystem can use
		more   int64 // that it can
	}{
		"ext4":  {129 * mib, 4 * mib, 32 * mib}, // a last group must have room for its own tables
		"xfs":   {320 * mib, 128 << 10, 64 * mib},
		"btrfs": {256 * mib, 0, 64 * mib},
	} {
		u.T.Run(name, func(t *testing.T) {
			u, lv := u.in(t), "g-"+name
			d := u.active(lv)
			u.format(d, name, map[string][]string{"ext4": {"-b", "4096"}}[name]...)
			dir := u.mustLand(d, name, lv)
			u.put(dir+"/file", name)
			first := u.probe(d, dir).Size
			to := func(size int64) volume.FS {
				t.Helper()
				if err := u.Extend(t.Context(), u.lock, u.present(lv), d, size); err != nil {
					t.Fatal(err)
				}
				if d = u.device(u.present(lv)); d.Size != size {
					t.Fatalf("the device has %d bytes, not %d", d.Size, size)
				}
				for range 2 { // the second finds it done
					if err := u.Grow(t.Context(), u.lock, d, name, dir); err != nil {
						t.Fatal(err)
					}
				}
				return u.probe(d, dir)
			}
			if c.little > 0 {
				if fs := to(c.size + c.little); fs.Size != first {
					t.Errorf("%d bytes more: got %+v, first it was %d: the test proves nothing", c.little, fs, first)
				}
			}

			// Cut after the metadata, before the device; and between device and
			// filesystem.
			u.lvm(fmt.Sprintf("lvextend -qq -y --driverloaded n -L %db vg0/%s", c.size+c.more/2, lv))
			if got := u.device(u.present(lv)); got.Size >= c.size+c.more/2 {
				t.Fatalf("got %+v: the test proves nothing", got)
			}
			if err := u.Extend(t.Context(), u.lock, u.present(lv), d, c.size+c.more/2); err != nil {
				t.Fatal(err)
			}
			if got := u.device(u.present(lv)); got.Size != c.size+c.more/2 {
				t.Errorf("got %+v", got)
			}
			room := volume.Room(c.size + c.more)
			if fs := to(c.size + c.more); fs.Size != room {
				t.Errorf("got %+v", fs)
			}
			u.count("")
			if err := u.Extend(t.Context(), u.lock, u.present(lv), d, c.size+c.more); err != nil || u.count("lvextend") != 0 {
				t.Errorf("extended to what it has: got %v", err)
			}
			u.must(dir+"/file", name)
			u.unmount(d, dir)
			if fs := u.probe(d, ""); fs.Size != room {
				t.Errorf("unmounted: got %+v", fs)
			}
			if err := u.Check(t.Context(), u.lock, d, name); err != nil {
				t.Error(err)
			}
		})
	}
}

// While a RAID is reshaped, the kernel cannot read the end of its device: the volume stays active, its
// filesystem is used, and it is taken neither for blank nor for data.
func TestVMReshape(t *testing.T) {
	u := newUser(t)
	u.sh("vgextend", "-q", "vg0", u.disks[2], u.disks[3])
	u.sh("lvcreate", "-q", "-y", "--type", "raid5", "-i2", "-L", "16M", "-n", "r", "vg0")
	u.Invalidate("")
	d := u.active("r")
	u.format(d, "ext4")
	await := func(state string) {
		for end := time.Now().Add(time.Minute); time.Now().Before(end) && !strings.Contains(u.sh("dmsetup", "status", "vg0-r"), state); time.Sleep(100 * time.Millisecond) {
		}
	}
	await(" idle ")
	u.sh("lvchange", "-q", "--maxrecoveryrate", "1k", "vg0/r")
	u.sh("lvconvert", "-q", "-y", "--stripes", "3", "vg0/r")
	u.Invalidate("")
	lv := u.present("r")
	d = u.device(lv)
	if d.Reshaped != "vg0/r" || d.Size <= 16*mib {
		t.Fatalf("got %+v", d)
	}
	is(t, u.Deactivate(t.Context(), u.lock, lv, d), nil, "the RAID vg0/r is being reshaped")
	u.sh("lvchange", "-an", "vg0/r")
	d = u.activate(lv)
	for _, c := range []struct {
		reshaped, seen, says string
	}{
		{d.Reshaped, "ext4", ""},
		{d.Reshaped, "", "the end of " + d.Path + " cannot be read until a reshape has ended (read "},
		{d.Reshaped, "xfs", "the end of " + d.Path + " cannot be read until a reshape has ended (read "},
		{"", "ext4", "input/output error"},
	} {
		d.Reshaped = c.reshaped
		fs, err := u.Probe(t.Context(), u.lock, d, "", "", c.seen)
		if c.says != "" {
			is(t, err, nil, c.says)
		} else if err != nil || fs.Content != volume.Filesystem || fs.Type != c.seen {
			t.Errorf("got %+v, %v", fs, err)
		}
	}
	if err := u.Check(t.Context(), u.lock, d, "ext4"); err != nil {
		t.Error(err)
	}
	dir := u.mustLand(d, "ext4", "m")
	if err := u.Grow(t.Context(), u.lock, d, "ext4", dir); err == nil || errors.Is(err, mount.ErrFailed) {
		t.Errorf("got %v", err)
	}
	u.unmount(d, dir)
	u.sh("lvchange", "-q", "--maxrecoveryrate", "0", "vg0/r")
	await(" idle ")
	u.deactivate(lv)
	d = u.activate(lv)
	if fs := u.probe(d, ""); fs.Content != volume.Filesystem || d.Reshaped != "" {
		t.Errorf("got %+v on %+v", fs, d)
	}
}
