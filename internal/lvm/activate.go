package lvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Activate activates lv, and makes sure that LVM's link leads to its device. Volumes that are
// activated at the same time share a command; each gets its own error. The command holds the lock
// file of its group, not that of the volume's lane.
func (p *Provider) Activate(ctx context.Context, lock string, lv volume.LV) error {
	g, err := p.configured(lv.Name.VG)
	if err != nil {
		return err
	}
	d, err := p.Device(ctx, lv)
	switch {
	case err != nil:
		return err
	case d.Unusable:
		return fmt.Errorf("activate: %s", d.Reason)
	case d.Link != "" && !d.Unlocked:
		return nil
	}
	if d.Activity != volume.Active || d.Unlocked {
		if err := g.canActivate(ctx, lv); err != nil {
			return fmt.Errorf("activate: %w", err)
		}
		if d.Activity != volume.Active {
			if err := g.outdated(ctx, lock, lv); err != nil {
				return fmt.Errorf("activate: %w", err)
			}
		}
		m, err := g.activate(ctx, lv, d)
		if err != nil {
			return g.explainFailure(ctx, lock, lv, err)
		}
		if why := p.tree().faults(m, false).unusable(); why != "" {
			return fmt.Errorf("activate: %s", why)
		}
		if err := g.confirmDisks(ctx, m); err != nil {
			return fmt.Errorf("activate: %w", err)
		}
		if d.Unlocked {
			// The volume was active: lvmlockd reports the lock without reading the disk.
			if err := p.HasLock(ctx, lv); err != nil {
				return fmt.Errorf("activate: %w", err)
			}
		}
		return p.ensureLink(ctx, g, lv, m)
	}
	m, found, err := p.find(lv.UUID)
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("activate: the device of %s disappeared", lv.Name)
	}
	return p.ensureLink(ctx, g, lv, m)
}

// confirmDisks reads the group again if LVM has activated a device on other disks than those of the last
// report: they may be copies, see checkOriginals.
func (g *group) confirmDisks(ctx context.Context, m devmapper.Mapped) error {
	f, moved := g.lastFacts(), false
	g.p.tree().walk(m, func(n *node, _ bool) {
		moved = moved || f.place != nil && slices.ContainsFunc(extents(n.Mapped), func(e extent) bool { return f.place.foreign(e.disk) })
	})
	if !moved {
		return nil
	}
	g.invalidate()
	_, _, err := g.look(ctx, false)
	return err
}

// ensureLink repairs the link to a device, which LVM does not do for an active volume.
func (p *Provider) ensureLink(ctx context.Context, g *group, lv volume.LV, m devmapper.Mapped) error {
	name, layer, ok := parseDMName(m.Name)
	if !ok || layer != "" {
		return fmt.Errorf("activate: device-mapper calls the device of %s %q, which is not an LVM name", lv.Name, m.Name)
	}
	if p.Leads(p.link(name), m.Number) {
		return nil
	}
	_, said := g.join(ctx, makeNodes, name, lv.UUID)
	now, err := p.Device(ctx, lv) // the command has waited: the volume may have another device
	inTheWay := p.obstacle(name, m)
	switch {
	case err != nil:
		return err
	case now.Link != "":
		return nil
	case now.Activity != volume.Active:
		return fmt.Errorf("activate: the device of %s disappeared", lv.Name)
	case inTheWay != "":
		return fmt.Errorf("activate: %s does not lead to %s: LVM does not replace %s, which is of another type, as after a write to that path while the volume was inactive: move it away (mv), then ask again", p.link(name), p.node(m), inTheWay)
	case said != nil:
		return fmt.Errorf("activate: %s does not lead to %s: %w", p.link(name), p.node(m), said)
	}
	return fmt.Errorf("activate: %s does not lead to %s, and vgmknodes did not repair the link: is there another file with that name?", p.link(name), p.node(m))
}

// obstacle returns a path of another type on the way from a volume's link to its device, which LVM does not replace;
// "" = none.
func (p *Provider) obstacle(name volume.Name, m devmapper.Mapped) string {
	for _, part := range []struct {
		path string
		may  fs.FileMode
	}{
		{filepath.Dir(p.link(name)), fs.ModeDir | fs.ModeSymlink},
		{p.link(name), fs.ModeSymlink},
		{filepath.Join(p.Dev, "mapper", m.Name), fs.ModeDevice | fs.ModeSymlink},
	} {
		if st, err := os.Lstat(part.path); err == nil && st.Mode()&part.may == 0 {
			return part.path
		}
	}
	return ""
}

