package hosttest

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// The times of sanlock with io_timeout 2: the interval of renewals, the time without a renewal after which
// a host has lost its locks, and the time after which other hosts consider it dead, before which its
// watchdog has reset it.
const (
	ioTimeout    = 2 * time.Second
	renewEvery   = 2 * ioTimeout
	renewFail    = 8 * ioTimeout
	watchdogFire = time.Minute
	hostDead     = renewFail + watchdogFire
	joinTime     = 9 * time.Second // a start of the lockspace, measured

	tick = time.Second
)

// HostDead is the time without a renewal after which other hosts may take over the locks of a host.
const HostDead = hostDead

// A Disk is a disk that several hosts share, with one volume group: its metadata, its volumes, and the
// leases of sanlock.
type Disk struct {
	mu     sync.Mutex               // that of all hosts, too
	files  map[string]*File         // the volumes, by path
	hosts  map[int]*hostLease       // sanlock's delta leases, by host id
	leases map[string]*volumeLease  // sanlock's resource leases, by the uuid of the volume; see groupLock
	users  []*Host                  // all hosts
	made   int                      // volumes
	silent bool                     // which host holds a lock is not known
	broke  func(f string, a ...any) // reports a broken promise
}

// groupLock is the key of the lock of the volume group.
const groupLock = "VG"

// NewDisk returns an empty volume group.
func NewDisk(broke func(format string, a ...any)) *Disk {
	return &Disk{files: map[string]*File{}, hosts: map[int]*hostLease{}, leases: map[string]*volumeLease{}, broke: broke}
}

// A hostLease shows that a host lives: it changes with each renewal.
type hostLease struct {
	generation int // of the host's start
	renewals   int
	free       bool // the host has left the lockspace
}

// A volumeLease is the lock of a volume on the disk.
type volumeLease struct {
	owners map[int]int // generations by host id
	last   int         // the host that took it last
	shared bool
}

// A sighting is the last change of another host's lease.
type sighting struct {
	hostLease
	at time.Time // on the clock of the host that saw it
}

// The errors of the lock manager.
var (
	errNoLockd     = errors.New("lvmlockd does not run")
	errNoLockspace = errors.New("the lockspace is not started")
	errLeaseIO     = errors.New("the lease cannot be read")
	errHeldByHost  = errors.New("held by other host")
)

// A spaceState is the state of a host's lockspace.
type spaceState int

const (
	none spaceState = iota
	joining
	joined
	failed // its lease was not renewed in time: no lock is granted until it is dropped
)

// A LockManager is lvmlockd, sanlock and wdmd of one host.
type LockManager struct {
	h    *Host
	disk *Disk
	id   int

	// Watchdog reports whether the machine has a watchdog, which calls Reset.
	Watchdog bool
	Reset    func()
	// Kill is lvmlockctl_kill_command, which lvmlockd starts when the lease is lost.
	Kill func()

	// Guarded by the disk's mutex.
	sanlock, lvmlockd bool // they run
	off               bool // the machine is off
	cutOff            bool // the host does not reach the disk
	paused            bool
	stopped           time.Time // when its time was stopped, too; zero = it goes on
	resumed           time.Time // when it went on last
	reported          time.Time // when flexd first read the metadata; zero = it has not, and does not know where its locks are
	space             spaceState
	began             time.Time // of a start of the lockspace
	generation        int
	renewed           time.Time // when the lease was renewed last
	joinedAt          time.Time // since when the lockspace is started
	armed             bool      // the watchdog runs
	seen              map[int]sighting
	held              map[string]bool // by lvmlockd: the locks of volumes, and whether they are shared
	orphans           map[string]bool // locks that lvmlockd held when it was killed
	users             int             // commands that have the group's lock
	sharing           bool            // it is shared
	life              int             // counts the starts of lvmlockd
	unreleased        map[string]bool // locks that could not be written to the disk as free
}

// manager returns the lock manager of a host that has just booted.
func (d *Disk) manager(h *Host, id int) *LockManager {
	m := &LockManager{h: h, disk: d, id: id, Watchdog: true, Reset: func() {}, Kill: func() {}}
	m.boot()
	return m
}

