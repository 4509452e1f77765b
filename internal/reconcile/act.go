package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// act takes one step. Steps that set up, and unmounts, are taken only for a call that waits at this
// moment: without a call, the mount may already belong to a new pod.
func (l *lane) act(ctx context.Context, s volume.Step, h *volume.Have) error {
	c := l.waitingCall(s)
	if (s.Kind.SetsUp() || s.Kind == volume.Unmount) && c == nil {
		return dsw.ErrNotWanted
	}
	if why := l.n.lostReason(l.group()); why != "" && s.Kind.SetsUp() {
		return volume.WithCode(volume.Unusable, errors.New(why))
	}
	// Steps that flexd takes by itself have no calls. A step for a call may be for a volume that
	// never was flexd's: a lease would make it flexd's.
	if (s.Kind == volume.Deactivate || s.Kind == volume.NoteLease) && len(s.Calls) > 0 && c == nil {
		return dsw.ErrNotWanted
	}
	if raid := h.Device.Reshaped; raid != "" && (s.Kind == volume.Extend || s.Kind == volume.Grow) {
		return volume.Errorf(volume.Busy, "no space can be added to it until a reshape has ended: %s", volume.Reshaping(raid))
	}
	ctx = run.WithProgress(ctx, func(text string) { l.setProgress(s.Kind.String() + " (" + text + ")") })
	switch s.Kind {
	case volume.NoteMaking:
		return l.n.Store.Put(l.claim(s, c, h))
	case volume.NoteHeld, volume.NoteReleasing:
		l.note(s, c, h)
		return nil
	case volume.Drop:
		return l.drop(s, h)
	case volume.NoteLease:
		lease := l.lease(h.LV.Name, kubeName(c))
		if c != nil {
			lease.Until = max(lease.Until, l.n.Boot()+callLease)
		}
		return l.n.Store.PutLease(lease)
	case volume.DropLease:
		l.warn(s, l.n.Store.DropLease(l.uuid))
		return nil
	case volume.RecordSeen:
		return l.recordSeen(ctx, s, h)
	case volume.CreateVolume, volume.ActivateDevice, volume.Extend, volume.Deactivate:
		return l.changeDevice(ctx, s, h)
	case volume.Inspect:
		return l.inspect(ctx, h)
	case volume.Format:
		return l.format(ctx, s, c, h)
	case volume.CheckFS:
		if l.facts.Unclean {
			done, err := l.awaitCheck(ctx, s)
			if err != nil {
				return err
			}
			defer done()
		}
		if err := l.hasLock(ctx, s, h.LV); err != nil { // a check replays the journal
			return err
		}
		err := l.n.Ops.Check(ctx, l.lock, h.Device, s.FSType)
		l.facts.Checked = err == nil
		return l.deviceFault(ctx, h, err)
	case volume.MountVolume:
		return l.deviceFault(ctx, h, l.mount(ctx, s, c, h))
	case volume.Unmount:
		return l.unmount(ctx, s, h)
	case volume.Grow:
		return l.growFS(ctx, s, h)
	}
	return fmt.Errorf("no such step: %s", s)
}

// deviceFault returns the reason of the device if it is no longer usable, otherwise the error of a check or a
// mount: some faults of a thin pool show only after the first write, and the tool blames the filesystem.
func (l *lane) deviceFault(ctx context.Context, h *volume.Have, err error) error {
	p, code := l.n.Providers[h.LV.Name.VG], volume.CodeOf(err)
	if err == nil || p == nil || code != volume.Failed && code != volume.Damaged {
		return err
	}
	if d, derr := p.Device(ctx, h.LV); derr == nil && d.Unusable {
		return volume.Errorf(volume.Unusable, "its device is not usable: %s", d.Reason)
	}
	return err
}

// callLease is the minimum of a lease that lasts until kubelet's next call. A lease that has ended
// when it is noted would be noted again and again.
const callLease = time.Second

// changeDevice takes the steps of the provider.
func (l *lane) changeDevice(ctx context.Context, s volume.Step, h *volume.Have) error {
	p := l.n.Providers[h.LV.Name.VG]
	if p == nil && s.Kind == volume.Deactivate {
		p = l.n.Providers[asw.Unconfigured]
	}
	if p == nil {
		return volume.Errorf(volume.NotAllowed, "volume group %q is not configured", h.LV.Name.VG)
	}
	switch s.Kind {
	case volume.CreateVolume:
		return l.create(ctx, p, s)
	case volume.ActivateDevice:
		return l.activate(ctx, p, h.LV)
	case volume.Deactivate:
		l.facts = volume.FS{}
		return l.deactivate(ctx, p, h)
	}
	if s.Blank {
		l.facts = volume.FS{}
		return p.ExtendBlank(ctx, l.lock, h.LV, h.Device, s.Size)
	}
	m, err := mountToGrow(h)
	if err == nil {
		err = l.n.Ops.CanGrow(ctx, l.lock, h.Device, m.Type, m.Dir, s.Size)
	}
	if err == nil && l.waitingCall(s) == nil {
		err = dsw.ErrNotWanted
	}
	if err != nil {
		return err
	}
	l.facts.Grown, l.facts.Size = false, 0
	return p.Extend(ctx, l.lock, h.LV, h.Device, s.Size)
}

