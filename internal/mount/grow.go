package mount

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// grow is the child that extends a mounted filesystem to the size of its device. It calls the
// kernel's ioctls, as resize2fs and xfs_growfs do: these search for a mount, and fail if that mount
// is read-only.
func grow(a growArg) error {
	return onMounted(a, func(dev *os.File, e *mounttable.Entry, have, size int64) error {
		room := volume.Room(size)
		if have >= room {
			return nil
		}
		if err := mountedSectors(dev, a.Device, e.Type, e.Dir); err != nil {
			return err
		}
		if err := zeroTail(a.Device, room, size); err != nil {
			return err // the filesystem does not use it yet
		}
		err := extend(dev, a.Device, e, room)
		if errors.Is(err, unix.EIO) && sound(a) {
			return fmt.Errorf("the kernel cannot read or write the new space (see dmesg); the filesystem keeps its size, and has no error: %w", err)
		}
		return asFailure(err)
	})
}

// canGrow is the child that returns the error of grow, if it is known before the device is extended to a size. It
// changes nothing.
func canGrow(a canGrowArg) error {
	return onMounted(a.growArg, func(_ *os.File, e *mounttable.Entry, have, _ int64) error {
		if !volume.Growable(have, a.Size) {
			return nil
		}
		return obstacle(e.Type, volume.Room(a.Size))
	})
}

// onMounted calls do with the device of a sound filesystem, its writable mount, its size, and that of the device.
func onMounted(a growArg, do func(dev *os.File, e *mounttable.Entry, have, size int64) error) error {
	dev, err := openDevice(a.Device, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	e, err := mountedAt(a.Device, a.At)
	if err != nil {
		return err
	}
	if e.Type != a.Type {
		return fmt.Errorf("%w: %s", ErrForeign, e)
	}
	if what := inError(a.Device, e); what != "" {
		return fmt.Errorf("%w: %s", ErrFailed, what)
	}
	if e.SuperReadOnly {
		why := volume.MountedReadOnly(e.Type, e.Dir)
		return volume.Errorf(why.Code, "%s", why.Reason)
	}
	size, err := sizeOf(dev)
	if err != nil {
		return err
	}
	if size < a.Device.Size { // the tail to be zeroed is missing
		return fmt.Errorf("the kernel shows only %s of the %s of %s: the space that a RAID reshape added appears at the next activation. Delete its pods; if it is still active then: lvchange -an %s; the next mount extends the filesystem", volume.Bytes(size), volume.Bytes(a.Device.Size), describeDevice(a.Device), handle(a.Device).Name)
	}
	have, err := liveSize(dev, e.Type, e.Dir)
	if err != nil {
		return asFailure(err)
	}
	return do(dev, e, have, size)
}

// asFailure returns an error as that of the filesystem, if the kernel reports it for one that is in error.
func asFailure(err error) error {
	if isFailure(err) {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return err
}

// obstacle returns the reason why the kernel does not extend a mounted filesystem to a size, if it is known before. An
// ext4 with a small journal is not refused here: it can be extended without a mount.
func obstacle(fsType string, size int64) error {
	switch fsType {
	case "ext4":
		var caps [2]unix.CapUserData
		if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
			return fmt.Errorf("capget: %w", err)
		}
		if caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) == 0 { // in some containers and sandboxes
			return errors.New("ext4: the kernel lets only a process with CAP_SYS_RESOURCE grow it while it is mounted")
		}
	case "btrfs":
		if size < btrfsLeast {
			return errors.New("btrfs: the kernel does not resize a filesystem to less than 256 MiB: ask for at least 257 MiB")
		}
	}
	return nil
}

// sound reports whether a mounted filesystem shows no error.
func sound(a growArg) bool {
	e, err := mountedAt(a.Device, a.At)
	return err == nil && !e.SuperReadOnly && inError(a.Device, e) == ""
}

// zeroTail zeroes the end of a device beyond its filesystem: the space may contain labels of
// another volume that had it before.
func zeroTail(d volume.Device, from, size int64) error {
	dev, err := openDevice(d, unix.O_RDWR)
	if errors.Is(err, unix.EBUSY) { // this kernel permits no writes to a mounted device
		return nil
	}
	if err != nil {
		return err
	}
	defer dev.Close()
	return zeroOut(dev, from, size-from)
}

