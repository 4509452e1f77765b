package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// Extend extends lv and its device to at least size bytes. If the volume is large enough, it
// succeeds; an interrupted extension is continued. The device need not be active.
func (p *Provider) Extend(ctx context.Context, _ string, lv volume.LV, _ volume.Device, size int64) error {
	return p.extend(ctx, lv, size, false)
}

// ExtendBlank extends an active, blank volume, and zeroes the added space, which lvextend does not.
// A tag marks the volume until that is done; an interrupted extension is continued.
func (p *Provider) ExtendBlank(ctx context.Context, lock string, lv volume.LV, _ volume.Device, size int64) error {
	g, err := p.configured(lv.Name.VG)
	if err != nil {
		return err
	}
	if err := p.extend(ctx, lv, size, true); err != nil {
		return err
	}
	_, l, err := g.readVolume(ctx, lv)
	if err != nil {
		return err
	}
	tag, from := l.blank()
	if from == 0 {
		return nil // it had that size
	}
	d, err := p.Device(ctx, lv)
	if err != nil {
		return err
	}
	if err := (mount.Ops{Runner: p.Runner}).ZeroFrom(ctx, lock, d, from); err != nil {
		return err
	}
	_, err = g.retag(ctx, lv.Name, lv.UUID, "--deltag", tag)
	return err
}

func (p *Provider) extend(ctx context.Context, lv volume.LV, size int64, blank bool) error {
	g, err := p.configured(lv.Name.VG)
	if err != nil {
		return err
	}
	if err := g.ready(ctx); err != nil {
		return err
	}
	m := &member{name: lv.Name, uuid: lv.UUID, done: make(chan struct{})}
	if err := p.begin(m); err != nil {
		return err
	}
	go func() { p.end(m, g.orSuspended(lv, g.extend(lv, size, blank))) }()
	select {
	case <-m.done:
		return g.lockWaitError(ctx, lv, m.err)
	case <-ctx.Done():
		return context.Cause(ctx) // the command continues, and the volume is busy until it ends
	}
}

// extend runs to its end even if the caller stops waiting.
func (g *group) extend(lv volume.LV, size int64, blank bool) error {
	ctx := context.Background()
	release, err := g.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	// lvextend accepts only a name, no selection by uuid: check the name's volume
	// immediately before and after it.
	f, l, err := g.readVolume(ctx, lv)
	if err != nil {
		return err
	}
	wanted := f.extents(size) * f.ExtentSize
	if l.Size < wanted {
		more := wanted - l.Size
		args := extendArgs(g.p.Groups[g.name], l, lv.Name, wanted)
		if err := g.checkExtend(ctx, f, l, wanted, args); err != nil {
			return err
		}
		if _, from := l.blank(); blank && from == 0 {
			if _, err := g.change("extend", changeArgs(lv.Name, lv.UUID, "--addtag", tagBlank+strconv.FormatInt(l.Size, 10)), 0); err != nil {
				return err
			}
			if _, l, err = g.readVolume(ctx, lv); err != nil {
				return err
			}
			if _, from := l.blank(); from == 0 {
				return fmt.Errorf("extend: LVM reported success, but %s has no tag %s", lv.Name, tagBlank)
			}
		}
		_, err := g.change("extend", args, 0)
		g.invalidate()
		if hangs(err) {
			return err
		}
		var lerr error
		if f, l, lerr = g.readVolume(ctx, lv); lerr != nil {
			return errors.Join(err, lerr)
		}
		if l.Size < wanted { // otherwise it succeeded, with any output of LVM
			if err == nil {
				err = fmt.Errorf("extend: LVM reported success, but %s has %s, not %s", lv.Name, volume.Bytes(l.Size), volume.Bytes(wanted))
			}
			return f.withNumbers(err, more)
		}
	}
	return g.fitDevice(ctx, f, lv, l)
}

