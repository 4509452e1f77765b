//go:build !vm

package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/umount"
)

// mkfs options turn the filesystem into another type: it is erased, since it could not be mounted.
func TestFormatOtherType(t *testing.T) {
	need(t, "mkfs.ext4")
	const old = "-O ^extent,^huge_file,^flex_bg,^dir_nlink,^extra_isize,^metadata_csum,^64bit"
	for name, opts := range map[string]string{"ext3": old, "ext2": old + ",^has_journal"} {
		r := newRig(t, 64*mib)
		f := Formatting{Device: r.dev, Type: "ext4", Opts: strings.Fields(opts), Created: created, Record: r.record()}
		err := r.Format(t.Context(), r.lock, f, yes)
		if err == nil || !strings.Contains(err.Error(), "makes "+name+", not ext4; use other options") {
			t.Errorf("%s: %v", name, err)
		}
		r.unrecorded(name)
		if fs := r.probe(""); fs.Content != volume.Blank {
			t.Errorf("%s: %+v", name, fs)
		}
	}
}

// Ensure that no device of a btrfs on several devices is mounted, whether the
// btrfs is mounted already or not, and that its mount can be unmounted.
func TestBtrfsDevices(t *testing.T) {
	need(t, "btrfs", "mkfs.btrfs")
	r, second := newRig(t, 256*mib), newRig(t, 256*mib)
	r.format("btrfs")
	dir := r.mkdir("m")
	l := r.spec(dir)
	r.mount(l)
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
				umount.Plain(l.Dir)
			}
			if !first || err == nil {
				refused(d.dev, err)
			}
		}
	}
	r.unmount(dir)
	for _, d := range []*rig{r, second} {
		_, err := d.Probe(t.Context(), d.lock, d.dev, "", created, "")
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
	r.mount(r.spec(dir))
	r.unmount(dir)
	if fs := second.probe(""); fs.Content == volume.Filesystem {
		t.Errorf("got %+v", fs)
	}

	// The same moves a filesystem to another device, whose id is not 1: it is extended all the same.
	r.mount(r.spec(dir))
	r.sh("btrfs", "device", "add", "-f", second.dev.Path, dir)
	r.sh("btrfs", "device", "remove", r.dev.Path, dir)
	second.resize(512 * mib)
	if err := second.Grow(t.Context(), second.lock, second.dev, "btrfs", dir); err != nil {
		t.Error(err)
	}
	if fs := second.probe(dir); fs.Size != volume.Room(512*mib) {
		t.Errorf("got %+v", fs)
	}
	second.unmount(dir)
}

