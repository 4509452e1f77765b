package mount

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// The proof that a device is blank reads all of a small device. On a large device it reads both
// ends, where nearly all formats have their labels and copies of these; each place of a backup
// superblock; and a sample of each of many equal parts. On a volume that flexd did not create it
// also reads evenly distributed chunks for proofTime, at least proofChunks.
const (
	wholeUpTo   = 256 << 20 // a smaller ext4 may have only one group, and no backup superblock
	endSize     = 4 << 20
	align       = 4096 // the largest alignment that O_DIRECT needs
	samples     = 256
	sampleSize  = 16 << 10
	chunkSize   = 1 << 20
	proofChunks = 64
)

// A coverage is the part of a device that the proof reads in addition to its spans: its first
// chunks, and more chunks during a time. With a size, the proof is that of a device of this size,
// at the beginning of the device.
type coverage struct {
	chunks int
	time   time.Duration
	size   int64
}

func coverageOf(created bool) coverage {
	if created {
		return coverage{}
	}
	return coverage{chunks: proofChunks, time: proofTime}
}

// proofTime is shorter in tests.
var proofTime = 2 * time.Second

// A finding is data on a device that should be blank.
type finding struct {
	offset int64
	what   string // "a backup superblock of ext4", or "" if it is not recognized
}

func (f finding) String() string {
	if f.what != "" {
		return fmt.Sprintf("found %s at %s", f.what, at(f.offset))
	}
	return "found data that is not zero at " + at(f.offset)
}

// errFound stops a walk.
var errFound = errors.New("found")

// proveBlank reads the places of the proof with O_DIRECT, and returns nil if all are zero,
// with the coverage that it read. A place that cannot be read is an error, never blank.
func proveBlank(d volume.Device, e coverage) (*finding, coverage, error) {
	var found *finding
	chunks, err := walk(d, e, func(b []byte, off int64) error {
		if i := firstNonZero(b); i >= 0 {
			found = &finding{offset: off + int64(i)}
			return errFound
		}
		return nil
	})
	if found != nil {
		err = nil
		if f := recognize(d, func([]byte) bool { return false }); f != nil {
			found = f
		}
	}
	return found, coverage{chunks: chunks}, err
}