// checkExtend returns why a volume must not be extended to wanted bytes with these arguments.
func (g *group) checkExtend(ctx context.Context, f *Facts, l Logical, wanted int64, args []string) error {
	name, more := volume.Name{VG: g.name, LV: l.Name}, wanted-l.Size
	if l.Locked {
		return fmt.Errorf("extend: %s", f.movedBy(l.Name, ""))
	}
	if l.thickSnapshot() {
		return fmt.Errorf("extend: %s is a snapshot with its origin's size; LVM could only extend its space for changes", name)
	}
	if err := g.canAllocate(ctx, f, l.Pool != ""); err != nil {
		return err
	}
	if disk, present, block := f.largerSectors(l, args); disk != "" {
		return volume.Errorf(volume.Unusable, "extend: the disk %s has larger logical blocks than the disks of %s, and the filesystem could not be mounted with a part on it. Exclude that disk from new space: pvchange -xn %[1]s; or extend it by hand on a disk like its present ones, such as %[3]s (blockdev --getss DISK: %[4]d): lvextend -L %[5]db %[2]s DISK; if none has room, add one first: vgextend %[6]s DISK", disk, name, present, block, wanted, g.name)
	}
	if err := g.mayReload(ctx, l, name); err != nil {
		return fmt.Errorf("extend: %w", err)
	}
	if err := g.admit(f, l.created(), l.namespace(), volume.Amount{Size: more}); err != nil {
		return err
	}
	if g.limits() != nil && l.Pool != "" && l.Pool == g.p.Groups[g.name].ThinPool {
		if err := g.poolSpace(f, f.LVs[l.Pool], more); err != nil {
			return err
		}
	}
	if _, held := f.notAllocatable(); slices.Equal(l.Layout, []string{"linear"}) && more > f.Free-held {
		return f.spaceError(more, "")
	}
	return nil
}

// extendArgs returns the arguments of lvextend, which keeps the layout. A volume that flexd
// created stays on the disks of the configured layout; for other volumes LVM chooses the
// disks, and a thin volume grows in its pool.
func extendArgs(c Group, l Logical, name volume.Name, size int64) []string {
	args := []string{"lvextend", "-y", "-L", strconv.FormatInt(size, 10) + "b", name.String()}
	if c.Layout.PVTag != "" && l.created() && l.Pool == "" {
		args = append(args, "@"+c.Layout.PVTag)
	}
	return args
}

// readVolume reads the metadata, and fails if the name belongs to another volume.
func (g *group) readVolume(ctx context.Context, lv volume.LV) (*Facts, Logical, error) {
	f, _, err := g.look(ctx, true)
	if err != nil {
		return nil, Logical{}, err
	}
	l, ok := f.LVs[lv.Name.LV]
	switch {
	case !ok:
		return nil, Logical{}, fmt.Errorf("%s does not exist any more (it was %s)", lv.Name, lv.UUID)
	case l.UUID != lv.UUID:
		return nil, Logical{}, fmt.Errorf("%s is another volume by now (uuid %s; this one was %s)", lv.Name, l.UUID, lv.UUID)
	case f.refusal(l) != "":
		return nil, Logical{}, errors.New(f.refusal(l))
	}
	return f, l, nil
}

// fitDevice extends an active device to the size of its volume, after an extension that was
// interrupted between metadata and device.
func (g *group) fitDevice(ctx context.Context, f *Facts, lv volume.LV, l Logical) error {
	m, found, err := g.p.find(lv.UUID)
	if err != nil || !found || m.Size() >= l.Size {
		return err
	}
	if err := g.canAllocate(ctx, f, l.Pool != ""); err != nil {
		return err // the device would get space that another device may use
	}
	if err := g.mayReload(ctx, l, lv.Name); err != nil {
		return fmt.Errorf("extend: %w", err)
	}
	if _, err := g.change("refresh", changeArgs(lv.Name, lv.UUID, "--refresh"), 0); err != nil {
		return err
	}
	if m, found, err = g.p.find(lv.UUID); err == nil && found && m.Size() < l.Size {
		err = fmt.Errorf("extend: %s has %s, but its volume has %s", g.p.node(m), volume.Bytes(m.Size()), volume.Bytes(l.Size))
	}
	return err
}

// orSuspended adds to the error of an extension that devices of the volume are suspended, as after an lvextend
// that gets no semaphore for udev. flexd does not resume them, since another command may want them suspended.
func (g *group) orSuspended(lv volume.LV, err error) error {
	if err == nil || hangs(err) || errors.Is(err, ErrNoSpace) { // which is found before any change
		return err
	}
	m, found, ferr := g.p.find(lv.UUID)
	if ferr != nil || !found {
		return err
	}
	var names, resumes []string
	loaded := false
	for _, one := range g.p.tree().faults(m, false).suspended {
		names, resumes = append(names, one.Kernel), append(resumes, "dmsetup resume "+one.Kernel)
		loaded = loaded || one.Loaded
	}
	if len(names) == 0 {
		return err
	}
	remedy := "If no command of LVM runs (ps ax | grep lv): " + strings.Join(resumes, " && ")
	if loaded && g.lastFacts().lv(lv.UUID).Size <= m.Size() { // the second table may not be that of the metadata
		remedy = "flexd check says how to resume them safely"
	}
	return volume.Errorf(volume.Busy, "%w; all its reads and writes wait, since these devices are suspended: %s. %s", err, strings.Join(names, ", "), remedy)
}
