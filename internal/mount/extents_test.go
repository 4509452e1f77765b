//go:build !vm

package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/umount"
)

// A file needs space of its filesystem if it has a hole, also one that blocks beyond its end hide, or shares
// its blocks, or is on btrfs. On a full filesystem its device is refused.
func TestNeedsSpace(t *testing.T) {
	need(t, "mkfs.xfs", "mkfs.btrfs", "mkfs.ext4", "xfs_io")
	type row struct {
		name  string
		make  string // a shell command that makes the file f
		needs bool
	}
	rows := []row{
		{"no data", "truncate -s 4M f", true},
		{"preallocated", "fallocate -l 4M f", false},
		{"written", "dd if=/dev/zero of=f bs=1M count=4", false},
		{"written, not synced, and preallocated beyond its end", "dd if=/dev/zero of=f bs=1M count=4; fallocate -n -l 8M f", false},
		{"a hole", "fallocate -l 4M f; fallocate -p -o 1M -l 4K f", true},
		{"a hidden hole", "fallocate -l 4M f; fallocate -p -o 1M -l 4K f; fallocate -n -o 4M -l 1M f", true},
		{"a hidden hole at its end", "fallocate -l 2M f; truncate -s 4M f; fallocate -n -o 5M -l 4M f", true},
		{"2000 extents", "fallocate -l 8192000 f; { seq -f 'pwrite -q %.0f 4K' 0 8192 8191999; echo fsync; } | xfs_io f", false},
		{"2000 extents before a hole", "fallocate -l 8192000 f; { seq -f 'pwrite -q %.0f 4K' 0 8192 8191999; echo fsync; } | xfs_io f; truncate -s 8M f; fallocate -n -o 9M -l 4M f", true},
		{"no regular file", "mkfifo f", false},
	}
	for fs, more := range map[string][]row{
		"ext4": nil,
		"xfs": {
			{"shared", "dd if=/dev/zero of=f bs=1M count=4; cp --reflink=always f copy", true},
			{"shared in part", "dd if=/dev/zero of=f bs=1M count=4; xfs_io -f -c 'reflink f 1M 0 4K' copy", true},
			{"shared before, then overwritten", "dd if=/dev/zero of=f bs=1M count=4; cp --reflink=always f copy; dd if=/dev/zero of=f bs=1M count=4 conv=notrunc,fsync", false},
		},
	} {
		r := bareRig(t)
		dir := r.mountImage(fs)
		for i, row := range append(rows, more...) {
			sub := filepath.Join(dir, string(rune('a'+i)))
			r.sh("sh", "-ec", "mkdir $0; cd $0; exec 2>&1; "+row.make, sub)
			if needs, err := NeedsSpace(sub + "/f"); err != nil || needs != row.needs {
				t.Errorf("%s, %s: got %v, %v", fs, row.name, needs, err)
			}
		}
		if _, err := NeedsSpace(dir + "/missing"); err == nil {
			t.Errorf("%s: a missing file needs no space", fs)
		}
	}
	r := bareRig(t)
	dir := r.mountImage("btrfs")
	r.sh("fallocate", "-l", "4M", dir+"/f")
	if needs, err := NeedsSpace(dir + "/f"); err != nil || !needs {
		t.Errorf("btrfs: got %v, %v", needs, err)
	}
}

