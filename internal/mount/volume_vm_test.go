//go:build vm

package mount

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// everyKindOnce reports whether TestNeverFormat tries one content of each kind only: a process is slow here,
// and the host tries them all. With FLEXD_SOAK everything is tried.
var everyKindOnce = os.Getenv("FLEXD_SOAK") == ""

// leftOut are tests that do not depend on the kind of the device; they run only by name. The host runs them,
// and internal/lvm tests the zeroing of logical volumes. The host may not be allowed to extend an ext4.
var leftOut = func() string {
	if !everyKindOnce {
		return ""
	}
	return strings.Join([]string{
		"^Test(UnmountAlone|MemberIsNoFilesystem|EmbeddedOptions|LabelsInFiles|ZeroAll|ZeroParts|ToolLimits)$",
		"^TestSuperblocksInFiles$/./^(formatted|whole)$",
		"^Test(SuperblocksInFiles|ZeroBehind)$/^(xfs|btrfs)$",
		"^TestNeverFormat$/^(swap|LUKS|md|DOS|GPT|ext4_of|ext4_with|noise_at_a|noise_at_the_head|one_byte)",
	}, "|")
}()

// A disk is a logical volume of the group vg0, on all disks of FLEXD_TEST_DISKS but the last. It is never
// removed, so that the extents of the next one are blank.
type disk struct{ lv string }

var group = sync.OnceValue(func() error {
	disks := strings.Split(os.Getenv("FLEXD_TEST_DISKS"), ",")
	if len(disks) < 4 {
		return errors.New("FLEXD_TEST_DISKS: 4 disks to overwrite are needed: make test-vm")
	}
	out, err := exec.Command("vgcreate", append([]string{"-q", "-s", "1M", "vg0"}, disks[:3]...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("vgcreate: %w: %s", err, out)
	}
	return nil
})

var (
	made int
	free = map[int64][]string{} // volumes that are blank again, by size
)

func newRig(t *testing.T, size int64) *rig {
	t.Helper()
	if err := group(); err != nil {
		t.Fatal(err)
	}
	r := bareRig(t)
	if n := len(free[size]); n > 0 {
		r.lv, free[size] = free[size][n-1], free[size][:n-1]
	} else {
		made++
		r.lv = fmt.Sprintf("lv-%d", made)
		r.sh("lvcreate", "-qq", "-y", "-Zn", "-Wn", "-L", fmt.Sprint(size, "b"), "-n", r.lv, "vg0")
	}
	r.observe(r.node())
	t.Cleanup(func() {
		if r.dev.ReadOnly {
			r.sh("lvchange", "-qq", "-y", "-prw", "vg0/"+r.lv)
		}
		if r.dev.Size == size && exec.Command("blkdiscard", "-z", r.dev.Path).Run() == nil {
			free[size] = append(free[size], r.lv)
		}
	})
	return r
}

// node returns the kernel's node of the volume: /dev/dm-N.
func (r *rig) node() string {
	r.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/dev/vg0/"+r.lv, &st); err != nil {
		r.Fatal(err)
	}
	return nodeOf(sysfs.Number(st.Rdev))
}

func (r *rig) resize(size int64) {
	r.Helper()
	r.sh("lvextend", "-qq", "-y", "-L", fmt.Sprint(size, "b"), "vg0/"+r.lv)
	r.observe(r.dev.Path)
}

func (r *rig) setReadOnly() {
	r.Helper()
	r.sh("lvchange", "-qq", "-y", "-pr", "vg0/"+r.lv)
	r.observe(r.dev.Path)
}

// twin returns a copy of the present content of the device, which may be mounted.
func (r *rig) twin() *rig {
	r.Helper()
	c := newRig(r.T, r.dev.Size)
	r.sh("dd", "if="+r.dev.Path, "of="+c.dev.Path, "bs=4M", "iflag=direct", "oflag=direct", "conv=sparse", "status=none")
	return c
}

