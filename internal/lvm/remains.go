package lvm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/volume"
)

// neverActive reports whether a volume is a RAID whose lvcreate was interrupted before the first
// activation. The metadata volumes of a RAID are visible until LVM has zeroed them, and LVM does not
// activate the RAID before; so it contains no data. A RAID with data can also have a visible metadata
// volume, of a leg that lvconvert was about to add, but its other metadata volumes are hidden.
func (f *Facts) neverActive(l Logical) bool {
	if !l.creating() || !slices.Contains(l.Layout, "raid") {
		return false
	}
	visible := false
	for name, part := range f.LVs {
		number, ok := strings.CutPrefix(name, l.Name+"_rmeta_")
		if _, err := strconv.Atoi(number); !ok || err != nil {
			continue
		}
		if part.Hidden {
			return false
		}
		visible = true
	}
	return visible
}

// unknownToPool reports whether the activation of a thin volume failed because its pool does not have
// it: lvcreate was interrupted after it wrote the metadata, before its message to the pool. The error is
// permanent, since LVM loads the volume's table before it sends that message. The volume has no data.
func (l Logical) unknownToPool(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && l.Pool != "" && strings.Contains(e.Text, "reload ioctl on") && strings.Contains(e.Text, "failed: No data available")
}

// removeRemains removes a volume that was never active, with its parts, and returns the metadata
// without it. It does not remove another volume of that name, or a volume that was completed meanwhile.
func (g *group) removeRemains(ctx context.Context, l Logical) (*Facts, error) {
	if err := g.changeable(ctx); err != nil {
		return nil, err
	}
	name := volume.Name{VG: g.name, LV: l.Name}
	switch _, active, err := g.p.find(l.UUID); {
	case err != nil:
		return nil, err
	case active:
		return nil, fmt.Errorf("its creation was interrupted before it could be activated, but it has a device. Look at its contents first; only if they are not needed: lvremove %s", name)
	}
	release, err := g.take(ctx)
	if err != nil {
		return nil, err
	}
	_, err = g.change("create", []string{"lvremove", "-y", "-S", selection(l.UUID) + " && lv_tags=" + tagCreating, name.String()}, 0)
	g.invalidate()
	release()
	if err != nil {
		return nil, fmt.Errorf("the creation of %s was interrupted, and its remains could not be removed: %w", name, err)
	}
	f, _, err := g.look(ctx, true)
	return f, err
}

// freeParts removes devices of parts of an inactive RAID that an interrupted activation has left.
// While they exist, LVM refuses to activate the RAID, and it does not deactivate them.
func (g *group) freeParts(ctx context.Context, l Logical) error {
	if !slices.Contains(l.Layout, "raid") {
		return nil
	}
	if _, active, err := g.p.find(l.UUID); err != nil || active {
		return err
	}
	f, _, err := g.look(ctx, false)
	if err != nil {
		return err
	}
	var left []string
	for name, part := range f.LVs {
		if _, ok := leg(l.Name, name); !ok {
			continue
		}
		if m, found, err := g.p.find(part.UUID); err != nil {
			return err
		} else if found && m.Open == 0 {
			left = append(left, m.Name)
		}
	}
	if len(left) == 0 {
		return nil
	}
	release, err := g.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	return removeDevices(ctx, g.p.Runner, left)
}

// A leftPart is the device of a part of a volume that an interrupted LVM command has left.
type leftPart struct{ device, whole string }

