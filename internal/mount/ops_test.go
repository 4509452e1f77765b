//go:build !vm

package mount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// Ensure that mkfs's options come before the device and arrive.
func TestFormatOptions(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4", "-b", "1024", "-L", "a label")
	b := make([]byte, 1024)
	f, err := os.Open(r.dev.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(b, 1024); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimRight(string(b[0x78:0x88]), "\x00"); got != "a label" || b[24] != 0 {
		t.Errorf("label %q, block size 2^%d KiB", got, b[24])
	}
	if err := newRig(t, 64*mib).Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "vfat"}, yes); err == nil {
		t.Error("vfat was made")
	}
}

// The smallest sizes are those that the programs accept.
func TestMinSize(t *testing.T) {
	for fsType, below := range map[string]int64{"ext4": 64 << 10, "xfs": 299 * mib, "btrfs": 108 * mib} {
		need(t, "mkfs."+fsType)
		r := newRig(t, MinSize(fsType))
		r.format(fsType)
		r = newRig(t, below)
		err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: fsType, Created: true}, yes)
		if err == nil || !strings.Contains(err.Error(), "exit status 1: ") || len(err.Error()) > 300 {
			t.Errorf("%s of %d bytes: %v", fsType, below, err)
		}
	}
}

// The answer has the reason of a failed mkfs, not its usage.
func TestMkfsReason(t *testing.T) {
	for _, row := range []struct {
		fs, opts, want string
		size           int64
	}{
		{"xfs", "", "size 2560 of data subvolume is too small, minimum 4096 blocks", 10 * mib},
		{"xfs", "-i size=99999", "Invalid value 99999 for -i size option. Value is too large.", 320 * mib},
		{"btrfs", "", "minimum size for each btrfs device is", 10 * mib},
		{"btrfs", "-O nosuch", "unrecognized filesystem feature 'nosuch'", 128 * mib},
		{"ext4", "-E nosuch=1", "Bad option(s) specified: nosuch", 64 * mib},
		{"ext4", "-I 8192", "invalid inode size 8192", 64 * mib},
		{"ext4", "-N 999999999", "too big for a; filesystem with 65536 blocks", 64 * mib},
	} {
		r := newRig(t, row.size)
		need(t, "mkfs."+row.fs)
		err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: row.fs, Opts: strings.Fields(row.opts), Created: true}, yes)
		if text := fmt.Sprint(err); err == nil || !strings.Contains(text, row.want) || len(text) > 300 ||
			strings.Contains(text, "Usage") || strings.Contains(text, "Valid extended") || strings.Contains(text, "NOTE") {
			t.Errorf("%s %s: %v", row.fs, row.opts, err)
		}
	}
}

// A filesystem that this kernel does not mount is taken away again, and its record
// with it, so that other options may be used.
func TestFormatUnmountable(t *testing.T) {
	refused := 0
	for fsType, opts := range map[string]string{"ext4": "-b 65536", "xfs": "-m crc=0", "btrfs": "-s 65536"} {
		need(t, "mkfs."+fsType)
		r := newRig(t, 320*mib)
		f := Formatting{Device: r.dev, Type: fsType, Opts: strings.Fields(opts), Created: true, Record: r.record()}
		err := r.Format(t.Context(), r.lock, f, yes)
		t.Logf("%s %s: %v", fsType, opts, err)
		if err == nil { // a newer kernel
			continue
		}
		refused++
		if !strings.Contains(err.Error(), "this kernel does not mount") || !strings.Contains(err.Error(), "use other options") {
			t.Errorf("%s: %v", fsType, err)
		}
		if _, err := os.Stat(f.Record); err == nil {
			t.Errorf("%s: the record stands", fsType)
		}
		if fs := r.probe(""); fs.Content != volume.Blank {
			t.Errorf("%s: %+v", fsType, fs)
		}
		if err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: fsType, Created: true}, yes); err != nil {
			t.Errorf("%s without options: %v", fsType, err)
		}
	}
	if refused == 0 {
		t.Error("this kernel mounts all of them: the test needs other options")
	}
}

