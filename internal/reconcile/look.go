package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// observe observes the volume. Facts from children are dropped when the device changes.
func (l *lane) observe(ctx context.Context, w volume.Want) (volume.Have, error) {
	if l.byName {
		return l.observeName(ctx), nil
	}
	t, began := l.target(w), time.Now()
	t.FS = l.facts
	t.LookUp = l.lookUp
	h, table, err := l.n.Observer.Observe(ctx, t)
	if err != nil {
		return h, err
	}
	if d := (disk{h.Device.Number, h.Device.Seq}); d != l.disk {
		l.disk, l.facts, l.size = d, volume.FS{}, 0
		h.FS = volume.FS{}
	}
	before := l.size
	l.size = h.Device.Size
	l.table = table
	if now := currentName(h); h.Record == volume.Seen && now.LV != "" && now != h.RecordName {
		l.n.recordName(ctx, l.uuid, h.RecordName, now)
	}
	g := watchedMounts{began: began, dirs: t.Dirs, number: h.Device.Number, path: h.Device.Path}
	g.mounts = g.list(table.Devices())
	for dir, spot := range h.Targets {
		// A mount that is missing although its child succeeded was unmounted from
		// outside: the requests for it are treated like any other.
		if spot.Unknown == "" {
			l.n.requests.Observed(l.uuid, dir, spot.This || spot.Under)
		}
	}
	failed := false
	defer func() {
		if failed { // no step follows whose end would cause an audit
			l.n.auditor.Changed(l.group())
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := currentName(h); l.name.LV == "" && now.LV != "" { // its file is in a group's directory again
		l.name = now
		l.wakeLocked()
	}
	unread := l.watched == nil || l.watched.path != g.path // earlier errors in the log were not checked
	l.watched = &g
	_, bad := l.n.Observer.KernelLog.Logged(g.path)
	if len(h.Device.Relatives) > 0 {
		h.Device.Relatives = l.n.withNotes(h.Device.Relatives)
		l.n.Observer.Publish(l.uuid, h)
	}
	switch {
	case len(h.Mounts) == 0:
		l.recheck, l.broken = recheck{}, volume.FS{}
		l.n.Observer.KernelLog.Forget(g.path)
	case h.FS.Content == volume.FilesystemFailed:
		failed = l.recheck.left > 0
		l.recheck = recheck{} // the kernel's error count shows the error
	case l.broken.Content == volume.Truncated && l.broken.Size <= h.Device.Size:
		l.broken = volume.FS{} // the device has its old size again
	case l.broken.Content != volume.ContentUnknown:
		h.FS.Content, h.FS.Type, h.FS.What, h.FS.Size = l.broken.Content, l.broken.Type, l.broken.What, l.broken.Size
		l.n.Observer.Publish(l.uuid, h)
	case h.Device.Size < before, unread && bad:
		l.recheck = recheck{left: 1}
	}
	return h, nil
}

// currentName returns the volume's present name; empty = unknown.
func currentName(h volume.Have) volume.Name {
	if h.LV.Presence == volume.Present {
		return h.LV.Name
	}
	return h.LV.Now
}

// recordName writes the new name of a volume into its format record, unless a volume with that uuid
// still has the old name: then a file was copied with its attributes. If the original of a copy may be missing,
// the record keeps both names, so that no new volume gets either. A file of another group does not take the name of
// another record; see formerName.
func (n *Node) recordName(ctx context.Context, uuid volume.UUID, old, now volume.Name) {
	if had := n.Records.Holder(now); n.isFile(now) && old.VG != now.VG && had != "" && had != uuid {
		return
	}
	if p := n.Providers[old.VG]; p != nil && n.isFile(now) {
		lv, err := p.LookUp(ctx, old)
		switch {
		case err != nil && volume.CodeOf(err) != volume.NotFound:
			n.Log.WithField("volume", now.String()).WithError(err).Debugf("whether it is a copy of %s is not known yet", old)
			return
		case lv.Presence == volume.Present && lv.UUID == uuid:
			return
		}
	}
	if err := n.Records.Renamed(uuid, now, n.isFile(now) && (old.VG != now.VG || n.isCopy(ctx, uuid, now))); err != nil {
		n.Log.WithField("volume", now.String()).WithError(err).Warn("its new name is not in its format record")
	}
}

// reserveName writes a further name into the record of a file that is in another group now, or whose group was
// renamed, unless a volume with that uuid still has the old name, or the new name is that of another record.
func (n *Node) reserveName(ctx context.Context, uuid volume.UUID, old, now volume.Name) {
	if n.Records.Holder(now) != "" {
		return
	}
	if p := n.Providers[old.VG]; p != nil {
		lv, err := p.LookUp(ctx, old)
		if err != nil && volume.CodeOf(err) != volume.NotFound || lv.Presence == volume.Present && lv.UUID == uuid {
			return
		}
	}
	if err := n.Records.Reserve(uuid, now); err != nil {
		n.Log.WithField("volume", now.String()).WithError(err).Warn("its new name is not in its format record")
	}
}

// isCopy reports whether a volume's file may be another one than that in which the filesystem of its uuid was
// seen.
func (n *Node) isCopy(ctx context.Context, uuid volume.UUID, name volume.Name) bool {
	p := n.Providers[name.VG]
	if p == nil {
		return true
	}
	lv, err := p.LookUp(ctx, name)
	if err != nil || lv.UUID != uuid || lv.File.Birth == 0 {
		return true
	}
	seen, err := n.Records.Get(uuid)
	return err != nil || lv.File.Birth != seen.Birth
}

// isFile reports whether a volume is a file, which can be copied with its uuid.
func (n *Node) isFile(name volume.Name) bool {
	vg := n.Config.Get().VG(name.VG)
	return vg != nil && vg.Directory != ""
}

// target returns the facts to observe for a want.
func (l *lane) target(w volume.Want) asw.Target {
	t := asw.Target{UUID: l.uuid, Asked: map[string][]string{}, FSIDs: map[string]string{}}
	for _, c := range w.Calls { // first: kubelet's root may have another path since the claim was made
		if c.Verb == volume.Reclaim {
			t.Lives = append(t.Lives, c.Dir)
		}
		t.Dirs = withDirs(t.Dirs, c.Dir, c.Global)
	}
	for _, c := range l.n.Store.Claims(l.uuid) {
		t.Dirs = withDirs(t.Dirs, c.Dir)
		if c.FSID != "" && c.Phase != volume.Making {
			t.FSIDs[c.Dir] = c.FSID
		}
		if c.Super != nil && c.Phase != volume.Making {
			t.Asked[c.Dir] = c.Super
		}
	}
	t.Name = l.nameNow()
	return t
}

// withDirs adds the directories that dirs lacks; "" is none.
func withDirs(dirs []string, more ...string) []string {
	for _, dir := range more {
		if dir != "" && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// watchedMounts are the mounts of the last observation: the lane is woken when they change.
type watchedMounts struct {
	began        time.Time
	dirs         []string
	number, path string // of the device, if it was known
	mounts       []string
}

func (w *watchedMounts) list(devices *mounttable.Devices) []string {
	var mounts []string
	add := func(where string, entries []*mounttable.Entry) {
		for _, e := range entries { // the kernel uses an ID again
			mounts = append(mounts, fmt.Sprint(where, e.ID, e.Parent, e.Peer, e.Number, e.Root, e.ReadOnly, e.Dir))
		}
	}
	for _, dir := range w.dirs {
		reached, hidden := devices.Table.At(dir)
		add("at", reached)
		add("hidden", hidden)
	}
	if w.number != "" {
		add("of", devices.Of(w.number, w.path))
	}
	return mounts
}

// mountsChanged reports whether the volume's mounts differ from those of the last
// observation, or there was none yet.
func (l *lane) mountsChanged(devices *mounttable.Devices) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched == nil || !slices.Equal(l.watched.mounts, l.watched.list(devices))
}

// mountMissing reports whether a claim has no mount. Kubelet removes a global directory
// without a call if nothing is mounted there, and there is no event for that.
func (l *lane) mountMissing(table *mounttable.Table) bool {
	return slices.ContainsFunc(l.n.Store.Claims(l.uuid), func(c dsw.Claim) bool { return table.Top(c.Dir) == nil })
}

// leaseExpired reports whether the lease of the volume has ended while a relative kept
// it active: there is no event for the close of a device.
func (l *lane) leaseExpired() bool {
	lease, ok := l.n.Store.Lease(l.uuid)
	return ok && lease.Until <= l.n.Boot()
}

// want returns all possible causes of a step.
func (l *lane) want() volume.Want {
	var w volume.Want
	for _, c := range l.n.Store.Claims(l.uuid) {
		w.Claims = append(w.Claims, volume.Claim{Kind: c.Kind, Dir: c.Dir, Phase: c.Phase})
	}
	if lease, ok := l.n.Store.Lease(l.uuid); ok {
		w.Lease = volume.Lease{Noted: true, Live: l.n.Boot() < lease.Until}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if vg := l.n.Config.VG(l.name.VG); vg != nil {
		w.NeverDeactivate = vg.NeverDeactivate
	}
	w.Grow, w.Recheck = l.grow, l.recheck.left > 0 && !time.Now().Before(l.recheck.next)
	lost := l.n.lostReason(l.name.VG)
	if lost != "" {
		w.Grow, w.Recheck = false, false
	}
	for _, waits := range l.calls() {
		c := l.n.withConfig(waits)
		if lost != "" && c.Verb != volume.Release && c.Verb != volume.Reclaim {
			c.Refusal = volume.Refusal{Code: volume.Unusable, Reason: lost}
		}
		w.Calls = append(w.Calls, c)
	}
	return w
}
