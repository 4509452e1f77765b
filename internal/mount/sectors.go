package mount

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// sectorsFit refuses a filesystem with smaller sectors than the logical blocks of its device. Zero sectors are not known.
func sectorsFit(dev *os.File, fsType string, sector int64, d volume.Device) error {
	block, err := unix.IoctlGetInt(int(dev.Fd()), unix.BLKSSZGET)
	if err != nil || sector == 0 || sector >= int64(block) {
		return os.NewSyscallError("BLKSSZGET", err)
	}
	what, hint := volume.SmallSectors(fsType, sector, int64(block), d.Path, handle(d))
	return &Refusal{What: what, Hint: hint, Why: volume.Unusable}
}

// mountedSectors is sectorsFit for a mounted filesystem.
func mountedSectors(dev *os.File, d volume.Device, fsType, dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	sector, err := liveSector(dir, &st)
	if err != nil {
		return err
	}
	return sectorsFit(dev, fsType, sector, d)
}

// liveSector returns the size of the sectors of the filesystem mounted at dir; 0 = not one that flexd mounts.
func liveSector(dir string, st *unix.Statfs_t) (int64, error) {
	switch st.Type {
	case unix.XFS_SUPER_MAGIC:
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, &os.PathError{Op: "open", Path: dir, Err: err}
		}
		defer unix.Close(fd)
		g, err := xfsGeometryOf(fd)
		return int64(g.SectSize), err
	case unix.EXT4_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC:
		return st.Bsize, nil
	}
	return 0, nil
}
