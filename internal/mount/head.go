package mount

import (
	"encoding/binary"
	"io"
)

// labels is the size of the start of a device in which formats other than filesystems have their
// labels, if any.
const labels = 1 << 20

// headOf returns the size of the start of a device in which a filesystem has no data of files, at
// most labels. The superblock alone does not prove that the filesystem still exists: a ZFS pool
// leaves the superblock of an xfs intact, but not the root directory.
func headOf(dev io.ReaderAt, fsType string) int64 {
	const (
		least    = 64 << 10 // mkfs.ext4 puts metadata there, unless it gets unusual options
		leastXFS = 16 << 10 // likewise; later blocks may become those of files
	)
	switch {
	case fsType == "xfs" && xfsHasRoot(dev):
		return leastXFS
	case fsType == "ext4":
		if end, ok := ext4Reserved(dev); ok {
			return min(max(end, least), labels)
		}
	}
	return labels // btrfs uses nothing before that
}

// xfsHasRoot reports whether the root directory of an xfs is where its superblock says.
func xfsHasRoot(dev io.ReaderAt) bool {
	be := binary.BigEndian
	b := make([]byte, 512)
	if _, err := dev.ReadAt(b, 0); err != nil {
		return false
	}
	root, blockLog, inodeLog, perBlockLog := be.Uint64(b[56:]), b[120], b[122], b[123]
	if blockLog > 16 || inodeLog > 11 || perBlockLog > 8 || root > 1<<32 { // mkfs makes it in the first group
		return false
	}
	at := int64(root>>perBlockLog)<<blockLog + int64(root&(1<<perBlockLog-1))<<inodeLog
	inode := make([]byte, 176)
	if _, err := dev.ReadAt(inode, at); err != nil {
		return false
	}
	return string(inode[:2]) == "IN" && isDirectory(be.Uint16(inode[2:])) &&
		(inode[4] < 3 || be.Uint64(inode[152:]) == root)
}

// ext4Reserved returns the end of the superblock, the group descriptors and the blocks that
// are reserved for more of them; false if the root directory is not where they say.
func ext4Reserved(dev io.ReaderAt) (end int64, ok bool) {
	le := binary.LittleEndian
	b := make([]byte, 1024)
	if _, err := dev.ReadAt(b, 1024); err != nil || le.Uint32(b[24:]) > 6 {
		return 0, false
	}
	block := int64(1024) << le.Uint32(b[24:])
	perGroup, size, reserved := int64(le.Uint32(b[32:])), int64(32), int64(le.Uint16(b[0xce:]))
	blocks := int64(le.Uint32(b[4:]))
	if le.Uint32(b[0x60:])&0x80 != 0 { // INCOMPAT_64BIT
		size = int64(le.Uint16(b[0xfe:]))
		blocks |= int64(le.Uint32(b[0x150:])) << 32
	}
	if perGroup == 0 || size < 32 || blocks < 0 {
		return 0, false
	}
	descriptors := (int64(le.Uint32(b[20:])) + 1) * block
	first, inode := make([]byte, 64), make([]byte, 128)
	if _, err := dev.ReadAt(first, descriptors); err != nil {
		return 0, false
	}
	table := int64(le.Uint32(first[8:]))
	if size >= 64 {
		table |= int64(le.Uint32(first[0x28:])) << 32
	}
	if table > blocks {
		return 0, false
	}
	if _, err := dev.ReadAt(inode, table*block+int64(le.Uint16(b[0x58:]))); err != nil { // the second one
		return 0, false
	}
	groups := (blocks + perGroup - 1) / perGroup
	used := (groups*size + block - 1) / block
	return descriptors + (used+reserved)*block, isDirectory(le.Uint16(inode)) && le.Uint16(inode[26:]) >= 2
}

func isDirectory(mode uint16) bool { return mode&0xf000 == 0x4000 }
