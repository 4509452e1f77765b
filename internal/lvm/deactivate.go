package lvm

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Deactivate deactivates lv, and releases the lock that an interrupted command may have left. An
// inactive volume is success; for a device in use it returns a *mount.BusyError. It finds the device
// by uuid, so a rename of the volume does not matter.
//
// LVM also deactivates the device's relatives. The caller has checked the relatives in d.
func (p *Provider) Deactivate(ctx context.Context, lock string, lv volume.LV, d volume.Device) error {
	if !IsUUID(lv.UUID) {
		return fmt.Errorf("deactivate: %q is not an LVM uuid", lv.UUID)
	}
	m, found, err := p.find(lv.UUID)
	switch {
	case err != nil:
		return err
	case !found:
		return p.unlock(ctx, lv)
	}
	if m.Open > 0 {
		return p.busy(ctx, lock, m)
	}
	if err := p.sameFamily(m, d.Relatives); err != nil {
		return err
	}
	name, layer, ok := parseDMName(m.Name)
	if !ok || layer != "" {
		return fmt.Errorf("deactivate: device-mapper calls the device of %s %q, which is not an LVM name: it was renamed by hand", lv.Name, m.Name)
	}
	if p.Lost != nil && p.Lost(name.VG) {
		if _, err = p.RemoveUnused(ctx, name.VG); err == nil {
			if _, found, err = p.find(lv.UUID); found {
				err = p.busy(ctx, lock, m)
			}
		}
		return err
	}
	g, err := p.group(name.VG)
	if err != nil {
		return err
	}
	if why := g.deviceUser(ctx, m, lv.UUID); why != "" {
		return fmt.Errorf("deactivate: %s", why)
	}
	if err := g.lossRecorded(ctx, lock, m, lv.UUID); err != nil {
		return fmt.Errorf("deactivate: it stays active: %w", err)
	}
	for _, r := range d.Relatives {
		other, found, err := p.find(r.UUID)
		if err != nil {
			return fmt.Errorf("deactivate: the device of %s, with which LVM deactivates it, cannot be read: %w", r.Name, err)
		}
		if !found {
			continue
		}
		if why := g.deviceUser(ctx, other, r.UUID); why != "" {
			return fmt.Errorf("deactivate: LVM deactivates it only together with %s: %s", r.Name, why)
		}
		if err := g.lossRecorded(ctx, lock, other, r.UUID); err != nil {
			return fmt.Errorf("deactivate: it stays active, because LVM deactivates it only together with %s: %w", r.Name, err)
		}
	}
	if g.shared() && p.Locks != nil {
		if err := p.Locks.CanUnlock(ctx, g.name); err != nil {
			return fmt.Errorf("deactivate: it stays active until its lock can be released: %w", err)
		}
	}
	err = g.deactivate(ctx, name, lv.UUID)
	if err == nil && fenced(m) {
		return p.removeFenced(ctx, g.name)
	}
	if err == nil || concernsGroup(err) || ctx.Err() != nil {
		return err
	}
	if m, found, ferr := p.find(lv.UUID); ferr == nil && found && m.Open > 0 {
		return p.busy(ctx, lock, m) // opened in between
	}
	return err
}

// deactivate runs the command. LVM hides a snapshot that is to be merged: it deactivates the snapshot,
// and releases the common lock, only together with the origin.
func (g *group) deactivate(ctx context.Context, name volume.Name, uuid volume.UUID) error {
	f, _, err := g.look(ctx, false)
	if err != nil || !f.lv(uuid).merging() {
		_, err = g.join(ctx, deactivate, name, uuid)
		return err
	}
	l := f.lv(uuid)
	origin := f.LVs[l.Origin]
	_, found, err := g.p.find(uuid)
	if err != nil {
		return err
	}
	if !found || !l.thick() { // otherwise the origin is a relative, which the caller has checked
		if _, active, err := g.p.find(origin.UUID); err != nil || active {
			return cmp.Or(err, fmt.Errorf("deactivate: it is to be merged into %s/%s (lvconvert --merge), and LVM deactivates it only together with that volume, which is active", g.name, l.Origin))
		}
	}
	if _, err = g.join(ctx, deactivate, volume.Name{VG: g.name, LV: l.Origin}, origin.UUID); err != nil {
		return err
	}
	if _, found, err := g.p.find(uuid); err != nil || found {
		return cmp.Or(err, fmt.Errorf("deactivate: LVM reported success, but the device of %s still exists", name))
	}
	g.p.setMayHoldLock(uuid, false)
	return nil
}

// deactivateFactsAge is the maximum age of facts for a deactivation: no event reports that LVM misses a
// disk or that a disk has returned. Deactivations share the new report.
const deactivateFactsAge = 5 * time.Second