// A filesystem that has another name because of its options is taken away: nobody could
// mount it, and other options would not help.
func TestFormatOtherType(t *testing.T) {
	need(t, "mkfs.ext4")
	const old = "-O ^extent,^huge_file,^flex_bg,^dir_nlink,^extra_isize,^metadata_csum,^64bit"
	for name, opts := range map[string]string{"ext3": old, "ext2": old + ",^has_journal"} {
		r := newRig(t, 64*mib)
		f := Formatting{Device: r.dev, Type: "ext4", Opts: strings.Fields(opts), Created: true, Record: r.record()}
		err := r.Format(t.Context(), r.lock, f, yes)
		if err == nil || !strings.Contains(err.Error(), "makes "+name+", not ext4; use other options") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(f.Record); err == nil {
			t.Errorf("%s: the record stands", name)
		}
		if fs := r.probe(""); fs.Content != volume.Blank {
			t.Errorf("%s: %+v", name, fs)
		}
	}
}

// What is added to a blank volume is made blank, and nothing before it.
func TestZeroFrom(t *testing.T) {
	r := newRig(t, 64*mib)
	r.write([]byte("before"), 20*mib-6)
	r.write([]byte("old data of another volume"), 20*mib)
	if err := r.ZeroFrom(t.Context(), r.lock, r.dev, 20*mib); err != nil {
		t.Fatal(err)
	}
	if got := string(r.read(32, 20*mib-6)); got != "before"+strings.Repeat("\x00", 26) {
		t.Errorf("%q", got)
	}
}