// Ensure that a mount that fails, or is refused, leaves no mount and no user of the device.
func TestLandLeavesNothing(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m")
	good := r.spec(dir)
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

// Ensure that attributes apply per mount and options per superblock.
func TestLandOptions(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	l := r.spec(r.mkdir("m"))
	l.Attrs, l.Super = []string{"nosuid", "nodev", "noatime"}, []string{"commit=7", "nodiscard"}
	r.mount(l)
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

// Ensure that a filesystem with counted errors is reported, mounted and unmounted.
func TestFilesystemInError(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	l := r.spec(r.mkdir("m"))
	r.mount(l)
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

// After a power cut an ext4 has all synced data, also with fast commits, which e2fsck does not always replay,
// and if the disk temporarily takes no writes.
func TestCheckJournal(t *testing.T) {
	for name, opts := range map[string][]string{"plain": nil, "fast commits": {"-O", "fast_commit"}} {
		t.Run(name, func(t *testing.T) {
			need(t, "mkfs.ext4", "losetup")
			const files = 200
			r := bareRig(t)
			group, m := r.mkdir("group"), r.mkdir("m")
			if err := unix.Mount("tmpfs", group, "tmpfs", 0, "size=100m"); err != nil {
				t.Fatal(err)
			}
			defer umount.Plain(group)
			attach := func(file string) {
				r.observe(strings.TrimSpace(r.sh("losetup", "--show", "-f", file)))
			}
			count := func() (n int) {
				t.Helper()
				if err := r.Mount(t.Context(), r.lock, MountSpec{Device: r.dev, FSType: "ext4", Dir: m, Root: r.dir, First: true}, yes); err != nil {
					t.Fatal(err)
				}
				defer r.unmount(m)
				_ = filepath.WalkDir(m, func(path string, d fs.DirEntry, err error) error {
					if b, err := os.ReadFile(path); err == nil && string(b) == path {
						n++
					}
					return nil
				})
				return n
			}
			live, cut := group+"/live", group+"/cut"
			if err := os.WriteFile(live, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(live, 64*mib); err != nil {
				t.Fatal(err)
			}
			attach(live)
			r.format("ext4", opts...)
			if err := r.Mount(t.Context(), r.lock, r.spec(m), yes); err != nil {
				t.Fatal(err)
			}
			for i := range files {
				dir := fmt.Sprintf("%s/%d", m, i%20)
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				f, err := os.Create(fmt.Sprintf("%s/%d", dir, i))
				if err == nil {
					_, err = f.WriteString(f.Name())
				}
				if err == nil {
					err = f.Sync()
				}
				if err == nil {
					err = f.Close()
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			r.sh("cp", "--sparse=always", live, cut) // as it is on the disk at this moment
			r.unmount(m)
			r.sh("losetup", "-d", r.dev.Path)
			r.sh("rm", live)

			attach(cut)
			defer r.sh("losetup", "-d", r.dev.Path)
			hog, _ := os.Create(group + "/hog")
			for b := make([]byte, 4096); ; { // until the directory is full
				if _, err := hog.Write(b); err != nil {
					break
				}
			}
			hog.Close()
			err := r.Check(t.Context(), r.lock, r.dev, "ext4")
			var refusal *Refusal
			if !(errors.As(err, &refusal) && strings.Contains(refusal.What, "is full")) {
				t.Errorf("while its directory is full: %v", err)
			}
			if err := os.Remove(hog.Name()); err != nil {
				t.Fatal(err)
			}
			if err := r.Check(t.Context(), r.lock, r.dev, "ext4"); err != nil {
				t.Error(err)
			}
			if n := count(); n != files {
				t.Errorf("%d of %d synced files", n, files)
			}
		})
	}
}

// e2fsck repairs a filesystem that the kernel does not mount, also with a journal.
func TestCheckTornDescriptor(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	r.sh("debugfs", "-w", "-R", "set_bg 0 checksum 0x1234", r.dev.Path)
	r.sh("debugfs", "-w", "-R", "feature needs_recovery", r.dev.Path)
	l := r.spec(r.mkdir("m"))
	if err := r.Mount(t.Context(), r.lock, l, yes); err == nil {
		t.Fatal("it was mounted")
	}
	if err := r.Check(t.Context(), r.lock, r.dev, "ext4"); err != nil {
		t.Fatal(err)
	}
	r.mount(l)
	r.unmount(l.Dir)
}

// Ensure that the exit statuses of e2fsck are handled.
func TestCheckVerdicts(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	// The root directory's inode is gone: nothing that -p would repair.
	l := r.spec(r.mkdir("m"))
	r.mount(l)
	r.unmount(l.Dir)
	r.sh("debugfs", "-w", "-R", "clri <2>", r.dev.Path)
	r.sh("debugfs", "-w", "-R", "ssv state 2", r.dev.Path)
	err := r.Check(t.Context(), r.lock, r.dev, "ext4")
	var refusal *Refusal
	if !errors.As(err, &refusal) || !strings.Contains(refusal.Hint, "e2fsck -f") {
		t.Errorf("got %v", err)
	}
	for code, ok := range map[int]bool{0: true, 1: true, 2: false, 3: false, 4: false, 5: false, 8: false, 12: false, 16: false, 32: false, 128: false} {
		if err := e2fsckError(volume.Device{Path: "/dev/x"}, code, "words"); (err == nil) != ok {
			t.Errorf("exit status %d: got %v", code, err)
		}
	}
	err = e2fsckError(volume.Device{Path: "/dev/x"}, 8, "try running e2fsck with an alternate superblock: e2fsck -b 8193 <device>")
	if !errors.As(err, &refusal) || refusal.Why != volume.Damaged || !strings.Contains(refusal.Hint, "copy the volume") {
		t.Errorf("got %v", err)
	}
}

// An e2fsck that was killed leaves a mark in an ext4 with MMP, which e2fsck itself never removes.
func TestCheckMMP(t *testing.T) {
	r := newRig(t, 64*mib)
	r.sh("mkfs.ext4", "-q", "-b", "4096", "-O", "mmp,^metadata_csum", "-E", "mmp_update_interval=1", r.dev.Path)
	_, text, _ := strings.Cut(r.sh("dumpe2fs", "-h", r.dev.Path), "MMP block number:")
	var block int64
	if _, err := fmt.Sscan(text, &block); err != nil {
		t.Fatal(err)
	}
	dev, err := os.OpenFile(r.dev.Path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = dev.WriteAt([]byte{0x50, 0x4d, 0x4d, 0xe2}, block*4096+4)
	if err := errors.Join(err, dev.Close()); err != nil {
		t.Fatal(err)
	}
	err = r.Check(t.Context(), r.lock, r.dev, "ext4")
	refusal, _ := errors.AsType[*Refusal](err)
	if refusal == nil || !strings.Contains(refusal.Hint, "no other node") || !strings.Contains(refusal.Hint, "tune2fs -f -E clear_mmp $L; losetup -d") {
		t.Errorf("got %+v", err)
	}
	err = r.Mount(t.Context(), r.lock, MountSpec{Device: r.dev, FSType: "ext4", Dir: r.mkdir("m"), Root: r.dir, First: true}, yes)
	if refusal, _ := errors.AsType[*Refusal](err); refusal == nil || !strings.Contains(refusal.Hint, "clear_mmp") {
		t.Errorf("mount: got %+v", err)
	}
	r.sh("tune2fs", "-f", "-E", "clear_mmp", r.dev.Path)
	if err := r.Check(t.Context(), r.lock, r.dev, "ext4"); err != nil {
		t.Error(err)
	}
}

// Ensure that the error for a missing program names its package.
func TestMissingTool(t *testing.T) {
	_, err := tool(limits{}, "some-package", nil, "no-such-program")
	if !errors.Is(err, ErrNoTool) || !strings.Contains(fmt.Sprint(err), "some-package") {
		t.Errorf("got %v", err)
	}
}

// Ensure that the refusal of a copy of a mounted btrfs names both devices, and their volumes, in either order
// of the mounts.
func TestBtrfsCopies(t *testing.T) {
	need(t, "mkfs.btrfs")
	owner := newRig(t, 128*mib)
	owner.format("btrfs")
	copied := owner.twin()
	for _, pair := range [][2]*rig{{owner, copied}, {copied, owner}} {
		first, second := pair[0], pair[1]
		l := firstOf(first.spec(first.mkdir("m")))
		first.mount(l)
		err := second.Mount(t.Context(), second.lock, MountSpec{Device: second.dev, FSType: "btrfs", Dir: second.mkdir("m"), First: true}, yes)
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Why != volume.Conflict {
			t.Fatalf("got %v", err)
		}
		for _, word := range []string{first.dev.Path, first.file, second.dev.Path, second.file} {
			if !strings.Contains(refusal.What, word) {
				t.Errorf("%q does not name %s", refusal.What, word)
			}
		}
		first.unmount(l.Dir)
		exec.Command("btrfs", "device", "scan", "--forget").Run()
	}
}
