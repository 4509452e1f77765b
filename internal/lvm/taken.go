package lvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/lockspace"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// fenceDeadline limits the wait for earlier writes to a device that its disk does not complete.
const fenceDeadline = 10 * time.Second

// Taken returns the volumes of a shared group that are active on this node for writing, and whose
// locks another node has taken since, even if it has released them. It considers only volumes
// that are mounted, or whose lock a command of this flexd has taken for the present device. LVM
// takes the lock of a volume before its device appears, and releases it after the device has
// disappeared: a device that exists before and after its lock is read must have had the lock. An
// error concerns the volumes that are not in the result.
func (p *Provider) Taken(ctx context.Context, vg string, mounted []volume.UUID) ([]volume.Taken, error) {
	return p.takenOf(ctx, vg, func(uuid volume.UUID, number string) bool {
		return slices.Contains(mounted, uuid) || p.noted(uuid, number)
	})
}

// HasLock reads the lock of an active volume, and returns nil if this node still holds it and will
// keep it: the node may have been paused, or its lock managers killed. A volume of a group that is
// not shared needs no lock.
func (p *Provider) HasLock(ctx context.Context, lv volume.LV) error {
	g, err := p.configured(lv.Name.VG)
	if err != nil || !g.shared() {
		return err
	}
	if err := g.ready(ctx); err != nil {
		return err
	}
	taken, err := p.takenOf(ctx, lv.Name.VG, func(uuid volume.UUID, _ string) bool { return uuid == lv.UUID })
	switch {
	case len(taken) > 0:
		return volume.Errorf(volume.Busy, "%s", taken[0].Reason())
	case err != nil:
		return volume.Errorf(volume.Unknown, "whether this node still has the lock of %s cannot be read: %w; `flexd doctor` examines the lock managers; if no pod uses the volume here, `lvchange -an %[1]s` makes the next call lock it anew", lv.Name, err)
	}
	return nil
}

func (p *Provider) takenOf(ctx context.Context, vg string, counts func(volume.UUID, string) bool) ([]volume.Taken, error) {
	g, err := p.configured(vg)
	if err != nil || !g.shared() || p.Locks == nil {
		return nil, err
	}
	devices, err := groupDevices(p.DM, vg)
	if err != nil {
		return nil, err
	}
	var f *Facts
	by := map[volume.UUID][]volume.Taken{} // by the volume that has the lock
	var locks []lockspace.LV
	var unlocked error
	for _, m := range devices {
		uuid, ok := parseDMUUID(m.UUID)
		if !ok || !counts(uuid, m.Number) {
			continue
		}
		if f == nil {
			if f, err = g.anyFacts(ctx); err != nil || f.LockType == "dlm" { // which has no leases on a disk
				return nil, err
			}
		}
		l, known := f.LVs[f.names[uuid]]
		if !known || l.forReaders() {
			continue
		}
		name, _, _ := parseDMName(m.Name)
		lock := f.lockOf(l)
		if lock.LockArgs == "" {
			unlocked = errors.Join(unlocked, fmt.Errorf("%s: the metadata has no lock for it", name))
			continue
		}
		if by[lock.UUID] == nil {
			locks = append(locks, lockspace.LV{UUID: lock.UUID, LockArgs: lock.LockArgs})
		}
		by[lock.UUID] = append(by[lock.UUID], volume.Taken{Name: name, UUID: uuid, Number: m.Number, Seq: diskSeq(m.Number), Fenced: fenced(m)})
	}
	if len(locks) == 0 {
		return nil, unlocked
	}
	holders, err := p.Locks.Taken(ctx, vg, locks)
	err = errors.Join(unlocked, err)
	var all []volume.Taken
	for lock, holder := range holders {
		for _, t := range by[lock] {
			if m, found, ferr := p.find(t.UUID); ferr != nil || !found || m.Number != t.Number || diskSeq(m.Number) != t.Seq {
				err = errors.Join(err, ferr)
				continue
			}
			t.Holder = holder
			p.noteTaken(t)
			all = append(all, t)
		}
	}
	return all, err
}

// anyFacts returns facts of any age, for the location of a volume's lock, which never changes.
func (g *group) anyFacts(ctx context.Context) (*Facts, error) {
	if f := g.lastFacts(); f != nil {
		return f, nil
	}
	f, _, err := g.look(ctx, false)
	return f, err
}

// noted reports whether a command of this flexd has taken the lock for that device, or whether
// the device is fenced.
func (p *Provider) noted(uuid volume.UUID, number string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.locked[uuid].number == number && p.locked[uuid].seq == diskSeq(number) || p.taken[uuid].Number == number
}