// boot sets the state after a boot.
func (m *LockManager) boot() {
	m.sanlock, m.lvmlockd, m.off, m.paused, m.space, m.armed = true, true, false, false, none, false
	m.users, m.life, m.stopped, m.resumed = 0, m.life+1, time.Time{}, time.Time{}
	m.seen, m.held, m.orphans, m.unreleased = map[int]sighting{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
}

// Run runs the daemons: it renews the host's lease, observes the leases of others, and resets the machine.
func (m *LockManager) Run(done <-chan struct{}) {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			m.disk.mu.Lock()
			after := m.second(time.Now())
			m.disk.mu.Unlock()
			after()
		case <-done:
			return
		}
	}
}

// second simulates one second. It returns a function that the caller calls without the lock.
func (m *LockManager) second(now time.Time) (after func()) {
	after = func() {}
	if !m.stopped.IsZero() {
		return after
	}
	if m.armed && m.Watchdog && now.Sub(m.renewed) >= hostDead-2*tick {
		m.armed = false
		return m.Reset
	}
	if m.off || m.paused || !m.sanlock {
		return after
	}
	switch {
	case m.space == joining && !m.cutOff && now.Sub(m.began) >= joinTime:
		m.join(now)
	case m.space == joined && now.Sub(m.renewed) >= renewFail:
		m.space = failed
		if m.lvmlockd {
			return m.Kill
		}
	case m.space == joined && !m.cutOff && now.Sub(m.renewed) >= renewEvery:
		m.disk.hosts[m.id].renewals++
		m.renewed = now
		m.watch(now)
		for key := range m.unreleased {
			m.free(key)
		}
	}
	return after
}

func (m *LockManager) join(now time.Time) {
	l := m.disk.hosts[m.id]
	if l == nil {
		l = &hostLease{}
		m.disk.hosts[m.id] = l
	}
	l.generation, l.renewals, l.free = l.generation+1, l.renewals+1, false
	m.space, m.generation, m.joinedAt, m.renewed, m.armed, m.seen = joined, l.generation, now, now, true, map[int]sighting{}
	m.watch(now)
}

// watch records the changes of other hosts' leases.
func (m *LockManager) watch(now time.Time) {
	for id, l := range m.disk.hosts {
		if s, ok := m.seen[id]; !ok || s.hostLease != *l {
			m.seen[id] = sighting{*l, now}
		}
	}
}

// counts reports whether the lock of another host is valid, because that host may be alive.
func (m *LockManager) counts(id, generation int) bool {
	l := m.disk.hosts[id]
	if l.free || l.generation != generation {
		return false
	}
	s, ok := m.seen[id]
	return !ok || s.hostLease != *l || time.Since(s.at) < hostDead
}

// Lockstart starts the lockspace, which takes some time. A lockspace that has failed must be
// dropped first.
func (m *LockManager) Lockstart() {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.lockstart()
}

func (m *LockManager) lockstart() {
	if m.space == none && m.lvmlockd && m.sanlock && !m.off {
		m.space, m.began = joining, time.Now()
	}
}

// Lockstop leaves the lockspace, which LVM refuses while a volume is locked. It also drops
// one that has failed (lvmlockctl --drop).
func (m *LockManager) Lockstop() bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.lockstop()
}

func (m *LockManager) lockstop() bool {
	switch {
	case m.off, m.paused, !m.sanlock, !m.lvmlockd, m.space == none, len(m.orphans) > 0, m.h.hasDevices():
		return false
	case m.space != failed && (m.cutOff || len(m.held) > 0):
		return false
	case m.space == joined: // otherwise others wait until the host counts as dead
		m.disk.hosts[m.id].free = true
	}
	m.space, m.armed, m.held = none, false, map[string]bool{}
	return true
}

// holders returns the other hosts whose lock on a volume counts.
func (m *LockManager) holders(key string) (ids []int, shared bool) {
	l := m.disk.leases[key]
	if l == nil {
		return nil, false
	}
	for id, generation := range l.owners {
		if id != m.id && m.counts(id, generation) {
			ids = append(ids, id)
		}
	}
	return ids, l.shared
}

