//go:build vm

package lvm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// Ensure that a volume with any name that LVM allows is created, found, deactivated, activated and extended.
func TestVMWholeWay(t *testing.T) {
	l := newLab(t)
	for _, name := range []string{"data", "a-b.c", "--", "x+_.--y-"} {
		if checkName(name) != nil {
			continue
		}
		n := volume.Name{VG: "vg0", LV: name}
		if lv := l.lookUp(name); lv.Presence != volume.Absent {
			t.Fatalf("got %+v", lv)
		}
		if err := l.Create(t.Context(), l.lock, n, 9*mib, ""); err != nil {
			t.Fatal(err)
		}
		lv := l.present(name)
		if lv.Size != 12*mib || !lv.Created || lv.ReadOnly {
			t.Errorf("got %+v", lv)
		}
		d := l.activate(lv)
		if d.Size != 12*mib || d.Seq == 0 || d.ReadOnly || d.Suspended {
			t.Errorf("got %+v", d)
		}
		id, err := l.Identify(t.Context(), d.Number)
		if err != nil || id != (volume.Identity{UUID: lv.UUID, Name: n}) {
			t.Errorf("got %+v %v", id, err)
		}
		l.deactivate(lv)
		l.deactivate(lv)
		l.count("")
		d = l.activate(lv)
		if got := l.count(""); got != 1 {
			t.Errorf("activation took %d commands", got)
		}
		if !reflect.DeepEqual(l.activate(lv), d) || l.count("") != 0 {
			t.Errorf("what is active costs a command")
		}
		for range 2 {
			if err := l.Extend(t.Context(), l.lock, lv, d, 21*mib); err != nil {
				t.Fatal(err)
			}
			if lv, d = l.present(name), l.device(lv); lv.Size != 24*mib || d.Size != 24*mib {
				t.Errorf("extended: got %+v %+v", lv, d)
			}
		}
		l.deactivate(lv)
		if err := l.Extend(t.Context(), l.lock, lv, volume.Device{}, 25*mib); err != nil {
			t.Fatal(err)
		}
		if lv = l.present(name); lv.Size != 28*mib || l.device(lv).Activity != volume.Inactive {
			t.Errorf("extended while inactive: got %+v", lv)
		}
		if d := l.activate(lv); d.Unsound != "" {
			t.Errorf("got %+v", d)
		}
	}
	l.restart(Group{})
	l.present("data")
	l.save(t, "report", 1)
}

// Ensure that a new volume on extents of a removed volume is zero.
func TestVMRecycledExtents(t *testing.T) {
	l := newLab(t)
	old := l.lv("old", "40M")
	d := l.activate(old)
	l.sh("sh", "-c", "tr '\\0' 'x' < /dev/zero | dd of="+d.Path+" bs=1M count=40 iflag=fullblock conv=fsync 2>&1; mkfs.ext4 -q -F "+d.Path)
	l.deactivate(old)
	extents := func(name string) string { return l.sh("lvs", "--noheadings", "-o", "seg_pe_ranges", "vg0/"+name) }
	were := extents("old")
	l.sh("lvremove", "-q", "-y", "vg0/old")
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "new"}, 40*mib, ""); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(l.device(l.present("new")).Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 40*mib)
	if _, err := f.ReadAt(buf, 0); err != nil {
		t.Fatal(err)
	}
	if rest := bytes.TrimLeft(buf, "\x00"); len(rest) != 0 {
		t.Errorf("it is not zero at %d", len(buf)-len(rest))
	}
	if are := extents("new"); are != were {
		t.Errorf("the extents are %s, not the old volume's %s: the test proves nothing", are, were)
	}
}

