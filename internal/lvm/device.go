package lvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// Device returns the block device of lv, if it has one, without starting a process. Link is ""
// if the link is missing or leads to another device; Activate repairs it.
func (p *Provider) Device(_ context.Context, lv volume.LV) (volume.Device, error) {
	if !IsUUID(lv.UUID) {
		return volume.Device{}, fmt.Errorf("%q is not an LVM uuid", lv.UUID)
	}
	m, found, err := p.find(lv.UUID)
	if err != nil {
		return volume.Device{}, err
	}
	if !found {
		p.forgetLock(lv.UUID)
	}
	d, below := volume.Device{Activity: volume.Inactive}, p.tree()
	if found && !idle(m) { // lvchange -ay loads the missing table
		d = p.deviceOf(below, m)
		if d.Relatives, err = p.relatives(m); err != nil {
			return volume.Device{}, err
		}
	}
	if g, err := p.group(lv.Name.VG); err == nil {
		if d.Activity == volume.Active && !d.Unusable {
			d.Reason = g.overlap(below, m)
			d.Unusable = d.Reason != ""
		}
		if why := p.takenReason(lv.UUID, d.Number); why != "" && found {
			d.Unusable, d.Reason = true, why
		}
		d.Unlocked = d.Activity == volume.Active && g.shared() && !g.isLocked(lv, d)
		d.LockLeft = d.Activity == volume.Inactive && g.mayHoldLock(lv.UUID)
		if b := g.changing(lv.Name); b != nil {
			d.Unusable, d.Reason = true, b.String()
		}
	}
	return d, nil
}

// find returns the device of a volume.
func (p *Provider) find(id volume.UUID) (m devmapper.Mapped, found bool, err error) {
	if _, _, ok := split(id); !ok {
		return p.findEarlier(id)
	}
	m, err = p.DM.Device(devmapper.Key{UUID: dmUUID(id)})
	if errors.Is(err, devmapper.ErrNoDevice) {
		return devmapper.Mapped{}, false, nil
	}
	return m, err == nil, err
}

// findEarlier looks up an identity from the notes of an earlier version, which has no
// volume group: it can only find that there is no device.
func (p *Provider) findEarlier(id volume.UUID) (m devmapper.Mapped, found bool, err error) {
	all, err := p.DM.List()
	if err != nil {
		return devmapper.Mapped{}, false, err
	}
	for _, m := range all {
		if full, ok := parseDMUUID(m.UUID); ok && full.Earlier() == id {
			return devmapper.Mapped{}, false, fmt.Errorf("%s may be the volume %s in the notes of an earlier version of flexd, or a copy of it (vgimportclone)", m.Name, id)
		}
	}
	return devmapper.Mapped{}, false, nil
}

// Identity returns the identity of a volume in the notes of an earlier version: that of the
// active volume with its uuid in the volume group of that name.
func (p *Provider) Identity(earlier volume.UUID, vg string) (id volume.UUID, err error) {
	all, err := p.DM.List()
	if err != nil {
		return "", err
	}
	for _, m := range all {
		full, ok := parseDMUUID(m.UUID)
		name, layer, named := parseDMName(m.Name)
		if ok && named && layer == "" && name.VG == vg && full.Earlier() == earlier {
			if id != "" {
				return "", fmt.Errorf("there are two volumes %s in volume groups named %s", earlier, vg)
			}
			id = full
		}
	}
	return id, nil
}

func (p *Provider) deviceOf(below *tree, m devmapper.Mapped) volume.Device {
	d := volume.Device{
		Activity: volume.Active, Path: p.node(m), Number: m.Number, Seq: diskSeq(m.Number),
		Size: m.Size(), ReadOnly: m.ReadOnly, Suspended: m.Suspended,
	}
	if name, layer, ok := parseDMName(m.Name); ok && layer == "" {
		if link := p.link(name); p.Leads(link, m.Number) {
			d.Link = link
		}
	}
	f := below.faults(m, false)
	d.Reason = f.unusable()
	d.Unusable = d.Reason != ""
	if len(f.suspended) > 0 {
		named := f.suspended[max(0, slices.IndexFunc(f.suspended, func(s join.Suspended) bool { return s.Loaded }))]
		d.Suspended, d.Loaded = true, named.Loaded
		if named.Kernel != m.Name {
			d.SuspendedBelow = filepath.Join(p.Dev, "mapper", named.Kernel)
		}
	}
	d.Reshaped = below.sync(m).reshaped
	d.Unsound = unsound(m)
	return d
}

