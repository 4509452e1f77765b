package lvm

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// Space returns the space of a volume group, and the size of the largest volume, up to limit bytes, that
// Create would create for a namespace without volumes. It starts a report only if the last one may be
// outdated.
func (p *Provider) Space(ctx context.Context, vg string, limit int64) (volume.Space, error) {
	g, err := p.configured(vg)
	if err != nil {
		return volume.Space{}, err
	}
	now := time.Now()
	f, kept, err := g.look(ctx, false)
	if err != nil {
		return volume.Space{}, err
	}
	thin := p.Groups[vg].ThinPool != ""
	refused := g.unusable(f, thin)
	if refused != nil && kept && g.deviceAppeared(f) { // a command of LVM that still runs may create its volume
		if f, _, err = g.look(ctx, true); err != nil {
			return volume.Space{}, err
		}
		refused = g.unusable(f, thin)
	}
	_, held := f.notAllocatable()
	s := volume.Space{At: f.read, Size: f.Size, Free: f.Free - held}
	if g.unchanged(f) {
		s.At = now
	}
	for _, pv := range f.PVs {
		d := volume.Disk{Device: pv.Path, Size: pv.Size, Free: pv.Free, Missing: pv.Missing, NotAllocatable: !pv.Allocatable}
		if pv.Missing {
			d.Device = ""
			s.Free -= pv.Free
		}
		s.Disks = append(s.Disks, d)
	}
	slices.SortFunc(s.Disks, func(a, b volume.Disk) int { return cmp.Compare(a.Device, b.Device) })
	s.Free = max(s.Free, 0)
	if refused != nil {
		s.Refused, s.Unusable = refused, true
		return s, nil
	}
	s.Largest, s.Refused = volume.Largest(f.ExtentSize, min(limit, math.MaxInt64-f.ExtentSize), func(size int64) error {
		err := g.checkSpace(f, volume.Name{VG: vg, LV: "new"}, size, volume.NewNamespace)
		if err == nil && !p.Groups[vg].Layout.fits(f, f.extents(size)) {
			err = f.spaceError(f.extents(size)*f.ExtentSize, "not on the disks that the layout needs")
		}
		return err
	})
	return s, nil
}

// unusable returns why nothing can be created or extended in the group, apart from its free space. A
// thin volume uses no free space of the group.
func (g *group) unusable(f *Facts, thin bool) error {
	short := f.shortages()
	switch {
	case f.unfit != "":
		return volume.Errorf(volume.Unusable, "%s", f.unfit)
	case f.Exported:
		return volume.Errorf(volume.Unusable, "volume group %s is exported: vgimport %[1]s", f.Name)
	case f.duplicate != nil:
		return f.duplicate
	case f.Missing > 0:
		return f.lacking()
	case len(short) > 0:
		return volume.Errorf(volume.Unusable, "nothing is created or extended in volume group %s: %s", f.Name, short[0])
	case thin: // LVM also loads the table of the pool
		return f.contradicts
	}
	return g.checkFree(f)
}

// shape returns the number of disks of a volume with the layout, the number of data disks (without
// copies and parity), and the extents of metadata on each disk.
func (l Layout) shape() (disks, data, meta int) {
	standard, copies, parity := 1, 1, 0
	switch l.Type {
	case "raid0":
		standard = 2
	case "raid1":
		copies, meta = cmp.Or(l.Mirrors, 1)+1, 1
	case "raid5":
		standard, parity, meta = 2, 1, 1
	case "raid6":
		standard, parity, meta = 3, 2, 1
	case "raid10":
		standard, copies, meta = 2, cmp.Or(l.Mirrors, 1)+1, 1
	}
	data = cmp.Or(l.Stripes, standard)
	return data*copies + parity, data, meta
}

// fits reports whether LVM finds disks for a thick volume with this number of extents. Like LVM, it
// repeatedly takes as many disks as the layout needs, those with the largest free areas, and uses as
// much of each as the smallest of these areas has. Of a disk with several free areas it counts only
// the largest, so LVM may find more.
func (l Layout) fits(f *Facts, extents int64) bool {
	disks, data, meta := l.shape()
	if disks == 1 && l.PVTag == "" {
		return true // any disk will do, and checkSpace has checked the whole group
	}
	var free []int64
	for _, pv := range f.PVs {
		if pv.Missing || !pv.Allocatable || l.PVTag != "" && !slices.Contains(pv.Tags, l.PVTag) {
			continue
		}
		var all, largest int64
		for _, gap := range f.free {
			if size := (gap.end - gap.start) * 512 / f.ExtentSize; gap.disk == pv.Path {
				all, largest = all+size, max(largest, size)
			}
		}
		if disks == 1 {
			largest = all
		}
		free = append(free, largest)
	}
	needed := (extents+int64(data)-1)/int64(data) + int64(meta)
	for needed > 0 {
		slices.SortFunc(free, func(a, b int64) int { return cmp.Compare(b, a) })
		if len(free) < disks || free[disks-1] == 0 {
			return false
		}
		part := min(free[disks-1], needed)
		for i := range free[:disks] {
			free[i] -= part
		}
		needed -= part
	}
	return true
}
