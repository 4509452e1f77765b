package mount

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxExtents is how many extents of a file are read; a file with more counts as one that needs space.
const maxExtents = 32 << 10

// The request of linux/fiemap.h, which x/sys/unix does not have.
const (
	fiemapRequest = 0xC020660B // FS_IOC_FIEMAP
	extentShared  = 0x2000     // FIEMAP_EXTENT_SHARED
)

// A fiemap is struct fiemap, with room for some extents.
type fiemap struct {
	start, length uint64
	flags         uint32 // without FIEMAP_FLAG_SYNC, which waits for writes and consumes their errors
	mapped, count uint32
	_             uint32
	extents       [256]extent
}

// An extent is struct fiemap_extent.
type extent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

// NeedsSpace reports whether writes to a loop device's file need space of its filesystem: the
// file has holes or blocks that it shares, or the filesystem writes elsewhere, as btrfs does.
// It waits for a filesystem that hangs.
func NeedsSpace(file string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(file, &fs); err != nil { // a file may be bound into its directory
		return false, &os.PathError{Op: "statfs", Path: file, Err: err}
	}
	if fs.Type == unix.BTRFS_SUPER_MAGIC || fs.Type == unix.OVERLAYFS_SUPER_MAGIC { // its upper layer may be a btrfs
		return true, nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(file, &st); err != nil {
		return false, &os.PathError{Op: "lstat", Path: file, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG { // its data is elsewhere, and to open a device may change its state
		return false, nil
	}
	if st.Blocks*512 < st.Size {
		return true, nil
	}
	// st_blocks also counts blocks that are not contents, so enough of them prove nothing.
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	needs, err := unmapped(fd, uint64(st.Size))
	if err != nil {
		return false, &os.PathError{Op: "FIEMAP", Path: file, Err: err}
	}
	return needs, nil
}

// unmapped reports whether a file has a hole before size, an extent that it shares, or too many extents. An
// extent that is preallocated or not yet written has its space. On a filesystem without FIEMAP the answer is no.
func unmapped(fd int, size uint64) (bool, error) {
	var m fiemap
	for next, read := uint64(0), uint32(0); next < size; read += m.mapped {
		if read >= maxExtents {
			return true, nil
		}
		m = fiemap{start: next, length: size - next, count: uint32(len(m.extents))}
		switch err := ioctl(fd, fiemapRequest, unsafe.Pointer(&m)); {
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY):
			return false, nil
		case err != nil:
			return false, err
		}
		if m.mapped == 0 {
			return true, nil
		}
		for _, e := range m.extents[:m.mapped] {
			if e.logical > next || e.flags&extentShared != 0 {
				return true, nil
			}
			next = e.logical + e.length
		}
	}
	return false, nil
}