// What mkfs leaves that is cut just before its end is formatted again, as any
// filesystem, with its record only; and it is not with an owner's data beside it.
func TestFormatRepeat(t *testing.T) {
	for _, row := range []struct {
		fs   string
		size int64
		cut  func(r *rig)
	}{
		{"ext4", 64 * mib, func(r *rig) { r.write(make([]byte, 2*4096), 0) }},
		{"xfs", 320 * mib, func(r *rig) {
			sector := r.read(512, 0)
			sector[126] = 1 // in progress
			copy(sector[224:], make([]byte, 4))
			binary.LittleEndian.PutUint32(sector[224:], crc32.Checksum(sector, crc32.MakeTable(crc32.Castagnoli)))
			r.write(sector, 0)
		}},
		{"btrfs", 128 * mib, func(r *rig) {
			r.write([]byte("!BHRfS_M"), 64<<10+64)
			r.write(make([]byte, 4096), 64*mib)
		}},
	} {
		t.Run(row.fs, func(t *testing.T) {
			r := newRig(t, row.size)
			need(t, "mkfs."+row.fs)
			opts := map[string][]string{"ext4": {"-b", "4096"}}[row.fs]
			cut := func() {
				r.sh("wipefs", "-q", "-a", r.dev.Path)
				r.sh("blkdiscard", "-z", r.dev.Path)
				r.format(row.fs, opts...)
				row.cut(r)
				fs, err := r.Probe(t.Context(), r.lock, r.dev, "", true)
				if err != nil || fs.Content != volume.ForeignContent || !fs.Leftover {
					t.Fatalf("probe: %+v, %v", fs, err)
				}
			}
			cut()
			var refusal *Refusal
			first := Formatting{Device: r.dev, Type: row.fs, Created: true}
			if err := r.Format(t.Context(), r.lock, first, yes); !errors.As(err, &refusal) {
				t.Fatalf("first: got %v", err)
			}
			again := first
			again.Repeat = true
			r.write([]byte(strings.Repeat("an owner's row of data; ", 50)), 20*mib)
			if err := r.Format(t.Context(), r.lock, again, yes); !errors.As(err, &refusal) || !strings.Contains(refusal.What, "offset 20971520") {
				t.Errorf("with data: got %v", err)
			}
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

// An mkfs that does not start, or fails by itself, leaves neither a record nor a
// byte of its own; only a crash leaves both.
func TestFormatFails(t *testing.T) {
	r := newRig(t, 320*mib)
	tools := toolsOf(os.Getpid()) // mkfs as a script
	if err := os.MkdirAll(tools, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tools) })
	mkfs := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(tools, "mkfs.ext4"), []byte("#!/bin/sh\nfor D; do :; done\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const writes = "dd if=/dev/urandom of=$D bs=4096 count=16 seek=%d conv=notrunc status=none; "
	for _, row := range []struct {
		name, script, words string
		gate                error
	}{
		{"is not let go", "exit 0", "no room for the record", errors.New("no room for the record")},
		{"fails at once", "echo 'Usage: mkfs' >&2; echo more >&2; exit 1", "exit status 1: it does not say why", nil},
		{"fails in the middle", fmt.Sprintf(writes, 3) + fmt.Sprintf(writes, 40960) + "echo no inodes >&2; exit 3", "exit status 3: no inodes", nil},
		{"fails at its end", "/sbin/mkfs.ext4 -q -F $D; exit 1", "exit status 1", nil},
		{"ends well and has made nothing", fmt.Sprintf(writes, 1), "ended well, but", nil},
		{"is killed", fmt.Sprintf(writes, 1) + "kill -9 $$", "signal: killed", nil},
		{"has made something else", "/sbin/mkfs.ext4 -q -F -t ext3 $D; exit 1", "exit status 1", nil},
	} {
		mkfs(row.script)
		record := filepath.Join(r.dir, "record")
		err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4", Created: true, Record: record}, func() error {
			if row.gate == nil {
				r.record()
			}
			return row.gate
		})
		if err == nil || !strings.Contains(err.Error(), row.words) {
			t.Errorf("%s: %v", row.name, err)
		}
		if _, err := os.Stat(record); err == nil {
			t.Errorf("%s: the record stands", row.name)
		}
		if fs := r.probe(""); fs.Content != volume.Blank {
			t.Errorf("%s: %+v", row.name, fs)
		}
	}
	// Another program took the device meanwhile: its data is not zeroed, and no
	// mkfs is repeated over it.
	mkfs("mkswap -q $D >/dev/null 2>&1; exit 1")
	record := r.record()
	err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4", Created: true, Record: record}, yes)
	if err == nil || !strings.Contains(err.Error(), "swap") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(record); err == nil {
		t.Error("the record stands")
	}
	if fs := r.probe(""); fs.Signature != "swap" || fs.Leftover {
		t.Errorf("%+v", fs)
	}
	r.sh("wipefs", "-q", "-a", r.dev.Path)
	r.sh("blkdiscard", "-z", r.dev.Path)
	mkfs("echo is in use >&2; echo sparse data | dd of=$D bs=1M seek=2 conv=notrunc status=none; touch " + r.dir + "/ran; sleep 1; exit 1")
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
	err = r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4", Created: true, Record: record}, yes)
	<-done
	if other == nil {
		t.Fatal("the device was not opened exclusively")
	}
	other.Close()
	if err == nil || !strings.Contains(err.Error(), "could not be taken away") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(record); err == nil {
		t.Error("the record stands")
	}
	if got := r.read(6, 2*mib); string(got) != "sparse" {
		t.Errorf("the data is %q", got)
	}
}

// Ensure that after a failed mkfs only what was read as blank before is zeroed:
// data elsewhere stays, and an mkfs that wrote nothing costs no write.
func TestClean(t *testing.T) {
	r := newRig(t, 320*mib)
	blank := extent{chunks: 2}
	n := 0
	var off int64
	for c := range chunks(r.dev.Size) { // a place that blank does not include
		off = c.from + 256<<10
		read := slices.ContainsFunc(spans(r.dev.Size), func(s span) bool { return s.from < off+8192 && off < s.to })
		if n++; n > blank.chunks && !read {
			break
		}
	}
	data := bytes.Repeat([]byte("data"), 1024)
	r.write(data, off)
	before := r.written()
	f := Formatting{Device: r.dev, Type: "ext4"}
	if err := clean(f, blank); err != nil {
		t.Error(err)
	}
	if got := r.written(); got != before {
		t.Errorf("mkfs wrote nothing: %s, before: %s", got, before)
	}
	r.write([]byte("of mkfs"), mib)
	if err := clean(f, blank); err != nil {
		t.Error(err)
	}
	if i := firstNonZero(r.read(4*mib, 0)); i >= 0 {
		t.Errorf("what mkfs wrote at %d is still there", i)
	}
	if !bytes.Equal(r.read(len(data), off), data) {
		t.Errorf("the data at %d was zeroed", off)
	}
}

// Ensure that no device of a btrfs on several devices is mounted, whether the
// btrfs is mounted already or not, and that its mount can be unmounted.
func TestBtrfsDevices(t *testing.T) {
	need(t, "btrfs", "mkfs.btrfs")
	r, second := newRig(t, 256*mib), newRig(t, 256*mib)
	r.format("btrfs")
	dir := r.mkdir("m")
	l := r.landing(dir)
	r.land(l)
	r.sh("btrfs", "device", "add", "-f", second.dev.Path, dir)
	t.Cleanup(func() { exec.Command("btrfs", "device", "scan", "--forget").Run() })
	refused := func(d volume.Device, err error) {
		t.Helper()
		var refusal *Refusal
		if !errors.As(err, &refusal) || !strings.Contains(err.Error(), d.Path+" is one of 2 devices of the btrfs") || !strings.Contains(refusal.Hint, "btrfs device remove") {
			t.Errorf("%s: got %v", d.Path, err)
		}
	}
	// Also if flexd takes the mount for one of the second device.
	for _, first := range []bool{false, true} {
		for _, d := range []*rig{r, second} {
			l := MountSpec{Device: d.dev, FSType: "btrfs", Dir: d.mkdir("more"), First: first}
			err := d.Mount(t.Context(), d.lock, l, yes)
			if err == nil {
				unix.Unmount(l.Dir, 0)
			}
			if !first || err == nil {
				refused(d.dev, err)
			}
		}
	}
	r.unmount(dir)
	for _, d := range []*rig{r, second} {
		_, err := d.Probe(t.Context(), d.lock, d.dev, "", true)
		refused(d.dev, err)
		r.sh("btrfs", "device", "scan", second.dev.Path)
		err = d.Mount(t.Context(), d.lock, MountSpec{Device: d.dev, FSType: "btrfs", Dir: d.mkdir("more"), First: true}, yes)
		refused(d.dev, err)
	}
	// The way out.
	r.sh("btrfs", "device", "scan", r.dev.Path)
	r.sh("mount", r.dev.Path, dir)
	r.sh("btrfs", "device", "remove", second.dev.Path, dir)
	r.sh("umount", dir)
	r.land(r.landing(dir))
	r.unmount(dir)
	if fs := second.probe(""); fs.Content == volume.Filesystem {
		t.Errorf("got %+v", fs)
	}
}

// A swap file keeps a volume in use without a process.
func TestUnmountSwap(t *testing.T) {
	need(t, "mkswap", "swapon", "swapoff")
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m and m")
	r.land(r.landing(dir))
	file := dir + "/swap"
	r.sh("dd", "if=/dev/zero", "of="+file, "bs=1M", "count=1", "conv=fsync", "status=none")
	r.sh("chmod", "600", file)
	r.sh("mkswap", "-q", file)
	r.sh("swapon", file)
	defer exec.Command("swapoff", file).Run() // if the test fails
	var busy *BusyError
	if err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number); !errors.As(err, &busy) || !strings.Contains(err.Error(), "swapoff "+file) {
		t.Errorf("got %v", err)
	}
	r.sh("swapoff", file)
	r.unmount(dir)
}

