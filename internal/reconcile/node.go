// Package reconcile is the loop that acts. Each volume has a lane: it observes, plans,
// takes the first step, and observes again, until no step is left and every call is
// answered. Lanes do not wait for one another, and no other package changes the node.
//
// A call edits the desired state, wakes its lane and waits. Without a waiting call a lane
// only releases: it completes unmounts that have left the mount table, and deactivates
// volumes without a claim.
package reconcile

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/audit"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A Provider makes the block devices of volumes. Each method with a lock runs one child that holds
// this lock file.
type Provider interface {
	asw.Provider
	// Refresh prepares set-ups in a volume group that other nodes use, too: it checks the locks of
	// the group, and reads the metadata again, which other nodes may have changed.
	Refresh(ctx context.Context, vg string) error
	// Reread reads the metadata of a volume group again, after a command that is changing it has ended.
	Reread(ctx context.Context, vg string) error
	// Create creates a volume for pods of a namespace; "" = not known.
	Create(ctx context.Context, lock string, name volume.Name, size int64, namespace string) error
	// CanCreate returns why Create would refuse a volume that does not exist. It changes
	// nothing.
	CanCreate(ctx context.Context, name volume.Name, size int64, namespace string) error
	Activate(ctx context.Context, lock string, lv volume.LV) error
	Deactivate(ctx context.Context, lock string, lv volume.LV, d volume.Device) error
	Extend(ctx context.Context, lock string, lv volume.LV, d volume.Device, size int64) error
	// ExtendBlank is Extend for a blank volume, which remains blank.
	ExtendBlank(ctx context.Context, lock string, lv volume.LV, d volume.Device, size int64) error
	// SetRecord writes the format record of an active volume in a shared group for the other nodes.
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

	// Locks are those of shared volume groups; nil = there are none.
	Locks Locks
	// RemoveUnused deactivates the volumes of a group that nothing has open, without LVM, and
	// returns those that are still active; nil = it cannot be done.
	RemoveUnused func(ctx context.Context, vg string) ([]volume.Used, error)
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
	lanes      map[volume.UUID]*lane    // by uuid; the lane of a volume that is not identified by nameKey
	resting    resting                  // the lanes without work, in the order in which their work ended
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
	n := &Node{Parts: p, ready: make(chan struct{}), lanes: map[volume.UUID]*lane{}, checking: map[string]chan struct{}{}, adopting: map[string]bool{}, losing: map[string]losing{}, fenced: map[volume.UUID]fence{}}
	n.fencers = providersOf[fencer](n)
	maps.DeleteFunc(n.fencers, func(vg string, _ fencer) bool { return !n.shared(vg) })
	n.requests = dsw.NewRequests(n.wakeLane)
	n.ctx, n.stop = context.WithCancelCause(context.Background())
	n.auditor = n.newAuditor()
	if n.Observer != nil {
		n.Observer.Subvolumes = n.subvolumes
	}
	return n
}

