package lvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// Survey returns the metadata and the devices of a whole group, for a comparison. It reads the
// metadata again if fresh is set, otherwise only after a change. It reads device-mapper afterwards,
// so that a new volume is in both. The result says which facts could not be read.
func (p *Provider) Survey(ctx context.Context, vg string, fresh bool) join.Survey {
	g, err := p.configured(vg)
	if err != nil {
		return join.Survey{Kind: "lvm", Metadata: err.Error(), Kernel: err.Error()}
	}
	s, f := g.survey(ctx, fresh)
	misplaced := func(d join.Device) bool { return d.Misplaced != "" }
	if s.Metadata != "" || f == g.confirmed.Load() || !slices.ContainsFunc(s.Devices, misplaced) {
		return s
	}
	// A command such as pvmove may have changed metadata and devices in between.
	if again, f := g.survey(ctx, true); again.Metadata == "" {
		s = again
		g.confirmed.Store(f)
	}
	return s
}

// survey is Survey, from one look at the metadata.
func (g *group) survey(ctx context.Context, fresh bool) (join.Survey, *Facts) {
	p, vg := g.p, g.name
	s := join.Survey{Kind: "lvm"}
	f, _, err := g.look(ctx, fresh)
	if err != nil {
		s.Metadata, s.Gone = err.Error(), errors.Is(err, ErrNoVG)
		if ctx.Err() != nil {
			s.Metadata = fmt.Sprintf("volume group %s: LVM's report does not end: %v", vg, err)
			if _, who := lockHolder(vg); who != "" {
				s.Metadata += "; LVM's lock of the group is held by " + who
			}
		}
		f = g.lastFacts() // for the group's uuid, and for LVM's own volumes
	} else {
		s.Volumes = f.surveyVolumes()
		if short := f.shortages(); len(short) > 0 {
			s.Short = short[0].String()
		}
		if f.duplicate != nil {
			s.Twice = f.duplicate.Error()
		}
		if f.unplaced != nil {
			s.Kernel = f.unplaced.Error()
		}
	}
	if s.Devices, err = p.devicesOf(vg, f, err == nil); err != nil {
		s.Kernel = err.Error()
	}
	return s, f
}

// surveyVolumes returns the volumes that a pod can use.
func (f *Facts) surveyVolumes() []join.Volume {
	var all []join.Volume
	merging := map[string]string{} // origin: snapshot
	for _, l := range f.LVs {
		if l.merging() {
			merging[l.Origin] = l.Name
		}
	}
	for _, l := range f.LVs {
		if l.private() && !l.merging() {
			continue
		}
		v := join.Volume{
			Name: l.Name, UUID: l.UUID, Size: l.Size, Making: l.creating(),
			RAID: l.raid(), ReadOnly: l.ReadOnly, Merging: merging[l.Name],
		}
		if l.merging() {
			v.Into = l.Origin
		}
		switch lost := f.lossOf(f.healthOf(l)); {
		case lost.short != "":
			v.CutOff = lost.short
		case l.Health == "partial" || f.hasLostData(l):
			v.Missing, v.Partly = f.missing(), f.hasLostData(l)
			if !lost.own && (!v.RAID || len(lost.snapshots) > 0) {
				v.Lost, v.Remedy = f.where(lost), f.remedy(l, lost, true)
			}
		}
		v.Stays = f.partial(l, true) != ""
		if l.thickSnapshot() {
			v.Size = 0 // the size of its store; its device is as large as its origin
		}
		if slices.Contains(l.Layout, "thin") {
			v.Pool = l.Pool
		}
		all = append(all, v)
	}
	return all
}

// private reports whether a volume is LVM's own: a part of another, or a pool.
func (l Logical) private() bool {
	return l.Hidden || slices.Contains(l.Role, "private") || slices.Contains(l.Layout, "pool")
}

// merging reports whether a volume is a snapshot that is, or will be, merged into its origin.
func (l Logical) merging() bool { return l.Hidden && slices.Contains(l.Role, "snapshot") }

// reserved has the words in the names of parts of volumes, which LVM reserves for them. The
// device-mapper uuids of most parts have a suffix; those of a RAID's parts do not.
var reserved = []string{
	"_cdata", "_cmeta", "_corig", "_cvol", "_imeta", "_iorig", "_mimage", "_mlog", "_pmspare",
	"_rimage", "_rmeta", "_tdata", "_tmeta", "_vdata", "_vorigin", "_wcorig",
}

