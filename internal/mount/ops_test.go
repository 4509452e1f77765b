//go:build !vm

package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

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
	if err := newRig(t, 64*mib).Format(t.Context(), r.lock, r.dev, "vfat", nil, false); err == nil {
		t.Error("vfat was made")
	}
}

// Ensure that a mkfs that was cut may be repeated over its own remains, but
// not over anything else.
func TestFormatRepeat(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	r.write(make([]byte, 512), 0x438/512*512) // no magic number any more, but much data
	var refusal *Refusal
	if err := r.Format(t.Context(), r.lock, r.dev, "ext4", nil, false); !errors.As(err, &refusal) {
		t.Fatalf("first: got %v", err)
	}
	if err := r.Format(t.Context(), r.lock, r.dev, "ext4", nil, true); err != nil {
		t.Fatal(err)
	}
	// mkfs writes the superblock last: where one is, nothing was cut.
	for _, fsType := range []string{"ext4", "xfs"} {
		if err := r.Format(t.Context(), r.lock, r.dev, fsType, nil, true); !errors.As(err, &refusal) {
			t.Errorf("%s over a whole ext4: got %v", fsType, err)
		}
	}
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
		change func(*Landing)
		gate   func() error
		want   error
		text   string
	}{
		{"gate says no", func(*Landing) {}, func() error { return no }, no, ""},
		{"no directory", func(l *Landing) { l.Dir += "/nowhere" }, yes, ErrNoDir, "nowhere"},
		{"symlink", func(l *Landing) { l.Dir = filepath.Join(r.dir, "link") }, yes, nil, "symlink"},
		{"outside", func(l *Landing) { l.Dir = "/mnt" }, yes, nil, "below"},
		{"dots", func(l *Landing) { l.Dir = r.dir + "/../../mnt" }, yes, nil, "clean"},
		{"option", func(l *Landing) { l.Super = []string{"no-such-option"} }, yes, nil, "no-such-option"},
		{"value", func(l *Landing) { l.Super = []string{"commit=x"} }, yes, nil, "commit"},
		{"attribute", func(l *Landing) { l.Attrs = []string{"remount"} }, yes, nil, "remount"},
		{"other type", func(l *Landing) { l.FSType = "xfs" }, yes, nil, "xfs"},
		{"directory replaced", func(*Landing) {}, func() error {
			return errors.Join(os.Remove(dir), os.Mkdir(dir, 0o755), os.Remove(dir), os.Mkdir(dir+"2", 0o755), os.Mkdir(dir, 0o755))
		}, nil, "meantime"},
		{"directory gone", func(*Landing) {}, func() error { return os.Remove(dir) }, ErrNoDir, ""},
	} {
		l := good
		row.change(&l)
		err := r.Land(t.Context(), r.lock, l, row.gate)
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