// table makes a device of a device-mapper table, in which DISK stands for the last disk.
func table(t *testing.T, lines ...string) *rig {
	t.Helper()
	if err := group(); err != nil {
		t.Fatal(err)
	}
	disks := strings.Split(os.Getenv("FLEXD_TEST_DISKS"), ",")
	r := bareRig(t)
	made++
	name := fmt.Sprintf("table-%d", made)
	c := exec.Command("dmsetup", "create", "--noudevsync", name)
	c.Stdin = strings.NewReader(strings.ReplaceAll(strings.Join(lines, "\n"), "DISK", disks[3]) + "\n")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("dmsetup: %v: %s", err, out)
	}
	t.Cleanup(func() { r.sh("dmsetup", "remove", "--noudevsync", name) })
	node := strings.TrimSpace(r.sh("dmsetup", "info", "-c", "--noheadings", "-o", "blkdevname", name))
	r.observe("/dev/" + node)
	return r
}

// Ensure that a device with an unreadable part, at any place, is unknown, and not blank.
func TestUnreadablePart(t *testing.T) {
	const size = 320 * mib / 512 // in sectors
	for name, from := range map[string]int{
		"head":                0,
		"backup superblock":   (8*mib + 1024) / 512 / 8 * 8,
		"last of the proof":   size - 8,
		"inside the first MB": 1000,
	} {
		t.Run(name, func(t *testing.T) {
			var lines []string
			if from > 0 {
				lines = append(lines, fmt.Sprintf("0 %d linear DISK 2048", from))
			}
			lines = append(lines, fmt.Sprintf("%d 8 error", from))
			if end := from + 8; end < size {
				lines = append(lines, fmt.Sprintf("%d %d linear DISK %d", end, size-end, 2048+end))
			}
			r := table(t, lines...)
			before := r.written()
			if fs, err := r.Probe(t.Context(), r.lock, r.dev, "", created, ""); err == nil {
				t.Errorf("probe: got %+v", fs)
			}
			for _, repeat := range []bool{false, true} {
				var refusal *Refusal
				if err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4", Repeat: repeat}, yes); err == nil || errors.As(err, &refusal) {
					t.Errorf("format, again %v: got %v", repeat, err)
				}
			}
			if got := r.written(); got != before {
				t.Errorf("%s, before: %s", got, before)
			}
		})
	}
}

// A filesystem before an unreadable part counts only during a reshape, if flexd has a record of it and it
// ends before that part. Otherwise the volume is unknown.
func TestUnreadableEnd(t *testing.T) {
	const readable, size = 64 * mib / 512, 96 * mib / 512 // in sectors
	r := table(t, fmt.Sprintf("0 %d linear DISK 2048", readable), fmt.Sprintf("%d %d error", readable, size-readable))
	for _, c := range []struct {
		blocks               uint32 // of 4 KiB
		reshaped, seen, says string
	}{
		{64 * mib >> 12, "vg0/r", "ext4", ""},
		{64 * mib >> 12, "vg0/r", "xfs", "input/output error"},
		{64 * mib >> 12, "vg0/r", "", "input/output error"},
		{64 * mib >> 12, "", "ext4", "input/output error"},
		{96 * mib >> 12, "vg0/r", "ext4", "input/output error"},
	} {
		r.sh("mkfs.ext4", "-q", "-F", "-b", "4096", r.dev.Path, "65536k")
		r.write(binary.LittleEndian.AppendUint32(nil, c.blocks), 1024+4)
		d := r.dev
		d.Reshaped = c.reshaped
		fs, err := r.Probe(t.Context(), r.lock, d, "", created, c.seen)
		switch {
		case c.says == "" && (err != nil || fs.Content != volume.Filesystem || fs.Type != c.seen):
			t.Errorf("%+v: got %+v, %v", c, fs, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || (volume.CodeOf(err) == volume.Busy) != (c.reshaped != "")):
			t.Errorf("%+v: got %+v, %v", c, fs, err)
		}
	}
}

