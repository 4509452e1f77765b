package lockspace

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// The times after which sanlock fails a host, in seconds (its source: timeouts.h). A host
// renews its lease every 2 io timeouts.
func failAfter(ioTimeout int) int { return 8 * ioTimeout }
func deadAfter(ioTimeout int) int { return failAfter(ioTimeout) + 60 }

// staleAfter is the age of a lease that was not renewed in time: one renewal is late.
func staleAfter(ioTimeout int) int { return 4*ioTimeout + 1 }

// defaultIOTimeout is sanlock's and lvmlockd's.
const defaultIOTimeout = 10 * time.Second

const watchdogRemedy = `systemctl enable --now wdmd (it needs /dev/watchdog: the node's watchdog, or modprobe softdog)`

// judge derives the status of a lockspace from what the daemons said. It returns nil if the
// lockspace is ready, or is to be started: then its state is Stopped. m.mu is held.
func (m *Manager) judge(s *space, f *facts) error {
	st := &s.status
	st.Looked = f.at
	st.HostID, st.IOTimeout, st.Renewed, st.Watchdog = 0, 0, time.Time{}, "unknown"
	st.HostName = f.sanlock.Name
	st.LockType = s.lockType
	state, err := m.judgement(s, f)
	if err == nil && state == Stopped && !s.starting.IsZero() {
		state, err = Starting, m.waitStart(s)
	}
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	m.enter(s, state, reason)
	if state == Started {
		if joined := f.sanlock.Spaces["lvm_"+st.VG].Joined; joined != s.joined { // it was dropped and started between two looks
			s.joined, st.Since = joined, m.now()
		}
		s.failed = nil
		st.Reason = cmp.Or(m.versions.mismatch(), orphanReason(f.sanlock.Spaces["lvm_"+st.VG].Orphans), globalLockReason(st, f))
	}
	return err
}

func (m *Manager) judgement(s *space, f *facts) (State, error) {
	vg, st := s.status.VG, &s.status
	group := "the locks of volume group " + vg + " cannot be taken: "
	if f.lvmlockdErr != nil && s.lost != "" && s.lockType != "" { // sanlock kills lvmlockd in the end
		return Lost, unusable("%s", lostReason(vg, s.lost))
	}
	if f.lvmlockdErr != nil {
		return Unavailable, unusable("%s%w%s%s", group, f.lvmlockdErr, remedy(f.lvmlockdErr), f.sanlock.keeps(vg))
	}
	l, listed := f.lvmlockd[vg]
	if s.lost != "" && !listed && f.at.After(s.lostAt) {
		s.lost = "" // its locks were dropped
	}
	if l.Killed || l.Dropped {
		s.lost = cmp.Or(s.lost, "its lease could not be renewed")
	}
	if s.lost != "" {
		return Lost, unusable("%s", lostReason(vg, s.lost))
	}
	if listed {
		st.LockType, st.HostID = l.Type, l.HostID
		s.lockType = l.Type
	}
	if st.LockType == "dlm" {
		st.Watchdog = "none" // the cluster manager fences a node
		return m.lockdState(s, l, listed)
	}

	if f.sanlockErr != nil {
		how := remedy(f.sanlockErr)
		if how != "" && l.Started {
			how = ": it has ended with its locks, and the watchdog resets this node about a minute later, also if it is started again; then other nodes get its volumes. With `watchdog: none`: reboot this node"
		}
		return Unavailable, unusable("%s%w%s", group, f.sanlockErr, how)
	}
	name := "lvm_" + vg
	lease, added := f.sanlock.Spaces[name]
	expires, guarded := f.wdmd[fmt.Sprintf("sanlock_%.60s:%d", name, lease.HostID)]
	switch {
	case !f.sanlock.Watchdog || f.wdmdErr != nil || added && lease.List == "spaces" && (!guarded || expires <= 0):
		st.Watchdog = "none"
	case guarded:
		st.Watchdog = "live"
	}
	if !m.NoWatchdog(vg) {
		const without = "without a watchdog a node that was paused could write after another node has taken its volume over: "
		switch {
		case !f.sanlock.Watchdog:
			return Unavailable, unusable("%ssanlock runs without a watchdog (-w 0 in /etc/default/sanlock, or use_watchdog=0 in /etc/sanlock/sanlock.conf); %s%s, remove that setting, and restart sanlock while no lockspace is started; or set `watchdog: none` for the group", group, without, watchdogRemedy)
		case f.wdmdErr != nil:
			return Unavailable, unusable("%s%w; %s%s; or set `watchdog: none` for the group", group, f.wdmdErr, without, watchdogRemedy)
		case added && lease.List == "spaces" && !guarded:
			return Unavailable, unusable("%swdmd does not guard its lease (was it restarted?): vgchange --lockstop %s while no volume of the group is active; flexd starts it again", group, vg)
		case guarded && expires <= 0 && lease.List == "spaces":
			return Lost, unusable("%sits lease was not renewed in time: the watchdog is about to reset this node", group)
		}
	}

	if !listed && added && s.starting.IsZero() {
		if lease.Locks == 0 {
			return Unavailable, unusable("%slvmlockd was restarted, and sanlock still has the lockspace of the earlier one: sanlock client rem_lockspace -s %s (it holds no locks)", group, lease.Arg(name))
		}
		return Unavailable, unusable("%slvmlockd was restarted, and sanlock still has the locks of the earlier one (%d): an lvmlockd with --adopt 1 takes them over, by its file /run/lvm/lvmlockd.adopt, which can be written by hand (docs/shared.md, Recovery); or drain this node and reboot it", group, lease.Locks)
	}
	if added {
		st.IOTimeout = time.Duration(lease.IOTimeout) * time.Second
	}
	state, err := m.lockdState(s, l, listed)
	if state != Started || err != nil {
		return state, err
	}
	if added {
		st.Renewed = f.at.Add(-time.Duration(f.sanlock.Now-lease.Renewed) * time.Second)
	}
	age := f.sanlock.Now - lease.Renewed
	switch {
	case !added:
		return Unavailable, unusable("%s%w: unmount and deactivate its volumes, and flexd starts it again; by hand: lvmlockctl --drop %s, vgchange --lockstart %s", group, ErrStale, vg, vg)
	case lease.List == "rem":
		return Stopping, wait("the lockspace of volume group %s is being stopped", vg)
	case lease.Dead:
		return Lost, unusable("%s", lostReason(vg, "sanlock stops its users"))
	case lease.HostID != l.HostID:
		return Unavailable, unusable("%slvmlockd and sanlock disagree on the host id (%d, %d): stop and start its lockspace", group, l.HostID, lease.HostID)
	case age > staleAfter(lease.IOTimeout) || lease.Result < 0:
		return Unavailable, unusable("%sits lease on the disks was not renewed for %d s (sanlock: result %d): are its disks reachable? This node stops using it %d s after the last renewal", group, age, lease.Result, failAfter(lease.IOTimeout))
	}
	return Started, nil
}

