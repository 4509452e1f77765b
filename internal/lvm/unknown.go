package lvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/volume"
)

// unknownDevices returns the devices of a group whose volume or part of a volume is not in the
// metadata: it was removed by force, or older metadata was restored. LVM treats their extents as free,
// or has given them to another volume. The result includes devices of other groups, or of no group, on
// the disks of this group: with older metadata, the disk belongs to this group again. An error
// concerns devices that are not in the result.
func (p *Provider) unknownDevices(f *Facts, list []devmapper.Mapped) (all []devmapper.Mapped, err error) {
	prefix := dmUUID(volume.UUID(f.UUID))
	var disks map[string]bool
	if f.place != nil {
		disks = f.place.disks
	}
	for _, m := range list {
		if !strings.HasPrefix(m.UUID, prefix) {
			on, oerr := p.liesOn(m, disks)
			if err = errors.Join(err, oerr); on {
				all = append(all, m)
			}
			continue
		}
		if id, suffix, whole := f.idOf(m); whole && f.names[id] == "" && !standIn(suffix) {
			all = append(all, m)
		}
	}
	return all, err
}

// deviceAppeared reports whether there is an unknown device that the report did not find.
func (g *group) deviceAppeared(f *Facts) bool {
	list, err := g.p.DM.List()
	unknown, _ := g.p.unknownDevices(f, list)
	return err == nil && slices.ContainsFunc(unknown, func(m devmapper.Mapped) bool {
		return !slices.ContainsFunc(f.unknown, func(o devmapper.Mapped) bool { return o.UUID == m.UUID && o.Number == m.Number })
	})
}

// liesOn reports whether a device maps a part of one of these disks.
func (p *Provider) liesOn(m devmapper.Mapped, disks map[string]bool) (bool, error) {
	if len(disks) == 0 {
		return false, nil
	}
	now, err := p.DM.Device(devmapper.Key{Number: m.Number})
	if errors.Is(err, devmapper.ErrNoDevice) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("whether the device %s lies on a disk of the group is unknown: %w", m.Name, err)
	}
	return slices.ContainsFunc(extents(now), func(e extent) bool { return disks[e.disk] }), nil
}

// canAllocate returns why nothing can be created or extended in the group. f may be older
// than its disks and devices.
func (g *group) canAllocate(ctx context.Context, f *Facts, thin bool) error {
	if g.unusable(f, thin) == nil {
		return nil
	}
	f, _, err := g.look(ctx, true)
	if err != nil {
		return err
	}
	return g.unusable(f, thin)
}

// checkFree returns an error if a new volume might overwrite a device.
func (g *group) checkFree(f *Facts) error {
	refuse := func(format string, a ...any) error {
		return &Error{VG: g.name, Kind: ErrFailed, Text: fmt.Sprintf(format, a...)}
	}
	list, err := g.p.DM.List()
	if err != nil {
		return err
	}
	unknown, err := g.p.unknownDevices(f, list)
	if err != nil {
		return refuse("%v", err)
	}
	if len(unknown) > 0 && !strings.HasPrefix(unknown[0].UUID, dmUUID(volume.UUID(f.UUID))) {
		return refuse("the device %s, which does not belong to this group, lies on its disks: the metadata of one of the two groups is an older version (vgcfgrestore --list %s: restore the newest file that differs from the current metadata). Its space would be given to another volume. If the newest metadata is lost, copy its data off; then, once nothing uses it: dmsetup remove %[1]s", unknown[0].Name, f.Name)
	}
	if len(unknown) > 0 {
		return refuse("its metadata has no volume for the device %s: the volume was removed, or the metadata is an older version. LVM counts the space as free, and would give it to another volume. Copy the data off if it is needed; then, once nothing uses it: dmsetup remove %[1]s", unknown[0].Name)
	}
	if f.unplaced != nil {
		return refuse("%v", f.unplaced)
	}
	for _, m := range list {
		if !strings.HasPrefix(m.UUID, dmUUID(volume.UUID(f.UUID))) {
			continue
		}
		switch now, err := g.p.DM.Device(devmapper.Key{UUID: m.UUID}); {
		case errors.Is(err, devmapper.ErrNoDevice):
		case err != nil:
			return refuse("whether the device %s lies on space that the metadata counts as free is unknown: %v", m.Name, err)
		default:
			if where := f.misplaced(now); where != "" {
				return refuse("the device %s %s, and a new volume could get space that it uses: %s. If that is not possible: copy the data off", m.Name, where, f.advice(now, where))
			}
		}
	}
	return nil
}