// extend extends the filesystem of a mount to a size.
func extend(dev *os.File, d volume.Device, e *mounttable.Entry, size int64) error {
	fd, err := writableClone(e.Dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	switch e.Type {
	case "ext4":
		return growExt4(dev, d, fd, size)
	case "xfs":
		return growXFS(fd, size)
	case "btrfs":
		return growBtrfs(fd, size)
	}
	return fmt.Errorf("%s can't grow", e.Type)
}

// writableClone makes a detached copy of a mount that is writable even if the mount is not. No
// other process can see the copy. It ends when it is closed.
func writableClone(dir string) (int, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, &os.PathError{Op: "open_tree", Path: dir, Err: err}
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return -1, &os.PathError{Op: "mount_setattr", Path: dir, Err: err}
	}
	fd, err := unix.Openat(tree, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return fd, nil
}

func growExt4(dev *os.File, d volume.Device, fd int, size int64) error {
	b := make([]byte, 1024)
	if _, err := dev.ReadAt(b, 1024); err != nil {
		return err
	}
	sb, err := parseSuperblock(b, "ext4")
	if err != nil {
		return err
	}
	block := int64(1024) << b[24]
	blocks := uint64(size / block)
	if int64(blocks)*block <= sb.Size {
		return nil
	}
	if need, most := ext4Credits(b, sb.Size/block, int64(blocks)); need > most {
		return &Refusal{
			What: fmt.Sprintf("the ext4 on %s has too small a journal to grow while it is mounted: the kernel needs %d blocks for a transaction that may have %d, and may panic", describeDevice(d), need, most),
			Hint: "end its pods, then: " + handle(d).Command(fmt.Sprintf("e2fsck -f DEV; resize2fs DEV %dk", size>>10)),
			Why:  volume.Conflict,
		}
	}
	if err := obstacle("ext4", size); err != nil {
		return err
	}
	if err := ioctl(fd, ext4Resize, unsafe.Pointer(&blocks)); err != nil {
		return fmt.Errorf("ext4: grow from %d to %d blocks: %w", sb.Size/block, blocks, err)
	}
	return nil
}

// ext4Credits returns the blocks of the journal that the kernel reserves to add block groups to
// a mounted ext4, and the most that a transaction may have. Linux 6.1 compares them without the
// commit block and the descriptors. If only with these the limit is exceeded, it commits empty
// transactions until the journal is full, and panics.
func ext4Credits(b []byte, from, to int64) (need, most int64) {
	le := binary.LittleEndian
	block, cluster := int64(1024)<<b[24], int64(1024)<<le.Uint32(b[0x1c:])
	first, perGroup := int64(le.Uint32(b[0x14:])), max(int64(le.Uint32(b[0x20:])), 1)
	groups := ceil(to-first, perGroup) - ceil(from-first, perGroup)
	if groups <= 0 || le.Uint32(b[0x5c:])&0x4 == 0 { // COMPAT_HAS_JOURNAL
		return 0, 0
	}
	journal := int64(1024) // the fewest that the kernel permits
	if b[0xfd] == 1 {      // s_jnl_backup_type: s_jnl_blocks ends with the size of the journal
		journal = int64(uint64(le.Uint32(b[0x148:]))<<32|uint64(le.Uint32(b[0x14c:]))) / block
	}
	if le.Uint32(b[0x5c:])&0x400 != 0 { // COMPAT_FAST_COMMIT has a part of it, seldom half
		journal /= 2
	}
	most = journal / 4
	descriptor := int64(32)
	if le.Uint32(b[0x60:])&0x80 != 0 { // INCOMPAT_64BIT
		descriptor = max(int64(le.Uint16(b[0xfe:])), 32)
	}
	need = 4 + int64(le.Uint16(b[0xce:])) + // s_reserved_gdt_blocks
		ceil(min(groups, int64(1)<<b[0x174]), block/descriptor) + // s_log_groups_per_flex
		ceil(8*8*(cluster/block), block-20) + // blocks of revoke records
		1 + ceil(most, (block-48)/16) // the commit block, and descriptors with a tag for each block
	return need, most
}

func ceil(n, unit int64) int64 { return (n + unit - 1) / unit }

func growXFS(fd int, size int64) error {
	g, err := xfsGeometryOf(fd)
	if err != nil {
		return err
	}
	want := struct {
		Blocks uint64
		Imax   uint32
		_      uint32
	}{Blocks: uint64(size) / uint64(g.BlockSize), Imax: g.ImaxPct}
	if want.Blocks <= g.DataBlocks {
		return nil
	}
	if err := ioctl(fd, xfsGrowData, unsafe.Pointer(&want)); err != nil {
		return fmt.Errorf("xfs: grow from %d to %d blocks: %w", g.DataBlocks, want.Blocks, err)
	}
	return nil
}

// btrfsLeast is the smallest size to which the kernel resizes a btrfs.
const btrfsLeast = 256 << 20

// growBtrfs names the device by its id, which is not 1 after a device was added and the first one removed.
func growBtrfs(fd int, size int64) error {
	if err := obstacle("btrfs", size); err != nil {
		return err
	}
	info, err := btrfsInfoOf(fd)
	if err != nil {
		return err
	}
	var arg struct {
		fd   int64
		name [btrfsNameMax + 1]byte
	}
	copy(arg.name[:], fmt.Sprintf("%d:%d", info.MaxID, size)) // it has only this device, see mountedAt
	if err := ioctl(fd, btrfsResize, unsafe.Pointer(&arg)); err != nil {
		return fmt.Errorf("btrfs: grow to %s: %w", volume.Bytes(size), err)
	}
	return nil
}