// The kernel cannot read the new space of a mounted xfs: it keeps its size, and has no error.
func TestGrowUnreadable(t *testing.T) {
	const old, size = 320 * mib / 512, 384 * mib / 512 // in sectors
	r := table(t, fmt.Sprintf("0 %d linear DISK 2048", old))
	r.sh("blkdiscard", "-z", r.dev.Path)
	r.format("xfs")
	l := r.spec(r.mkdir("m"))
	l.First = true
	r.mount(l)
	name := strings.TrimSpace(r.sh("cat", "/sys/dev/block/"+r.dev.Number+"/dm/name"))
	const end = size - 2*mib/512
	lines := fmt.Sprintf("0 %d linear DISK 2048\n%[1]d %[2]d error\n%d %[2]d linear DISK %d", end, mib/512, end+mib/512, 2048+end+mib/512)
	r.sh("sh", "-c", `dmsetup suspend $0; echo "$1" | dmsetup reload $0; dmsetup resume --noudevsync $0`, name, strings.ReplaceAll(lines, "DISK", strings.Split(os.Getenv("FLEXD_TEST_DISKS"), ",")[3]))
	r.observe(r.dev.Path)
	err := r.Grow(t.Context(), r.lock, r.dev, "xfs", l.Dir)
	if err == nil || errors.Is(err, ErrFailed) || volume.CodeOf(err) == volume.Damaged || !strings.Contains(err.Error(), "cannot read or write the new space") {
		t.Errorf("got %v", err)
	}
	if fs := r.probe(l.Dir); fs.Content != volume.Filesystem || fs.Size > 320*mib {
		t.Errorf("got %+v", fs)
	}
	r.unmount(l.Dir)
}

// Ensure that an xfs with a zeroed head is also found on stripes, where mkfs makes groups of another size.
func TestStripes(t *testing.T) {
	r := newRig(t, 64*mib) // for the group
	r.sh("lvcreate", "-qq", "-y", "-Zn", "-Wn", "-i", "2", "-I", "64k", "-L", "1G", "-n", "striped", "vg0")
	r.lv = "striped"
	r.observe(r.node())
	if fs := r.probe(""); fs.Content != volume.Blank {
		t.Fatalf("got %+v", fs)
	}
	r.format("xfs")
	r.write(make([]byte, 16*mib), 0)
	var refusal *Refusal
	if err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4"}, yes); !errors.As(err, &refusal) || !strings.Contains(err.Error(), "a backup superblock of xfs at offset ") {
		t.Errorf("got %v", err)
	}
}

// Ensure that a device that is not a disk is not formatted although it reads as zeros, and that a missing
// device is not confused with a new one of its name or number.
func TestNotTheDevice(t *testing.T) {
	r := table(t, "0 131072 zero")
	if fs := r.probe(""); fs.Content != volume.Blank {
		t.Fatalf("got %+v", fs)
	}
	for _, harm := range []func(*volume.Device){
		func(d *volume.Device) { d.Unsound = `a "zero" target` },
		func(d *volume.Device) { d.Unusable = true },
		func(d *volume.Device) { d.Suspended = true },
	} {
		d := r.dev
		harm(&d)
		var refusal *Refusal
		if err := r.Format(t.Context(), r.lock, Formatting{Device: d, Type: "ext4"}, yes); !errors.As(err, &refusal) {
			t.Errorf("got %v", err)
		}
	}

	old := newRig(t, 64*mib)
	old.sh("lvremove", "-qq", "-y", "vg0/"+old.lv)
	old.sh("lvcreate", "-qq", "-y", "-L", "64M", "-T", "vg0/pool")
	old.sh("lvcreate", "-qq", "-y", "-V", "64M", "-T", "vg0/pool", "-n", old.lv)
	now := *old
	now.observe(now.node())
	taken := now.dev
	taken.Seq = old.dev.Seq
	for _, d := range []volume.Device{old.dev, taken} {
		if _, err := now.Probe(t.Context(), now.lock, d, "", created, ""); !errors.Is(err, ErrChanged) {
			t.Errorf("probe: got %v", err)
		}
		if err := now.Format(t.Context(), now.lock, Formatting{Device: d, Type: "ext4", Repeat: true}, yes); !errors.Is(err, ErrChanged) {
			t.Errorf("format: got %v", err)
		}
	}
	now.format("ext4")
}

// Linux 6.1 counts the requests to a device-mapper device although its queue/iostats is 0: the remains of a
// failed mkfs are erased.
func TestClean(t *testing.T) {
	r := newRig(t, 16*mib)
	r.write([]byte("of mkfs"), 2*mib)
	dev, err := openDevice(r.dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := clean(dev, Formatting{Device: r.dev, Type: "ext4"}, coverage{}); err != nil {
		t.Fatal(err, r.sh("cat", "/sys/dev/block/"+r.dev.Number+"/queue/iostats"))
	}
	if got := r.read(7, 2*mib); firstNonZero(got) >= 0 {
		t.Errorf("%q is still there", got)
	}
}