// deviceUser returns why another command still needs the device of a volume, or "".
func (g *group) deviceUser(ctx context.Context, m devmapper.Mapped, uuid volume.UUID) string {
	if m.Live && m.Suspended {
		return suspended(m.Name)
	}
	f, kept, err := g.look(ctx, false)
	g.mu.Lock()
	if err != nil {
		f = g.known
	}
	old := time.Since(g.at) > deactivateFactsAge
	g.mu.Unlock()
	if f == nil {
		return "" // lvchange itself decides
	}
	earlier := g.earlierMetadata(f, m, uuid)
	// The facts may be older than an extension, a move, or the loss or return of a disk.
	if kept && (earlier != "" || old) {
		now, _, err := g.look(ctx, true)
		if err == nil {
			f, earlier = now, g.earlierMetadata(now, m, uuid)
		} else if earlier != "" {
			return earlier
		}
	}
	l := f.lv(uuid)
	below, part := g.p.tree(), ""
	below.walk(m, func(n *node, _ bool) {
		if n.Live && n.Suspended {
			part = n.Name
		}
	})
	if part != "" { // lvchange would wait until it is resumed
		return suspended(part)
	}
	if moved := f.moved(below, m); moved != "" && earlier == "" {
		return f.movedBy(moved, below.faults(m, true).move) + "; it stays active until that ends"
	}
	if g.shared() { // another node, which may have all disks, waits for the lock
		return earlier
	}
	stays := ""
	if now := below.sync(m); now.reshaped != "" {
		stays = "it stays active until a reshape has ended, which continues only while it is active: " + volume.Reshaping(now.reshaped)
	} else if now.syncing != "" {
		stays = "it stays active until the RAID " + now.syncing + " is in sync: its synchronization continues only while it is active (lvs -a -o name,sync_percent)"
	} else if why := cmp.Or(now.lost, f.inactivatable(l, true)); why != "" {
		stays = "it stays active, because LVM would not activate it again: " + why
	}
	if stays != "" && earlier == "" && !below.allGone(m) {
		return stays
	}
	return earlier
}

func suspended(device string) string {
	return device + " is suspended by a command of LVM (a snapshot, pvmove) or of an operator: the volume stays active until it is resumed"
}

// moved returns the name of the volume, or of a part of it, that pvmove has locked; "" = none. pvmove
// locks only the hidden parts of a thin pool, a RAID or a cache. The metadata may be older than pvmove.
func (f *Facts) moved(t *tree, m devmapper.Mapped) (name string) {
	top, _, _ := f.idOf(m)
	t.walk(m, func(n *node, _ bool) {
		id, _, ours := f.idOf(n.Mapped)
		switch part, _, _ := parseDMName(n.Name); {
		case f.lv(id).Locked && !ofPvmove(part.LV):
			name = cmp.Or(name, f.names[id])
		case ours && ofPvmove(part.LV):
			name = cmp.Or(name, f.names[top])
		}
	})
	for _, o := range f.family(f.lv(top)) { // LVM deactivates them together
		if f.lv(o.UUID).Locked {
			name = cmp.Or(name, o.Name.LV)
		}
	}
	return name
}

// restartMove is the remedy for a failed device of pvmove's mirror, which the kernel does not use again.
const restartMove = "bring the disk back with all its space (pvs, dmesg), then: pvmove --abort. The latest writes may be lost, and the move can be repeated"

// movedBy describes a volume that pvmove has locked. LVM refuses most changes of it. failed describes the failure of
// pvmove's mirror. With a short disk, pvmove does not end, and pvmove --abort leaves a device suspended.
func (f *Facts) movedBy(name, failed string) string {
	first, remedy := "", "to continue: pvmove, to cancel: pvmove --abort"
	if failed != "" {
		failed, remedy = ", and "+failed, restartMove
	}
	if why := f.partial(f.LVs[f.whole(name)], true); why != "" {
		first, remedy = why+". ", "after that, "+remedy
	}
	return first + fmt.Sprintf("pvmove moves %s/%s, or was interrupted", f.Name, name) + failed + "; " + remedy
}

// earlierMetadata returns why a volume must stay active: its device has space that the metadata
// does not give to the volume. Its next activation would lack that space, and LVM would give it to
// another volume. "" = the metadata has all of it.
func (g *group) earlierMetadata(f *Facts, m devmapper.Mapped, uuid volume.UUID) string {
	l, known := f.LVs[f.names[uuid]]
	if !known {
		return "" // lvchange itself decides
	}
	difference := ""
	if l.Size < m.Size() && !l.thickSnapshot() && !f.sameThin(m, uuid) {
		difference = fmt.Sprintf("has %s, and the metadata says %s", volume.Bytes(m.Size()), volume.Bytes(l.Size))
	}
	if f.contradicts != nil || len(f.unknown) > 0 {
		g.p.tree().walk(m, func(n *node, _ bool) { difference = cmp.Or(f.misplaced(n.Mapped), difference) })
	}
	if difference == "" {
		return ""
	}
	return fmt.Sprintf("its device %s %s. It stays active, because the next activation would lose data: %s. If that is not possible, copy the data off, then lvchange -an %s/%s", m.Name, difference, join.Remedy(difference, f.Name), f.Name, l.Name)
}

type holdersArg struct {
	Number string `json:"number"`
	Path   string `json:"path"`
}

const holdersDeadline = 30 * time.Second

// busy returns an error that names the holders of a device. A child finds them, because one
// of those processes may hang.
func (p *Provider) busy(ctx context.Context, lock string, m devmapper.Mapped) error {
	busy := &mount.BusyError{What: p.node(m) + " (" + m.Name + ")"}
	err := mount.Ask(ctx, p.Runner, run.Cmd{
		Step:     "find holders",
		Argv:     run.Self("lvm-holders", holdersArg{Number: m.Number, Path: p.node(m)}),
		Lock:     lock,
		Deadline: holdersDeadline,
	}, &busy.Holders)
	if hangs(err) {
		return err
	}
	return busy
}