func (p *Provider) noteTaken(t volume.Taken) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.locked, t.UUID)
	p.taken[t.UUID] = t
}

// takenReason returns why the device of a volume must not be used; "" = its lock was not
// taken.
func (p *Provider) takenReason(uuid volume.UUID, number string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, ok := p.taken[uuid]; ok && t.Number == number {
		return t.Reason()
	}
	return ""
}

// fenced reports whether a device fails all reads and writes. A device without a table may get its
// former table back.
func fenced(m devmapper.Mapped) bool {
	return len(m.Targets) > 0 && !slices.ContainsFunc(m.Targets, func(t devmapper.Target) bool { return t.Type != "error" })
}

// Fence makes every read and write of a volume fail, also through its mounts, so that no cached
// data reaches the disk. It fences the lowest devices first, so that a RAID above them cannot
// record its end on disk. Devices between them and the volume keep their tables: a thin volume
// hangs if its pool is fenced first, and the pool may have other volumes.
func (p *Provider) Fence(ctx context.Context, t volume.Taken) error {
	m, found, err := p.find(t.UUID)
	if err != nil || !found {
		return err
	}
	var lowest, top []string
	group := m.UUID[:min(len(m.UUID), len("LVM-")+32)] // a disk may be a volume of another one
	tree, numbers := p.tree(), map[string]bool{}       // the numbers of the lowest devices
	visit := func(n *node, _ bool) {
		switch {
		case !strings.HasPrefix(n.UUID, group) || numbers[n.Number]:
		case !slices.ContainsFunc(n.below, func(number string) bool { return p.inGroup(number, group) }):
			lowest, numbers[n.Number] = append(lowest, n.Name), true
		case n.Number == m.Number:
			top = []string{n.Name}
		}
	}
	unread := tree.walk(m, visit)
	snapshots, err := tree.snapshotsOn(m, numbers)
	for _, s := range snapshots {
		unread = cmp.Or(unread, tree.walk(s, visit))
	}
	change := func(words ...string) {
		_, rerr := p.Runner.Run(ctx, run.Cmd{Step: "fence", Argv: words, Deadline: fenceDeadline, Mutates: true, Lock: filepath.Join(p.LockDir, "fence-"+string(t.UUID))})
		err = errors.Join(err, rerr)
	}
	// Without a flush, and without freezing the filesystem, which would write.
	if len(top) > 0 {
		change(slices.Concat([]string{"dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync"}, lowest)...)
	}
	change(slices.Concat([]string{"dmsetup", "wipe_table", "--noflush", "--nolockfs", "--noudevsync"}, lowest, top)...)
	if unread != "" {
		err = errors.Join(err, errors.New(unread))
	}
	if err != nil {
		return fmt.Errorf("dmsetup wipe_table: %w", err)
	}
	return nil
}

// snapshotsOn returns the active snapshots in the group of a volume that have one of these devices
// below them. They have the same lock, and a snapshot that cannot read its origin marks itself as
// invalid on disk.
func (t *tree) snapshotsOn(m devmapper.Mapped, numbers map[string]bool) (all []devmapper.Mapped, err error) {
	name, _, _ := parseDMName(m.Name)
	devices, err := groupDevices(t.p.DM, name.VG)
	for _, d := range devices {
		on := false
		if (&node{Mapped: d}).has("snapshot") {
			t.walk(d, func(n *node, _ bool) { on = on || numbers[n.Number] })
		}
		if on {
			all = append(all, d)
		}
	}
	return all, err
}

// removeFenced removes the devices of parts of fenced volumes that LVM did not remove. LVM finds
// the parts of a writecache through the volume's table, which the fence has replaced, and does not
// activate the volume again while their devices exist.
func (p *Provider) removeFenced(ctx context.Context, vg string) error {
	devices, err := groupDevices(p.DM, vg)
	if err != nil {
		return err
	}
	var left []string
	for _, m := range devices {
		if name, _, _ := parseDMName(m.Name); isPart(name.LV) && fenced(m) && m.Open == 0 {
			left = append(left, m.Name)
		}
	}
	return removeDevices(ctx, p.Runner, left)
}

// inGroup reports whether a device belongs to a volume group, or cannot be read.
func (p *Provider) inGroup(number, group string) bool {
	m, err := p.DM.Device(devmapper.Key{Number: number})
	return err != nil || strings.HasPrefix(m.UUID, group)
}
