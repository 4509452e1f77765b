//go:build !vm

package mount

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// Ensure that mkfs gets the options before the device.
func TestFormatOptions(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4", "-b", "1024", "-i", "65536")
	b := make([]byte, 1024)
	f, err := os.Open(r.dev.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(b, 1024); err != nil {
		t.Fatal(err)
	}
	if inodes := binary.LittleEndian.Uint32(b); inodes != 64*mib/65536 || b[24] != 0 {
		t.Errorf("%d inodes, block size 2^%d KiB", inodes, b[24])
	}
	if err := newRig(t, 64*mib).Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "vfat"}, yes); err == nil {
		t.Error("vfat was made")
	}
}

// The smallest sizes are those that the programs accept.
func TestMinSize(t *testing.T) {
	for fsType, below := range map[string]int64{"ext4": mib + 64<<10, "xfs": 300 * mib, "btrfs": 109 * mib} {
		need(t, "mkfs."+fsType)
		r := newRig(t, MinSize(fsType))
		r.format(fsType)
		r = newRig(t, below)
		err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: fsType, Created: created}, yes)
		if want := map[string]string{"ext4": "has only 1088 KiB"}[fsType]; err == nil || !strings.Contains(err.Error(), cmp.Or(want, "exit status 1: ")) || len(err.Error()) > 300 {
			t.Errorf("%s of %d bytes: %v", fsType, below, err)
		}
	}
}

// The answer has the reason of a failed mkfs, not its usage text.
func TestMkfsReason(t *testing.T) {
	for _, row := range []struct {
		fs, opts, want string
		size           int64
	}{
		{"xfs", "", "Invalid value 9437184 for -d size option. Value is too small.", 10 * mib},
		{"xfs", "-i size=99999", "Invalid value 99999 for -i size option. Value is too large.", 320 * mib},
		{"btrfs", "", "minimum size for btrfs filesystem is", 10 * mib},
		{"btrfs", "-O nosuch", "unrecognized filesystem feature 'nosuch'", 128 * mib},
		{"ext4", "-E nosuch=1", "Bad option(s) specified: nosuch", 64 * mib},
		{"ext4", "-I 8192", "invalid inode size 8192", 64 * mib},
		{"ext4", "-N 999999999", "too big for a; filesystem with 64512 blocks", 64 * mib},
	} {
		r := newRig(t, row.size)
		need(t, "mkfs."+row.fs)
		err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: row.fs, Opts: strings.Fields(row.opts), Created: created}, yes)
		if text := fmt.Sprint(err); err == nil || !strings.Contains(text, row.want) || len(text) > 300 ||
			strings.Contains(text, "Usage") || strings.Contains(text, "Valid extended") || strings.Contains(text, "NOTE") {
			t.Errorf("%s %s: %v", row.fs, row.opts, err)
		}
	}
}

// A filesystem that this kernel cannot mount is erased with its record, so that other options may be used.
func TestFormatUnmountable(t *testing.T) {
	refused := 0
	for fsType, opts := range map[string]string{"ext4": "-b 65536", "xfs": "-m crc=0", "btrfs": "-s 65536"} {
		need(t, "mkfs."+fsType)
		r := newRig(t, 320*mib)
		f := Formatting{Device: r.dev, Type: fsType, Opts: strings.Fields(opts), Created: created, Record: r.record()}
		err := r.Format(t.Context(), r.lock, f, yes)
		t.Logf("%s %s: %v", fsType, opts, err)
		if err == nil { // a newer kernel
			continue
		}
		refused++
		if !strings.Contains(err.Error(), "this kernel cannot mount") || !strings.Contains(err.Error(), "use other options") {
			t.Errorf("%s: %v", fsType, err)
		}
		r.unrecorded(fsType)
		if fs := r.probe(""); fs.Content != volume.Blank {
			t.Errorf("%s: %+v", fsType, fs)
		}
		if err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: fsType, Created: created}, yes); err != nil {
			t.Errorf("%s without options: %v", fsType, err)
		}
	}
	if refused == 0 {
		t.Error("this kernel mounts all of them: the test needs other options")
	}
}

