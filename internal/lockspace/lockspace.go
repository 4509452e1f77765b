// Package lockspace watches and starts the lock managers of shared volume groups: LVM's
// lvmlockd, and sanlock with wdmd below it. It locks nothing itself: LVM's commands take the
// locks, and fail without them.
//
// All that is known comes from the daemons' own commands and, for the holder of a lock, from
// sanlock's records on the disk. Both run as children with deadlines: sanlock may hang with
// its storage. Nothing runs while no request asks.
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

	// NoWatchdog reports whether a volume group is used without a watchdog that resets a
	// node which has lost its lease; nil = none is.
	NoWatchdog func(vg string) bool

	// Words returns the options of an LVM command that reads or starts a volume group, such
	// as the filter; nil = there are none.
	Words func(ctx context.Context, vg string) ([]string, error)
}

// A Manager knows the lock managers of this node.
type Manager struct {
	Options

	now       func() time.Time // time.Now; another in tests
	monotonic func() int       // CLOCK_MONOTONIC in seconds; another in tests

	mu       sync.Mutex
	spaces   map[string]*space // guarded by mu, as all that follows; by VG
	last     *facts            // the last look
	looking  *flight           // the look that runs
	leases   map[string]Leases // of this node, by lockspace: as they were last
	versions Versions
}

// A space is what is remembered of the lockspace of a volume group.
type space struct {
	status   Status
	lockType string    // in the metadata of the volume group; "" = not known yet
	starting time.Time // since when flexd starts it; zero = it does not
	failed   error     // of the last start
	failedAt time.Time
	lost     string // why lvmlockd asked to stop using it; "" = it did not
	lostAt   time.Time
	joined   int // when sanlock joined the lockspace that is started

	reading   bool                // leases are being read
	next      *reading            // those that are read next
	sightings map[string]sighting // the owners of leases
}

// A State of the lockspace of a volume group.
type State string

// The states.
const (
	Stopped     State = "stopped"     // it is not started
	Starting    State = "starting"    // it is being started, by flexd or somebody else
	Started     State = "started"     // locks can be taken
	Stopping    State = "stopping"    // somebody stops it
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

// A Status is what was last known of the lockspace of a volume group.
type Status struct {
	VG        string
	State     State // "" = it was never looked at
	Since     time.Time
	Reason    string // why it is not started; or what is wrong nevertheless
	LockType  string // "sanlock" or "dlm"; "" = not known
	HostID    int    // of this node, 0 = not known
	HostName  string // of this node, as the other hosts see it
	IOTimeout time.Duration
	Renewed   time.Time // when the lease of this node was renewed last; zero = not known
	Watchdog  string    // "live", "none" or "unknown"
	Looked    time.Time // when this was true
	Versions  Versions
}

// New returns a manager of no lockspaces.
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

// failedFor is how long the failure of a start is the answer to those who ask: longer than
// the pause between two tries of a request, so that all that waited for it hear of it.
const failedFor = 10 * time.Second

// Ready returns nil if locks of a shared volume group can be taken: its lockspace is
// started, the lease of this node is renewed, and a watchdog guards it. A lockspace that is
// not started is started, and a *volume.WaitError returned until that is done. Any other
// error needs an administrator.
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
	return m.waitStart(s)
}

// Check is Ready for a caller that changes nothing: a lockspace that is not started is no error.
func (m *Manager) Check(ctx context.Context, vg string) error {
	f, err := m.look(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.judge(m.space(vg), f)
}

// CanUnlock returns why the lock of a volume that is deactivated now would stay on this node,
// so that no other could use the volume; nil = it would not. An lvmlockd that does not run
// gives none back, and a later one takes over those of active volumes alone.
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

// Lost marks a volume group whose lease is lost: it is not Ready until its locks have been
// dropped and its lockspace started again. It refuses if the daemons say that nothing is lost:
// then an administrator called, and pods would lose mounts. If they do not answer, it is lost.
func (m *Manager) Lost(ctx context.Context, vg, why string) error {
	ctx, cancel := context.WithTimeout(ctx, lostLook)
	defer cancel()
	f, err := m.lookNow(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.space(vg)
	if err == nil {
		if state, err := m.judgement(s, f); err == nil && state == Started {
			return volume.Errorf(volume.NotAllowed, "volume group %s has not lost its locks: its lease on the disks was renewed in time, so nothing is done", vg)
		}
	}
	s.lost, s.lostAt = why, m.now()
	m.enter(s, Lost, lostReason(vg, why))
	return nil
}

// lostLook is how long the daemons may take to say that nothing is lost: most of the time is
// for the unmounts.
const lostLook = 3 * time.Second

// Status returns what was last known. It does no I/O.
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

// unusable is the error of a volume group that needs an administrator.
func unusable(format string, a ...any) error { return volume.Errorf(volume.Unusable, format, a...) }
