// Package reconcile is the loop that acts. Each volume has a lane: it observes, plans,
// takes the first step, and observes again, until no step is left and every call is
// answered. Lanes do not wait for one another, and no other package changes the node.
//
// A call edits the desired state, wakes its lane and waits. Without a waiting call a lane
// only releases: it completes unmounts that have left the mount table, and deactivates
// volumes without a claim.
package reconcile

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/audit"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A Provider makes the block devices of volumes. Each method that changes
// something runs one child under the lock file it is given.
type Provider interface {
	asw.Provider
	// Refresh makes set-ups in a volume group that other nodes use, too, possible: it checks
	// the locks of the group, and reads anew what other nodes may have changed.
	Refresh(ctx context.Context, vg string) error
	// Create creates a volume for pods of a namespace; "" = not known.
	Create(ctx context.Context, lock string, name volume.Name, size int64, namespace string) error
	// CanCreate returns why Create would refuse a volume that does not exist. It changes
	// nothing.
	CanCreate(ctx context.Context, name volume.Name, size int64, namespace string) error
	Activate(ctx context.Context, lock string, lv volume.LV) error
	Deactivate(ctx context.Context, lock string, lv volume.LV, d volume.Device) error
	Extend(ctx context.Context, lock string, lv volume.LV, d volume.Device, size int64) error
	// SetRecord writes the format record of a volume that is active, in a group that nodes
	// share, to where the other nodes see it.
	SetRecord(ctx context.Context, lv volume.LV, state volume.Record, fsType string) error
}

// Parts are the parameters of New.
type Parts struct {
	Config    *config.Live
	Version   string
	Log       *logrus.Entry
	Store     *dsw.Store
	Records   *dsw.Records
	Observer  *asw.Observer
	Mounts    asw.MountSource
	Ops       mount.Ops
	Providers map[string]Provider                // by VG
	Boot      func() time.Duration               // time since boot, suspended time included
	Held      func(lock string) *run.LockedError // by a child that lives; nil = run.Held

	// Stepped, if set, is called after each step.
	Stepped func(vg string, step volume.StepKind, took time.Duration, err error)

	// KernelErrors reports devices whose filesystem has errors in the kernel log;
	// nil = the log cannot be read.
	KernelErrors interface {
		Each(ctx context.Context, notify func(device string)) error
	}
	// Locks are those of shared volume groups; nil = there are none.
	Locks Locks
	// RemoveUnused deactivates the volumes of a group that nothing has open, without LVM, and
	// returns those that are still active; nil = it cannot be done.
	RemoveUnused func(ctx context.Context, vg string) ([]Active, error)
	// Record adds an event to the history, without waiting; nil = there is none.
	Record func(status.Event)
	// Gauge reads how full mounted filesystems are; nil = that is unknown.
	Gauge audit.Gauge
	// PodEvents reports the end of pods; nil = flexd polls.
	PodEvents audit.PodEvents
}

// A Node manages every volume of this machine.
type Node struct {
	Parts

	ctx   context.Context // of Run: cancelled when flexd stops
	stop  context.CancelCauseFunc
	ready chan struct{}

	requests *dsw.Requests

	auditor *audit.Auditor
	fencers map[string]fencer // by shared VG

	// Lock order: Node.mu, then lane.mu, then that of the requests. None is held
	// while anything runs.
	mu         sync.Mutex
	lanes      map[volume.UUID]*lane    // of a volume that is not identified: by nameKey
	resting    resting                  // those of lanes without work, in the order of their end
	checking   map[string]chan struct{} // by VG: the running fsck and mkfs
	adopting   map[string]bool          // directories whose mount is being identified
	tableError string                   // why the mount table cannot be read
	losing     map[string]losing        // by VG
	fenced     map[volume.UUID]fence    // volumes whose locks another node has taken over
}

// New returns a node that does nothing until Run.
func New(p Parts) *Node {
	if p.Record == nil {
		p.Record = func(status.Event) {}
	}
	if p.Held == nil {
		p.Held = run.Held
	}
	n := &Node{Parts: p, ready: make(chan struct{}), lanes: map[volume.UUID]*lane{}, checking: map[string]chan struct{}{}, adopting: map[string]bool{}, losing: map[string]losing{}, fenced: map[volume.UUID]fence{}, fencers: map[string]fencer{}}
	for vg, provider := range p.Providers {
		if f, ok := provider.(fencer); ok && n.shared(vg) {
			n.fencers[vg] = f
		}
	}
	n.requests = dsw.NewRequests(n.wakeLane)
	n.ctx, n.stop = context.WithCancelCause(context.Background())
	n.auditor = n.newAuditor()
	return n
}

func (n *Node) String() string { return "reconciler" }

// Ready is closed when the notes and the mount table have been read.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// Mounted returns the number of mounts in kubelet's directories for this driver.
func (n *Node) Mounted() int {
	table := n.Observer.LastTable()
	if table == nil {
		return 0
	}
	return len(n.Observer.OurMounts(table))
}