// isPart reports whether LVM reserves a name for its own volumes. "pvmove" is reserved only at the
// start of a name.
func isPart(lv string) bool {
	return ofPvmove(lv) || slices.ContainsFunc(reserved, func(s string) bool { return strings.Contains(lv, s) })
}

// devicesOf returns the devices of a group's volumes, under any name. f may be old, or nil;
// without it a device is identified by its name.
func (p *Provider) devicesOf(vg string, f *Facts, current bool) ([]join.Device, error) {
	list, err := p.DM.List()
	if err != nil {
		return nil, err
	}
	prefix := ""
	if f != nil {
		prefix = dmUUID(volume.UUID(f.UUID))
	}
	var all []join.Device
	below, lostOf := p.tree(), map[string]string{} // the lost snapshots by their origins
	for _, m := range list {
		uuid, ok := parseDMUUID(m.UUID)
		name, layer, named := parseDMName(m.Name)
		named = named && layer == ""
		l := f.lv(uuid)
		byUUID := prefix != "" && strings.HasPrefix(m.UUID, prefix)
		switch {
		case !ok || l.private() && !l.merging() && (!named || isPart(name.LV) || name.LV == l.Name):
			continue // otherwise the metadata is older: it has this volume as a part of another
		case !byUUID && (!named || name.VG != vg):
			continue
		case named && isPart(name.LV):
			continue
		}
		d := join.Device{UUID: uuid, Kernel: m.Name, Path: p.node(m), Number: m.Number, Open: -1, Namesake: prefix != "" && !byUUID}
		switch now, err := p.DM.Device(devmapper.Key{UUID: m.UUID}); {
		case errors.Is(err, devmapper.ErrNoDevice), err == nil && idle(now):
			continue
		case err == nil && l.merging() && now.Open == 0 && below.faults(now, false).repair == "": // not in use, and without data while the kernel merges it
			continue
		case err != nil:
			d.Unknown = fmt.Sprintf("%s cannot be inspected: %v", m.Name, err)
		default:
			d.Size, d.Open, d.ReadOnly = now.Size(), now.Open, now.ReadOnly
			d.Merges = (&node{Mapped: now}).has("snapshot-merge")
			below.health(now, &d)
			if d.Repair != "" && l.thickSnapshot() {
				lostOf[l.Origin] = f.Name + "/" + l.Name
			}
			if current {
				d.SameThin, d.Bypassed, d.Split = f.sameThin(now, d.UUID), f.bypassed(now, d.UUID), f.split(d.RAID)
				all := true
				unread := below.walk(now, func(n *node, _ bool) {
					d.Misplaced = cmp.Or(d.Misplaced, f.misplaced(n.Mapped))
					all = all && f.compared(below, n)
				})
				d.Placed = all && unread == ""
			}
		}
		if named && name.VG == vg {
			d.Name = name.LV
			d.Link = p.link(name)
			if d.LinkBad = !p.Leads(d.Link, m.Number); d.LinkBad {
				d.Obstacle = p.obstacle(name, m)
			}
		}
		all = append(all, d)
	}
	for i := range all {
		if l := f.lv(all[i].UUID); l.thick() {
			all[i].LostSnapshot = lostOf[cmp.Or(l.Origin, l.Name)]
		}
	}
	if current {
		all = append(all, p.strayParts(f, list, below, all)...)
	}
	return all, nil
}

// split returns the copy that was split off a RAID and is to be merged again; "" = none. Both are
// arguments of LVM commands. LVM shows such a part as a volume.
func (f *Facts) split(raid string) string {
	_, name, _ := strings.Cut(raid, "/")
	for i := 0; ; i++ {
		switch l, found := f.LVs[fmt.Sprintf("%s_rimage_%d", name, i)]; {
		case !found:
			return ""
		case !l.Hidden:
			return f.Name + "/" + l.Name
		}
	}
}