// ready returns why no lock is granted, or nil.
func (m *LockManager) ready() error {
	switch {
	case !m.lvmlockd:
		return errNoLockd
	case !m.sanlock || m.space != joined:
		return errNoLockspace
	case m.cutOff:
		return errLeaseIO
	}
	return nil
}

// acquire takes a lock, which remains after the command that took it.
func (m *LockManager) acquire(key string, shared bool) error {
	if err := m.ready(); err != nil {
		return err
	}
	if had, held := m.held[key]; held && had == shared && key != groupLock {
		return nil // the disk is not read again
	}
	others, theirs := m.holders(key)
	if len(others) > 0 && !(shared && theirs) {
		return errHeldByHost
	}
	l := &volumeLease{owners: map[int]int{m.id: m.generation}, last: m.id, shared: shared}
	for _, id := range others {
		l.owners[id] = m.disk.leases[key].owners[id]
	}
	m.disk.leases[key] = l
	m.held[key] = shared
	delete(m.unreleased, key)
	return nil
}

// release releases a lock. If the disk does not respond, the release is written later.
func (m *LockManager) release(key string) error {
	if !m.lvmlockd {
		return errNoLockd
	}
	if _, ok := m.held[key]; !ok {
		return nil
	}
	delete(m.held, key)
	if m.cutOff || !m.sanlock || m.space != joined {
		m.unreleased[key] = true
		return errLeaseIO
	}
	m.free(key)
	return nil
}

func (m *LockManager) free(key string) {
	if l := m.disk.leases[key]; l != nil && l.owners[m.id] == m.generation {
		delete(l.owners, m.id)
	}
	delete(m.unreleased, key)
}

// Holds reports whether the disk has the lock of a volume for this host.
func (m *LockManager) Holds(uuid string) bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	l := m.disk.leases[uuid]
	return l != nil && l.owners[m.id] == m.generation && !m.disk.hosts[m.id].free
}

// CutOff makes the disk unreachable for this host, or reachable again.
func (m *LockManager) CutOff(off bool) bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	was := m.cutOff
	m.cutOff = off
	return was != off
}

// notReported notes that a flexd starts.
func (m *LockManager) notReported() {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.reported = time.Time{}
}

// Pause stops the machine, or lets it continue.
func (m *LockManager) Pause(stop bool) bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	was := m.paused
	if m.stopped.IsZero() {
		m.paused = stop && !m.off
	}
	return was != m.paused
}

// Stopped is how long a host whose time was stopped may use volumes that another host has taken over: it
// fences them within 3 s. Until it has renewed its lease, other hosts consider it dead, and may also take
// over volumes that it sets up in that time.
const Stopped = renewEvery + 3*time.Second

// StopTime stops the machine and its clocks, as virsh suspend does, or lets it continue.
func (m *LockManager) StopTime(stop bool) bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	switch {
	case stop == !m.stopped.IsZero(), m.off, stop && m.paused:
		return false
	case stop:
		m.stopped, m.paused = time.Now(), true
		return true
	}
	passed := time.Since(m.stopped)
	m.renewed, m.began = m.renewed.Add(passed), m.began.Add(passed)
	for id, s := range m.seen {
		s.at = s.at.Add(passed)
		m.seen[id] = s
	}
	m.stopped, m.paused, m.resumed = time.Time{}, false, time.Now()
	return true
}

// unaware reports whether flexd may not have detected yet that the machine's time was stopped. Until its
// lease is renewed, which needs sanlock, the lockspace and the disk, other hosts may also take over
// volumes that it sets up since then; if the lease is not renewed, its watchdog resets it.
func (m *LockManager) unaware() bool {
	if m.resumed.IsZero() {
		return false
	}
	return m.armed && !m.renewed.After(m.resumed) || time.Since(m.resumed) < Stopped || m.reported.IsZero() || time.Since(m.reported) < Stopped
}

// Unaware reports whether flexd may not have detected yet that the machine's time was stopped.
func (m *LockManager) Unaware() bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.unaware()
}

// Paused reports whether the machine does nothing at present.
func (m *LockManager) Paused() bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.paused
}