// Ensure that an interrupted creation does not count as a volume, and is completed.
func TestVMCreateCut(t *testing.T) {
	l := newLab(t)
	for _, state := range []string{"-ay", "-an"} {
		name := "cut" + state[1:]
		l.sh("lvcreate", "-q", "-y", state, "-Zn", "-Wn", "-L", "8M", "--addtag", tagCreating, "-n", name, "vg0")
		l.Invalidate("")
		if lv := l.lookUp(name); lv.Presence != volume.Absent || !strings.Contains(lv.Reason, "interrupted") {
			t.Errorf("look up %s: got %+v, want an interrupted creation", name, lv)
		}
		if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: name}, 16*mib, ""); err != nil {
			t.Fatalf("create %s: %v", name, err)
		}
		if lv := l.present(name); lv.Size != 16*mib || !lv.Created {
			t.Errorf("look up %s: got %+v, want 16 MiB, created", name, lv)
		}
		if tags := l.sh("lvs", "--noheadings", "-o", "lv_tags", "vg0/"+name); tags != tagCreated {
			t.Errorf("tags of %s: got %q, want %q", name, tags, tagCreated)
		}
	}
	// A signature at the end of the extents that are added.
	l.sh("lvcreate", "-q", "-y", "-ay", "-Zn", "-Wn", "-L", "16M", "-n", "old", "vg0")
	label := make([]byte, 256) // of an md RAID of version 1.0, whose place is 8 KiB before the end
	binary.LittleEndian.PutUint32(label, 0xa92b4efc)
	label[4], label[16] = 1, 1
	binary.LittleEndian.PutUint64(label[144:], (16*mib-8<<10)/512)
	old, err := os.OpenFile("/dev/vg0/old", os.O_WRONLY|os.O_SYNC, 0)
	if err == nil {
		_, err = old.WriteAt(label, 16*mib-8<<10)
		old.Close()
	}
	if text := l.sh("blkid", "-p", "/dev/vg0/old"); err != nil || !strings.Contains(text, "linux_raid_member") {
		t.Fatalf("%v, %s: this proves nothing", err, text)
	}
	l.sh("lvremove", "-q", "-y", "vg0/old")
	for _, name := range []string{"signed", "signed2"} {
		l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "8M", "--addtag", tagCreating, "-n", name, "vg0")
		if name == "signed2" { // cut after the extension
			l.sh("lvchange", "--addtag", tagBlank+fmt.Sprint(8*mib), "vg0/"+name)
			l.sh("lvextend", "-q", "-y", "-L", "16M", "vg0/"+name)
			l.sh("lvchange", "-ay", "vg0/"+name)
			l.sh("sh", "-c", "blkdiscard -z -l 8M /dev/vg0/"+name)
			if text := l.sh("blkid", "-p", "/dev/vg0/"+name); !strings.Contains(text, "linux_raid_member") {
				t.Fatalf("%s: this proves nothing", text)
			}
		}
		l.Invalidate("")
		if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: name}, 16*mib, ""); err != nil {
			t.Errorf("create %s: %v", name, err)
		}
		if tags := l.sh("lvs", "--noheadings", "-o", "lv_tags", "vg0/"+name); tags != tagCreated {
			t.Errorf("tags of %s: got %q, want %q", name, tags, tagCreated)
		}
		d := l.device(l.present(name))
		l.sh("dd", "if=/dev/zero", "of="+d.Path, "bs=1M", "count=16", "conv=fsync")
		f, err := os.OpenFile(d.Path, os.O_WRONLY|os.O_SYNC, 0)
		if err == nil {
			_, err = f.WriteAt(label, 16*mib-8<<10)
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		l.sh("lvchange", "-an", "vg0/"+name)
		l.sh("lvremove", "-q", "-y", "vg0/"+name)
	}
	// A VM that has it open as a plain block device.
	l.sh("lvcreate", "-q", "-y", "-ay", "-Zn", "-Wn", "-L", "16M", "--addtag", tagCreating, "-n", "open", "vg0")
	l.Invalidate("")
	f, err := os.OpenFile("/dev/vg0/open", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("row"), 8*mib); err != nil {
		t.Fatal(err)
	}
	var busy *mount.BusyError
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "open"}, 16*mib, ""); !errors.As(err, &busy) {
		t.Errorf("create open: got %v", err)
	}
	row := make([]byte, 3)
	if _, err := f.ReadAt(row, 8*mib); err != nil || string(row) != "row" {
		t.Errorf("it has %q now, %v", row, err)
	}
	f.Close()
	// The owner took it for a volume meanwhile, or the power went before lvcreate had wiped
	// it: that cannot be distinguished.
	l.sh("lvcreate", "-q", "-y", "-ay", "-Zn", "-Wn", "-L", "16M", "--addtag", tagCreating, "-n", "used", "vg0")
	l.sh("mkfs.ext4", "-q", "-F", "/dev/vg0/used")
	l.Invalidate("")
	var refusal *mount.Refusal
	err = l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "used"}, 24*mib, "")
	if !errors.As(err, &refusal) || !strings.Contains(err.Error(), "creation of vg0/used was interrupted") ||
		!strings.Contains(err.Error(), "an ext4 signature") || !strings.Contains(err.Error(), "lvchange --deltag "+tagCreating+" vg0/used") {
		t.Errorf("create used: got %v, want a refusal that names the signature and the way out", err)
	}
	l.sh("e2fsck", "-fn", "/dev/vg0/used")
	if size := l.sh("blockdev", "--getsize64", "/dev/vg0/used"); size != fmt.Sprint(16*mib) {
		t.Errorf("it was refused, and has %s bytes", size)
	}
	// A creation that had been cut when it was looked at, and was adopted since.
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "16M", "--addtag", tagCreating, "-n", "adopted", "vg0")
	l.Invalidate("")
	l.lookUp("adopted")
	l.sh("lvchange", "--deltag", tagCreating, "vg0/adopted") // not noticed yet: the test runs no watch
	err = l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "adopted"}, 16*mib, "")
	is(t, err, nil, "vg0/adopted exists already")

	l.lv("theirs", "8M")
	err = l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "theirs"}, 8*mib, "")
	is(t, err, nil, "vg0/theirs exists already")
}