// strayParts returns one device of each part that contradicts the metadata, that the metadata does not
// have, or that an interrupted command left. It omits the devices below volumes: devicesOf has checked them.
func (p *Provider) strayParts(f *Facts, list []devmapper.Mapped, seen *tree, others []join.Device) (all []join.Device) {
	left := map[string]string{}
	for _, l := range p.leftParts(f, list) {
		left[l.device] = l.whole
	}
	if len(left) == 0 && f.contradicts == nil && len(f.unknown) == 0 {
		return nil
	}
	for _, m := range list {
		id, suffix, ours := f.idOf(m)
		if !ours || standIn(suffix) || seen.nodes[m.Number] != nil || f.lv(id).merging() {
			continue
		}
		now, err := p.DM.Device(devmapper.Key{UUID: m.UUID})
		if err != nil || idle(now) && left[m.Name] == "" {
			continue
		}
		d := join.Device{UUID: id, Kernel: m.Name, Path: p.node(m), Number: m.Number, Size: now.Size(), Open: now.Open, Misplaced: f.misplaced(now), Left: f.leftover(now)}
		if name, _, ok := parseDMName(m.Name); ok {
			d.Name = name.LV
		}
		if whole := left[m.Name]; whole != "" && d.Misplaced == "" && d.Open == 0 { // devices in use follow once this one is removed
			d.Left, d.Misplaced = true, fmt.Sprintf("is a part of %s/%s, which LVM does not activate while this device exists", f.Name, whole)
		}
		if (d.Misplaced != "" || f.names[id] == "") && !slices.ContainsFunc(others, func(o join.Device) bool { return o.UUID == id }) {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b join.Device) int { return cmp.Or(cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Open, b.Open)) })
	return slices.CompactFunc(all, func(a, b join.Device) bool { return a.UUID == b.UUID })
}

// health adds the problems of a device and of the devices below it.
func (t *tree) health(m devmapper.Mapped, d *join.Device) {
	f := t.faults(m, true)
	d.Broken, d.Repair, d.Degraded, d.Differ = f.missing, f.repair, f.degraded, f.differ
	d.RAID, d.Refresh, d.Suspended = f.raid, f.refresh, f.suspended
	d.Failed, d.Remedy = f.failed, f.remedy
	if f.pool != "" {
		d.Failed, d.Remedy = f.pool, "extend or repair the pool as described; until then writes of its pods fail"
	}
	if f.move != "" && d.Failed == "" {
		d.Failed, d.Remedy = f.move, restartMove
	}
	if d.Broken == "" && d.Failed == "" && d.Degraded == "" {
		d.Unknown = f.unread
	}
}

// gone describes the part of a volume's device that is on a removed disk; "" = none. A disk that
// returns has another number.
func (t *tree) gone(n *node, lv string) string {
	if n.redundant() {
		return ""
	}
	for _, target := range n.Targets {
		for word := range strings.FieldsSeq(target.Params) {
			if _, _, ok := sysfs.SplitNumber(word); !ok {
				continue
			}
			if t.isGone(word) {
				return fmt.Sprintf("%s has a part (at %d) on the disk %s, which is gone. When it is back (pvs), under any name, and no pod uses the volume: lvchange -an %s; the next call activates it there", n.Name, target.Start, word, lv)
			}
		}
	}
	return ""
}

// lostSlave reports whether a disk below a device is gone. The kernel keeps its link.
func lostSlave(dir string) bool {
	links, _ := filepath.Glob(dir + "/slaves/*")
	return slices.ContainsFunc(links, func(link string) bool {
		number, err := sysfs.Line(link + "/dev")
		return errors.Is(err, os.ErrNotExist) || err == nil && diskGone(number)
	})
}

// isGone is diskGone with a cache.
func (t *tree) isGone(disk string) bool {
	gone, known := t.disks[disk]
	if !known {
		gone = t.p.diskGone(disk)
		t.disks[disk] = gone
	}
	return gone
}

// diskGone reports whether the kernel no longer has a disk of that number, or has marked it
// dead. A table keeps the number of a removed disk. An encrypted disk is gone with the disk below it: that disk, when
// it is back, is opened as another device.
func diskGone(number string) bool {
	dir := "/sys/dev/block/" + number
	if _, err := os.Lstat(dir); err != nil {
		return os.IsNotExist(err)
	}
	if uuid, err := sysfs.Line(dir + "/dm/uuid"); err == nil && strings.HasPrefix(uuid, "CRYPT-") {
		return lostSlave(dir)
	}
	state, err := os.ReadFile(dir + "/device/state")
	return err == nil && strings.Contains(string(state), "offline")
}
