package lvm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/lockspace"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Locks starts the lock managers of shared groups and reports their state. Only LVM's commands take
// locks of volumes.
type Locks interface {
	// Ready returns nil if locks of a group can be taken.
	Ready(ctx context.Context, vg string) error
	// Check is Ready, but starts nothing; locks that are not started are no error.
	Check(ctx context.Context, vg string) error
	// Holder returns the other host that holds the lock of a volume; nil = none does.
	Holder(ctx context.Context, vg string, lv lockspace.LV) (*volume.Holder, error)
	// CanUnlock returns why this node would keep the lock of a volume that is deactivated now.
	CanUnlock(ctx context.Context, vg string) error
	// Taken returns the volumes, all active on this node, whose locks another host has taken, and
	// the present holders.
	Taken(ctx context.Context, vg string, lvs []lockspace.LV) (map[volume.UUID]volume.Holder, error)
	// Status returns what was last known, without any I/O.
	Status(vg string) lockspace.Status
}

// A lock is the lock of an active volume that a command of this flexd has taken. It is valid only
// for that device, and while the lockspace stays started.
type lock struct {
	number  string
	seq     uint64 // of the device
	since   time.Time
	readers bool // -asy: other nodes may have it active, too
}

func (g *group) shared() bool { return g.p.Groups[g.name].Shared }

// unfit returns why the configuration of a group does not fit its lock type; "" = it does.
func (g *group) unfit(f *Facts) string {
	c, ok := g.p.Groups[g.name]
	switch {
	case !ok:
	case c.Shared && !f.Shared():
		return lockspace.NoLockType(f.Name)
	case !c.Shared && f.Shared():
		return fmt.Sprintf("volume group %s is shared with other nodes (lock type %s), and its configuration does not say so: add `shared: true` to it in flexd's configuration", f.Name, f.LockType)
	case c.Shared && f.LockType != "sanlock" && f.LockType != "dlm":
		return fmt.Sprintf("volume group %s has the lock type %q, which flexd does not know: sanlock or dlm", f.Name, f.LockType)
	}
	return ""
}

// unlocked returns why a shared group was reported without its lock; nil = it was locked.
func (g *group) unlocked(f *Facts, stderr []byte) error {
	if !g.shared() || !bytes.Contains(stderr, []byte("Reading VG "+f.Name+" without a lock")) {
		return nil
	}
	return g.mustWait(classify(g.name, &run.ExitError{Step: "lvm report"}, stderr))
}

// Refresh prepares a set-up in a shared group: it checks that locks can be taken, and reads the
// metadata anew, since no event reports changes by other nodes. Concurrent calls share one report.
func (p *Provider) Refresh(ctx context.Context, vg string) error {
	g, err := p.configured(vg)
	if err != nil || !g.shared() {
		return nil // LookUp has the error
	}
	if err := g.ready(ctx); err != nil {
		return err
	}
	f, _, err := g.look(ctx, true)
	if err != nil {
		return err
	}
	return f.unlocked
}

// Reread reads the metadata with a command that begins after the call. It waits for LVM's lock of the group.
func (p *Provider) Reread(ctx context.Context, vg string) error {
	g, err := p.configured(vg)
	if err == nil {
		_, _, err = g.look(ctx, true)
	}
	return err
}

func (g *group) ready(ctx context.Context) error {
	if !g.shared() || g.p.Locks == nil {
		return nil
	}
	return g.p.Locks.Ready(ctx, g.name)
}

// activate activates a volume, or locks an active one. The facts are read anew afterwards: another
// node may have changed the volume before this node had the lock.
func (g *group) activate(ctx context.Context, lv volume.LV, d volume.Device) (devmapper.Mapped, error) {
	if !g.shared() {
		return g.join(ctx, activate, lv.Name, lv.UUID)
	}
	if err := g.ready(ctx); err != nil {
		return devmapper.Mapped{}, err
	}
	f, _, err := g.look(ctx, false)
	if err != nil {
		return devmapper.Mapped{}, err
	}
	k, l := exclusive, f.LVs[lv.Name.LV]
	if l.forReaders() {
		k = readers
	}
	h := g.holder(ctx, f, l) // cheaper than a command that is refused
	if h != nil && (k == exclusive || !h.Shared) {
		return devmapper.Mapped{}, g.waitError(h, d, nil)
	}
	m, err := g.join(ctx, k, lv.Name, lv.UUID)
	if errors.Is(err, ErrElsewhere) {
		err = g.waitError(g.holder(ctx, f, l), d, err)
	}
	if err == nil && d.Activity == volume.Active && m.Open == 0 {
		err = g.refresh(ctx, lv) // while it was not locked, another node may have changed its extents
	}
	return m, err
}