// Ensure that a blank volume is blank after its extension by extents of a removed volume, even after an
// interruption.
func TestVMExtendBlank(t *testing.T) {
	l := newLab(t)
	l.sh("lvcreate", "-q", "-y", "-ay", "-Zn", "-Wn", "-L", "800M", "-n", "old", "vg0")
	l.sh("sh", "-c", "yes 'a line of the old tenant' | dd of=/dev/vg0/old bs=1M count=800 iflag=fullblock conv=fsync 2>&1")
	l.sh("lvremove", "-q", "-y", "vg0/old")
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "new"}, 300*mib, ""); err != nil {
		t.Fatal(err)
	}
	probe := func() volume.Content {
		t.Helper()
		fs, err := mount.Ops{Runner: l.Runner}.Probe(t.Context(), l.lock, l.activate(l.present("new")), "", created, "")
		if err != nil {
			t.Fatal(err)
		}
		return fs.Content
	}
	extend := func(size int64) {
		t.Helper()
		lv := l.present("new")
		if err := l.ExtendBlank(t.Context(), l.lock, lv, l.device(lv), size); err != nil {
			t.Fatal(err)
		}
		tags := l.sh("lvs", "--noheadings", "-o", "lv_tags", "vg0/new")
		if lv := l.present("new"); probe() != volume.Blank || lv.Size != size || lv.Unzeroed != 0 || tags != tagCreated {
			t.Errorf("extended: content %d, %+v, tags %s", probe(), lv, tags)
		}
	}
	extend(304 * mib)
	l.sh("lvchange", "--addtag", tagBlank+fmt.Sprint(304*mib), "vg0/new")
	l.sh("lvextend", "-q", "-y", "-L", "640M", "vg0/new")
	l.Invalidate("")
	if lv := l.present("new"); probe() != volume.ForeignContent || lv.Unzeroed != 304*mib {
		t.Errorf("cut: content %d, %+v", probe(), lv)
	}
	extend(640 * mib)
}