// The remains of an mkfs that was interrupted just before its end are formatted again if its record exists
// and there is no data of an owner.
func TestFormatRepeat(t *testing.T) {
	for _, row := range []struct {
		name, fs string
		opts     []string
		size     int64
		cut      func(r *rig)
	}{
		{"ext4", "ext4", []string{"-b", "4096"}, 64 * mib, func(r *rig) { r.write(make([]byte, 2*4096), 0) }},
		{"ext4 with backups", "ext4", []string{"-b", "1024", "-E", "lazy_itable_init=0,lazy_journal_init=0"}, 64 * mib, func(r *rig) { r.write(make([]byte, 2*1024), 0) }},
		{"xfs", "xfs", nil, 320 * mib, func(r *rig) {
			sector := r.read(512, 0)
			sector[126] = 1 // in progress
			copy(sector[224:], make([]byte, 4))
			binary.LittleEndian.PutUint32(sector[224:], crc32.Checksum(sector, crc32.MakeTable(crc32.Castagnoli)))
			r.write(sector, 0)
		}},
		{"btrfs", "btrfs", nil, 128 * mib, func(r *rig) {
			r.write([]byte("!BHRfS_M"), 64<<10+64)
			r.write(make([]byte, 4096), 64*mib)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, row.size)
			need(t, "mkfs."+row.fs)
			first := Formatting{Device: r.dev, Type: row.fs, Created: created, Opts: row.opts}
			again := first
			again.Repeat = true
			cut := func() {
				r.sh("wipefs", "-q", "-a", r.dev.Path)
				r.sh("blkdiscard", "-z", r.dev.Path)
				if err := r.Format(t.Context(), r.lock, first, yes); err != nil {
					t.Fatal(err)
				}
				row.cut(r)
				fs, err := r.Probe(t.Context(), r.lock, r.dev, "", created, "")
				if err != nil || fs.Content != volume.ForeignContent || !fs.Leftover {
					t.Fatalf("probe: %+v, %v", fs, err)
				}
			}
			cut()
			var refusal *Refusal
			if err := r.Format(t.Context(), r.lock, first, yes); !errors.As(err, &refusal) {
				t.Fatalf("first: got %v", err)
			}
			r.write([]byte(strings.Repeat("an owner's row of data; ", 50)), 20*mib)
			if err := r.Format(t.Context(), r.lock, again, yes); !errors.As(err, &refusal) || !strings.Contains(refusal.What, "offset 20971520") {
				t.Errorf("with data: got %v", err)
			}
			cut()
			var busy *BusyError
			var user *os.File
			if err := r.Format(t.Context(), r.lock, again, func() (err error) { // somebody opens it meanwhile
				user, err = os.OpenFile(r.dev.Path, os.O_RDWR, 0)
				return err
			}); !errors.As(err, &busy) {
				t.Errorf("beside a user: got %v", err)
			}
			user.Close()
			if fs := r.probe(""); !fs.Leftover {
				t.Errorf("beside a user: left %+v", fs)
			}
			wrong := again // mkfs refuses it: the remains have been erased before
			wrong.Record = r.record()
			wrong.Opts = map[string][]string{"ext4": {"-b", "3"}, "xfs": {"-b", "size=3"}, "btrfs": {"-n", "3"}}[row.fs]
			if err := r.Format(t.Context(), r.lock, wrong, yes); err == nil {
				t.Error("with wrong options: made")
			}
			if fs := r.probe(""); fs.Content != volume.Blank {
				t.Errorf("with wrong options: left %+v", fs)
			}
			r.unrecorded("with wrong options")
			cut()
			if err := r.Format(t.Context(), r.lock, again, yes); err != nil {
				t.Fatal(err)
			}
			if err := r.Format(t.Context(), r.lock, again, yes); !errors.As(err, &refusal) {
				t.Errorf("over a whole one: got %v", err)
			}
		})
	}
}