// Without FIEMAP, as on tmpfs, the blocks of a file are counted.
func TestNeedsSpaceByBlocks(t *testing.T) {
	need(t)
	r := bareRig(t)
	dir := r.mkdir("disk")
	r.sh("mount", "-t", "tmpfs", "none", dir)
	t.Cleanup(func() { umount.NoFollow(dir) })
	for name, needs := range map[string]bool{"full": false, "hole": true} {
		if err := os.WriteFile(dir+"/"+name, make([]byte, mib), 0o600); err != nil {
			t.Fatal(err)
		}
		if needs {
			r.sh("truncate", "-s", "2M", dir+"/"+name)
		}
		if got, err := NeedsSpace(dir + "/" + name); err != nil || got != needs {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

// On a full xfs the device of an allocated file is full only if the file shares its blocks.
func TestFullBelowShared(t *testing.T) {
	need(t, "mkfs.xfs")
	r := bareRig(t)
	dir := r.mountImage("xfs")
	r.sh("sh", "-ec", "cd $0; exec 2>&1; fallocate -l 4M own; dd if=/dev/zero of=shared bs=1M count=4; cp --reflink=always shared copy; for s in 16M 1M 64K 4K; do while fallocate -l $s hog.$((i=i+1)); do :; done; done", dir)
	for name, full := range map[string]bool{"own": false, "shared": true} {
		r.file = filepath.Join(dir, name)
		r.attach()
		if err := writableBelow(volume.Device{Number: r.dev.Number}); (err != nil) != full {
			t.Errorf("%s: got %v", name, err)
		}
		r.detach(r.dev.Path)
	}
}

// A device of a sparse file is full when root can write nothing more to the filesystem below, which keeps a reserve
// for its metadata.
func TestFullBelow(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs", "btrfs", "overlay over ext4", "overlay over btrfs"} {
		t.Run(fs, func(t *testing.T) {
			lower, overlay := strings.CutPrefix(fs, "overlay over ")
			need(t, "mkfs."+lower)
			r := bareRig(t)
			dir := r.mountImage(lower)
			if overlay {
				r.sh("sh", "-ec", "cd $0; mkdir lower upper work merged; mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none merged", dir)
				dir += "/merged"
				defer umount.NoFollow(dir)
			}
			r.file = filepath.Join(dir, "volume")
			r.sh("truncate", "-s", "64M", r.file)
			r.attach()
			defer r.detach(r.dev.Path)
			d := volume.Device{Number: r.dev.Number}
			if err := writableBelow(d); err != nil {
				t.Errorf("empty: got %v", err)
			}
			r.sh("sh", "-c", "cd $0; for s in 16M 1M 64K 4K; do dd if=/dev/zero bs=$s of=hog oflag=append conv=notrunc,fsync status=none; done 2>/dev/null; sync -f .", dir)
			if err := writableBelow(d); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("full: got %v", err)
			}
			r.sh("mv", r.file, r.file+".moved")
			if err := writableBelow(d); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("moved: got %v", err)
			}
			r.sh("mount", "-t", "tmpfs", "over", dir)
			defer umount.NoFollow(dir)
			if err := writableBelow(d); err == nil || errors.Is(err, unix.ENOSPC) {
				t.Errorf("below a later mount: got %v", err)
			}
		})
	}
}

// A device accepts no writes when the kernel has stopped the filesystem of its file after an error. A read-only mount beside
// does not count.
func TestStoppedBelow(t *testing.T) {
	need(t, "mkfs.ext4")
	r := bareRig(t)
	dir := r.mountImage("ext4")
	r.sh("mount", "-o", "remount,errors=remount-ro", dir)
	r.file = filepath.Join(dir, "volume")
	r.sh("truncate", "-s", "64M", r.file)
	r.attach()
	defer r.detach(r.dev.Path)
	d := volume.Device{Number: r.dev.Number}
	r.sh("mount", "--bind", "-o", "ro", dir, dir)
	if err := writableBelow(d); err != nil {
		t.Errorf("below a read-only mount: got %v", err)
	}
	r.sh("umount", dir)
	r.sh("sh", "-c", "echo x > /sys/fs/ext4/$(basename $(findmnt -no SOURCE $0))/trigger_fs_error", dir)
	if err := writableBelow(d); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "its file is on the ext4 at "+dir+", which accepts no writes (") {
		t.Errorf("stopped: got %v", err)
	}
	if err := maybeCut(d.Number); !errors.Is(err, ErrUnwritten) || !strings.Contains(err.Error(), "accepts no writes") {
		t.Errorf("at an unmount: got %v", err)
	}
	r.detach(r.dev.Path)
	umount.NoFollow(dir)

	need(t, "mkfs.xfs", "xfs_io") // whose mount does not show it
	r.sh("mkfs.xfs", "-qf", filepath.Join(r.dir, "image"))
	r.sh("mount", "-o", "loop", filepath.Join(r.dir, "image"), dir)
	r.sh("truncate", "-s", "64M", r.file)
	r.attach()
	r.sh("xfs_io", "-x", "-c", "shutdown", dir)
	if err := writableBelow(volume.Device{Number: r.dev.Number}); !errors.Is(err, unix.EIO) {
		t.Errorf("an xfs that has shut down: got %v", err)
	}
	table, err := mounttable.Read(strings.NewReader("40 1 0:50 / /mnt rw - ext4 " + r.dev.Path + " rw\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := mayLookUp("btrfs", table); err == nil || !strings.Contains(err.Error(), r.file) || !strings.Contains(err.Error(), "has failed") {
		t.Errorf("got %v", err)
	}
}