// Ensure that an unmount of a mount in use names who uses it, detaches nothing,
// and succeeds when he is gone.
func TestUnmountBusy(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m")
	r.land(r.landing(dir))
	r.sh("cp", "/bin/sleep", dir+"/prog")
	for _, row := range []struct {
		how  string
		argv []string
		dir  string
	}{
		{"open file", []string{"sh", "-c", "exec 7>" + dir + "/open; sleep 60"}, "/"},
		{"working directory", []string{"sleep", "60"}, dir},
		{"running program", []string{dir + "/prog", "60"}, "/"},
	} {
		c := exec.Command(row.argv[0], row.argv[1:]...)
		c.Dir = row.dir
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		stop := func() {
			unix.Kill(-c.Process.Pid, unix.SIGKILL)
			c.Wait()
		}
		if row.how == "open file" {
			waitFor(t, func() bool { _, err := os.Stat(dir + "/open"); return err == nil })
		}
		err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number)
		var busy *BusyError
		if !errors.As(err, &busy) || len(busy.Holders) == 0 {
			stop()
			t.Fatalf("%s: got %v", row.how, err)
		}
		found := false
		for _, h := range busy.Holders {
			found = found || (h.Pid == c.Process.Pid && strings.HasPrefix(h.How, row.how))
		}
		if !found {
			t.Errorf("%s of pid %d: got %v", row.how, c.Process.Pid, err)
		}
		if len(r.mounts()) != 1 {
			t.Errorf("%s: the mount is gone", row.how)
		}
		stop()
	}
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", sub, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number); err == nil || !strings.Contains(err.Error(), sub) {
		t.Errorf("a mount on it: got %v", err)
	}
	if err := unix.Unmount(sub, 0); err != nil {
		t.Fatal(err)
	}
	r.unmount(dir)
}

