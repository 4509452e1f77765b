package lockspace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// sanlock's records on the disk (sanlock's source: leader.h, paxos_dblock.h, mode_block.h). The area of
// a resource lease has the leader record in its first sector, a request in the second, and one sector
// for each host id. The delta lease of a host id is one leader record in the area of the lockspace.
// Numbers are little endian.
const (
	resourceMagic   = 0x06152010
	clearedMagic    = 0x11282016 // of a resource that was removed
	resourceVersion = 0x00060000 // the major version, in the upper half
	deltaMagic      = 0x12212010
	deltaVersion    = 0x00030000

	summed      = 168 // bytes of a record before its checksum
	dblockFlags = 52
	released    = 1 // of dblockFlags: the owner has released the lease
	modeBlock   = 128
	shared      = 1 // of the mode block's flags: the host holds the lease together with others
)

// A record is a leader record.
type record struct {
	owner      int
	generation uint64
	name       string // of the resource; in a delta lease, of the host
	timestamp  uint64 // 0 = free
	writer     int
}

var (
	errNoRecord = fmt.Errorf("its lease is not on the disk")
	errRemoved  = fmt.Errorf("its lease was removed from the disk, as lvremove does")
)

// parseRecord reads a leader record. A record of an unknown version is an error.
func parseRecord(b []byte, magic, version uint32, sectorSize int, lockspace string) (record, error) {
	le := binary.LittleEndian
	if len(b) < 256 {
		return record{}, fmt.Errorf("the record is too short")
	}
	switch got := le.Uint32(b); {
	case got == magic:
	case got == 0:
		return record{}, errNoRecord
	case got == clearedMagic:
		return record{}, errRemoved
	default:
		return record{}, fmt.Errorf("it is not a record of sanlock (magic %#x)", got)
	}
	if v := le.Uint32(b[4:]); v&0xffff0000 != version {
		return record{}, fmt.Errorf("the record has the unknown version %#x", v)
	}
	if size := le.Uint32(b[12:]); int(size) != sectorSize {
		return record{}, fmt.Errorf("the record is for sectors of %d bytes", size)
	}
	// sanlock's sum starts with ^1 and is not inverted at the end.
	if sum := ^crc32.Update(1, crc32.MakeTable(crc32.Castagnoli), b[:summed]); sum != le.Uint32(b[summed:]) {
		return record{}, fmt.Errorf("the record has a wrong checksum")
	}
	if space := text(b[56:104]); space != lockspace {
		return record{}, fmt.Errorf("the record is of the lockspace %.48q", space)
	}
	return record{
		owner: int(le.Uint64(b[32:])), generation: le.Uint64(b[40:]),
		name: text(b[104:152]), timestamp: le.Uint64(b[152:]), writer: int(le.Uint64(b[176:])),
	}, nil
}

func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// hostSector returns the sector of a host id in the area of a resource, or nil.
func hostSector(area []byte, sectorSize, id int) []byte {
	at := (id + 1) * sectorSize
	if id < 1 || at+sectorSize > len(area) {
		return nil
	}
	return area[at : at+sectorSize]
}

// hasReleased reports whether a host has released a resource. The leader record may still name it as
// the owner if another host has written that record later.
func hasReleased(sector []byte) bool {
	return sector != nil && binary.LittleEndian.Uint32(sector[dblockFlags:])&released != 0
}

// sharedBy returns the generation of a host that holds the resource together with others.
func sharedBy(sector []byte) (generation uint64, ok bool) {
	if sector == nil || binary.LittleEndian.Uint32(sector[modeBlock:])&shared == 0 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(sector[modeBlock+8:]), true
}