// waitingCall returns the step's first call that still waits, or nil.
func (l *lane) waitingCall(s volume.Step) *call {
	l.prune()
	calls := l.calls()
	for _, id := range s.Calls {
		for _, c := range calls {
			if c.ID == id && (s.Dir == "" || c.Dir == s.Dir || c.Dir == "") {
				return c
			}
		}
	}
	return nil
}

func kubeName(c *call) string {
	if c == nil {
		return ""
	}
	return c.asked.Options.Alias
}

// warn logs a failed write of a note that flexd does not need: its memory is authoritative.
func (l *lane) warn(s volume.Step, err error) {
	if err != nil {
		l.log().WithField("step", s.Kind.String()).WithError(err).Warn("continues without the note")
	}
}

// claim returns the note of a claim for the step, with the known facts.
func (l *lane) claim(s volume.Step, c *call, h *volume.Have) dsw.Claim {
	n := dsw.Claim{Kind: s.Claim, Dir: s.Dir, VG: h.LV.Name.VG, LV: h.LV.Name.LV, UUID: l.uuid}
	for _, old := range l.n.Store.Claims(l.uuid) {
		if old.Dir == s.Dir {
			n = old
		}
	}
	n.Kind = cmp.Or(n.Kind, volume.Published)
	if c != nil && c.Verb != volume.Release && c.Verb != volume.Reclaim {
		n.Name, n.ReadOnly, n.Super = c.asked.Options.Alias, c.ReadOnly, c.Super
		if n.Super == nil {
			n.Super = []string{}
		}
		if p := c.asked.Options.Pod; p.UID != "" {
			n.Pod = &p
		}
	}
	if n.Name == "" || n.Kind == volume.Published && n.Pod == nil {
		// The contents of a lost note follow from the frontend's layout.
		if place := l.n.Observer.Place(s.Dir); place.Kind != "" {
			n.Name = place.Name
			if n.Pod == nil && place.Pod != "" {
				n.Pod = &dsw.Pod{UID: place.Pod}
			}
		}
	}
	for _, r := range l.n.requests.Of(l.uuid) {
		if r.Mounts() && r.Dir == s.Dir {
			n.Started = max(n.Started, r.Started)
		}
	}
	n.Phase, n.Note, n.Since = volume.Making, "", time.Now().UTC().Truncate(time.Millisecond)
	return n
}

// note writes the phases held and releasing; neither depends on the write.
func (l *lane) note(s volume.Step, c *call, h *volume.Have) {
	n := l.claim(s, c, h)
	n.Phase, n.Note = volume.Held, s.Why
	if s.Kind == volume.NoteReleasing {
		n.Phase = volume.Releasing
	} else if s.Why == "release failed" {
		l.mu.Lock()
		if l.lastErr != nil {
			n.Note += ": " + l.lastErr.text
		}
		l.mu.Unlock()
	}
	for _, m := range h.Mounts {
		if s.Kind != volume.NoteHeld || m.Dir != s.Dir || m.Owner != volume.Ours {
			continue
		}
		// kubelet does not say how pods will use a global mount.
		n.FSID = m.FSID
		if n.Subvolume = m.Subvolume; n.Kind == volume.Staged || n.Super == nil && c == nil {
			n.ReadOnly = m.ReadOnly
		}
		break
	}
	l.warn(s, l.n.Store.Put(n))
}

// drop ends a claim, and returns the error of its unmount if an earlier flexd ended during the unmount.
// If the lease that replaces the claim cannot be noted, the claim's note stays: at the next start it
// shows that the volume was flexd's.
func (l *lane) drop(s volume.Step, h *volume.Have) error {
	if s.Lease {
		name := ""
		for _, c := range l.n.Store.Claims(l.uuid) {
			if c.Dir == s.Dir {
				name = c.Name
			}
		}
		lease := l.lease(h.LV.Name, name)
		if l.n.shared(h.LV.Name.VG) {
			lease.Until = l.n.Boot() // another node may wait for the volume
		}
		if err := l.n.Store.PutLease(lease); err != nil {
			l.warn(s, err)
			l.n.Store.DropKeepingNote(s.Dir, lease)
			return nil
		}
	}
	l.warn(s, l.n.Store.Drop(l.uuid, s.Dir))
	return mount.Unreported(l.lock) // of an unmount that an earlier flexd began
}