// advice returns the remedy for a device that contradicts the metadata.
func (f *Facts) advice(m devmapper.Mapped, where string) string {
	switch {
	case m.Suspended && m.Loaded && where != join.Enlarged:
		return "an interrupted command of LVM has left it suspended, and flexd check says how to resume it"
	case f.leftover(m):
		return join.Left(m.Name)
	}
	return join.Remedy(where, f.Name)
}

// leftover reports whether an interrupted LVM command has left a device that nothing uses: a part of a
// volume to which the metadata gives no space, or a hidden device of an origin or a snapshot.
func (f *Facts) leftover(m devmapper.Mapped) bool {
	id, _, ours := f.idOf(m)
	name, layer, _ := parseDMName(m.Name)
	below := layer == "real" || layer == "cow" ||
		isPart(name.LV) && !slices.ContainsFunc(f.used, func(s span) bool { return s.owner == string(id) })
	return ours && m.Open == 0 && below && f.Missing == 0
}

// overlap returns why a device must not be used: it shares extents with a device of another volume, or
// of a volume that the metadata does not have. "" = it may be used.
func (g *group) overlap(t *tree, m devmapper.Mapped) string {
	f := g.lastFacts()
	if f == nil {
		return ""
	}
	o := overlapping{g: g, f: f, m: m, below: map[string]bool{}, spans: spans{}}
	o.unread = t.walk(m, func(n *node, _ bool) {
		o.extents = append(o.extents, extents(n.Mapped)...)
		o.below[ownerOf(n.UUID)] = true
	})
	for _, e := range o.extents {
		o.spans.add(e, "")
	}
	o.spans.sort()
	return cmp.Or(o.unknown(), o.known())
}

// overlapping compares the extents of a device with those of other devices.
type overlapping struct {
	g       *group
	f       *Facts
	m       devmapper.Mapped
	extents []extent        // of m and the devices below it
	spans   spans           // likewise
	below   map[string]bool // the owners of m and the devices below it
	unread  string          // why a device below m could not be read
}

// with reports whether another device has an extent in common with m.
func (o *overlapping) with(other devmapper.Mapped) bool {
	for range o.spans.owners(extents(other)...) {
		return true
	}
	return false
}

// unknown describes an overlap with a device that the metadata does not have.
func (o *overlapping) unknown() string {
	g, f, m, below, unread := o.g, o.f, o.m, o.below, o.unread
	for _, u := range f.unknown {
		other, err := g.p.DM.Device(devmapper.Key{UUID: u.UUID, Number: u.Number})
		if errors.Is(err, devmapper.ErrNoDevice) {
			continue
		}
		if err != nil {
			unread = err.Error()
		}
		if unread != "" {
			return fmt.Sprintf("whether it lies on extents of %s, a device of a volume that the metadata of %s does not have, is unknown: %s", u.Name, g.name, unread)
		}
		switch name, _, _ := parseDMName(other.Name); {
		case !o.with(other):
		case f.leftover(other):
			return fmt.Sprintf("it lies on extents of %s: %s", other.Name, join.Left(other.Name))
		case ofPvmove(name.LV) && below[ownerOf(u.UUID)]: // the metadata may have been read before pvmove changed it
			return fmt.Sprintf("its device is built on %s, which is not in the metadata that flexd has read: pvmove has started or ended since, or the metadata of %s is an older version (flexd check shows which)", other.Name, g.name)
		case strings.HasPrefix(u.UUID, "LVM-") && below[ownerOf(u.UUID)]: // a copy of this part alone could lack cached data
			return fmt.Sprintf("its device is built on %s, which the metadata of %s does not have: the metadata is an older version. vgcfgrestore --list %[2]s, and restore the newest file that differs from the current metadata. If that is not possible, copy the data off from %s: only this device has all of it", other.Name, g.name, m.Name)
		default:
			return fmt.Sprintf("it lies on extents of %s, a device of a volume that the metadata of %s does not have: the metadata is an older version (vgcfgrestore --list %[2]s). Both volumes would be destroyed. Copy the data of %[1]s off if it is needed; then, once nothing uses it: dmsetup remove %[1]s", other.Name, g.name)
		}
	}
	return ""
}