// A filesystem that hangs is mounted over the directory of the file: the look ends.
func TestFullHangs(t *testing.T) {
	r := bareRig(t)
	dir := r.mkdir("vg")
	r.file = filepath.Join(dir, "volume")
	r.sh("truncate", "-s", "64M", r.file)
	r.attach()
	defer r.detach(r.dev.Path)
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	if err := unix.Mount("hung", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())); err != nil {
		t.Fatal(err)
	}
	defer umount.NoFollow(dir)
	defer server.Close()
	belowTimeout = 100 * time.Millisecond
	defer func() { belowTimeout = 5 * time.Second }()
	if err := writableBelow(volume.Device{Number: r.dev.Number}); err == nil || !strings.Contains(err.Error(), "does not respond") {
		t.Errorf("got %v", err)
	}
	// Another mkfs would look up that path if the device were mounted, or if it were the source of a mount.
	for _, c := range []struct {
		source string
		fails  []string
	}{{r.dev.Path, []string{"btrfs"}}, {r.file, []string{"btrfs", "xfs"}}, {"server:" + r.file, nil}} {
		table, err := mounttable.Read(strings.NewReader("40 1 0:50 / /mnt rw - fuse " + c.source + " rw\n"))
		if err != nil {
			t.Fatal(err)
		}
		for _, fs := range []string{"btrfs", "xfs", "ext4"} {
			want := ""
			if slices.Contains(c.fails, fs) {
				want = fmt.Sprintf("mkfs.%s would look up %s, because %s is mounted at /mnt, and the filesystem of that path does not respond", fs, r.file, c.source)
			}
			if err := mayLookUp(fs, table); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %s: got %v", fs, c.source, err)
			}
		}
	}
}

// A file that is bound into a directory, or whose directory is hidden, counts for its own filesystem.
func TestFullElsewhere(t *testing.T) {
	need(t, "mkfs.ext4")
	r := bareRig(t)
	dir, here := r.mountImage("ext4"), r.mkdir("here")
	r.file = filepath.Join(here, "volume")
	r.sh("truncate", "-s", "64M", filepath.Join(dir, "volume"))
	r.sh("touch", r.file)
	r.sh("mount", "--bind", filepath.Join(dir, "volume"), r.file)
	defer umount.NoFollow(r.file)
	r.attach()
	defer r.detach(r.dev.Path)
	d := volume.Device{Number: r.dev.Number}
	if err := writableBelow(d); err != nil {
		t.Errorf("empty: got %v", err)
	}
	r.sh("sh", "-c", "cd $0; for s in 16M 1M 64K 4K; do dd if=/dev/zero bs=$s of=hog oflag=append conv=notrunc,fsync status=none; done 2>/dev/null; sync -f .", dir)
	if err := writableBelow(d); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("bound: got %v", err)
	}
	r.sh("mount", "-t", "tmpfs", "over", here)
	defer umount.NoFollow(here)
	if err := writableBelow(d); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("hidden, and its filesystem is mounted elsewhere: got %v", err)
	}
}

// mountImage mounts a new filesystem of 400 MiB.
func (r *rig) mountImage(fs string) string {
	r.Helper()
	image, dir := filepath.Join(r.dir, "image"), r.mkdir("disk")
	r.sh("truncate", "-s", "400M", image)
	argv := map[string][]string{
		"ext4":  {"mkfs.ext4", "-q", image},
		"xfs":   {"mkfs.xfs", "-q", "-m", "reflink=1", image},
		"btrfs": {"mkfs.btrfs", "-q", image},
	}
	r.sh(argv[fs]...)
	r.sh("mount", "-o", "loop", image, dir)
	r.Cleanup(func() { umount.NoFollow(dir) })
	return dir
}

// Extents that cannot be read are an error, but not on a filesystem that has none.
func TestExtentsUnread(t *testing.T) {
	if needs, err := unmapped(-1, 4096); !errors.Is(err, unix.EBADF) {
		t.Errorf("got %v, %v", needs, err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if needs, err := unmapped(int(null.Fd()), 4096); err != nil || needs {
		t.Errorf("got %v, %v", needs, err)
	}
}
