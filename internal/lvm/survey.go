package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/volume"
)

// Survey tells what the metadata and device-mapper have of a whole group, to be
// held against each other. Metadata is read anew if fresh is set, and else only
// where something has changed; device-mapper is asked afterwards, so that what a
// command has just made is in both. What could not be seen is said in the result.
func (p *Provider) Survey(ctx context.Context, vg string, fresh bool) join.Survey {
	s := join.Survey{Kind: "lvm"}
	g, err := p.configured(vg)
	if err != nil {
		s.Metadata, s.Kernel = err.Error(), err.Error()
		return s
	}
	f, _, err := g.look(ctx, fresh)
	if err != nil {
		s.Metadata = err.Error()
		if ctx.Err() != nil {
			s.Metadata = fmt.Sprintf("volume group %s: LVM's report has no end: %v", vg, err)
			if _, who := lockHolder(vg); who != "" {
				s.Metadata += "; LVM's lock of the group is held by " + who
			}
		}
		g.mu.Lock()
		f = g.known // for the group's uuid, and for what is LVM's own
		g.mu.Unlock()
	} else {
		s.Volumes = f.surveyed()
	}
	if s.Devices, err = p.devicesOf(vg, f); err != nil {
		s.Kernel = err.Error()
	}
	return s
}

// surveyed are the volumes that could be anybody's.
func (f *Facts) surveyed() []join.Volume {
	var all []join.Volume
	for _, l := range f.LVs {
		if l.private() {
			continue
		}
		v := join.Volume{Name: l.Name, UUID: l.UUID, Size: l.Size, Making: slices.Contains(l.Tags, tagCreating)}
		if slices.Contains(l.Role, "thicksnapshot") {
			v.Size = 0 // that of what it keeps; its device is as large as its origin
		}
		if slices.Contains(l.Layout, "thin") {
			v.Pool = l.Pool
		}
		all = append(all, v)
	}
	return all
}

// private says whether a volume is LVM's own: a part of another, or a pool.
func (l Logical) private() bool {
	return l.Hidden || slices.Contains(l.Role, "private") || slices.Contains(l.Layout, "pool")
}

// reserved are in the names of parts of volumes, and LVM lets nobody else use
// them. The devices of most parts have a uuid that says so; those of a RAID's
// do not.
var reserved = []string{
	"_cdata", "_cmeta", "_corig", "_cvol", "_imeta", "_iorig", "_mimage", "_mlog", "_pmspare",
	"_rimage", "_rmeta", "_tdata", "_tmeta", "_vdata", "_vorigin", "_wcorig",
}

// devicesOf returns the devices of a group's volumes, whatever they are called.
// f may be old, or nil; without it a device is told by its name.
func (p *Provider) devicesOf(vg string, f *Facts) ([]join.Device, error) {
	list, err := p.DM.List()
	if err != nil {
		return nil, err
	}
	own := map[volume.UUID]bool{}
	prefix := ""
	if f != nil {
		prefix = dmUUID(f.UUID, "")
		for _, l := range f.LVs {
			own[l.UUID] = l.private()
		}
	}
	var all []join.Device
	for _, m := range list {
		uuid, ok := parseDMUUID(m.UUID)
		name, layer, named := parseDMName(m.Name)
		named = named && layer == ""
		byUUID := prefix != "" && strings.HasPrefix(m.UUID, prefix)
		switch {
		case !ok || own[uuid]:
			continue
		case !byUUID && (!named || name.VG != vg):
			continue
		case named && slices.ContainsFunc(reserved, func(s string) bool { return strings.Contains(name.LV, s) }):
			continue
		}
		m, err := p.DM.Device(Key{UUID: m.UUID})
		if errors.Is(err, ErrNoDevice) {
			continue // it went meanwhile
		}
		if err != nil {
			return all, err
		}
		d := join.Device{
			UUID: uuid, Kernel: m.Name, Path: p.node(m), Number: m.Number, Size: m.Size(), Open: m.Open,
			Suspended: m.Suspended, Broken: broken(m),
		}
		if named && name.VG == vg {
			d.Name = name.LV
			d.Link = p.link(name)
			d.LinkBad = !p.leads(d.Link, m.Number)
		}
		all = append(all, d)
	}
	return all, nil
}

// broken says why a device, or a part of it, gives nothing but errors; "" = it
// is not known to.
func broken(m Mapped) string {
	if why := unusable(m); why != "" {
		return why
	}
	for _, t := range m.Targets {
		for word := range strings.FieldsSeq(t.Params) {
			if _, _, ok := splitNumber(word); ok && diskGone(word) {
				return fmt.Sprintf("%s has a part (at %d) on the disk %s, which is gone", m.Name, t.Start, word)
			}
		}
	}
	return ""
}

// diskGone says whether the kernel has no disk of that number any more, or has
// given it up. A table keeps the number of a disk that was pulled.
func diskGone(number string) bool {
	dir := "/sys/dev/block/" + number
	if _, err := os.Lstat(dir); err != nil {
		return os.IsNotExist(err)
	}
	state, err := os.ReadFile(dir + "/device/state")
	return err == nil && strings.Contains(string(state), "offline")
}