// Ensure that with `zero: all` a new volume is zero, even after an interrupted creation, and that a thin pool
// must zero its blocks.
func TestVMZeroAll(t *testing.T) {
	l := newLab(t)
	const size = 288 * mib // of a smaller one, the places of labels are all of it
	l.sh("lvcreate", "-q", "-y", "-ay", "-Zn", "-Wn", "-L", "576M", "-n", "old", "vg0")
	// marks visits a page in each MiB: all of the space would take an emulated processor long.
	page := []byte(strings.Repeat("data of an old tenant", 4096/21+1)[:4096])
	marks := func(path string, size int64, visit func(f *os.File, off int64) error) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		for off := int64(0); off < size && err == nil; off += mib {
			err = visit(f, off+off/mib%32*4096)
		}
		if err != nil || f.Sync() != nil || f.Close() != nil {
			t.Fatal(path, err)
		}
	}
	marks("/dev/vg0/old", 576*mib, func(f *os.File, off int64) error {
		_, err := f.WriteAt(page, off)
		return err
	})
	l.sh("lvremove", "-q", "-y", "vg0/old")
	isZero := func(name string) bool {
		t.Helper()
		d, zero, got := l.device(l.present(name)), true, make([]byte, 4096)
		marks(d.Path, d.Size, func(f *os.File, off int64) error {
			_, err := f.ReadAt(got, off)
			zero = zero && bytes.Count(got, []byte{0}) == len(got)
			return err
		})
		return zero
	}
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "labels"}, size, ""); err != nil {
		t.Fatal(err)
	}
	if isZero("labels") {
		t.Error("all of it is zero by itself: the test proves nothing")
	}
	l.sh("lvchange", "-an", "vg0/labels")
	l.sh("lvremove", "-q", "-y", "vg0/labels")

	l.restart(Group{ZeroAll: true})
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "all"}, size, ""); err != nil {
		t.Fatal(err)
	}
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "284M", "--addtag", tagCreating, "-n", "cut", "vg0")
	l.Invalidate("")
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "cut"}, size, ""); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"all", "cut"} {
		if lv := l.present(name); !isZero(name) || !lv.Created || !lv.Zero || lv.Size != size {
			t.Errorf("%s: zero %v, %+v", name, isZero(name), lv)
		}
	}

	l.sh("lvcreate", "-q", "-y", "-L", "64M", "--zero", "n", "-T", "vg0/pool")
	l.restart(Group{ThinPool: "pool", ZeroAll: true})
	thin := volume.Name{VG: "vg0", LV: "thin"}
	if err := l.Create(t.Context(), l.lock, thin, 16*mib, ""); err == nil || !strings.Contains(err.Error(), "lvchange --zero y vg0/pool") {
		t.Errorf("got %v", err)
	}
	l.sh("lvchange", "-q", "--zero", "y", "vg0/pool")
	l.Invalidate("")
	if err := l.Create(t.Context(), l.lock, thin, 16*mib, ""); err != nil || l.present("thin").Zero {
		t.Errorf("got %v", err)
	}
}

// Ensure that errors about missing space have numbers, from flexd and from LVM.
func TestVMNoSpace(t *testing.T) {
	l := newLab(t)
	n := volume.Name{VG: "vg0", LV: "big"}
	is(t, l.Create(t.Context(), l.lock, n, 1<<40, ""), ErrNoSpace, "volume group vg0", "1 TiB wanted", "free", "vgextend")
	lv := l.lv("small", "8M")
	is(t, l.Extend(t.Context(), l.lock, lv, volume.Device{}, 1<<40), ErrNoSpace, "volume group vg0")

	l.restart(Group{Layout: Layout{Type: "striped", Stripes: 3}}) // LVM's word
	err := l.Create(t.Context(), l.lock, n, 8*mib, "")
	if err == nil || !strings.Contains(err.Error(), "stripes") {
		t.Errorf("got %v", err)
	}
	l.save(t, "stripes", 1)
	l.restart(Group{Layout: Layout{Type: "striped", Stripes: 2}})
	free := l.sh("vgs", "--noheadings", "--units", "b", "--nosuffix", "-o", "vg_free", "vg0")
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-l", "90%PVS", "-n", "fill", "vg0", l.disks[0])
	err = l.Create(t.Context(), l.lock, n, 1500*mib, "")
	is(t, err, ErrNoSpace, "vg0")
	l.save(t, "nospace", 1)
	t.Log(free, err)

	// What was free when it was looked at.
	l.restart(Group{})
	l.lookUp("small")
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-l", "90%FREE", "-n", "rest", "vg0")
	is(t, l.Create(t.Context(), l.lock, n, 1500*mib, ""), ErrNoSpace, "volume group vg0", "free")
	l.save(t, "nospace-vg", 1)
}