// explainFailure checks whether a command failed because the volume has changed or its thin pool
// has failed.
func (g *group) explainFailure(ctx context.Context, lock string, lv volume.LV, err error) error {
	if concernsGroup(err) || errors.As(err, new(*volume.WaitError)) || errors.As(err, new(*run.LockedError)) || ctx.Err() != nil {
		return err
	}
	g.invalidate() // outdated metadata may be the cause
	f, _, lerr := g.look(ctx, false)
	if lerr != nil {
		return err
	}
	if l := f.LVs[lv.Name.LV]; l.UUID == lv.UUID && l.creating() { // absent for others
		return g.explainNoDevice(ctx, lv.Name, err)
	}
	switch now := g.p.judge(f, lv.Name); {
	case now.Presence == volume.Absent:
		return fmt.Errorf("%s does not exist any more (it was %s): %w", lv.Name, lv.UUID, err)
	case now.UUID != lv.UUID:
		return fmt.Errorf("%s is another volume by now (uuid %s; this one was %s): %w", lv.Name, now.UUID, lv.UUID, err)
	case now.Presence == volume.Foreign:
		return fmt.Errorf("%s: %w", now.Reason, err)
	}
	if explained := g.explainNoDevice(ctx, lv.Name, err); explained != err {
		return explained
	}
	if why := g.tooManyFailed(ctx, lock, f, lv.UUID); why != nil {
		return fmt.Errorf("activate: %w", why)
	}
	l := f.LVs[lv.Name.LV]
	// A pool can be active without its volumes. The origin of a thick snapshot may be thin.
	below := f.LVs[cmp.Or(l.Pool, f.LVs[l.Origin].Pool)]
	if why := g.checkFailed(ctx, f, err); why != "" {
		err = fmt.Errorf("%w: %s", err, why)
	}
	parts := []string{l.Name, below.Name}
	for _, o := range f.family(l) { // LVM activates them together
		parts = append(parts, o.Name.LV)
	}
	if why := g.p.activationBlocker(f, parts...); why != "" {
		return fmt.Errorf("%w: %s", err, why)
	}
	return g.explainPool(f, below, err)
}

// explainPool adds why the thin pool of a volume cannot be used.
func (g *group) explainPool(f *Facts, l Logical, err error) error {
	if !l.thinPool() {
		return err
	}
	if pool, perr := g.p.pool(f, l); perr == nil && pool.Failed() != "" {
		return fmt.Errorf("%w: it is in the thin pool %s: %s", err, pool.Name, pool.Failed())
	}
	return err
}

// explainNoDevice adds the setting of lvm.conf that excludes a volume from activation.
func (g *group) explainNoDevice(ctx context.Context, name volume.Name, err error) error {
	if !errors.Is(err, errNoDevice) && !strings.Contains(err.Error(), "volume_list") { // lvcreate asks about it
		return err
	}
	if list, _, _ := lvmconfig(ctx, g.p.Runner, "activation/volume_list"); list != "" {
		return fmt.Errorf("%w: activation/%s in lvm.conf excludes it; add %q or %q to it", err, strings.TrimSpace(list), name.VG, name)
	}
	return err
}

// errNoDevice is returned if an activation had no effect, for example because LVM's
// configuration excludes the volume.
var errNoDevice = errors.New("LVM reported success, but created no device")

// mayReload returns an error if LVM would load a read-only table, because of
// activation/read_only_volume_list, for a volume that pods write to.
func (g *group) mayReload(ctx context.Context, l Logical, name volume.Name) error {
	if l.ReadOnly {
		return nil
	}
	const setting = "activation/read_only_volume_list"
	text, _, err := lvmconfig(ctx, g.p.Runner, setting)
	if err != nil {
		return err
	}
	_, list, _ := strings.Cut(strings.TrimSpace(text), "=")
	tags := l.Tags
	if strings.Contains(list, "@") {
		scope, err := g.p.scopeOf(ctx, g)
		if err != nil {
			return err
		}
		argv := append([]string{"lvm", "vgs"}, scope.words("")...)
		res, err := g.p.Runner.Run(ctx, run.Cmd{Step: "lvm tags", Argv: append(argv, "--noheadings", "-o", "vg_tags", g.name), Deadline: configDeadline})
		if err != nil {
			return err
		}
		tags = append(strings.Split(strings.TrimSpace(string(res.Stdout)), ","), tags...)
	}
	for _, word := range strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(`[]", `, r) }) {
		tag, isTag := strings.CutPrefix(word, "@")
		if word == name.VG || word == name.String() || isTag && (tag == "*" || slices.Contains(tags, tag)) {
			return volume.Errorf(volume.Conflict, "%s in lvm.conf has %q, and LVM would make the device of %s read-only while pods use it: remove that entry from the list first", setting, word, name)
		}
	}
	return nil
}