// Run continues the work of an earlier life, and then follows the mount table until ctx is
// done. Running lanes end after their step.
func (n *Node) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { n.stop(ErrStopping) })
	defer stop()
	defer n.stop(ErrStopping)
	if err := n.recover(); err != nil {
		return err
	}
	close(n.ready)
	n.auditor.Changed("")
	for vg, p := range n.fencers {
		go n.guardLocks(vg, p)
	}
	if n.KernelErrors != nil {
		go func() {
			if err := n.KernelErrors.Each(n.ctx, n.recheckDevice); err != nil && n.ctx.Err() == nil {
				n.Log.WithError(err).Warn("the kernel log cannot be read: filesystem errors are noticed only at the next call")
			}
		}()
	}
	if n.PodEvents != nil {
		go func() {
			if err := n.PodEvents.Each(n.ctx, n.auditor.PodsChanged); err != nil && n.ctx.Err() == nil {
				n.Log.WithError(err).Warn("the end of pods cannot be watched: orphans are found when something else changes")
			}
		}()
	}
	return n.follow()
}

// recheckDevice makes the lane of a device check its mounted filesystem again.
func (n *Node) recheckDevice(device string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.lanes {
		l.scheduleRecheck(device)
	}
}

// recover makes a lane for every volume that a note or a mount names. The lanes then
// determine the remaining work.
func (n *Node) recover() error {
	for _, p := range append(n.Store.Problems(), n.Records.Problems()...) {
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
	timeout := time.After(adoptionTimeout)
	for _, identified := range n.adopt(table) {
		select {
		case <-identified:
		case <-timeout: // it is known when its device answers
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
	// NoteLock says that an earlier flexd may have left the lock of a volume.
	NoteLock(uuid volume.UUID)
	// EndCreation deactivates a volume whose creation was interrupted.
	EndCreation(ctx context.Context, lock string, name volume.Name) error
}

// inherit makes the lane of a volume that a note names.
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
		table, err := n.Observer.Look(n.ctx, n.Observer.Now())
		if n.ctx.Err() != nil {
			return nil, context.Cause(n.ctx)
		}
		n.setTableError(err)
		if err == nil {
			return table, nil
		}
		n.Log.WithError(err).Warn("the mount table cannot be read: nothing is done before it can")
		retry.failed(time.Now())
		select {
		case <-time.After(retry.wait):
		case <-n.ctx.Done():
		}
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
		claimed[c.Dir] = true
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
		retry.failed(time.Now())
		select {
		case <-time.After(retry.wait):
		case <-n.ctx.Done():
			return
		}
		table, err := n.Observer.Look(n.ctx, n.Observer.Now())
		if err != nil || table.Top(e.Dir) == nil {
			return // the next event finds it, if it is there
		}
		e = table.Top(e.Dir)
	}
}

// resync is how often the mount table is read without an event, in case one was
// lost.
const resync = 5 * time.Minute

// NotifyChanged wakes the lanes of a volume group ("" = all): something may have
// changed. If volumes are given only their devices have, as the kernel reported at
// these times: their lanes look again unless they have looked since.
func (n *Node) NotifyChanged(vg string, volumes map[volume.UUID]time.Time) {
	n.auditor.Changed(vg)
	n.dropLost(vg)
	n.mu.Lock()
	defer n.mu.Unlock()
	for uuid, heard := range volumes {
		if l := n.lanes[uuid]; l != nil {
			l.deviceChanged(heard)
		}
	}
	if len(volumes) > 0 {
		return
	}
	for _, l := range n.lanes {
		l.mu.Lock()
		ofGroup := l.name.VG == vg || l.name.VG == ""
		l.mu.Unlock()
		if vg == "" || ofGroup {
			l.wake()
		}
	}
}

var errResync = errors.New("resync")

func (n *Node) setTableError(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tableError = ""; err != nil && n.ctx.Err() == nil {
		n.tableError = "the mount table cannot be read: " + err.Error()
	}
}

// lane returns the volume's lane. The first caller that knows the name
// sets it; see also laneByName.
func (n *Node) lane(uuid volume.UUID, name volume.Name) *lane {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.lanes[uuid]
	if l == nil {
		l = &lane{n: n, uuid: uuid, name: name, lock: n.lockFile(string(uuid))}
		if uuid == nameKey(name) {
			l.byName, l.watched = true, &watchedMounts{}
		}
		n.lanes[uuid] = l
	}
	l.setName(name)
	return l
}

// laneByName returns the lane of a volume that was just looked up by name. The name of a
// lane changes with that of its volume, but two files with one uuid (a copy with its
// attributes) are not one volume: the second is refused. In a group that is not configured
// any more, as after its rename, nothing can be looked up.
func (n *Node) laneByName(ctx context.Context, uuid volume.UUID, name volume.Name, p Provider) (*lane, error) {
	l := n.lane(uuid, name)
	l.mu.Lock()
	old := l.name
	l.mu.Unlock()
	if old == name {
		return l, nil
	}
	if n.Providers[old.VG] != nil {
		lv, err := p.LookUp(ctx, old)
		switch {
		case err != nil:
			return nil, volume.Errorf(volume.Unknown, "its uuid %s was that of %s, which cannot be looked up: %w", uuid, old, err)
		case lv.Presence == volume.Present && lv.UUID == uuid:
			return nil, volume.Errorf(volume.Conflict, "%s and %s have the same uuid %s, as a copy made with its attributes has; flexd uses neither of them for the other: give the copy a uuid of its own", old, name, uuid)
		}
	}
	l.mu.Lock()
	l.name = name
	l.mu.Unlock()
	return l, nil
}