// leftParts returns the devices of parts that an interrupted LVM command has left. The whole volume has no
// device, and LVM refuses to activate it while they exist. A device comes after its users, so that the
// devices can be removed in this order. A running command may have such devices for a moment.
func (p *Provider) leftParts(f *Facts, list []devmapper.Mapped) (all []leftPart) {
	active := map[string]bool{}
	for _, m := range list {
		active[ownerOf(m.UUID)] = true
	}
	t, wholes, uses := p.tree(), map[string]string{}, map[string]int{} // uses: of a device, by number, by the devices in all
	var rest []*node
	for _, m := range list {
		id, suffix, ours := f.idOf(m)
		part := f.lv(id)
		if whole := f.whole(part.Name); ours && !standIn(suffix) && whole != part.Name && !part.Locked && !active[dmUUID(f.LVs[whole].UUID)] {
			if n := t.add(p.DM.Device(devmapper.Key{UUID: m.UUID})); n.err == nil {
				rest, wholes[n.Name] = append(rest, n), whole
			}
		}
	}
	slices.SortFunc(rest, func(a, b *node) int { return strings.Compare(a.Name, b.Name) })
	for {
		i := slices.IndexFunc(rest, func(n *node) bool { return n.Open == uses[n.Number] })
		if i < 0 {
			break
		}
		for _, number := range rest[i].below {
			uses[number]++
		}
		all = append(all, leftPart{rest[i].Name, wholes[rest[i].Name]})
		rest = slices.Delete(rest, i, i+1)
	}
	if len(all) > 0 {
		if _, who := lockHolder(f.Name); who != "" {
			return nil
		}
	}
	return all
}

// activationBlocker returns why LVM does not activate one of these volumes: pvmove has locked a part of
// it, or an interrupted command has left devices of parts.
func (p *Provider) activationBlocker(f *Facts, volumes ...string) string {
	for _, part := range slices.Sorted(maps.Keys(f.LVs)) {
		for up := part; up != "" && f.LVs[part].Locked; up = f.parent(up) {
			if slices.Contains(volumes, up) {
				return p.resumeMove(f) + f.movedBy(part, "")
			}
		}
	}
	if left := p.leftOf(f, volumes...); len(left) > 0 {
		return join.Left(strings.Join(left, " "))
	}
	return ""
}

// leftOf returns the devices of leftParts that are of these volumes.
func (p *Provider) leftOf(f *Facts, volumes ...string) (devices []string) {
	list, _ := p.DM.List()
	for _, l := range p.leftParts(f, list) {
		if slices.Contains(volumes, l.whole) {
			devices = append(devices, l.device)
		}
	}
	return devices
}

// checkFailed returns the remedy if the check of a cache's or a thin pool's metadata, which LVM makes before
// an activation, has failed; "" = err is another error. It removes the devices that LVM leaves after the
// check, so that the next activation fails with the same error.
func (g *group) checkFailed(ctx context.Context, f *Facts, err error) string {
	_, said, _ := strings.Cut(err.Error(), "Check of pool "+g.name+"/")
	pool, said, _ := strings.Cut(said, " failed")
	if !strings.Contains(said, "Manual repair required") {
		return ""
	}
	whole := f.whole(pool)
	if release, err := g.take(ctx); err == nil {
		_ = removeDevices(ctx, g.p.Runner, g.p.leftOf(f, whole)) // else the error names them
		release()
	}
	if f.LVs[pool].thinPool() {
		return fmt.Sprintf("the metadata of the thin pool is damaged: lvconvert --repair %s/%s", g.name, pool)
	}
	return fmt.Sprintf("the metadata of its cache is damaged. If the cache is writethrough (lvs -a -o+cache_mode %[1]s): lvconvert --uncache %[1]s/%[2]s, then attach a new one. If it is writeback, some data may be only in the cache: copy its disks first; then lvconvert --repair %[1]s/%[2]s, or, without that data: lvconvert --uncache --force %[1]s/%[2]s", g.name, whole)
}

// resumeMove returns the first part of the remedy if LVM has loaded the table of pvmove's volume, but failed before it
// resumed it: that of a thick snapshot on it cannot be loaded before, so each activation would fail.
func (p *Provider) resumeMove(f *Facts) string {
	for _, name := range slices.Sorted(maps.Keys(f.LVs)) {
		if !ofPvmove(name) {
			continue
		}
		if m, found, err := p.find(f.LVs[name].UUID); err == nil && found && m.Loaded && !m.Live {
			return fmt.Sprintf("LVM has loaded the table of %s and does not use it: dmsetup resume %[1]s, and the next activation works; ", m.Name)
		}
	}
	return ""
}