// forReaders reports whether a volume may be active on many nodes at once: it is read-only, and its
// type has no metadata on disk, for which LVM has no shared mode. LVM would share thick snapshots,
// but each node would write their exceptions.
func (l Logical) forReaders() bool {
	return l.ReadOnly && l.simple()
}

// simple reports whether a volume only maps extents.
func (l Logical) simple() bool {
	return !l.thick() && len(l.Layout) == 1 && (l.Layout[0] == "linear" || l.Layout[0] == "striped")
}

// lockOf returns the volume whose lock protects l. The origin of a thick snapshot may be thin.
func (f *Facts) lockOf(l Logical) Logical {
	switch {
	case l.Pool != "":
		return f.lockOf(f.LVs[l.Pool])
	case l.thickSnapshot():
		return f.lockOf(f.LVs[l.Origin])
	}
	return l
}

// holder returns the other host that holds the lock of a volume; nil = none does, or it is
// not known.
func (g *group) holder(ctx context.Context, f *Facts, l Logical) *volume.Holder {
	l = f.lockOf(l)
	if g.p.Locks == nil || l.LockArgs == "" {
		return nil
	}
	h, _ := g.p.Locks.Holder(ctx, g.name, lockspace.LV{UUID: l.UUID, LockArgs: l.LockArgs})
	return h
}

// waitError returns a *volume.WaitError if another host holds the lock of a volume. h is that
// host, said is LVM's error; nil = both are nil.
func (g *group) waitError(h *volume.Holder, d volume.Device, said error) error {
	if h == nil && said == nil {
		return nil
	}
	w := &volume.WaitError{Reason: "another host has it active", Holder: h, Err: cmp.Or(said, ErrElsewhere)}
	if d.Activity == volume.Active {
		w.Reason = "it is active on this node without its lock, which another host has"
	}
	if h == nil {
		w.Reason += "; LVM does not say which one: delete the pod that uses it there, or lvchange -an there"
	}
	return w
}

// WouldWait returns why an activation of a volume would wait for another host, or why its lock
// cannot be taken. It does not try to take the lock; nil = no reason is known.
func (p *Provider) WouldWait(ctx context.Context, lv volume.LV) error {
	g, err := p.configured(lv.Name.VG)
	if err != nil || !g.shared() {
		return nil
	}
	if p.Locks != nil {
		if err := p.Locks.Check(ctx, g.name); err != nil {
			return err
		}
	}
	f, _, err := g.look(ctx, false)
	if err != nil {
		return nil
	}
	l := f.LVs[lv.Name.LV]
	h := g.holder(ctx, f, l)
	if h != nil && h.Shared && l.forReaders() {
		h = nil
	}
	return g.waitError(h, volume.Device{}, nil)
}

// mustWait turns an error whose cause ends by itself into a *volume.WaitError.
func (g *group) mustWait(err error) error {
	switch {
	case errors.Is(err, ErrGroupLocked):
		return &volume.WaitError{Err: err, Reason: fmt.Sprintf("another host changes volume group %s: if that lasts, look there for a command of LVM that hangs", g.name)}
	case errors.Is(err, ErrStarting):
		return &volume.WaitError{Err: err, Reason: fmt.Sprintf("the locks of volume group %s are being started", g.name)}
	}
	return err
}

// lockWaitError is waitError for the error of a command that needs the lock of a volume.
func (g *group) lockWaitError(ctx context.Context, lv volume.LV, err error) error {
	if !g.shared() || !errors.Is(err, ErrElsewhere) {
		return err
	}
	f, _, lerr := g.look(ctx, false)
	if lerr != nil {
		return g.waitError(nil, volume.Device{}, err)
	}
	return g.waitError(g.holder(ctx, f, f.LVs[lv.Name.LV]), volume.Device{}, err)
}

// refresh loads the table of an active volume anew.
func (g *group) refresh(ctx context.Context, lv volume.LV) error {
	release, err := g.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	_, err = g.change("refresh", changeArgs(lv.Name, lv.UUID, "--refresh"), 0)
	return err
}

// lockspace returns when the lockspace of the group was started; ok = it is started.
func (g *group) lockspace() (since time.Time, ok bool) {
	if g.p.Locks == nil {
		return time.Time{}, true
	}
	s := g.p.Locks.Status(g.name)
	return s.Since, s.State == lockspace.Started
}

// noteLock records that a command has taken the lock of a volume with that device.
func (g *group) noteLock(k kind, m *member) {
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	g.p.locked[m.uuid] = lock{number: m.seen.Number, seq: diskSeq(m.seen.Number), since: m.started, readers: k == readers}
}

