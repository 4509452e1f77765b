package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A fencer is a provider of volumes whose locks another node takes over if this one looks
// dead.
type fencer interface {
	// Taken returns the volumes of a group that are active here, mounted or by a command of
	// this flexd, and whose lock this node does not have any more. An error is about the others.
	Taken(ctx context.Context, vg string, mounted []volume.UUID) ([]volume.Taken, error)
	// Fence makes all reads and writes of a volume fail, also those of its mounts. It writes
	// nothing that is cached.
	Fence(ctx context.Context, t volume.Taken) error
	// HasLock reads the lock of an active volume, and returns nil if this node has it.
	HasLock(ctx context.Context, lv volume.LV) error
}

// takenInterval is the interval at which the locks of volumes in use are read. A node that was
// paused writes at most this long after another node has taken its volumes over; the kernel begins
// to write data that programs have not synced after 5 s or more.
const takenInterval = 2 * time.Second

// lockTaken is the class of the finding.
const lockTaken = "lock-taken"

// A fence is a volume whose lock another node has taken over.
type fence struct {
	volume.Taken
	since time.Time
	err   string // why it is not fenced; "" = it is
}

// guardLocks looks for volumes whose locks another node has taken over, while some of the
// group are in use, until flexd stops.
func (n *Node) guardLocks(vg string, p fencer) {
	t := time.NewTicker(takenInterval)
	defer t.Stop()
	lastWarning := ""
	for {
		select {
		case <-t.C:
		case <-n.ctx.Done():
			return
		}
		mounted, used := n.inUse(vg)
		if !used && !n.hasFenced(vg) {
			continue
		}
		taken, err := p.Taken(n.ctx, vg, mounted)
		for _, t := range taken {
			n.fence(p, t)
		}
		now := ""
		if err != nil {
			now = err.Error()
		} else {
			n.unfence(vg, taken)
		}
		if now != lastWarning && n.ctx.Err() == nil {
			if lastWarning = now; err != nil {
				n.Log.WithField("vg", vg).WithError(err).Warn("whether this node still has the locks of its volumes is unknown")
			}
		}
	}
}

// inUse returns the volumes of a group that pods have mounted, and whether any is in use.
func (n *Node) inUse(vg string) (mounted []volume.UUID, used bool) {
	for _, c := range n.Store.All() {
		if c.VG == vg {
			used = true
			if c.Phase != volume.Making {
				mounted = append(mounted, c.UUID)
			}
		}
	}
	return mounted, used || slices.ContainsFunc(n.Store.Leases(), func(l dsw.Lease) bool { return l.VG == vg })
}

// hasFenced reports whether volumes of a group are fenced.
func (n *Node) hasFenced(vg string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range n.fenced {
		if f.Name.VG == vg {
			return true
		}
	}
	return false
}

// fence ends the reads and writes of a volume, and logs that.
func (n *Node) fence(p fencer, t volume.Taken) {
	f := fence{Taken: t}
	if !t.Fenced {
		if err := p.Fence(n.ctx, t); err != nil {
			f.err = err.Error()
		}
	}
	n.mu.Lock()
	old, known := n.fenced[t.UUID]
	if f.since = old.since; !known || old.Number != t.Number {
		f.since, known = time.Now(), false
	}
	n.fenced[t.UUID] = f
	n.mu.Unlock()
	if known && f.err == old.err {
		return
	}
	found := n.takenFinding(f)
	n.Log.WithField("volume", t.Name.String()).Error(found.Message)
	n.Record(status.Event{Type: status.FoundEvent, VG: t.Name.VG, LV: t.Name.LV, UUID: string(t.UUID), Code: lockTaken, Message: found.Message})
	n.lane(t.UUID, t.Name).wake()
}

// unfence forgets the volumes of a group that are not active any more.
func (n *Node) unfence(vg string, taken []volume.Taken) {
	n.mu.Lock()
	var over []fence
	for uuid, f := range n.fenced {
		if f.Name.VG == vg && !slices.ContainsFunc(taken, func(t volume.Taken) bool { return t.UUID == uuid }) {
			over = append(over, f)
			delete(n.fenced, uuid)
		}
	}
	n.mu.Unlock()
	for _, f := range over {
		n.Log.WithField("volume", f.Name.String()).Warn("it is not active on this node any more")
		n.Record(status.Event{Type: status.ResolvedEvent, VG: vg, LV: f.Name.LV, UUID: string(f.UUID), Message: "it is not active on this node any more"})
	}
}

// takenFinding describes a volume whose lock another node has taken over.
func (n *Node) takenFinding(f fence) status.Finding {
	then := "All its reads and writes fail now, and data that was not yet on the disk is lost"
	if f.err != "" {
		then = "Its writes could not be stopped, and destroy the data of the other node: power this node off now (" + f.err + ")"
	}
	hint := fmt.Sprintf("delete the pods that use it here (%s): flexd deactivates it then. This node may have written to it for up to %d s after it resumed: stop the pods that use it elsewhere, too, and check its filesystem (fsck)", cmp.Or(strings.Join(n.usersOf(f.UUID), ", "), "none"), takenInterval/time.Second+1)
	return status.Finding{Class: lockTaken, VG: f.Name.VG, LV: f.Name.LV, UUID: string(f.UUID), Since: f.since, Message: f.Reason() + " " + then, Hint: hint}
}

// hasLock reads the lock of a volume of a shared group before the first write to it: guardLocks
// reads it up to its interval later, or cannot read it. The read takes time: the calls of the step
// may have ended since.
func (l *lane) hasLock(ctx context.Context, s volume.Step, lv volume.LV) error {
	f := l.n.fencers[lv.Name.VG]
	if f == nil {
		return nil
	}
	if err := f.HasLock(ctx, lv); err != nil {
		return err
	}
	if l.waitingCall(s) == nil {
		return dsw.ErrNotWanted
	}
	return nil
}

// takenLocks returns a finding for each volume whose lock another node has taken over.
func (n *Node) takenLocks() (all []status.Finding) {
	n.mu.Lock()
	fenced := slices.Collect(maps.Values(n.fenced))
	n.mu.Unlock()
	slices.SortFunc(fenced, func(a, b fence) int { return strings.Compare(a.Name.String(), b.Name.String()) })
	for _, f := range fenced {
		all = append(all, n.takenFinding(f))
	}
	return all
}
