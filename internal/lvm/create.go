package lvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// Create creates a blank, active volume of at least size bytes. A tag marks the volume during the
// creation, so that it is not used; an interrupted creation is found by that tag, and completed. It
// replaces only a volume that was never active: a RAID, or a thin volume that its pool does not have.
func (p *Provider) Create(ctx context.Context, lock string, name volume.Name, size int64, namespace string) error {
	g, err := p.configured(name.VG)
	if err != nil {
		return err
	}
	if err := checkName(name.LV); err != nil {
		return fmt.Errorf("volume: %w", err)
	}
	if size <= 0 {
		return fmt.Errorf("volume %s: no size", name)
	}
	if err := g.ready(ctx); err != nil {
		return err
	}
	f, l, made, err := g.findOrCreate(ctx, name, size, namespace)
	if err != nil {
		return err
	}
	lv := volume.LV{Name: name, UUID: l.UUID}
	activated := made // whether this call activates it, not an operator after an interrupted creation
	if !made {
		d, err := p.Device(ctx, lv)
		activated = err == nil && d.Activity == volume.Inactive
	}
	err = g.finish(ctx, lock, f, l, size)
	if !made && l.unknownToPool(err) {
		f, failed := g.removeRemains(ctx, l)
		if failed != nil {
			return failed
		}
		if _, there := f.LVs[name.LV]; !there {
			return p.Create(ctx, lock, name, size, namespace)
		}
	}
	if err == nil || hangs(err) || !activated {
		return err
	}
	// It has no lease, so no other code would deactivate it.
	if d, derr := p.Device(ctx, lv); derr == nil && d.Activity == volume.Active {
		if derr := p.Deactivate(ctx, lock, lv, d); derr != nil {
			return fmt.Errorf("%w; it stays active: %v", err, derr)
		}
	}
	return err
}

// findOrCreate returns the volume that Create has to complete, and whether this call has created it.
func (g *group) findOrCreate(ctx context.Context, name volume.Name, size int64, namespace string) (f *Facts, l Logical, made bool, err error) {
	f, kept, err := g.lookFit(ctx)
	if err != nil {
		return nil, Logical{}, false, err
	}
	if _, there := f.LVs[name.LV]; there && kept { // completing it writes zeros: read the metadata again
		if f, _, err = g.look(ctx, true); err != nil {
			return nil, Logical{}, false, err
		}
	}
	if l := f.LVs[name.LV]; f.neverActive(l) {
		if f, err = g.removeRemains(ctx, l); err != nil {
			return nil, Logical{}, false, err
		}
	}
	l, there := f.LVs[name.LV]
	if made = !there; made {
		if f, err = g.createNew(ctx, name, size, namespace); err != nil {
			return nil, Logical{}, false, err
		}
		l, there = f.LVs[name.LV]
	}
	switch {
	case !there:
		err = fmt.Errorf("%s: LVM reported its creation, but its metadata does not have it", name)
	case !l.creating():
		err = fmt.Errorf("%s exists already, and is not an interrupted creation of flexd", name)
	case f.refusal(l) != "":
		err = fmt.Errorf("%s cannot be completed: %s", name, f.refusal(l))
	}
	return f, l, made, err
}

// EndCreation deactivates a volume whose creation was interrupted, and releases its lock.
func (p *Provider) EndCreation(ctx context.Context, lock string, name volume.Name) error {
	g, err := p.configured(name.VG)
	if err != nil {
		return err
	}
	f, _, err := g.look(ctx, true)
	if err != nil {
		return err
	}
	l, there := f.LVs[name.LV]
	if !there || !l.creating() {
		return nil
	}
	lv := volume.LV{Name: name, UUID: l.UUID}
	if g.shared() {
		p.setMayHoldLock(lv.UUID, true)
	}
	d, err := p.Device(ctx, lv)
	if err != nil {
		return err
	}
	return p.Deactivate(ctx, lock, lv, d)
}

// CanCreate returns why Create would refuse to create the volume. It changes nothing.
func (p *Provider) CanCreate(ctx context.Context, name volume.Name, size int64, namespace string) error {
	g, err := p.configured(name.VG)
	if err != nil {
		return err
	}
	f, kept, err := g.lookFit(ctx)
	if err != nil {
		return err
	}
	if _, there := f.LVs[name.LV]; there { // its creation was interrupted, and will be completed
		return nil
	}
	if err = g.checkSpace(f, name, size, namespace); err != nil && kept { // a new report must confirm it
		if f, _, err = g.look(ctx, true); err == nil {
			err = g.checkSpace(f, name, size, namespace)
		}
	}
	if err != nil {
		return err
	}
	return g.canAllocate(ctx, f, g.p.Groups[g.name].ThinPool != "")
}

