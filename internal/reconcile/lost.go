package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// Locks are the locks of shared volume groups on this node.
type Locks interface {
	// Ready returns nil if locks of a group can be taken.
	Ready(ctx context.Context, vg string) error
	// Lost marks a group whose locks are lost, until they were dropped. It returns an error if
	// they are not lost.
	Lost(ctx context.Context, vg, why string) error
	// LostReason returns why the locks of a group are lost, so that nothing may be set up in it, and
	// since when; "" = they are not lost, as far as is known. It does no I/O.
	LostReason(vg string) (why string, since time.Time)
	// Unavailable returns why no lock of a group could be taken or released at the last look, and
	// since when; "" = locks are available, or lost. It does no I/O.
	Unavailable(vg string) (why string, since time.Time)
	// Observe asks for the states of groups. It starts nothing.
	Observe(ctx context.Context, vgs []string)
	// State returns the last known state of the locks of a group. It does no I/O.
	State(vg string) status.Locks
	// Drop makes lvmlockd forget the locks of a group that it has lost. The caller has seen
	// that no volume of the group is active.
	Drop(ctx context.Context, vg string) error
}

// sanlock waits 40 s for the end of lvmlockctl --kill, then it kills lvmlockd, and 10 to 20 s
// later the watchdog resets the node: the rest is for dropping the locks.
const (
	loseLimit   = 20 * time.Second
	vacateLimit = 8 * time.Second // for flexd's start, and for the unmounts of each kind; together at most twice as long
)

// losing is the state of a group whose locks are lost.
type losing struct {
	running int  // calls of Lose
	late    bool // the last one has failed: flexd drops the locks when the last volume is inactive
	again   bool // something may have become inactive meanwhile, after it was counted
}

// Lose is called when sanlock could not renew the lease of a group: other nodes will take its
// volumes over. It unmounts volumes that no pod uses, and deactivates volumes that nothing has
// open. It returns nil if no volume of the group is active: then the caller drops the locks, and
// the node is not reset. Otherwise flexd drops them when the last volume has become inactive.
func (n *Node) Lose(ctx context.Context, vg string) error {
	if g := n.Config.VG(vg); g != nil && !g.Shared {
		return volume.Errorf(volume.NotAllowed, "volume group %s is not shared in flexd's configuration: it has no locks to lose, and nothing is done", vg)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, loseLimit, ErrDeadline)
	defer cancel()
	log := n.Log.WithField("vg", vg)
	if err := n.Locks.Lost(ctx, vg, "sanlock could not renew its lease on the group's disk"); err != nil {
		log.WithError(err).Warn("flexd lockspace-lost was called")
		return err
	}
	log.Error("the locks of the volume group are lost: sanlock could not renew its lease on the group's disk. Nothing is set up in it any more; volumes that no pod uses are unmounted and deactivated")
	n.Record(status.Event{Type: status.FoundEvent, VG: vg, Code: locksLost, Message: "the locks of the volume group are lost: sanlock could not renew its lease on the group's disk"})
	n.lose(vg, +1, false)
	n.wakeGroup(vg) // calls that wait are refused
	err := n.vacate(ctx, vg)
	n.lose(vg, -1, err != nil)
	e := status.Event{Type: status.ResolvedEvent, VG: vg, Message: "no volume of the volume group is active: its locks are dropped, and the node is not reset for it"}
	if err == nil {
		log.Warn(e.Message)
	} else {
		e = status.Event{Type: status.FoundEvent, VG: vg, Code: locksLost, Message: err.Error()}
		log.WithError(err).Error("volumes of the group remain active: the watchdog resets this node in less than a minute, unless they become inactive before")
	}
	n.Record(e)
	return err
}

// Classes of the findings about locks.
const (
	locksLost        = "locks-lost"
	locksUnavailable = "locks-unavailable"
)

// vacate unmounts and deactivates the volumes of a group as far as nothing uses them.
func (n *Node) vacate(ctx context.Context, vg string) error {
	why := map[volume.UUID][]string{}
	unmounts, cancel := context.WithTimeoutCause(ctx, 2*vacateLimit, ErrDeadline)
	defer cancel()
	select {
	case <-n.ready:
		// A global mount is in use while a pod's is there.
		for _, kind := range []volume.Kind{volume.Published, volume.Staged} {
			n.vacateMounts(unmounts, vg, kind, why)
		}
	case <-time.After(vacateLimit): // the mounts are not known
	case <-ctx.Done():
	}
	left, err := n.RemoveUnused(ctx, vg)
	if err != nil && len(left) == 0 {
		return volume.Errorf(volume.Unknown, "it is unknown whether its volumes are active: %w", err)
	}
	n.wakeGroup(vg) // leases end
	if len(left) == 0 {
		return nil
	}
	return volume.Errorf(volume.Busy, "%s", n.remaining(left, why))
}

// vacateMounts unmounts each mount of a kind, unless it is in use, all at once.
func (n *Node) vacateMounts(ctx context.Context, vg string, kind volume.Kind, why map[volume.UUID][]string) {
	ctx, cancel := context.WithTimeoutCause(ctx, vacateLimit, ErrDeadline)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, c := range n.Store.All() {
		if c.VG != vg || c.Kind != kind {
			continue
		}
		all.Go(func() {
			err := n.reclaim(ctx, c.UUID, volume.Name{VG: c.VG, LV: c.LV}, c.Dir)
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			why[c.UUID] = append(why[c.UUID], fmt.Sprintf("for %s: %v", c.User(), err))
		})
	}
	all.Wait()
}