// An mkfs that does not start, or fails by itself, leaves neither a record nor data; only a crash leaves
// both.
func TestFormatFails(t *testing.T) {
	r := newRig(t, 320*mib)
	mkfs := func(script string) {
		t.Helper()
		r.tool("mkfs.ext4", "for D; do case $D in /dev/*) break ;; esac; done\n"+script)
	}
	const writes = "dd if=/dev/urandom of=$D bs=4096 count=16 seek=%d conv=notrunc status=none; "
	for _, row := range []struct {
		name, script, words string
		gate                error
	}{
		{"gate fails", "exit 0", "no space for the record", errors.New("no space for the record")},
		{"fails at once", "echo 'Usage: mkfs' >&2; echo more >&2; exit 1", "exit status 1: it printed no reason", nil},
		{"fails in the middle", fmt.Sprintf(writes, 3) + fmt.Sprintf(writes, 40960) + "echo no inodes >&2; exit 3", "exit status 3: no inodes", nil},
		{"fails at its end", "/sbin/mkfs.ext4 -q -F $D; exit 1", "exit status 1", nil},
		{"succeeds without a filesystem", fmt.Sprintf(writes, 1), "succeeded, but", nil},
		{"is killed", fmt.Sprintf(writes, 1) + "kill -9 $$", "signal: killed", nil},
		{"makes an ext3 by default", "/sbin/mkfs.ext4 -q -F -O ^extent,^huge_file,^flex_bg,^dir_nlink,^extra_isize,^metadata_csum,^64bit $D 319m", "with its defaults mkfs makes ext3, not ext4", nil},
		{"makes what the kernel does not mount", "/sbin/mkfs.ext4 -q -F -O ^metadata_csum $D 319m && debugfs -w -R 'ssv feature_incompat 0x800002c2' $D", "this kernel cannot mount", nil},
		{"has made something else", "/sbin/mkfs.ext4 -q -F -t ext3 $D; exit 1", "exit status 1", nil},
	} {
		mkfs(row.script)
		record := filepath.Join(r.dir, "record")
		err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4", Created: created, Record: record}, func() error {
			if row.gate == nil {
				r.record()
			}
			return row.gate
		})
		if err == nil || !strings.Contains(err.Error(), row.words) || strings.Contains(err.Error(), "is full") {
			t.Errorf("%s: %v", row.name, err)
		}
		r.unrecorded(row.name)
		if fs := r.probe(""); fs.Content != volume.Blank {
			t.Errorf("%s: %+v", row.name, fs)
		}
	}
	// Another program took the device meanwhile: its data is not zeroed, and no
	// mkfs is repeated over it.
	mkfs("mkswap -q $D >/dev/null 2>&1; exit 1")
	record := r.record()
	err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4", Created: created, Record: record}, yes)
	if err == nil || !strings.Contains(err.Error(), "swap") {
		t.Errorf("got %v", err)
	}
	r.unrecorded("beside swap")
	if fs := r.probe(""); !strings.Contains(fs.What, "swap") || fs.Leftover {
		t.Errorf("%+v", fs)
	}
	r.sh("wipefs", "-q", "-a", r.dev.Path)
	r.sh("blkdiscard", "-z", r.dev.Path)
	mkfs("echo is in use >&2; echo sparse data | dd of=$D bs=1M seek=2 conv=notrunc,sync status=none; touch " + r.dir + "/ran; sleep 1; exit 1")
	record = r.record()
	var other *os.File
	done := make(chan struct{})
	go func() { // opens it exclusively while mkfs runs, and keeps it
		defer close(done)
		for range 1000 {
			if _, err := os.Stat(r.dir + "/ran"); err == nil {
				other, _ = os.OpenFile(r.dev.Path, os.O_RDWR|unix.O_EXCL, 0)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	err = r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4", Created: created, Record: record}, yes)
	<-done
	if other == nil {
		t.Fatal("the device was not opened exclusively")
	}
	other.Close()
	if err == nil || !strings.Contains(err.Error(), "could not be erased") {
		t.Errorf("got %v", err)
	}
	r.unrecorded("beside a user")
	if got := r.read(6, 2*mib); string(got) != "sparse" {
		t.Errorf("the data is %q", got)
	}
}

// After an mkfs that wrote nothing, nothing is erased: data that another program has written meanwhile stays,
// even if it did not open the device exclusively. The output of mkfs does not count, nor does the kernel's record about
// it (acct(2)), 64 bytes in a file.
func TestMkfsWroteNothing(t *testing.T) {
	r := newRig(t, 320*mib)
	fifo := filepath.Join(r.dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	acct := filepath.Join(t.TempDir(), "acct")
	if err := os.WriteFile(acct, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r.tool("mkfs.ext4", "read end <"+fifo+`
echo wrong options >&2
printf 'Usage: %0600d\n' 0 >&2
printf %064d 0 1<>`+acct+`
exit 1`)
	data := bytes.Repeat([]byte("data"), 1024)
	for name, flags := range map[string]int{"plain": 0, "exclusive": unix.O_EXCL} {
		r.sh("blkdiscard", "-z", r.dev.Path)
		r.sh("sync", acct)
		wrote := make(chan error, 1)
		go func() {
			end, err := os.OpenFile(fifo, os.O_WRONLY, 0) // when mkfs runs
			if err != nil {
				wrote <- err
				return
			}
			defer end.Close()
			dev, err := os.OpenFile(r.dev.Path, os.O_RDWR|flags, 0)
			if err == nil {
				_, err = dev.WriteAt(data, mib)
				err = errors.Join(err, dev.Sync(), dev.Close())
			}
			wrote <- err
		}()
		record := r.record()
		err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4", Created: created, Record: record}, yes)
		if err == nil || !strings.HasSuffix(err.Error(), "wrong options") {
			t.Fatalf("%s: %v", name, err)
		}
		if err := <-wrote; err != nil {
			t.Fatal(name, err)
		}
		if !bytes.Equal(r.read(len(data), mib), data) {
			t.Errorf("%s: the data is gone", name)
		}
		r.unrecorded(name)
	}
}

// Less than a sector is no write to a device, even if it makes a large folio of a file dirty.
func TestWrote(t *testing.T) {
	for _, row := range []struct {
		bytes, chars int64
		want         bool
	}{
		{0, 0, false}, {0, 8192, false}, {4096, 0, false}, {4096, 64, false}, {1 << 20, 64, false}, {4096, 511, false},
		{4096, 512, true}, {512, 512, true},
	} {
		if got := wrote(row.bytes, row.chars); got != row.want {
			t.Errorf("%d bytes, %d characters: got %v", row.bytes, row.chars, got)
		}
	}
}

// After a failed mkfs the probed places are zero, or all of a device that zeroes what it discards. While
// another program has the device open, nothing is written.
func TestClean(t *testing.T) {
	r := newRig(t, 320*mib)
	blank := coverage{chunks: 2}
	n := 0
	var off int64
	for c := range chunks(r.dev.Size) { // a place that blank does not include
		off = c.from + 256<<10
		read := slices.ContainsFunc(spans(r.dev.Size), func(s span) bool { return s.from < off+8192 && off < s.to })
		if n++; n > blank.chunks && !read {
			break
		}
	}
	r.write([]byte("of mkfs"), off)
	r.write([]byte("of mkfs"), mib)
	dev, err := openDevice(r.dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	other, err := os.Open(r.dev.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var busy *BusyError
	f, before := Formatting{Device: r.dev, Type: "ext4"}, r.written()
	if err := clean(dev, f, blank); !errors.As(err, &busy) {
		t.Errorf("beside another program: %v", err)
	}
	if got := r.written(); got != before {
		t.Errorf("beside another program: wrote %s, before: %s", got, before)
	}
	other.Close()
	if other, err = os.OpenFile(r.dev.Path, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	patience := cleanTimeout
	cleanTimeout = time.Minute
	go func() {
		time.Sleep(time.Second) // clean has begun, and waits
		_, err := other.WriteAt([]byte("of another program"), 2*mib)
		ended <- errors.Join(err, other.Sync(), other.Close())
	}()
	if err := clean(dev, f, blank); err == nil || !strings.Contains(err.Error(), "another program has written") {
		t.Errorf("after another program: %v", err)
	}
	cleanTimeout = patience
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := string(r.read(18, 2*mib)); got != "of another program" {
		t.Errorf("after another program: its data is %q", got)
	}
	if err := clean(dev, f, blank); err != nil {
		t.Error(err)
	}
	if i := firstNonZero(r.read(4*mib, 0)); i >= 0 {
		t.Errorf("what mkfs wrote at %d is still there", i)
	}
	if discarded := strings.HasPrefix(r.dev.Path, "/dev/loop"); discarded && firstNonZero(r.read(4096, off)) >= 0 {
		t.Errorf("what mkfs wrote at %d is still there", off)
	}
}

// The places that are read on a device do not grow with each TiB, or without end just below the largest size.
func TestSpansOfHugeDevices(t *testing.T) {
	for _, size := range []int64{1 << 50, 7 << 60, 1<<63 - 4096} {
		if n := len(spans(size)); n > 8000 {
			t.Errorf("%d bytes: %d places", size, n)
		}
	}
}
