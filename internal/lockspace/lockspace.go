// Package lockspace observes the lock managers of shared volume groups, LVM's lvmlockd with sanlock
// and wdmd, and starts lockspaces. It takes no locks of volumes: LVM's commands take them, and fail
// without them.
//
// It gets all facts from the daemons' commands and, for the holder of a lock, from sanlock's records
// on the disk. Children with deadlines read both, because sanlock may hang with its storage. The
// package does nothing without a request.
package lockspace

import (
	"context"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Options are the parameters of New.
type Options struct {
	Runner  run.Runner
	LockDir string // the directory of the lock files of volume groups

	// NoWatchdog reports whether a volume group may be used without a watchdog that resets a node
	// which has lost its lease; nil = no group may.
	NoWatchdog func(vg string) bool

	// Words returns the options of an LVM command that reads or starts a volume group, such
	// as the filter; nil = there are none.
	Words func(ctx context.Context, vg string) ([]string, error)
}

// A Manager observes the lock managers of this node.
type Manager struct {
	Options

	now       func() time.Time // time.Now; replaced in tests
	monotonic func() int       // CLOCK_MONOTONIC in seconds; replaced in tests

	mu       sync.Mutex
	spaces   map[string]*space // guarded by mu, like the fields below; by VG
	last     *facts            // the last look
	looking  *flight           // the look that runs
	leases   map[string]Leases // the last known leases of this node, by lockspace
	versions Versions
}

// A space has the stored state of the lockspace of a volume group.
type space struct {
	status   Status
	lockType string    // in the metadata of the volume group; "" = not known yet
	starting time.Time // when flexd began to start it; zero = it is not starting it
	failed   error     // the error of the last start
	failedAt time.Time
	lost     string // why its locks are lost; "" = they are not
	lostAt   time.Time
	joined   int // when sanlock joined the lockspace that is started

	reading   bool                // leases are being read
	next      *reading            // the next reading
	sightings map[string]sighting // the owners of leases
}

// A State of the lockspace of a volume group.
type State string

// The states.
const (
	Stopped     State = "stopped"     // it is not started
	Starting    State = "starting"    // flexd or another program starts it
	Started     State = "started"     // locks can be taken
	Stopping    State = "stopping"    // it is being stopped
	Lost        State = "lost"        // its lease is lost: the node must stop using its volumes
	Unavailable State = "unavailable" // a daemon is missing, or its lease is not renewed
)

// Versions of the programs, "" = not known.
type Versions struct {
	LVM      string `json:"lvm,omitempty"`
	Lvmlockd string `json:"lvmlockd,omitempty"` // of the installed program
	Sanlock  string `json:"sanlock,omitempty"`  // of the running daemon
	Wdmd     string `json:"wdmd,omitempty"`     // of the installed program
}

// A Status is the last known status of the lockspace of a volume group.
type Status struct {
	VG        string
	State     State // "" = it was never observed
	Since     time.Time
	Reason    string // why it is not started, or a problem of a started one
	LockType  string // "sanlock" or "dlm"; "" = not known
	HostID    int    // of this node, 0 = not known
	HostName  string // of this node, as the other hosts see it
	IOTimeout time.Duration
	Renewed   time.Time // when the lease of this node was renewed last; zero = not known
	Watchdog  string    // "live", "none" or "unknown"
	Looked    time.Time // when it was observed
	Versions  Versions
}

// New returns a manager without lockspaces.
func New(o Options) *Manager {
	if o.NoWatchdog == nil {
		o.NoWatchdog = func(string) bool { return false }
	}
	if o.Words == nil {
		o.Words = func(context.Context, string) ([]string, error) { return nil, nil }
	}
	return &Manager{Options: o, now: time.Now, monotonic: monotonic, spaces: map[string]*space{}, leases: map[string]Leases{}}
}

// space returns the entry of a volume group. m.mu is held.
func (m *Manager) space(vg string) *space {
	s := m.spaces[vg]
	if s == nil {
		s = &space{status: Status{VG: vg}}
		m.spaces[vg] = s
	}
	return s
}

// failedFor is how long Ready returns the error of a failed start before it starts again. It is longer
// than the pause between two tries of a request, so that all waiting requests get the error.
const failedFor = 10 * time.Second

// Ready returns nil if locks of a shared volume group can be taken: its lockspace is started, the
// lease of this node is renewed, and a watchdog guards it. It starts a lockspace that is not started,
// and returns a *volume.WaitError until that is done. Any other error needs an administrator.
func (m *Manager) Ready(ctx context.Context, vg string) error {
	f, err := m.look(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.space(vg)
	err = m.judge(s, f)
	if s.status.State != Stopped || err != nil {
		return err
	}
	if s.failed != nil && m.now().Sub(s.failedAt) < failedFor {
		s.status.Reason = s.failed.Error()
		return s.failed
	}
	m.start(s)
	m.enter(s, Starting, "")
	return m.startingError(s)
}

// Check is Ready, but starts nothing; a lockspace that is not started is no error.
func (m *Manager) Check(ctx context.Context, vg string) error {
	f, err := m.look(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.judge(m.space(vg), f)
}

// CanUnlock returns why this node would keep the lock of a volume that is deactivated now, so that no
// other node could use the volume; nil = it would not. Without lvmlockd the lock is not released, and a
// later lvmlockd adopts only the locks of active volumes.
func (m *Manager) CanUnlock(ctx context.Context, vg string) error {
	f, err := m.lookNow(ctx) // lvmlockd may have ended since the last look
	if err != nil {
		return err
	}
	if _, listed := f.lvmlockd[vg]; listed || f.sanlock.Spaces["lvm_"+vg].Locks == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.judge(m.space(vg), f)
}

// Start starts the lockspace of a volume group in the background, unless it is started.
func (m *Manager) Start(vg string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.space(vg)
	m.start(s)
	if s.status.State == "" {
		m.enter(s, Starting, "")
	}
}

// Observe asks the daemons for the states of volume groups. It starts nothing.
func (m *Manager) Observe(ctx context.Context, vgs []string) {
	f, err := m.look(ctx)
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, vg := range vgs {
		_ = m.judge(m.space(vg), f)
	}
}

// Lost marks the locks of a volume group as lost: it is not Ready until its locks have been dropped and
// its lockspace started again. It refuses if the daemons report that the lease is renewed: then an
// administrator called it, and pods would lose mounts. If the daemons do not answer, it does not refuse.
func (m *Manager) Lost(ctx context.Context, vg, why string) error {
	ctx, cancel := context.WithTimeout(ctx, lostTimeout)
	defer cancel()
	f, err := m.lookNow(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.space(vg)
	if err == nil {
		if state, err := m.stateOf(s, f); err == nil && state == Started {
			return volume.Errorf(volume.NotAllowed, "volume group %s has not lost its locks: its lease on the disks was renewed in time, so nothing is done", vg)
		}
	}
	s.lost, s.lostAt = why, m.now()
	m.enter(s, Lost, lostReason(vg, why))
	return nil
}

// lostTimeout is how long Lost waits for the daemons. It is short, since the unmounts need the time.
const lostTimeout = 3 * time.Second

// Status returns the last known status. It does no I/O.
func (m *Manager) Status(vg string) Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.spaces[vg]; s != nil {
		st := s.status
		st.Versions = m.versions
		return st
	}
	return Status{VG: vg}
}

// enter records a state. m.mu is held.
func (m *Manager) enter(s *space, state State, reason string) {
	if s.status.State != state {
		s.status.State, s.status.Since = state, m.now()
	}
	s.status.Reason = reason
}

// unusable returns the error of a volume group that needs an administrator.
func unusable(format string, a ...any) error { return volume.Errorf(volume.Unusable, format, a...) }