// usersOf returns the users of a volume by flexd's notes.
func (n *Node) usersOf(uuid volume.UUID) (users []string) {
	for _, c := range n.Store.Claims(uuid) {
		users = append(users, "for "+c.User())
	}
	return users
}

// maxRemaining is the number of volumes that a message names.
const maxRemaining = 10

// remaining describes the volumes that are still active.
func (n *Node) remaining(left []volume.Used, why map[volume.UUID][]string) string {
	var all []string
	for _, a := range left {
		reasons := why[a.UUID]
		if len(reasons) == 0 {
			reasons = n.usersOf(a.UUID)
		}
		if len(reasons) == 0 {
			reasons = []string{fmt.Sprintf("not in use by a pod, and open %d times: stop the programs that have it open (lsblk, fuser -v /dev/%s)", a.Open, a.Name)}
		}
		all = append(all, fmt.Sprintf("%s (%s)", a.Name, strings.Join(reasons, "; ")))
	}
	return "still active: " + FirstFew(all)
}

// FirstFew lists the first ones, and counts the others.
func FirstFew(all []string) string {
	if more := len(all) - maxRemaining; more > 0 {
		all = append(all[:maxRemaining], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}

// lose counts the running calls of Lose; late = the last one has failed.
func (n *Node) lose(vg string, calls int, late bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.losing[vg]
	l.running += calls
	l.late = late
	n.losing[vg] = l
	if l.again {
		n.dropNext(vg)
	}
}

// dropLost drops the lost locks of a group ("" = all) when its last volume has become inactive
// after a call of Lose that has failed.
func (n *Node) dropLost(vg string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, l := range n.losing {
		if vg == "" || vg == name {
			l.again = true
			n.losing[name] = l
			n.dropNext(name)
		}
	}
}

// dropNext starts dropLate unless a call of Lose runs, whose end does. The caller holds n.mu.
func (n *Node) dropNext(vg string) {
	if l := n.losing[vg]; l.late && l.running == 0 {
		n.losing[vg] = losing{running: 1}
		go n.dropLate(vg)
	}
}

func (n *Node) dropLate(vg string) {
	ctx, cancel := context.WithTimeoutCause(n.ctx, loseLimit, ErrDeadline)
	defer cancel()
	left, err := n.RemoveUnused(ctx, vg)
	if err == nil && len(left) == 0 {
		err = n.Locks.Drop(ctx, vg)
	}
	log, late := n.Log.WithField("vg", vg), err != nil || len(left) > 0
	switch {
	case err != nil:
		log.WithError(err).Warn("its lost locks are not dropped")
	case !late:
		log.Warn("its last volume is inactive: its lost locks were dropped")
		n.Record(status.Event{Type: status.ResolvedEvent, VG: vg, Message: "the last volume of the group is inactive: its lost locks were dropped"})
	}
	n.lose(vg, -1, late)
}

// lostReason returns why nothing may be set up in a group; "" = its locks are not lost.
func (n *Node) lostReason(vg string) string {
	if n.Locks == nil {
		return ""
	}
	why, _ := n.Locks.LostReason(vg)
	return why
}

// stillLost returns an error if the lost locks of a group are still lost.
func (n *Node) stillLost(ctx context.Context, vg string) error {
	if n.lostReason(vg) == "" {
		return nil
	}
	err := n.Locks.Ready(ctx, vg)
	if err == nil || errors.As(err, new(*volume.WaitError)) {
		return nil
	}
	return err
}

// lostGroups returns a finding for each configured group with lost locks, or without locks.
func (n *Node) lostGroups() (all []status.Finding) {
	if n.Locks == nil {
		return nil
	}
	for _, vg := range n.Config.Get().VolumeGroups {
		if why, since := n.Locks.Unavailable(vg.Name); why != "" {
			all = append(all, status.Finding{Class: locksUnavailable, VG: vg.Name, Since: since, Message: why,
				Hint: "fix the cause in the message; flexd checks again at the next call, or when it retries a deactivation. `flexd doctor` checks now"})
		}
		why, since := n.Locks.LostReason(vg.Name)
		if why == "" {
			continue
		}
		users := map[string]bool{}
		for _, c := range n.Store.All() {
			if c.VG == vg.Name {
				users[fmt.Sprintf("%s/%s for %s", c.VG, c.LV, c.User())] = true
			}
		}
		hint := "no action once its disks respond: flexd starts its locks again when a pod needs them; `flexd doctor` shows what prevents that"
		if len(users) > 0 {
			hint = "delete the pods that keep it busy, and flexd deactivates its volumes and drops its locks: " + FirstFew(slices.Sorted(maps.Keys(users)))
		}
		all = append(all, status.Finding{Class: locksLost, VG: vg.Name, Since: since, Message: why, Hint: hint})
	}
	return all
}

// wakeGroup makes the lanes of a group, and those of an unknown one, observe again; "" = all.
func (n *Node) wakeGroup(vg string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.lanes {
		if of := l.group(); vg == "" || of == vg || of == "" {
			l.wake()
		}
	}
}