// NoteLock records that a command of an earlier flexd may have taken the lock of a volume.
func (p *Provider) NoteLock(uuid volume.UUID) { p.setMayHoldLock(uuid, true) }

func (p *Provider) setMayHoldLock(uuid volume.UUID, may bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.mayHold, uuid); may {
		p.mayHold[uuid] = true
	}
}

// mayHoldLock reports whether this node may hold the lock of an inactive volume: a command may
// have been interrupted after it took the lock, before it created the device.
func (g *group) mayHoldLock(uuid volume.UUID) bool {
	if !g.shared() || g.p.Lost != nil && g.p.Lost(g.name) { // its locks end with the lockspace
		return false
	}
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	return g.p.mayHold[uuid]
}

// unlock releases the lock of an inactive volume.
func (p *Provider) unlock(ctx context.Context, lv volume.LV) error {
	g, err := p.configured(lv.Name.VG)
	if err != nil || !g.mayHoldLock(lv.UUID) {
		return nil
	}
	f, _, err := g.look(ctx, true)
	if err != nil {
		return err
	}
	name, there := f.names[lv.UUID]
	if !there { // the volume was removed, and its lock with it
		p.setMayHoldLock(lv.UUID, false)
		return nil
	}
	return g.deactivate(ctx, volume.Name{VG: g.name, LV: name}, lv.UUID)
}

// isLocked reports whether a command of this flexd has taken the lock of an active volume.
func (g *group) isLocked(lv volume.LV, d volume.Device) bool {
	since, ok := g.lockspace()
	known := g.lastFacts()
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	l := g.p.locked[lv.UUID]
	if !ok || l.number != d.Number || l.seq != d.Seq || !l.since.Equal(since) {
		return false
	}
	return !l.readers || known.lv(lv.UUID).forReaders()
}

// refused reports whether a command said that another host holds the lock of this volume.
func refused(said []byte, m *member) bool {
	return bytes.Contains(said, []byte("LV locked by other host")) && hasLine(said, "Failed to lock logical volume "+m.name.String()+".")
}

// releaseLock releases the lock of a volume that LVM has locked but not activated, so that other
// nodes can take it. If that fails, mayHoldLock stays true. own is the error of that volume.
func (g *group) releaseLock(k kind, m *member, own error) {
	if own == nil || !k.locks() || concernsGroup(own) || !g.mayHoldLock(m.uuid) {
		return
	}
	if _, found, err := g.p.find(m.uuid); found || err != nil {
		return
	}
	release, err := g.take(context.Background())
	if err != nil {
		return // a command hangs
	}
	said, err := g.runTogether(deactivate, []*member{m})
	release()
	_ = g.verify(deactivate, m, err, said)
}

// forgetLock forgets the lock of a volume without a device. A later device may have the same
// number, and old kernels do not distinguish the two.
func (p *Provider) forgetLock(uuid volume.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.locked, uuid)
	delete(p.taken, uuid)
}

// unlockFailed reports whether a command could not release the lock of a volume that it
// deactivated.
func unlockFailed(said []byte, m *member) bool {
	return hasLine(said, "Failed to unlock logical volume "+m.name.String()+".")
}

// hasLine reports whether a command printed this line. A part of a line does not suffice: a name
// that is followed by a dot may be the beginning of another name.
func hasLine(said []byte, line string) bool {
	for l := range bytes.Lines(said) {
		if string(bytes.TrimSpace(l)) == line {
			return true
		}
	}
	return false
}

// mentions reports whether a command printed the name of a volume.
func mentions(said []byte, name volume.Name) bool {
	words := bytes.FieldsFunc(said, func(r rune) bool { return !isNameRune(r) && r != '/' })
	return slices.ContainsFunc(words, func(w []byte) bool {
		w = bytes.TrimPrefix(w, []byte("/dev/"))
		return string(w) == name.String() || string(w) == name.String()+"." // the end of a sentence
	})
}

// lockFailure returns why a command did not take the lock of a volume; nil = it took the lock if
// the volume is active now.
func lockFailure(k kind, m *member, cmdErr error, said []byte) error {
	switch {
	case cmdErr == nil:
		return nil
	case refused(said, m):
		return &Error{VG: m.name.VG, Kind: ErrElsewhere, Text: "another machine has the lock of " + m.name.String(), Err: cmdErr}
	case errors.Is(cmdErr, ErrElsewhere) && !m.before && !mentions(said, m.name):
		return nil // LVM refused other volumes
	}
	return fmt.Errorf("%s: %w", steps[k], cmdErr)
}