// unusable describes why a device must not be used; "" = it may be.
func (f faults) unusable() string {
	if f.repair != "" {
		return f.missing + ": " + f.repair
	}
	return cmp.Or(f.missing, f.pool, f.unread)
}

// incomplete describes a device of a volume, or of a part of one, without a complete table; "" = it
// is complete.
func incomplete(m devmapper.Mapped, lv string) string {
	if !m.Live || len(m.Targets) == 0 {
		return m.Name + " has no table in device-mapper: an activation was interrupted, or a disk is missing"
	}
	for _, t := range m.Targets {
		// Targets that replace a missing disk.
		if t.Type == "error" || t.Type == "zero" {
			return fmt.Sprintf("%s has an %q target at %d: a part of the volume is missing, or was when it was activated (lvchange --activationmode partial). When its disk is back with all its space (pvs) and no pod uses it: lvchange -an %s; the next call activates all of it", m.Name, t.Type, t.Start, lv)
		}
	}
	return ""
}

// sound has the target types on which a filesystem may be created.
var sound = []string{"linear", "striped", "raid", "cache", "writecache", "thin"}

// unsound returns why a device must never be formatted; "" = it may be formatted.
func unsound(m devmapper.Mapped) string {
	for _, t := range m.Targets {
		if t.Type == "snapshot-origin" {
			return fmt.Sprintf("%s has snapshots, which mkfs could fill: create its filesystem yourself, or remove them (lvs)", m.Name)
		}
		if !slices.Contains(sound, t.Type) {
			return fmt.Sprintf("%s has a %q target at %d", m.Name, t.Type, t.Start)
		}
	}
	return ""
}

// node returns the kernel's own node of a device.
func (p *Provider) node(m devmapper.Mapped) string {
	_, minor, _ := strings.Cut(m.Number, ":")
	return filepath.Join(p.Dev, "dm-"+minor)
}

// link returns LVM's link to the device of a volume.
func (p *Provider) link(name volume.Name) string { return filepath.Join(p.Dev, name.VG, name.LV) }

// leadsTo reports whether a path resolves to the block device of that number, without
// opening it.
func leadsTo(path, number string) bool { return blockNumber(path) == number }

// diskSeq distinguishes this device from a later one with its number.
// Kernels before 5.15 do not have it.
func diskSeq(number string) uint64 {
	_, minor, _ := strings.Cut(number, ":")
	seq, _ := sysfs.Line("/sys/devices/virtual/block/dm-" + minor + "/diskseq") // found without following links
	n, _ := strconv.ParseUint(seq, 10, 64)
	return n
}

// Identify returns the volume of the device with that number, for a mount table entry. It
// returns none for other devices and for LVM's hidden volumes.
func (p *Provider) Identify(_ context.Context, number string) (volume.Identity, error) {
	major, _, ok := sysfs.SplitNumber(number)
	if !ok || major == 0 {
		return volume.Identity{}, nil
	}
	m, err := p.DM.Device(devmapper.Key{Number: number})
	switch {
	case errors.Is(err, devmapper.ErrNoDevice), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV):
		return volume.Identity{}, nil // without device-mapper there is no LVM volume
	case err != nil:
		return volume.Identity{}, err
	}
	uuid, ok := parseDMUUID(m.UUID)
	if !ok {
		return volume.Identity{}, nil
	}
	name, layer, ok := parseDMName(m.Name)
	if !ok || layer != "" {
		name = volume.Name{} // renamed by hand; only the uuid counts
	}
	return volume.Identity{UUID: uuid, Name: name}, nil
}