// Ensure that a mount of something else, on top of ours or instead of it, is
// named and left alone.
func TestUnmountForeign(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m")
	if err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number); !errors.Is(err, ErrNone) {
		t.Errorf("nothing there: got %v", err)
	}
	r.land(r.landing(dir))
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number)
	if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "tmpfs") {
		t.Errorf("got %v", err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	r.unmount(dir)
}

// Ensure that a landing that fails, or is refused, leaves nothing: no mount and
// no user of the device.
func TestLandLeavesNothing(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m")
	good := r.landing(dir)
	if err := os.Symlink(dir, filepath.Join(r.dir, "link")); err != nil {
		t.Fatal(err)
	}
	no := errors.New("no")
	for _, row := range []struct {
		name   string
		change func(*MountSpec)
		gate   func() error
		want   error
		text   string
	}{
		{"gate says no", func(*MountSpec) {}, func() error { return no }, no, ""},
		{"no directory", func(l *MountSpec) { l.Dir += "/nowhere" }, yes, ErrNoDir, "nowhere"},
		{"symlink", func(l *MountSpec) { l.Dir = filepath.Join(r.dir, "link") }, yes, nil, "symlink"},
		{"outside", func(l *MountSpec) { l.Dir = "/mnt" }, yes, nil, "below"},
		{"dots", func(l *MountSpec) { l.Dir = r.dir + "/../../mnt" }, yes, nil, "clean"},
		{"option", func(l *MountSpec) { l.Super = []string{"no-such-option"} }, yes, nil, "no-such-option"},
		{"value", func(l *MountSpec) { l.Super = []string{"commit=x"} }, yes, nil, "commit"},
		{"attribute", func(l *MountSpec) { l.Attrs = []string{"remount"} }, yes, nil, "remount"},
		{"other type", func(l *MountSpec) { l.FSType = "xfs" }, yes, nil, "xfs"},
		{"directory replaced", func(*MountSpec) {}, func() error {
			return errors.Join(os.Remove(dir), os.Mkdir(dir, 0o755), os.Remove(dir), os.Mkdir(dir+"2", 0o755), os.Mkdir(dir, 0o755))
		}, nil, "meantime"},
		{"directory gone", func(*MountSpec) {}, func() error { return os.Remove(dir) }, ErrNoDir, ""},
	} {
		l := good
		row.change(&l)
		err := r.Mount(t.Context(), r.lock, l, row.gate)
		if err == nil || (row.want != nil && !errors.Is(err, row.want)) || !strings.Contains(err.Error(), row.text) {
			t.Errorf("%s: got %v", row.name, err)
		}
		if got := r.mounts(); len(got) != 0 {
			t.Errorf("%s: mounted: %v", row.name, got)
		}
		fd, err := unix.Open(r.dev.Path, unix.O_RDONLY|unix.O_EXCL, 0)
		if err != nil {
			t.Errorf("%s: the device is in use: %v", row.name, err)
		} else {
			unix.Close(fd)
		}
	}
}

// Ensure that attributes and options arrive, per mount and per superblock.
func TestLandOptions(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	l := r.landing(r.mkdir("m"))
	l.Attrs, l.Super = []string{"nosuid", "nodev", "noatime"}, []string{"commit=7", "nodiscard"}
	r.land(l)
	e := r.mounts()[0]
	for _, want := range []string{"nosuid", "nodev", "noatime"} {
		if !strings.Contains(strings.Join(e.Options, ","), want) {
			t.Errorf("no %s in %v", want, e.Options)
		}
	}
	if !strings.Contains(strings.Join(e.Super, ","), "commit=7") || e.Source != r.dev.Path {
		t.Errorf("got %v of %s", e.Super, e.Source)
	}
	r.unmount(l.Dir)
}

// Ensure that a filesystem that counts errors is told from a sound one, while
// it is mounted and after.
func TestFilesystemInError(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	l := r.landing(r.mkdir("m"))
	r.land(l)
	trigger := "/sys/fs/ext4/" + filepath.Base(r.dev.Path) + "/trigger_fs_error"
	if err := os.WriteFile(trigger, []byte("flexd test"), 0o200); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { // the kernel counts it a little later
		b, err := os.ReadFile(filepath.Dir(trigger) + "/errors_count")
		return err == nil && string(b) != "0\n"
	})
	if got := r.probe(l.Dir); got.Content != volume.FilesystemFailed || got.What == "" {
		t.Errorf("mounted: got %+v", got)
	}
	r.unmount(l.Dir)
	if got := r.probe(""); got.Content != volume.Filesystem || got.What == "" {
		t.Errorf("unmounted: got %+v", got)
	}
	if err := r.Check(t.Context(), r.lock, r.dev, "ext4"); err != nil {
		t.Error(err)
	}
	if got := r.probe(""); got.Content != volume.Filesystem || got.What != "" {
		t.Errorf("checked: got %+v", got)
	}
}