// KillLockd kills lvmlockd. Its locks stay as orphans; sanlock continues to renew the lease.
func (m *LockManager) KillLockd() bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if !m.lvmlockd || m.off {
		return false
	}
	m.lvmlockd, m.orphans, m.held = false, m.held, map[string]bool{}
	m.users, m.life = 0, m.life+1
	delete(m.orphans, groupLock) // it is not persistent
	if l := m.disk.leases[groupLock]; l != nil {
		delete(l.owners, m.id)
	}
	return true
}

// AdoptLocks starts lvmlockd again (lvmlockd --adopt 1): it adopts the locks of active volumes, and an
// operator releases the others (sanlock client release -O 1).
func (m *LockManager) AdoptLocks() bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if m.lvmlockd || m.off || !m.sanlock {
		return false
	}
	m.lvmlockd, m.held = true, m.orphans
	m.orphans = map[string]bool{}
	for key := range m.held {
		if m.h.deviceOf(m.disk.volume(key)) == nil {
			_ = m.release(key)
		}
	}
	return true
}

// KillSanlock kills sanlock: the lease is not renewed any more, and the watchdog runs.
func (m *LockManager) KillSanlock() bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	was := m.sanlock && !m.off
	m.sanlock = false
	return was
}

// Working reports whether the machine runs, and its lockspace is started.
func (m *LockManager) Working() bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return !m.off && !m.paused && m.ready() == nil
}

// Off reports whether the machine is off.
func (m *LockManager) Off() bool {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.off
}

// PowerOff ends the machine: its memory is lost, its lease and its locks stay on the disk.
func (m *LockManager) PowerOff() {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.boot()
	m.off = true
}

// PowerOn boots the machine, and starts the lockspace if that is a service of the machine.
func (m *LockManager) PowerOn() {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.boot()
	m.lockstart()
}

func (h *Host) hasDevices() bool {
	for _, l := range h.loops {
		if !l.foreign {
			return true
		}
	}
	return false
}

func (d *Disk) volume(uuid string) *File {
	for _, f := range d.files {
		if f.UUID == uuid {
			return f
		}
	}
	return nil
}

// deviceOf returns the device of a volume, or nil.
func (h *Host) deviceOf(f *File) *loop {
	if f == nil {
		return nil
	}
	return h.loopOf(f)
}

// alone verifies that no other running machine has a volume mounted or writes to it.
func (h *Host) alone(p *process, f *File) {
	if h.locking == nil || !h.locking.acts(f) {
		return
	}
	for _, o := range h.locking.disk.users {
		if op := o.live[f]; o != h && o.locking.acts(f) && (o.writable(f) || op == writes || op == "check") {
			h.broke("%s of %s while host %d has it mounted or works on it (%s)", p.op, f.path, o.locking.id, op)
		}
	}
}

// mustTag verifies that the disk has a tag of a volume, where every host sees it.
func (h *Host) mustTag(f *File, prefix string) {
	if h.locking != nil && !slices.ContainsFunc(f.Tags, func(tag string) bool { return strings.HasPrefix(tag, prefix) }) {
		h.broke("%s has no tag %s yet; tags: %v", f.path, prefix, f.Tags)
	}
}

// acts reports whether the machine runs, and its device of a volume is not fenced. A machine whose time was
// stopped gets some time to fence it.
func (m *LockManager) acts(f *File) bool {
	l := m.h.deviceOf(f)
	return !m.off && !m.paused && !m.unaware() && (l == nil || !l.fenced)
}

func (h *Host) writable(f *File) bool {
	return slices.ContainsFunc(h.mountsOf(f), func(m *mnt) bool { return !m.ro && !m.superRO })
}

// Conflicts returns the volumes that two running machines have mounted, at least one of them writable.
func (d *Disk) Conflicts() (all []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		var hosts []int
		writable := false
		for _, h := range d.users {
			if m := h.locking; m.acts(f) && len(h.mountsOf(f)) > 0 {
				hosts, writable = append(hosts, m.id), writable || h.writable(f)
			}
		}
		if len(hosts) > 1 && writable {
			all = append(all, fmt.Sprintf("%s is mounted on the hosts %v, and writable", path.Base(f.path), hosts))
		}
	}
	slices.Sort(all)
	return all
}