// subvolumes returns the subvolumes that the claims at a directory have noted; "" = not yet, or
// not of the mount that is being made.
func (n *Node) subvolumes(dir string) (noted []string) {
	for _, c := range n.Store.At(dir) {
		if c.Phase == volume.Making {
			c.Subvolume = ""
		}
		noted = append(noted, c.Subvolume)
	}
	return noted
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

// Run continues the work of an earlier flexd, and then follows the mount table until ctx is done.
// Running lanes end after their step.
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
	if log := n.Observer.KernelLog; log != nil {
		go func() {
			if err := log.Each(n.ctx, n.recheckDevice); err != nil && n.ctx.Err() == nil {
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

// resync is the interval at which the mount table is read without an event, in case one was lost.
const resync = 5 * time.Minute

// NotifyChanged wakes the lanes of a volume group ("" = all), in which something may have changed.
// If volumes are given, the kernel reported changes of their devices at these times, and nothing
// else has changed: their lanes look again unless they have looked since.
func (n *Node) NotifyChanged(vg string, volumes map[volume.UUID]time.Time) {
	n.auditor.Changed(vg)
	n.dropLost(vg)
	if len(volumes) == 0 {
		n.wakeGroup(vg)
		return
	}
	for uuid, heard := range volumes {
		if l := n.laneOf(uuid); l != nil {
			l.deviceChanged(heard)
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

// lane returns the volume's lane. The first caller that knows the name sets it; see also laneByName.
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.name.LV == "" {
		l.name = name
	}
	return l
}

// laneOf returns the volume's lane, nil = it has none.
func (n *Node) laneOf(uuid volume.UUID) *lane {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lanes[uuid]
}

// laneOrIdle returns the volume's lane or, if it has none, one that never works.
func (n *Node) laneOrIdle(uuid volume.UUID, name volume.Name) *lane {
	return cmp.Or(n.laneOf(uuid), &lane{n: n, uuid: uuid, name: name})
}

// sameDirectory reports whether two groups of a provider have one directory.
func sameDirectory(p Provider, a, b string) bool {
	files, ok := p.(interface{ SameDirectory(a, b string) bool })
	return ok && a != b && files.SameDirectory(a, b)
}

// OneDirectory describes two groups with one directory.
func OneDirectory(a, b string) (what, remedy string) {
	return "the volume groups " + a + " and " + b + " have one directory, through a link or a bind mount",
		"correct the `directory` of one in flexd's configuration, or remove that group, and restart flexd"
}

// formerName returns the name under which the file at name was used: that in its record if it was in another
// group. A file of another group does not take the name of a volume that was seen: the filesystems of the
// directories may have been exchanged.
func (n *Node) formerName(uuid volume.UUID, name, inLane volume.Name) (volume.Name, error) {
	former := inLane
	seen, err := n.Records.Get(uuid)
	if err == nil && seen.Name.LV != "" && (seen.Name.VG != name.VG || inLane.VG != name.VG) {
		former = seen.Name
	}
	if former.VG == name.VG {
		return former, nil
	}
	had, seen, err := n.Records.Named(name)
	switch {
	case err != nil:
		return former, volume.Errorf(volume.Unknown, "it was %s, and whether %s was another volume is unknown: %w", former, name, err)
	case had == "" || had == uuid:
		return former, nil
	}
	return former, volume.Errorf(volume.Conflict, "%s was the volume with the uuid %s (last used as %s), and is now the one that was %s (uuid %s): if the filesystems of the directories of %s and %s were exchanged, or one is mounted twice, mount each of them at its place (findmnt). If the groups were renamed, rename them back. If the file was moved: give it another name, or, if the other volume does not exist any more: rm %s", name, had, seen.Name, former, uuid, former.VG, name.VG, volume.Quote(seen.File))
}

// laneByName returns the lane of a volume that was just looked up by name. The name of a
// lane changes with that of its volume, but two files with one uuid (a copy with its
// attributes) are not one volume: the second is refused. If the old group is not configured any
// more, for example after its rename, the old name cannot be looked up.
func (n *Node) laneByName(ctx context.Context, uuid volume.UUID, name volume.Name, p Provider) (*lane, error) {
	l := n.lane(uuid, name)
	old := l.nameNow()
	if n.isFile(name) {
		var err error
		if old, err = n.formerName(uuid, name, old); err != nil {
			return nil, err
		}
	}
	if old != name && n.Providers[old.VG] != nil && n.isFile(old) == n.isFile(name) { // the old group's name may be another group's now
		lv, err := p.LookUp(ctx, old)
		switch {
		case err != nil && !n.isFile(name): // its uuid contains that of the volume group, which was renamed
		case err != nil:
			return nil, volume.Errorf(volume.Unknown, "its uuid %s was that of %s, which cannot be looked up: %w; if the disk of that group is gone for good, remove the group from flexd's configuration, and restart flexd", uuid, old, err)
		case lv.Presence == volume.Present && lv.UUID == uuid && sameDirectory(p, old.VG, name.VG):
			what, remedy := OneDirectory(old.VG, name.VG)
			return nil, volume.Errorf(volume.Conflict, "it is %s, too: %s: %s", old, what, remedy)
		case lv.Presence == volume.Present && lv.UUID == uuid:
			return nil, volume.Errorf(volume.Conflict, "%s and %s have the same uuid %s, for example because one is a copy with all attributes; flexd does not use one in place of the other: give the copy a new uuid", old, name, uuid)
		}
	}
	l.mu.Lock()
	l.name = name
	l.mu.Unlock()
	return l, nil
}