// Ensure that e2fsck's verdicts are understood.
func TestCheckVerdicts(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	// The root directory's inode is gone: nothing that -p would repair.
	l := r.landing(r.mkdir("m"))
	r.land(l)
	r.unmount(l.Dir)
	r.sh("debugfs", "-w", "-R", "clri <2>", r.dev.Path)
	r.sh("debugfs", "-w", "-R", "ssv state 2", r.dev.Path)
	err := r.Check(t.Context(), r.lock, r.dev, "ext4")
	var refusal *Refusal
	if !errors.As(err, &refusal) || !strings.Contains(refusal.Hint, "e2fsck -f") {
		t.Errorf("got %v", err)
	}
	for code, ok := range map[int]bool{0: true, 1: true, 2: false, 3: false, 4: false, 5: false, 8: false, 12: false, 16: false, 32: false, 128: false} {
		if err := e2fsckError("/dev/x", code, "words"); (err == nil) != ok {
			t.Errorf("exit status %d: got %v", code, err)
		}
	}
}

// Ensure that a program that is not installed is named with its package.
func TestMissingTool(t *testing.T) {
	_, _, _, err := tool("some-package", nil, "no-such-program")
	if !errors.Is(err, ErrNoTool) || !strings.Contains(fmt.Sprint(err), "some-package") {
		t.Errorf("got %v", err)
	}
}

func waitFor(t *testing.T, f func() bool) {
	t.Helper()
	for range 500 {
		if f() {
			return
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 10_000_000}, nil)
	}
	t.Fatal("not within 5 s")
}
