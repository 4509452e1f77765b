package lvm

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// unknownDevices returns the devices of a group, and of parts of its volumes, that are
// of no volume in the metadata: it was removed by force, or an older metadata was
// restored. LVM takes the extents below them for free, or has them in another volume.
func (p *Provider) unknownDevices(f *Facts) (all []devmapper.Mapped, err error) {
	list, err := p.DM.List()
	if err != nil {
		return nil, err
	}
	prefix := dmUUID(volume.UUID(f.UUID))
	for _, m := range list {
		rest, ours := strings.CutPrefix(m.UUID, prefix)
		if !ours || len(rest) < uuidLength {
			continue
		}
		if _, known := f.names[identity(f.UUID, grouped(rest[:uuidLength]))]; !known {
			all = append(all, m)
		}
	}
	return all, nil
}

// checkUnknown refuses to allocate while the group has such a device, or one on extents
// that its metadata counts as free.
func (g *group) checkUnknown(ctx context.Context, f *Facts) error {
	why, err := g.p.notFree(f)
	if err != nil || why == "" {
		return err
	}
	if f, _, err = g.look(ctx, true); err != nil { // it may be newer than what was known
		return err
	}
	if why, err = g.p.notFree(f); err != nil || why == "" {
		return err
	}
	return &Error{VG: g.name, Kind: ErrFailed, Text: why}
}

// notFree says which device a new volume could overwrite, or "".
func (p *Provider) notFree(f *Facts) (string, error) {
	unknown, err := p.unknownDevices(f)
	if err != nil {
		return "", err
	}
	if len(unknown) > 0 {
		return fmt.Sprintf("it has the device %s, and its metadata does not know that volume: it was removed, or the metadata is an older one. LVM takes its space for free, and would give it to another volume. Copy the data off if it is needed; then, once nothing uses it: dmsetup remove %[1]s", unknown[0].Name), nil
	}
	list, err := p.DM.List()
	if err != nil {
		return "", err
	}
	free := f.space()
	for _, m := range list {
		if !strings.HasPrefix(m.UUID, dmUUID(volume.UUID(f.UUID))) {
			continue
		}
		now, err := p.DM.Device(devmapper.Key{UUID: m.UUID})
		if err == nil && free.meets(extents(now)) {
			return fmt.Sprintf("the device %s lies on space that its metadata counts as free, and that LVM would give to another volume: the metadata is an older one (vgcfgrestore --list %s: restore the newest). If that is not possible: copy the data off", m.Name, f.Name), nil
		}
	}
	return "", nil
}

// A space is parts of disks that do not overlap: by the disk's number, in order.
type space map[string][]extent

// space returns the extents that the metadata counts as free.
func (f *Facts) space() space {
	s, numbers := space{}, map[string]string{}
	for _, e := range f.free {
		number, known := numbers[e.disk]
		var st unix.Stat_t
		if !known && unix.Stat(e.disk, &st) == nil {
			number = sysfs.Number(st.Rdev)
		}
		numbers[e.disk] = number
		s[number] = append(s[number], e)
	}
	for _, all := range s {
		slices.SortFunc(all, func(a, b extent) int { return cmp.Compare(a.start, b.start) })
	}
	return s
}

// meets reports whether an extent contains a part of the space.
func (s space) meets(extents []extent) bool {
	return slices.ContainsFunc(extents, func(e extent) bool {
		all := s[e.disk]
		i, _ := slices.BinarySearchFunc(all, e.start, func(f extent, start int64) int { return cmp.Compare(f.end, start+1) })
		return i < len(all) && all[i].start < e.end
	})
}

// overlap says why a device must not be used that lies on the same extents as one that
// the metadata does not know, or "".
func (g *group) overlap(m devmapper.Mapped) string {
	g.mu.Lock()
	f := g.known
	g.mu.Unlock()
	if f == nil {
		return ""
	}
	var mine []extent
	for _, u := range f.unknown {
		other, err := g.p.DM.Device(devmapper.Key{UUID: u.UUID})
		if err != nil { // it is gone
			continue
		}
		if mine == nil {
			g.p.tree().walk(m, func(n *node, _ bool) { mine = append(mine, extents(n.Mapped)...) })
		}
		if meet(mine, extents(other)) {
			return fmt.Sprintf("it lies on extents of %s, a device of a volume that the metadata of %s does not know: the metadata is an older one (vgcfgrestore --list %[2]s). Both would be destroyed. Copy the data of %[1]s off if it is needed; then, once nothing uses it: dmsetup remove %[1]s", other.Name, g.name)
		}
	}
	return ""
}

// An extent is a part of a disk.
type extent struct {
	disk       string // its number, or its path
	start, end int64  // sectors
}

// meet reports whether a part of a disk is in both.
func meet(a, b []extent) bool {
	for _, e := range a {
		for _, o := range b {
			if e.disk == o.disk && e.start < o.end && o.start < e.end {
				return true
			}
		}
	}
	return false
}

// extents returns which parts of disks a device maps itself.
func extents(m devmapper.Mapped) (all []extent) {
	for _, target := range m.Targets {
		words, stripes := strings.Fields(target.Params), int64(1) // DISK START
		if target.Type == "striped" && len(words) > 2 {           // STRIPES CHUNK, then DISK START of each
			stripes, _ = strconv.ParseInt(words[0], 10, 64)
			words = words[2:]
		} else if target.Type != "linear" {
			continue
		}
		for i := 0; i+1 < len(words); i += 2 {
			start, err := strconv.ParseInt(words[i+1], 10, 64)
			if err == nil {
				all = append(all, extent{words[i], start, start + target.Length/512/max(stripes, 1)})
			}
		}
	}
	return all
}
