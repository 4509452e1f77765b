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
}

// A shortage is a disk that is smaller than its physical volume.
type shortage struct {
	need
	size  int64         // sectors
	users []volume.UUID // the volumes with space beyond its end
}

func (s shortage) String() string {
	remedy := "or, since no volume has space beyond its end: pvresize " + s.path
	if len(s.users) > 0 {
		remedy = "if that is not possible, copy off what can be read of the volumes beyond its end (flexd check names those in use), remove them, and pvresize " + s.path + ". Do not pvmove the whole disk: that would leave devices suspended"
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
		text, err := sysfs.Line("/sys/dev/block/" + n.number + "/size")
		size, nerr := strconv.ParseInt(text, 10, 64)
		if err != nil || nerr != nil || size >= n.end {
			continue
		}
		all = append(all, shortage{n, size, f.usersOf(n.number, size)})
	}
	return all
}

// usersOf returns the volumes with space on a disk beyond a sector, also through their pools, copies
// and caches.
func (f *Facts) usersOf(disk string, from int64) []volume.UUID {
	users := map[volume.UUID]bool{}
	names := map[string]bool{}
	for _, s := range f.place.spans[disk] {
		id := volume.UUID(s.owner)
		if s.end > from && id != "" && !users[id] {
			users[id] = true
			for name := f.names[id]; name != ""; name = f.parent(name) {
				names[name] = true
			}
		}
	}
	for _, l := range f.LVs {
		if names[l.Name] || l.Pool != "" && names[l.Pool] {
			users[l.UUID] = true
		}
	}
	return slices.Sorted(maps.Keys(users))
}

// cutOff returns the volumes with space beyond the end of a disk, each with that shortage.
func (f *Facts) cutOff() map[volume.UUID]string {
	all := map[volume.UUID]string{}
	for _, s := range f.shortages() {
		for _, id := range s.users {
			all[id] = s.String()
		}
	}
	return all
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
		if size := sizes[n.path]; size > present && slices.Contains(f.usersOf(n.number, 0), l.UUID) {
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