// Ensure that thin volumes are made in their pool, and that a full one is reported.
func TestVMThin(t *testing.T) {
	l := newLab(t)
	l.sh("lvcreate", "-q", "-y", "-L", "64M", "-T", "vg0/pool")
	l.restart(Group{ThinPool: "pool"})
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "thin"}, 200*mib, ""); err != nil {
		t.Fatal(err)
	}
	lv := l.present("thin")
	if got := l.sh("lvs", "--noheadings", "-o", "pool_lv", "vg0/thin"); got != "pool" || lv.Size != 200*mib {
		t.Errorf("got %q %+v", got, lv)
	}
	pools, err := l.PoolStates("vg0", nil)
	if err != nil || len(pools) != 1 || !pools[0].Active || pools[0].Data.Total != 64*mib || pools[0].Mode != "rw" || pools[0].Trouble(80) != "" {
		t.Fatalf("got %+v %v", pools, err)
	}
	l.sh("sh", "-c", "dd if=/dev/zero of="+l.device(lv).Path+" bs=1M count=56 oflag=direct 2>&1")
	pools, _ = l.PoolStates("vg0", nil)
	if got := pools[0].Trouble(80); !strings.Contains(got, "data") {
		t.Errorf("got %q of %+v", got, pools[0])
	}
	l.sh("lvchange", "--errorwhenfull", "y", "vg0/pool")
	l.sh("sh", "-c", "dd if=/dev/zero of="+l.device(lv).Path+" bs=1M count=80 oflag=direct 2>&1 || true")
	pools, _ = l.PoolStates("vg0", nil)
	if got := pools[0].Full(); !strings.Contains(got, "full") || !pools[0].ErrorFull {
		t.Errorf("got %q of %+v", got, pools[0])
	}
	is(t, l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "more"}, 8*mib, ""), ErrNoSpace, "thin pool vg0/pool", "full")
	l.sh("lvextend", "-q", "-L", "+64M", "vg0/pool")
	for id := 1000; ; id++ { // LVM creates nothing if less than 25 %, or 4 MiB, of the metadata are free
		pools, err := l.PoolStates("vg0", []string{"pool"})
		if err != nil || pools[0].Metadata.Percent() > 80 {
			break
		}
		l.try("dmsetup", "message", "vg0-pool-tpool", "0", fmt.Sprint("create_thin ", id))
	}
	is(t, l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "more"}, 8*mib, ""), ErrFailed, "reached threshold", ": lvextend --poolmetadatasize +SIZE vg0/pool")
	l.restart(Group{ThinPool: "none"})
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "more"}, 8*mib, ""); err == nil || !strings.Contains(err.Error(), "no thin pool") {
		t.Errorf("got %v", err)
	}
}

