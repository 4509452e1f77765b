package reconcile

import (
	"context"
	"time"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// recover makes a lane for every volume that a note or a mount names. These lanes determine the
// remaining work.
func (n *Node) recover() error {
	for _, p := range n.noteProblems() {
		n.Log.Warn(p)
	}
	for _, c := range n.Store.All() {
		name := volume.Name{VG: c.VG, LV: c.LV}
		n.inherit(c.UUID, name)
		if c.Started > 0 && c.Started <= n.Boot() {
			n.requests.Remember(c.Dir, name, c.Started)
		}
		if c.Phase == volume.Making {
			n.requests.RememberCommit(c.Dir, c.UUID, name)
		}
	}
	for dir, started := range n.Store.Teardowns(n.Boot()) {
		n.requests.RememberTeardown(dir, started)
	}
	for _, l := range n.Store.Leases() {
		n.inherit(l.UUID, volume.Name{VG: l.VG, LV: l.LV})
	}
	table, err := n.lookUntilRead()
	if err != nil {
		return err
	}
	n.Observer.Found(table)
	timeout := time.After(adoptionTimeout)
	for _, identified := range n.adopt(table) {
		select {
		case <-identified:
		case <-timeout: // the volume is identified when its device answers
			timeout = time.After(0)
		}
	}
	n.removeLocks()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.lanes {
		l.wake()
	}
	return nil
}

// A locker is a provider whose volumes have locks that other nodes wait for.
type locker interface {
	// NoteLock notes that an earlier flexd may have kept the lock of a volume.
	NoteLock(uuid volume.UUID)
	// EndCreation deactivates a volume whose creation was interrupted.
	EndCreation(ctx context.Context, lock string, name volume.Name) error
}

// inherit creates the lane of a volume that a note names.
func (n *Node) inherit(uuid volume.UUID, name volume.Name) {
	if p, ok := n.Providers[name.VG].(locker); ok {
		p.NoteLock(uuid)
	}
	n.lane(uuid, name)
}

// lookUntilRead reads the mount table as soon as that is possible. It fails only if flexd
// stops.
func (n *Node) lookUntilRead() (*mounttable.Table, error) {
	for retry := (backoff{}); ; {
		table, err := n.Observer.Look(n.ctx)
		if n.ctx.Err() != nil {
			return nil, context.Cause(n.ctx)
		}
		n.setTableError(err)
		if err == nil {
			return table, nil
		}
		n.Log.WithError(err).Warn("the mount table cannot be read: nothing is done until it can be read")
		retry.pause(n.ctx)
	}
}

// adoptionTimeout is how long a start waits for the identities of devices with mounts but
// without a note.
const adoptionTimeout = 5 * time.Second

// adopt creates a lane for every mount without a claim in the frontends' directories. It
// returns at once: each channel is closed when its mount is identified.
func (n *Node) adopt(table *mounttable.Table) (all []chan struct{}) {
	claimed := map[string]bool{}
	for _, c := range n.Store.All() {
		// The mount of another volume, where this one is not mounted, may have lost its own note.
		h := n.Observer.Last(c.UUID)
		if h == nil || h.Targets[c.Dir].Other == "" || h.Targets[c.Dir].Under {
			claimed[c.Dir] = true
		}
	}
	for _, e := range n.Observer.OurMounts(table) {
		if claimed[e.Dir] {
			continue
		}
		n.mu.Lock()
		busy := n.adopting[e.Dir]
		n.adopting[e.Dir] = true
		n.mu.Unlock()
		if !busy {
			identified := make(chan struct{})
			all = append(all, identified)
			go func() { // a device that does not answer delays no other
				defer close(identified)
				n.identify(e)
			}()
		}
	}
	return all
}

// identify finds the lane of a mount. It retries while the volume is unknown.
func (n *Node) identify(e *mounttable.Entry) {
	defer func() {
		n.mu.Lock()
		delete(n.adopting, e.Dir)
		n.mu.Unlock()
	}()
	var retry backoff
	for n.ctx.Err() == nil {
		id, err := n.Observer.Identify(n.ctx, e)
		if err == nil {
			if id.UUID != "" {
				n.lane(id.UUID, id.Name).wake()
			}
			return
		}
		n.Log.WithError(err).WithField("dir", e.Dir).Warn("the volume mounted there is unknown")
		retry.pause(n.ctx)
		table, err := n.Observer.Look(n.ctx)
		if err != nil || table.Top(e.Dir) == nil {
			return // the next event finds a mount that exists
		}
		e = table.Top(e.Dir)
	}
}