// walk reads the places of the proof with O_DIRECT, and calls visit with the contents of
// each. It returns the number of chunks that it has read.
func walk(d volume.Device, e coverage, visit func(b []byte, off int64) error) (n int, err error) {
	dev, err := openDevice(d, unix.O_DIRECT)
	if err != nil {
		return 0, err
	}
	defer dev.Close()
	size, err := sizeOf(dev)
	if err != nil {
		return 0, err
	}
	if size <= 0 {
		return 0, fmt.Errorf("%s has no size", d.Path)
	}
	if e.size > 0 {
		size = min(size, e.size)
	}
	buf, err := unix.Mmap(-1, 0, chunkSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return 0, fmt.Errorf("mmap: %w", err)
	}
	defer unix.Munmap(buf) //nolint:errcheck // the process ends anyway

	read := func(s span) error {
		for off := s.from; off < s.to; {
			b := buf[:min(int64(len(buf)), s.to-off)]
			n, err := dev.ReadAt(b, off)
			if err != nil {
				return fmt.Errorf("read %d bytes at %s: %w", len(b), at(off), err)
			}
			if err := visit(b[:n], off); err != nil {
				return err
			}
			off += int64(n)
		}
		return nil
	}
	for _, s := range spans(size) {
		if err := read(s); err != nil {
			return 0, err
		}
	}
	if size <= wholeUpTo {
		return 0, nil
	}
	end := time.Now().Add(e.time)
	for s := range chunks(size) {
		if n >= e.chunks && !time.Now().Before(end) {
			break
		}
		if err := read(s); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// chunks returns all chunks of a device, in the order of their bit-reversed numbers, so
// that the first ones are evenly distributed.
func chunks(size int64) iter.Seq[span] {
	return func(yield func(span) bool) {
		n := uint64((size + chunkSize - 1) / chunkSize)
		width := bits.Len64(n - 1)
		for i := range uint64(1) << width {
			from := int64(bits.Reverse64(i)>>(64-width)) * chunkSize
			if from < size && !yield(span{from, min(from+chunkSize, size)}) {
				return
			}
		}
	}
}

func firstNonZero(b []byte) int {
	i := 0
	for i+8 <= len(b) && binary.NativeEndian.Uint64(b[i:]) == 0 { // a probe spends most of its time here
		i += 8
	}
	if j := bytes.IndexFunc(b[i:], func(r rune) bool { return r != 0 }); j >= 0 {
		return i + j
	}
	return -1
}

// recognize checks whether the data belongs to a filesystem without its primary superblock: this
// tells the owner more than the first byte. It ignores the superblocks that ignore selects.
func recognize(d volume.Device, ignore func(superblock []byte) bool) *finding {
	dev, err := openDevice(d, 0)
	if err != nil {
		return nil
	}
	defer dev.Close()
	size, err := sizeOf(dev)
	if err != nil {
		return nil
	}
	buf := make([]byte, align)
	for _, p := range backups(size) {
		from := p / align * align
		if p < 0 || from+align > size {
			continue
		}
		if _, err := dev.ReadAt(buf, from); err != nil {
			continue
		}
		for _, i := range []int64{0, 1024} {
			if t := superblockType(buf[i:]); t != "" && !ignore(buf[i:]) {
				return &finding{offset: from + i, what: "a backup superblock of " + t}
			}
		}
	}
	return nil
}

// A span is a piece of a device, aligned for O_DIRECT except at the device's end.
type span struct{ from, to int64 }

// spans returns the places that are read on a device of that size: in order, not
// overlapping.
func spans(size int64) []span {
	if size <= wholeUpTo {
		return []span{{0, size}}
	}
	all := []span{{0, endSize}, {(size - endSize) / align * align, size}}
	for _, p := range backups(size) {
		from := p / align * align
		if p < 0 || from >= size {
			continue
		}
		all = append(all, span{from, min(from+align, size)})
	}
	for i := range int64(samples) { // at a different offset in each part, so that no regular pattern is missed
		part := size / samples
		from := (i*part + i*2654435761%(part-sampleSize)) / align * align
		all = append(all, span{from, from + sampleSize})
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to)) })
	merged := all[:1]
	for _, s := range all[1:] {
		last := &merged[len(merged)-1]
		if s.from <= last.to {
			last.to = max(last.to, s.to)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// backups returns the places of backup superblocks between the two ends of a device, of
// filesystems of its size and of those that leave its tail free.
func backups(device int64) []int64 {
	places := append(backupsIn(device), backupsIn(volume.Room(device))...)

	// btrfs: copies at 64 MiB and 256 GiB (the first is at 64 KiB).
	places = append(places, 64<<20, 256<<30)

	// LUKS2: the second header, in the first 4 MiB of the device. Other formats (md, GPT,
	// ZFS, LVM, swap, bcachefs) have their labels at the ends.
	places = append(places, 4<<20)

	slices.Sort(places)
	return slices.Compact(places)
}

// backupsIn returns the places in ext4 and xfs, which depend on the size.
func backupsIn(size int64) []int64 {
	var places []int64

	// ext2/3/4: block groups 1 and the powers of 3, 5 and 7 (sparse_super), and
	// the last one (sparse_super2); a group is as many blocks as a block of
	// bitmap has bits. Bigalloc's groups are 16 times as large by default.
	for _, block := range []int64{1 << 10, 2 << 10, 4 << 10, 64 << 10} {
		for _, cluster := range []int64{1, 16} {
			group := block * 8 * block * cluster
			var first int64 // the first data block: with blocks of 1 KiB, group 0 begins at block 1
			if block == 1<<10 {
				first = block
			}
			places = append(places, first+group, (size-first-1)/group*group+first)
			for _, base := range []int64{3, 5, 7} {
				for n := base; n <= size/group; n *= base {
					places = append(places, first+n*group)
				}
			}
		}
	}

	// xfs: every allocation group begins with a superblock. mkfs makes 4 of
	// equal size by default, more (a power of two) on striped devices, and
	// groups of 1 TiB if four would be larger.
	for _, block := range []int64{512, 1 << 10, 2 << 10, 4 << 10} {
		blocks := size / block
		for _, groups := range []int64{2, 4, 8, 16, 32} {
			ag := (blocks + groups - 1) / groups
			for n := int64(1); n < groups; n++ {
				places = append(places, n*ag*block)
			}
		}
		// For the numbers of groups that mkfs makes only on request, the first place suffices.
		for groups := int64(3); groups < 32; groups++ {
			places = append(places, (blocks+groups-1)/groups*block)
		}
	}
	// On stripes, mkfs rounds the groups to the stripe's unit, and makes them one unit
	// smaller if they would all begin on one disk. The first two places and the last one of each
	// kind suffice.
	for _, groups := range []int64{8, 16, 32} {
		ag := (size + groups - 1) / groups
		for unit := int64(16 << 10); unit <= 1<<20; unit *= 2 {
			down, up := ag/unit*unit, (ag+unit-1)/unit*unit
			for _, ag := range []int64{up, up - unit, down, down - unit} {
				places = append(places, ag, 2*ag, (groups-1)*ag)
			}
		}
	}
	// An extended xfs keeps the group size that mkfs chose: a quarter of a whole number of GiB,
	// up to 256, with or without the tail.
	for p := int64(256 << 20); p < min(size, 64<<30+1); p += 256 << 20 {
		places = append(places, p-volume.Tail/4, p)
	}
	for p := int64(1 << 40); p < min(size, 1<<50); p += 1 << 40 { // each group has a superblock: the first 1023 suffice
		places = append(places, p-4096, p) // just under 1 TiB is mkfs's largest
	}
	return places
}
