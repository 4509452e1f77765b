package mount

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of the filesystems, from their uapi headers.
const (
	xfsGeometry  = 0x80705864 // XFS_IOC_FSGEOMETRY_V1
	xfsGrowData  = 0x4010586e // XFS_IOC_FSGROWFSDATA
	ext4Resize   = 0x40086610 // EXT4_IOC_RESIZE_FS
	btrfsResize  = 0x50009403 // BTRFS_IOC_RESIZE
	btrfsFSInfo  = 0x8400941f // BTRFS_IOC_FS_INFO
	btrfsNameMax = 4087
)

// xfsGeom is struct xfs_fsop_geom_v1.
type xfsGeom struct {
	BlockSize, RtExtSize, AgBlocks, AgCount           uint32
	LogBlocks, SectSize, InodeSize, ImaxPct           uint32
	DataBlocks, RtBlocks, RtExtents, LogStart         uint64
	UUID                                              [16]byte
	Sunit, Swidth                                     uint32
	Version                                           int32
	Flags, LogSectSize, RtSectSize, DirBlockSize, Pad uint32
}

// liveSize returns the present size of a filesystem mounted at dir. The superblock on the
// disk may be older, unless the filesystem keeps its superblock in the device's own page
// cache (ext4) or writes it with each resize (btrfs).
func liveSize(dev *os.File, fsType, dir string) (int64, error) {
	switch fsType {
	case "ext4", "btrfs":
		sb, err := readSuperblock(dev, fsType)
		return sb.Size, err
	case "xfs":
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, &os.PathError{Op: "open", Path: dir, Err: err}
		}
		defer unix.Close(fd)
		g, err := xfsGeometryOf(fd)
		return int64(g.DataBlocks) * int64(g.BlockSize), err
	}
	return 0, fmt.Errorf("not a supported filesystem: %q", fsType)
}

func xfsGeometryOf(fd int) (xfsGeom, error) {
	var g xfsGeom
	if err := ioctl(fd, xfsGeometry, unsafe.Pointer(&g)); err != nil {
		return xfsGeom{}, fmt.Errorf("XFS_IOC_FSGEOMETRY: %w", err)
	}
	return g, nil
}

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