// known describes an overlap with the device of another volume in the metadata.
func (o *overlapping) known() string {
	g, f, seen := o.g, o.f, map[string]bool{}
	for uuid := range f.taken.owners(o.extents...) {
		if o.below[ownerOf(uuid)] || seen[uuid] {
			continue
		}
		seen[uuid] = true
		other, err := g.p.DM.Device(devmapper.Key{UUID: uuid}) // its table may have changed
		switch {
		case errors.Is(err, devmapper.ErrNoDevice):
		case err != nil:
			return fmt.Sprintf("whether it still lies on extents of another volume's device is unknown: %v", err)
		case o.with(other) && f.leftover(other):
			return fmt.Sprintf("it lies on extents of %s: %s", other.Name, join.Left(other.Name))
		case o.with(other):
			return fmt.Sprintf("it lies on extents of %s, the device of another volume: the metadata of %s was replaced while that volume was active (vgcfgrestore --list %[2]s). Both volumes would be destroyed. Restore the newest file that differs from the current metadata; if that is not possible, copy the data of %[1]s off, and deactivate it", other.Name, g.name)
		}
	}
	return ""
}

// ownerOf returns the part of a device's uuid that all devices of one volume have.
func ownerOf(uuid string) string { return uuid[:min(len(uuid), len("LVM-")+2*uuidLength)] }

// takenBy returns the extents of the devices of known volumes, and an error with the remedy if a device
// contradicts the metadata: the device of a known volume is misplaced, or an unknown device lies on
// space of a volume. A device that cannot be read counts as consistent.
func (p *Provider) takenBy(f *Facts, list []devmapper.Mapped) (all spans, contradicts error) {
	all = spans{}
	isUnknown := map[string]bool{} // by number: not every device has a uuid
	for _, u := range f.unknown {
		isUnknown[u.Number] = true
	}
	for _, m := range list {
		unknown := isUnknown[m.Number]
		if !unknown && !strings.HasPrefix(m.UUID, dmUUID(volume.UUID(f.UUID))) {
			continue
		}
		now, err := p.DM.Device(devmapper.Key{UUID: m.UUID, Number: m.Number})
		if err != nil {
			continue
		}
		where := ""
		if unknown {
			where = f.onVolume(now)
		} else {
			where = f.misplaced(now)
			for _, e := range extents(now) {
				all.add(e, m.UUID)
			}
		}
		if where != "" && contradicts == nil {
			contradicts = volume.Errorf(volume.Unusable, "the device %s %s, so LVM could replace the tables of devices in use: %s. If that is not possible: copy its data off, stop its users, then dmsetup remove it", m.Name, where, f.advice(now, where))
		}
	}
	all.sort()
	return all, contradicts
}

// onVolume describes the volume that owns space of an unknown device; "" = none.
func (f *Facts) onVolume(m devmapper.Mapped) string {
	if f.place == nil {
		return ""
	}
	for _, e := range extents(m) {
		if where := f.overlapsOther(e, ""); where != "" {
			return where
		}
	}
	return ""
}

// canActivate returns an error if an activation could overwrite the device of another volume, or replace
// its table, because the metadata is older than the devices. Activating a RAID, a mirror or a snapshot
// writes to it, and activating a thin volume loads the table of its pool.
func (g *group) canActivate(ctx context.Context, lv volume.LV) error {
	plain := func(f *Facts) bool {
		l := f.lv(lv.UUID)
		return l.Pool == "" && l.simple()
	}
	f, kept, err := g.look(ctx, false)
	if err != nil || plain(f) || !kept && f.contradicts == nil {
		return err
	}
	// A volume may have been moved or extended since the report began. No event reports metadata that was
	// restored through another device node, as in a container.
	if f, _, err = g.look(ctx, true); err != nil || plain(f) {
		return err
	}
	return f.contradicts
}
