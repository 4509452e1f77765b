package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A pod fills a filesystem over its whole device, which an operator made, with md superblocks, so that blkid
// reports a RAID member. The volume stays usable as long as its format record exists.
func TestMemberInFiles(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const size = 20 * mib
	h.volume("vg0/filled", size, func(path string) { h.sh("mkfs.ext4", "-q", "-F", "-b", "1024", path) })
	v, p := h.vol("filled", "ext4"), podN(1)
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "x")
	f, err := os.Create(h.PodDir(p, v) + "/fill")
	h.must(err)
	for b := bytes.Repeat(memberBlock(size), 64); err == nil; {
		_, err = f.Write(b)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	h.must(f.Sync())
	h.must(f.Close())
	h.end(noAttach, v, p)

	h.ok(h.up(noAttach, v, p))
	h.reads(v, p, "f", "x")
	h.end(noAttach, v, p)

	for _, record := range h.records() {
		h.must(os.Remove(record))
	}
	h.refused(h.up(noAttach, v, p), "vg0/filled: mount", "linux_raid_member", "never formats over data")
}

// memberBlock returns a block of 1 KiB that is an md superblock of version 1.0 at the end of
// a device of that size.
func memberBlock(size int64) []byte {
	b := make([]byte, 1024)
	le := binary.LittleEndian
	sector := uint64((size/512 - 16) &^ 7)
	le.PutUint32(b, 0xa92b4efc)
	le.PutUint32(b[4:], 1)
	copy(b[16:], "0123456789abcdef")
	le.PutUint32(b[72:], 1) // level
	le.PutUint64(b[80:], sector)
	le.PutUint32(b[92:], 1) // disks
	le.PutUint64(b[136:], sector)
	le.PutUint64(b[144:], sector)
	var sum uint64
	for i := 0; i < 256; i += 4 {
		sum += uint64(le.Uint32(b[i:]))
	}
	le.PutUint32(b[216:], uint32(sum)+uint32(sum>>32))
	return b
}