// lookFit is look for a creation: it fails if the configuration does not fit the group.
func (g *group) lookFit(ctx context.Context) (f *Facts, kept bool, err error) {
	if f, kept, err = g.look(ctx, false); err == nil && f.unfit != "" {
		return nil, false, volume.Errorf(volume.Unusable, "%s", f.unfit)
	}
	return f, kept, err
}

// createNew creates a volume that the metadata does not have, and returns the metadata with
// it.
func (g *group) createNew(ctx context.Context, name volume.Name, size int64, namespace string) (*Facts, error) {
	since, _ := g.lockspace()
	if err := g.create(ctx, name, size, namespace); err != nil {
		return nil, err
	}
	f, _, err := g.look(ctx, true)
	if err != nil || !g.shared() {
		return f, err
	}
	m := member{uuid: f.LVs[name.LV].UUID, started: since}
	var found bool
	if m.seen, found, err = g.p.find(m.uuid); found && err == nil {
		g.noteLock(exclusive, &m) // lvcreate has taken it
	}
	return f, nil
}

// create runs lvcreate.
func (g *group) create(ctx context.Context, name volume.Name, size int64, namespace string) error {
	release, err := g.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	// A fresh report, since changes before this turn may not have been reported by events.
	f, _, err := g.look(ctx, true)
	if err != nil {
		return err
	}
	if err := g.checkSpace(f, name, size, namespace); err != nil {
		return err
	}
	if err := g.unusable(f, g.p.Groups[g.name].ThinPool != ""); err != nil {
		return err
	}
	defer g.invalidate()
	_, err = g.change("create", createArgs(g.p.Groups[g.name], name, f.extents(size), f.ExtentSize, namespace), 0)
	if err != nil && strings.Contains(err.Error(), "free space in metadata of thin pool") { // LVM keeps a quarter, or 4 MiB, free
		return volume.WithCode(volume.NoSpace, fmt.Errorf("%w: lvextend --poolmetadatasize +SIZE %s/%s", err, g.name, g.p.Groups[g.name].ThinPool))
	}
	if err != nil {
		err = g.explainPool(f, f.LVs[g.p.Groups[g.name].ThinPool], err) // lvcreate has activated it
		err = g.explainNoDevice(ctx, name, err)
	}
	return f.withNumbers(err, f.extents(size)*f.ExtentSize)
}

// createArgs returns the arguments of lvcreate: it wipes old signatures on the extents
// without a prompt.
func createArgs(c Group, name volume.Name, extents, extentSize int64, namespace string) []string {
	args := []string{"lvcreate", "-y", "-W", "y", "-kn", "--addtag", tagCreating, "-n", name.LV}
	if namespace != "" {
		args = append(args, "--addtag", tagNamespace+namespace)
	}
	if c.ThinPool != "" {
		return append(args, "-V", strconv.FormatInt(extents*extentSize, 10)+"b", "--thinpool", c.ThinPool, name.VG)
	}
	args = append(args, "-Z", "y", "-l", strconv.FormatInt(extents, 10))
	args = append(append(args, c.Layout.args()...), name.VG)
	if c.Layout.PVTag != "" {
		args = append(args, "@"+c.Layout.PVTag)
	}
	return args
}

// finish completes the creation of a volume: it extends the volume to its size, zeroes the
// places of signatures, changes the tag, and excludes it from autoactivation.
func (g *group) finish(ctx context.Context, lock string, f *Facts, l Logical, size int64) error {
	name := volume.Name{VG: g.name, LV: l.Name}
	lv := volume.LV{Presence: volume.Present, Name: name, UUID: l.UUID, Size: l.Size}
	if err := g.blank(ctx, lock, lv, l); err != nil { // first, because it may be in use
		return err
	}
	if f.extents(size)*f.ExtentSize > l.Size {
		err := g.p.extend(ctx, lv, size, l.Pool == "")
		if err == nil {
			_, l, err = g.readVolume(ctx, lv)
		}
		if err == nil {
			err = g.blank(ctx, lock, lv, l)
		}
		if err != nil {
			return err
		}
	}
	// No autoactivation at boot, because pods control the contents and the labels in them. lvcreate
	// refuses this option for thin volumes and RAIDs.
	const option = "--setautoactivation"
	tags := []string{"--deltag", tagCreating, "--addtag", tagCreated}
	if tag, from := l.blank(); from > 0 {
		tags = append(tags, "--deltag", tag)
	}
	res, err := g.retag(ctx, name, l.UUID, slices.Concat(tags, []string{option, "n"})...)
	if err != nil && bytes.Contains(res.Stderr, []byte("unrecognized option '"+option)) { // LVM before 2.03.12
		_, err = g.retag(ctx, name, l.UUID, tags...)
	}
	return err
}

