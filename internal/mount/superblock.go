package mount

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// A superblock has the facts that flexd itself reads of a filesystem.
type superblock struct {
	Type   string
	Size   int64  // bytes that the filesystem covers of this device
	Sector int64  // bytes of its smallest access to the device; 0 = unknown
	Failed bool   // the filesystem is marked as in error
	FSID   string // of a btrfs, as sysfs writes it

	Devices uint64 // of a btrfs: the number of its devices

	Unclean bool // ext4: e2fsck -p does more than read the superblock
	Log     bool // ext4, btrfs: a journal or log has to be replayed

	FastCommit bool // ext4: it has fast commits
	MMP        bool // ext4: it has a mark of the node that uses it

	Unfinished bool // xfs: mkfs has not ended

	MountOptions []string // ext4: options that the kernel adds to those of a mount
}

// readSuperblock reads the superblock of a supported filesystem.
func readSuperblock(dev io.ReaderAt, fsType string) (superblock, error) {
	offsets := map[string]int64{"ext4": 1024, "xfs": 0, "btrfs": 64 << 10}
	off, ok := offsets[fsType]
	if !ok {
		return superblock{}, fmt.Errorf("not a supported filesystem: %q", fsType)
	}
	b := make([]byte, 1024)
	if _, err := dev.ReadAt(b, off); err != nil {
		return superblock{}, fmt.Errorf("read the superblock: %w", err)
	}
	return parseSuperblock(b, fsType)
}

func parseSuperblock(b []byte, fsType string) (superblock, error) {
	if got := superblockType(b); got != fsType {
		return superblock{}, fmt.Errorf("there is no %s superblock", fsType)
	}
	s := superblock{Type: fsType}
	var blocks, size uint64
	switch fsType {
	case "ext4":
		le := binary.LittleEndian
		blocks = uint64(le.Uint32(b[4:]))
		if le.Uint32(b[0x60:])&0x80 != 0 { // INCOMPAT_64BIT
			blocks |= uint64(le.Uint32(b[0x150:])) << 32
		}
		shift := le.Uint32(b[24:])
		if shift > 6 {
			return superblock{}, fmt.Errorf("ext4: block size 2^%d KiB", shift)
		}
		size = 1024 << shift
		s.Sector = int64(size)
		s.Failed = le.Uint16(b[58:])&2 != 0 // EXT4_ERROR_FS
		s.MountOptions = ext4Options(b)
		s.FastCommit = le.Uint32(b[0x5c:])&0x400 != 0                // COMPAT_FAST_COMMIT
		s.MMP = le.Uint32(b[0x60:])&0x100 != 0                       // INCOMPAT_MMP
		s.Log = le.Uint32(b[0x60:])&0x4 != 0                         // INCOMPAT_RECOVER
		s.Unclean = s.Failed || s.Log || le.Uint16(b[58:])&1 == 0 || // EXT4_VALID_FS
			int16(le.Uint16(b[54:])) > 0 && le.Uint16(b[52:]) >= le.Uint16(b[54:]) || // mounts since the last check
			le.Uint32(b[0x44:]) != 0 // an interval of checks
	case "xfs":
		be := binary.BigEndian
		size, blocks = uint64(be.Uint32(b[4:])), be.Uint64(b[8:])
		s.Sector = int64(be.Uint16(b[102:])) // sb_sectsize
		s.Unfinished = b[126] != 0           // sb_inprogress
	case "btrfs":
		// The size in the device item, not of the filesystem: this is about one device.
		size, blocks = 1, binary.LittleEndian.Uint64(b[0xc9+8:])
		s.FSID = uuidText(b[0x20:0x30])
		s.Log = binary.LittleEndian.Uint64(b[0x60:]) != 0 // log_root
		s.Devices = binary.LittleEndian.Uint64(b[0x88:])
		s.Sector = int64(binary.LittleEndian.Uint32(b[0x90:])) // sectorsize
	}
	if size == 0 || blocks == 0 || blocks > (1<<62)/size {
		return superblock{}, fmt.Errorf("%s: %d blocks of %d bytes", fsType, blocks, size)
	}
	s.Size = int64(blocks * size)
	return s, nil
}

// ext4Options returns the mount options in a superblock, as far as they are not the kernel's
// defaults or a choice between allowed ones (discard, delalloc, ...).
func ext4Options(b []byte) []string {
	var all []string
	if text, _, _ := bytes.Cut(b[0x200:0x240], []byte{0}); len(text) > 0 { // s_mount_opts
		all = strings.Split(string(text), ",")
	}
	le := binary.LittleEndian
	defaults := le.Uint32(b[0x100:]) // s_default_mount_opts
	if defaults&0x1 != 0 {
		all = append(all, "debug")
	}
	if defaults&0x10 != 0 {
		all = append(all, "nouid32")
	}
	if defaults&0x60 == 0x60 {
		all = append(all, "data=writeback")
	}
	if defaults&0x100 != 0 {
		all = append(all, "nobarrier")
	}
	if le.Uint16(b[0x3c:]) == 3 { // s_errors
		all = append(all, "errors=panic")
	}
	return all
}

// superblockType returns the filesystem whose magic number b has, or "".
func superblockType(b []byte) string {
	switch {
	case len(b) < 1024:
	case binary.LittleEndian.Uint16(b[56:]) == 0xef53 && binary.LittleEndian.Uint32(b[24:]) <= 6:
		return "ext4"
	case bytes.HasPrefix(b, []byte("XFSB")):
		return "xfs"
	case string(b[64:72]) == "_BHRfS_M":
		return "btrfs"
	}
	return ""
}
