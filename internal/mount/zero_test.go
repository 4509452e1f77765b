package mount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/host"
)

var formerLine = []byte("a line of the former tenant, 32 B")[:32]

// occupied fills a part of a device with data of another volume. It writes large blocks without the page cache,
// which is slow in emulated machines.
func (r *rig) occupied(from, to int64) {
	r.Helper()
	f, err := os.OpenFile(r.dev.Path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		r.Fatal(err)
	}
	defer f.Close()
	b, err := unix.Mmap(-1, 0, 8*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // aligned
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	for i := 0; i < len(b); i += len(formerLine) {
		copy(b[i:], formerLine)
	}
	for ; from < to; from += int64(len(b)) {
		if _, err := f.WriteAt(b[:min(int64(len(b)), to-from)], from); err != nil {
			r.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) former(from, to int64) int {
	r.Helper()
	return bytes.Count(r.read(int(to-from), from), formerLine)
}

// Ensure that all of a device is zeroed, with progress, including the parts that the blank check does not
// read.
func TestZeroAll(t *testing.T) {
	r := newRig(t, 320*mib)
	r.occupied(0, r.dev.Size)
	if err := r.Zero(t.Context(), r.lock, r.dev); err != nil {
		t.Fatal(err)
	}
	if n := r.former(0, r.dev.Size); n == 0 {
		t.Error("the places of labels are all of it: this proves nothing")
	}
	var progress []string
	ctx := run.WithProgress(t.Context(), func(text string) { progress = append(progress, text) })
	if err := r.ZeroAll(ctx, r.lock, r.dev); err != nil {
		t.Fatal(err)
	}
	if b := bytes.TrimLeft(r.read(int(r.dev.Size), 0), "\x00"); len(b) > 0 {
		t.Errorf("%d bytes of the end are not zero", len(b))
	}
	for _, p := range progress {
		if !strings.HasPrefix(p, "zeroing ") || !strings.HasSuffix(p, " %") {
			t.Errorf("progress: %q", p)
		}
	}
	r.sh("mkfs.ext4", "-q", "-F", r.dev.Path)
	if err := r.ZeroAll(t.Context(), r.lock, r.dev); err == nil {
		t.Error("it zeroed a filesystem")
	}
}

// A blank volume stays blank when it is extended, although other places of a larger device are read, also
// after an interruption. If its former part has data, nothing is written.
func TestZeroFrom(t *testing.T) {
	for _, row := range []struct{ from, to int64 }{{64 * mib, 96 * mib}, {320 * mib, 640 * mib}, {512 * mib, 520 * mib}} {
		r := newRig(t, row.from)
		r.occupied(0, row.from)
		if err := r.Zero(t.Context(), r.lock, r.dev); err != nil {
			t.Fatal(err)
		}
		r.resize(row.to)
		r.occupied(row.from, row.to)
		r.write(md10(row.to), row.to-8<<10)
		if fs := r.probe(""); fs.Content != volume.ForeignContent || !strings.Contains(fs.What, "linux_raid_member") {
			t.Fatalf("%+v: this proves nothing", fs)
		}
		for range 2 {
			if err := r.ZeroFrom(t.Context(), r.lock, r.dev, row.from); err != nil {
				t.Fatal(err)
			}
			if fs := r.probe(""); fs.Content != volume.Blank {
				t.Errorf("%d, then %d MiB: %+v", row.from/mib, row.to/mib, fs)
			}
		}
		r.write([]byte("before"), row.from-6)
		r.occupied(row.from, row.to)
		before := r.written()
		var refusal *Refusal
		if err := r.ZeroFrom(t.Context(), r.lock, r.dev, row.from); !errors.As(err, &refusal) || r.written() != before {
			t.Errorf("got %v", err)
		}
	}
}

// md10 returns an md superblock of version 1.0, whose place is 8 KiB before the end.
func md10(size int64) []byte {
	sb := binary.LittleEndian.AppendUint32(nil, 0xa92b4efc)
	sb = append(sb, 1) // the version
	sb = append(sb, make([]byte, 251)...)
	sb[16] = 1 // the uuid
	binary.LittleEndian.PutUint64(sb[144:], uint64(size-8<<10)/512)
	return sb
}

// The data of a program that has opened the device of an interrupted creation without O_EXCL, as a VM does,
// stays.
func TestZeroInUse(t *testing.T) {
	r := newRig(t, 64*mib)
	f, err := os.OpenFile(r.dev.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before := r.written()
	for name, zero := range map[string]func() error{
		"Zero":     func() error { return r.Zero(t.Context(), r.lock, r.dev) },
		"ZeroAll":  func() error { return r.ZeroAll(t.Context(), r.lock, r.dev) },
		"ZeroFrom": func() error { return r.ZeroFrom(t.Context(), r.lock, r.dev, 32*mib) },
	} {
		var busy *BusyError
		if err := zero(); !errors.As(err, &busy) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d (", os.Getpid())) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if now := r.written(); now != before {
		t.Errorf("the device was written: %s, then %s", before, now)
	}
}

// Ensure that each child zeroes a part, and the next child continues.
func TestZeroParts(t *testing.T) {
	r := newRig(t, 64*mib)
	r.occupied(0, r.dev.Size)
	dev, err := os.OpenFile(r.dev.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	calls := 0
	done, err := zeroPart(dev, 16*mib, r.dev.Size, func(at int64) error {
		if calls++; at != 16*mib+int64(calls-1)*zeroStep {
			t.Errorf("the step %d begins at %d", calls, at)
		}
		return nil
	})
	if err != nil || done.To != 16*mib+int64(calls)*zeroStep || done.Size != r.dev.Size {
		t.Fatalf("%+v after %d steps, %v", done, calls, err)
	}
	if n := r.former(16*mib, done.To); n > 0 {
		t.Errorf("%d lines are left", n)
	}
	if n := r.former(0, 16*mib); n != 16*mib/32 {
		t.Errorf("%d lines are left before it", n)
	}
	if _, err := zeroPart(dev, 0, r.dev.Size, func(int64) error { return unix.ESTALE }); err != unix.ESTALE || r.former(0, 16*mib) == 0 {
		t.Errorf("it wrote although the check failed: %v", err)
	}
}

// Ensure that added space is zeroed behind a mounted filesystem, which keeps its data, and that the
// filesystem is extended afterwards.
func TestZeroBehind(t *testing.T) {
	for _, fs := range types {
		t.Run(fs.name, func(t *testing.T) {
			need(t, "mkfs."+fs.name)
			r := newRig(t, max(fs.size, btrfsLeast+4*mib))
			r.format(fs.name)
			dir := r.mkdir("m")
			r.mount(MountSpec{Device: r.dev, FSType: fs.name, Dir: dir, Root: r.dir, First: true})
			data := bytes.Repeat([]byte("data of the present tenant here\n"), 32<<10)
			if err := os.WriteFile(dir+"/data", data, 0o600); err != nil {
				t.Fatal(err)
			}
			old := r.dev.Size
			r.resize(old + 40*mib)
			r.occupied(old, r.dev.Size)
			for range 2 {
				if err := r.ZeroBehind(t.Context(), r.lock, r.dev, fs.name, dir); err != nil {
					t.Fatal(err)
				}
			}
			if n := r.former(volume.Room(old), r.dev.Size); n > 0 {
				t.Errorf("%d lines are left", n)
			}
			if err := r.Grow(t.Context(), r.lock, r.dev, fs.name, dir); err != nil && (fs.name != "ext4" || host.GrowsExt4()) {
				t.Error(err)
			}
			r.unmount(dir)
			if err := r.Check(t.Context(), r.lock, r.dev, fs.name); err != nil {
				t.Error(err)
			}
			r.mount(MountSpec{Device: r.dev, FSType: fs.name, Dir: dir, Root: r.dir, First: true})
			if got, err := os.ReadFile(dir + "/data"); err != nil || !bytes.Equal(got, data) {
				t.Errorf("the data: %d bytes, %v", len(got), err)
			}
			r.unmount(dir)
		})
	}
}
