package lvm

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// A need is the size that a disk must have for the metadata.
type need struct {
	path, number string
	end          int64 // sectors
	size         int64 // its sectors when this was read, see diskSize
}

// A shortage is a disk that is smaller than its physical volume.
type shortage struct {
	need
	parts []string // the volumes and parts of volumes with space beyond its end
}

func (s shortage) String() string {
	remedy := "or, since no volume has space beyond its end: pvresize " + s.path
	if len(s.parts) > 0 {
		remedy = "if that is not possible, copy off what can be read of the volumes beyond its end that are active (flexd check names them; of the others only a backup has the data), remove them, and pvresize " + s.path + ". A RAID with all its data on other disks loses nothing: do not remove it. Do not pvmove the whole disk, and do not cancel a pvmove from it: that would leave devices suspended"
	}
	return fmt.Sprintf("the disk %s has %s, and its physical volume needs %s: give the disk its size back; %s", s.path, volume.Bytes(s.size*512), volume.Bytes(s.end*512), remedy)
}

// shortages returns the disks that are smaller than their physical volumes. device-mapper checks the
// size only when it resumes a device, so an extension would leave the device suspended.
func (f *Facts) shortages() (all []shortage) {
	if f.place == nil {
		return nil
	}
	for _, n := range f.place.needs {
		if n.size < 0 || n.size >= n.end {
			continue
		}
		s := shortage{need: n}
		for owner := range f.place.spans.owners(extent{n.number, n.size, n.end}) {
			if owner != "" {
				s.parts = append(s.parts, f.names[volume.UUID(owner)])
			}
		}
		all = append(all, s)
	}
	return all
}

// resized reports whether a disk has another size than in these facts. No event reports that of a partition.
func (f *Facts) resized() bool {
	return f.place != nil && slices.ContainsFunc(f.place.needs, func(n need) bool { return diskSize(n.number) != n.size })
}

// diskSize returns the sectors of a disk, -1 if they are unknown.
func diskSize(number string) int64 {
	text, err := sysfs.Line("/sys/dev/block/" + number + "/size")
	size, nerr := strconv.ParseInt(text, 10, 64)
	if err != nil || nerr != nil {
		return -1
	}
	return size
}

// largerSectors returns a disk that an extension of l could use, and whose logical blocks are larger
// than those of the present disks of l; "" = none. It also returns the present disk with the largest, and their size.
// args are the arguments of the extension.
func (f *Facts) largerSectors(l Logical, args []string) (disk, like string, present int64) {
	if f.place == nil || l.Pool != "" {
		return "", "", 0
	}
	sizes := map[string]int64{} // by path
	for _, n := range f.place.needs {
		sizes[n.path] = sysfs.LogicalBlock(n.number)
	}
	if len(sizes) == 0 || slices.Min(slices.Collect(maps.Values(sizes))) == slices.Max(slices.Collect(maps.Values(sizes))) {
		return "", "", 0
	}
	for _, n := range f.place.needs {
		if size := sizes[n.path]; size > present && slices.ContainsFunc(f.place.spans[n.number], func(s span) bool { return f.whole(f.names[volume.UUID(s.owner)]) == l.Name }) {
			like, present = n.path, size
		}
	}
	restricted := slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "@") })
	for _, pv := range f.PVs {
		may := !restricted || slices.ContainsFunc(pv.Tags, func(tag string) bool { return slices.Contains(args, "@"+tag) })
		if may && pv.Allocatable && pv.Free > 0 && sizes[pv.Path] > present {
			return pv.Path, like, present
		}
	}
	return "", "", 0
}