// lockdState is the state by what lvmlockd says alone.
func (m *Manager) lockdState(s *space, l LockdSpace, listed bool) (State, error) {
	switch {
	case !listed || l.Failed:
		return Stopped, nil
	case l.Stopping:
		return Stopping, wait("the lockspace of volume group %s is being stopped", s.status.VG)
	case !l.Started:
		return Starting, m.waitStart(s)
	}
	return Started, nil
}

func lostReason(vg, why string) string {
	return fmt.Sprintf("volume group %s has lost its locks (%s), and nothing is set up in it: stop what uses its volumes, deactivate them, then lvmlockctl --drop %s; else the watchdog resets this node", vg, why, vg)
}

func wait(format string, a ...any) error {
	reason := fmt.Sprintf(format, a...)
	return &volume.WaitError{Reason: reason, Err: volume.Errorf(volume.Unusable, "%s", reason)}
}

// waitStart is the error of a lockspace that is being started. m.mu is held.
func (m *Manager) waitStart(s *space) error {
	since := s.starting
	if since.IsZero() && s.status.State == Starting {
		since = s.status.Since // by somebody else
	}
	if since.IsZero() {
		since = m.now()
	}
	timeout := int(cmp.Or(s.status.IOTimeout, defaultIOTimeout).Seconds())
	usual := 2*timeout + 5
	return wait("the lockspace of volume group %s is being started since %s: sanlock takes about %d s to join it, and up to %d s after this node was reset (io timeout %d s)",
		s.status.VG, since.Format(time.TimeOnly), usual, usual+deadAfter(timeout), timeout)
}

// mismatch says whether LVM and lvmlockd are of different versions, an untested combination.
func (v Versions) mismatch() string {
	if v.LVM == "" || v.Lvmlockd == "" || v.LVM == v.Lvmlockd {
		return ""
	}
	return fmt.Sprintf("LVM %s and lvmlockd %s are of different versions: install the packages of one release", v.LVM, v.Lvmlockd)
}

// globalLockReason says what is wrong with LVM's global lock. Volumes can be used without.
func globalLockReason(st *Status, f *facts) string {
	if st.LockType != "sanlock" {
		return ""
	}
	var with []string
	for name, l := range f.lvmlockd {
		if l.GlobalLock && l.Type == "sanlock" {
			with = append(with, name)
		}
	}
	slices.Sort(with)
	switch len(with) {
	case 0:
		return fmt.Sprintf("no started lockspace of this node has LVM's global lock, so commands that create or remove volume groups fail: if the volume group that had it is gone, lvmlockctl --gl-enable %s", st.VG)
	case 1:
		return ""
	}
	return fmt.Sprintf("several volume groups have LVM's global lock: %v; keep one, and lvmlockctl --gl-disable the others", with)
}

// keeps says which locks stay when lvmlockd does not run.
func (d Sanlock) keeps(vg string) string {
	n := d.Spaces["lvm_"+vg].Locks
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; sanlock keeps its locks (%d) for this node, and mounted volumes go on", n)
}

// orphanReason says how to release the locks that an lvmlockd was killed with, and that the
// next one has not taken over, as it does for active volumes with --adopt 1.
func orphanReason(orphans []string) string {
	if len(orphans) == 0 {
		return ""
	}
	return fmt.Sprintf("sanlock has locks of an earlier lvmlockd (%d, ORPHAN), so that no node can activate their volumes: %s", len(orphans), ReleaseOrphan(orphans[0]))
}

// ReleaseOrphan says how to release such a lock.
func ReleaseOrphan(lease string) string {
	return "while the volume is inactive on this node (dmsetup ls): sanlock client release -r " + lease + " -O 1 -p $(pidof lvmlockd)"
}