// blank activates a volume that is being created, and zeroes it.
func (g *group) blank(ctx context.Context, lock string, lv volume.LV, l Logical) error {
	before, err := g.p.Device(ctx, lv)
	if err != nil {
		return err
	}
	if err := g.freeParts(ctx, l); err != nil {
		return err
	}
	if err := g.p.Activate(ctx, lock, lv); err != nil || l.Pool != "" { // unwritten blocks of a thin volume read as zeros
		return err
	}
	if g.shared() { // before this node had the lock, another one could complete and use the volume
		f, _, err := g.look(ctx, false)
		switch {
		case err != nil:
			return err
		case f.unlocked != nil:
			return f.unlocked
		case !f.lv(l.UUID).creating():
			return fmt.Errorf("%s was meanwhile completed or removed by another node", lv.Name)
		}
		l = f.lv(l.UUID)
	}
	d, err := g.p.Device(ctx, lv)
	if err != nil {
		return err
	}
	if d.Unusable { // for example because it overlaps the device of a volume that the metadata does not have
		if before.Activity == volume.Inactive { // otherwise the newest metadata would not have this device
			if err := g.deactivate(ctx, lv.Name, lv.UUID); err != nil {
				d.Reason += "; nor could it be deactivated: " + err.Error()
			}
		}
		return volume.Errorf(volume.Unusable, "%s was created, but its device was not usable: %s", lv.Name, d.Reason)
	}
	if d.ReadOnly {
		return fmt.Errorf("%s was created, but LVM activates it read-only: change activation/read_only_volume_list in lvm.conf, then retry", lv.Name)
	}
	ops := mount.Ops{Runner: g.p.Runner}
	if _, from := l.blank(); from > 0 { // it was zeroed up to there; the added space may have signatures
		err = ops.ZeroFrom(ctx, lock, d, from)
	}
	zero := ops.Zero
	if g.p.Groups[g.name].ZeroAll {
		zero = ops.ZeroAll
	}
	if err == nil {
		err = zero(ctx, lock, d)
	}
	if refusal, ok := errors.AsType[*mount.Refusal](err); ok {
		return &mount.Refusal{
			What: fmt.Sprintf("flexd's creation of %s was interrupted (tag %s), and now %s", lv.Name, tagCreating, refusal.What),
			Hint: fmt.Sprintf("look at its contents first: lvchange -ay %[2]s; blkid -p /dev/%[2]s. To use it as it is: lvchange --deltag %[1]s %[2]s; only if nothing in it is needed: lvremove %[2]s", tagCreating, lv.Name),
		}
	}
	return err
}

// checkSpace refuses a size that does not fit or exceeds the limits of the group, before a command
// runs and with numbers. The computed space is exact for linear volumes, and a lower bound for other
// types.
func (g *group) checkSpace(f *Facts, name volume.Name, size int64, namespace string) error {
	wanted := f.extents(size) * f.ExtentSize
	if err := g.admit(f, true, namespace, volume.Amount{Volumes: 1, Size: wanted}); err != nil {
		return err
	}
	if f.maxLVs > 0 && f.visible >= f.maxLVs {
		return volume.Errorf(volume.NoSpace, "volume group %s has %d logical volumes, and may have %d (max_lv): vgchange -l NUMBER %[1]s, where 0 is no limit, or remove volumes that are not needed", f.Name, f.visible, f.maxLVs)
	}
	pool := g.p.Groups[g.name].ThinPool
	if pool == "" {
		if _, held := f.notAllocatable(); wanted > f.Free-held {
			return f.spaceError(wanted, "")
		}
		return nil
	}
	l, ok := f.LVs[pool]
	switch {
	case !ok:
		return fmt.Errorf("there is no thin pool %s/%s, in which the configuration creates %s", g.name, pool, name)
	case !l.thinPool():
		return fmt.Errorf("%s/%s is not a thin pool", g.name, pool)
	case !l.Zeroes && g.p.Groups[g.name].ZeroAll:
		return fmt.Errorf("thin pool %s/%s does not zero new blocks, and the configuration says `zero: all`: lvchange --zero y %[1]s/%[2]s", g.name, pool)
	}
	return g.poolSpace(f, l, wanted)
}

// withNumbers replaces LVM's error about missing space by a SpaceError.
func (f *Facts) withNumbers(err error, wanted int64) error {
	if e, ok := errors.AsType[*Error](err); ok && e.Kind == ErrNoSpace {
		return f.spaceError(wanted, e.Text)
	}
	return err
}
