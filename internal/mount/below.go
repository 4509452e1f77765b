package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// FullBelow is the free space of the filesystem below a loop device, in bytes, under which it counts as full.
const FullBelow = 1 << 20

// hiddenReserve is what a filesystem may show as available, and keep for its metadata, as a btrfs with mixed block
// groups does.
const hiddenReserve = 2 << 20

// FreeBelow returns the bytes that root can still write to the filesystem of path, of which st is the statfs. The free
// blocks of an ext4 or a btrfs include those that only metadata can use. An overlay shows those of its upper layer.
func FreeBelow(path string, st *unix.Statfs_t) int64 {
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC: // a quota of the directory limits both
		return max(int64(st.Bavail), int64(st.Bfree)-ext4Reserve(path)) * st.Bsize
	case unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return int64(st.Bfree) * st.Bsize
	}
	return max(0, int64(st.Bavail)*st.Bsize-hiddenReserve)
}

// ext4Reserve returns the clusters that the ext4 of path reserves for metadata; ext2 has none. A cluster is a block,
// except with the feature bigalloc.
func ext4Reserve(path string) int64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	device, _ := os.Readlink("/sys/dev/block/" + sysfs.Number(st.Dev))
	n, _ := sysfs.Uint("/sys/fs/ext4/" + filepath.Base(device) + "/reserved_clusters")
	return int64(n)
}

// belowTimeout limits the search for the file of a loop device: a filesystem that hangs may be mounted over it.
var belowTimeout = 5 * time.Second // shorter in tests

// writableBelow returns an error if writes to a loop device fail because its file is on a filesystem that accepts none
// (EROFS), or needs space of one that is full (ENOSPC). The error wraps neither if that is unknown.
func writableBelow(d volume.Device) error {
	file, err := backingFile(d.Number)
	if err != nil {
		return nil // not a loop device, or it is detached
	}
	found := make(chan error, 1)
	go func() { found <- writableAt(d, file) }()
	select {
	case err := <-found:
		return err
	case <-time.After(belowTimeout):
		return fmt.Errorf("whether the filesystem of %s accepts writes is unknown: its path does not respond", file)
	}
}

// writableAt is writableBelow without a time limit.
func writableAt(d volume.Device, file string) error {
	path, same, err := pathBelow(d.Number, file)
	if err != nil {
		return fmt.Errorf("whether the filesystem of %s accepts writes is unknown: %w", file, err)
	}
	if path == "" {
		return nil
	}
	tab, err := mounttable.Own()
	if err != nil {
		return fmt.Errorf("whether the filesystem of %s accepts writes is unknown: %w", file, err)
	}
	if e := tab.Containing(path); e != nil && e.NoWrites() != "" {
		text, remedy := volume.NoWrites(e.Type, e.Dir, e.NoWrites())
		return volume.Errorf(volume.Unusable, "writes to its device fail: %s: %s (%w)", text, remedy, unix.EROFS)
	}
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil || st.Blocks == 0 || FreeBelow(path, &st) >= FullBelow { // a tmpfs without a limit has no blocks
		return nil
	}
	if same {
		if needs, err := NeedsSpace(file); err == nil && !needs {
			return nil
		}
	}
	return fmt.Errorf("the filesystem of %s is full: make room there (%w)", file, unix.ENOSPC)
}

// pathBelow returns a path on the filesystem of a loop device's file, "" if the device has no file: the directory of the
// file, which may have a quota, or else the file itself, or another mount. same reports whether the device's file has that
// path; another file, or none, may have it by now.
func pathBelow(number, file string) (path string, same bool, err error) {
	dev, err := OpenLoop(strings.TrimPrefix(nodeOf(number), "/dev/"))
	if err != nil {
		return "", false, err
	}
	defer dev.Close()
	own, err := backingOf(dev)
	switch {
	case err != nil && Detached(err), own.rdev != 0:
		return "", false, nil
	case err != nil:
		return "", false, err
	}
	var st unix.Stat_t
	same = unix.Stat(file, &st) == nil && st.Dev == own.dev && st.Ino == own.ino
	dir := filepath.Dir(file)
	switch err := unix.Stat(dir, &st); {
	case err == nil && st.Dev == own.dev:
		return dir, same, nil
	case isFailure(err): // an xfs that has shut down
		return "", false, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if same { // it is bound into the directory
		return file, true, nil
	}
	tab, err := mounttable.Own()
	if err != nil {
		return "", false, err
	}
	for _, e := range tab.Of(sysfs.Number(own.dev)) {
		if unix.Stat(e.Dir, &st) == nil && st.Dev == own.dev {
			return e.Dir, false, nil
		}
	}
	return "", false, errors.New("it is below a later mount, or was unmounted")
}