func (l *lane) lease(name volume.Name, kubeName string) dsw.Lease {
	return dsw.Lease{VG: name.VG, LV: name.LV, UUID: l.uuid, Name: kubeName,
		Until: l.n.Boot() + l.n.Config.Get().Lease, Since: time.Now().UTC().Truncate(time.Millisecond)}
}

// inspect probes the content, through a mount of flexd's if there is one.
func (l *lane) inspect(ctx context.Context, h *volume.Have) error {
	at := ""
	for _, m := range h.Mounts {
		if at == "" || m.Owner == volume.Ours {
			at = m.Dir
		}
	}
	seen := ""
	if h.Record == volume.Seen {
		seen = h.RecordType
	}
	fs, err := l.n.Ops.Probe(ctx, l.lock, h.Device, at, l.created(h), seen)
	if err != nil {
		return err
	}
	fs.Made, fs.Checked, fs.Grown = l.facts.Made, l.facts.Checked, l.facts.Grown
	l.facts = fs
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case at != "" && (fs.Content == volume.FilesystemFailed || fs.Content == volume.Truncated):
		l.recheck, l.broken = recheck{}, fs
	case l.recheck.left > 0:
		l.recheck = recheck{l.recheck.left - 1, time.Now().Add(recheckPause)}
	}
	return nil
}

// mount makes the mount appear in one instant, if a call still waits for it.
func (l *lane) mount(ctx context.Context, s volume.Step, c *call, h *volume.Have) error {
	spec := mount.MountSpec{
		Device: h.Device, FSType: s.FSType, Dir: s.Dir, Root: c.asked.Target.Root,
		First: len(h.Mounts) == 0, ReadOnly: c.ReadOnly, Attrs: c.asked.Options.Attrs, Super: c.Super,
	}
	if vg := l.n.Config.VG(h.LV.Name.VG); vg != nil {
		spec.Attrs = slices.Concat(spec.Attrs, vg.MountFlags)
	}
	if spec.First {
		if err := l.hasLock(ctx, s, h.LV); err != nil { // a mount replays the journal, too
			return err
		}
	} else { // the kernel mounts a superblock only as it is
		spec.ReadOnly = spec.ReadOnly || h.Device.ReadOnly
		spec.Device.ReadOnly = h.Mounts[0].SuperReadOnly
	}
	committed := false
	err := l.n.Ops.Mount(ctx, l.lock, spec, func() error {
		err := l.commitMount(ctx, s, h.Device)
		committed = err == nil
		return err
	})
	if err != nil && committed && l.mountAppeared(ctx, s, h) {
		// The child was killed, or its answer was lost, after the mount appeared.
		l.log().WithField("step", s.Kind.String()).WithError(err).Warn("failed, but the mount exists, or may exist")
		err = nil
	}
	if err != nil {
		if !committed || !errors.As(err, new(*run.StuckError)) { // the mount of a stuck child may still appear
			l.n.requests.Observed(l.uuid, s.Dir, false)
		}
		return err
	}
	if l.facts.Size > 0 && volume.Growable(l.facts.Size, h.Device.Size) {
		l.mu.Lock()
		l.grow = true
		l.mu.Unlock()
	}
	return nil
}

// mountAppeared reports whether the mount exists, or may exist, although its child failed. Then the
// answer is Success, or follows from the next observation.
func (l *lane) mountAppeared(ctx context.Context, s volume.Step, h *volume.Have) bool {
	table, err := l.n.Observer.LookAt(ctx, s.Dir)
	if err != nil {
		return true
	}
	top := table.Top(s.Dir)
	return top != nil && slices.Contains(table.OfDevice(h.Device.Number, h.Device.Path), top)
}

func (l *lane) unmount(ctx context.Context, s volume.Step, h *volume.Have) error {
	// The device number is that of the observation: a mount on top since then is foreign,
	// and the child does not unmount it.
	e := l.table.Top(s.Dir)
	if e == nil {
		return errors.New("the mount of the plan is not in the mount table")
	}
	l.facts = volume.FS{}
	unmount := l.n.Ops.Unmount
	if s.Alone {
		unmount = l.n.Ops.UnmountAlone
	}
	last := len(h.Mounts) == 1
	lost, _ := l.n.Observer.KernelLog.Logged(h.Device.Path)
	// The filesystem itself writes once more at its last unmount.
	late, err := l.n.Observer.KernelLog.During(h.Device.Path, func() error { return unmount(ctx, l.lock, s.Dir, e.Number, last) })
	lost = cmp.Or(lost, late)
	switch {
	case errors.Is(err, mount.ErrUnwritten):
		_ = mount.Unreported(l.lock) // it is reported now
	case errors.Is(err, mount.ErrNone):
		return nil // unmounted from outside; the next observation decides
	case err == nil && last && lost != "":
		return mount.LostWrite(lost) // a pod's syncfs(2) has taken the error
	}
	return err
}