// The remedy for a pool's needs_check flag works as written, both with sound metadata and with damaged ones, which
// need the repair.
func TestVMNeedsCheck(t *testing.T) {
	l := newLab(t)
	l.restart(Group{ThinPool: "pool"})
	l.sh("lvcreate", "-q", "-y", "-L", "64M", "--poolmetadatasize", "2M", "-T", "vg0/pool")
	n := volume.Name{VG: "vg0", LV: "thin"}
	if err := l.Create(t.Context(), l.lock, n, 32*mib, ""); err != nil {
		t.Fatal(err)
	}
	lv := l.present("thin")
	l.sh("sh", "-c", "yes | head -c 4M > "+l.device(lv).Path)
	for _, damaged := range []bool{false, true} {
		l.deactivate(lv)
		l.sh("lvchange", "-an", "vg0/pool")
		l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "2M", "-n", "swap", "vg0")
		exchange := func() { l.sh("lvconvert", "-q", "-y", "--thinpool", "vg0/pool", "--poolmetadata", "vg0/swap") }
		exchange()
		l.sh("lvchange", "-ay", "vg0/swap")
		l.needsCheck("/dev/vg0/swap", damaged)
		l.sh("lvchange", "-an", "vg0/swap")
		exchange()
		l.sh("lvremove", "-q", "-y", "vg0/swap")
		l.Invalidate("")

		if !damaged {
			is(t, l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "more"}, 8*mib, ""), ErrFailed, "vg0/pool: the pool's metadata must be checked")
		}
		err := l.Activate(t.Context(), l.lock, lv)
		if damaged { // LVM's check precedes the activation
			is(t, err, ErrFailed, "the metadata of the thin pool is damaged: lvconvert --repair vg0/pool")
		} else {
			is(t, err, nil, "vg0/pool: the pool's metadata must be checked")
			l.deactivate(lv)
		}
		l.sh("lvchange", "-an", "vg0/pool")
		pool := Pool{Name: volume.Name{VG: "vg0", LV: "pool"}, Active: true, NeedsCheck: true}
		_, commands, _ := strings.Cut(pool.Failed(), "then lvchange -an vg0/pool; ")
		check, rest, _ := strings.Cut(commands, ". Only if that reports a failed check: ")
		repair, _, _ := strings.Cut(rest, ", then")
		if l.try("sh", "-c", check) == damaged {
			t.Errorf("damaged: %v, and the activation does not agree", damaged)
		}
		if damaged {
			l.sh("sh", "-c", repair+" -q -y")
			l.sh("sh", "-c", check)
		}
		if pools, err := l.PoolStates("vg0", []string{"pool"}); err != nil || !pools[0].Active || pools[0].Full() != "" {
			t.Errorf("damaged: %v: %+v %v", damaged, pools, err)
		}
		l.Invalidate("")
		l.sh("sh", "-c", "yes | head -c 4M | cmp - -n 4194304 "+l.activate(lv).Path)
	}
}

// needsCheck sets the needs_check flag in the metadata of a thin pool. With damaged it destroys the bitmap of the
// data, which no activation needs.
func (l *lab) needsCheck(path string, damaged bool) {
	l.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_SYNC, 0)
	if err != nil {
		l.Fatal(err)
	}
	defer f.Close()
	super := make([]byte, 4096) // checksum, flags, ..., at 64 the root of the data's space map: blocks, used ones, bitmap
	if _, err := f.ReadAt(super, 0); err != nil {
		l.Fatal(err)
	}
	sum := func() uint32 { return ^crc32.Checksum(super[4:], crc32.MakeTable(crc32.Castagnoli)) ^ 160774 }
	if got := binary.LittleEndian.Uint32(super); got != sum() {
		l.Fatalf("the checksum is %x, want %x", got, sum())
	}
	super[4] |= 1
	binary.LittleEndian.PutUint32(super, sum())
	if _, err = f.WriteAt(super, 0); err == nil && damaged {
		_, err = f.WriteAt(make([]byte, 4096), int64(binary.LittleEndian.Uint64(super[64+16:]))*4096)
	}
	if err != nil {
		l.Fatal(err)
	}
}

// Ensure that the host does not activate volumes of flexd as at boot, but activates an operator's volumes.
func TestVMAutoactivation(t *testing.T) {
	l := newLab(t)
	n := volume.Name{VG: "vg0", LV: "made"}
	if err := l.Create(t.Context(), l.lock, n, 8*mib, ""); err != nil {
		t.Fatal(err)
	}
	own := l.lv("own", "8m")
	lv := l.present("made")
	l.deactivate(lv)
	l.deactivate(own)
	l.sh("vgchange", "-aay", "vg0")
	if d := l.device(lv); d.Activity != volume.Inactive {
		t.Errorf("flexd's is %+v", d)
	}
	if d := l.device(own); d.Activity != volume.Active {
		t.Errorf("the operator's is %+v", d)
	}
	l.deactivate(own)
	l.activate(lv)
	l.deactivate(lv)

	l.sh("lvcreate", "-q", "-y", "-L", "32M", "-T", "vg0/pool")
	for name, g := range map[string]Group{"thin": {ThinPool: "pool"}, "mirror": {Layout: Layout{Type: "raid1", Mirrors: 1}}} {
		l.restart(g)
		if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: name}, 8*mib, ""); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		lv := l.present(name)
		l.deactivate(lv)
		l.sh("vgchange", "-aay", "vg0")
		if d := l.device(lv); d.Activity != volume.Inactive {
			t.Errorf("%s is %+v", name, d)
		}
	}
}
