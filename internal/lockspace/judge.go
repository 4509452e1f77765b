package lockspace

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// The times in seconds after which a host without a renewal has failed and is dead (sanlock's source:
// timeouts.h). A host renews its lease every 2 io timeouts.
func failAfter(ioTimeout int) int { return 8 * ioTimeout }
func deadAfter(ioTimeout int) int { return failAfter(ioTimeout) + 60 }

// staleAfter is the age of a lease, in seconds, at which one renewal is late.
func staleAfter(ioTimeout int) int { return 4*ioTimeout + 1 }

// defaultIOTimeout is the default of sanlock and lvmlockd.
const defaultIOTimeout = 10 * time.Second

const watchdogRemedy = `systemctl enable --now wdmd (it needs /dev/watchdog: the node's watchdog, or modprobe softdog)`

// judge derives the status of a lockspace from the daemons' output. It returns nil if the lockspace is
// ready, or has the state Stopped and can be started. m.mu is held.
func (m *Manager) judge(s *space, f *facts) error {
	st := &s.status
	st.Looked = f.at
	st.HostID, st.IOTimeout, st.Renewed, st.Watchdog = 0, 0, time.Time{}, "unknown"
	st.HostName = f.sanlock.Name
	st.LockType = s.lockType
	state, err := m.stateOf(s, f)
	if err == nil && state == Stopped && !s.starting.IsZero() {
		state, err = Starting, m.startingError(s)
	}
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	m.enter(s, state, reason)
	if state == Started {
		if joined := f.sanlock.Spaces["lvm_"+st.VG].Joined; joined != s.joined { // it was dropped and started again between two looks
			s.joined, st.Since = joined, m.now()
		}
		s.failed = nil
		st.Reason = cmp.Or(m.versions.mismatch(), orphanReason(f.sanlock.Spaces["lvm_"+st.VG].Orphans), globalLockReason(st, f))
	}
	return err
}

// stateOf returns the state of a lockspace, and why its locks cannot be taken.
func (m *Manager) stateOf(s *space, f *facts) (State, error) {
	vg, st := s.status.VG, &s.status
	group := "the locks of volume group " + vg + " cannot be taken: "
	l, listed := f.lvmlockd[vg]
	if s.isLost(f, l, listed) {
		return Lost, unusable("%s", lostReason(vg, s.lost))
	}
	if f.lvmlockdErr != nil {
		return Unavailable, unusable("%s%w%s%s", group, f.lvmlockdErr, remedy(f.lvmlockdErr), f.sanlock.keptLocks(vg))
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
			how = ": it ended while it held locks: the watchdog resets this node about a minute later, even if sanlock is started again; then other nodes get the volumes. With `watchdog: none`: reboot this node"
		}
		return Unavailable, unusable("%s%w%s", group, f.sanlockErr, how)
	}
	name := "lvm_" + vg
	lease, added := f.sanlock.Spaces[name]
	if state, err := m.watchdogState(st, f, group); err != nil {
		return state, err
	}
	if !listed && added && s.starting.IsZero() {
		if lease.Locks == 0 {
			return Unavailable, unusable("%slvmlockd was restarted, and sanlock still has the lockspace of the earlier one: sanlock client rem_lockspace -s %s (it holds no locks)", group, lease.Arg(name))
		}
		return Unavailable, unusable("%slvmlockd was restarted, and sanlock still has the locks of the earlier one (%d): an lvmlockd with --adopt 1 adopts them with its file /run/lvm/lvmlockd.adopt, which can be written by hand (docs/shared.md, Recovery); or drain this node and reboot it", group, lease.Locks)
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
		return Unavailable, unusable("%s%w: unmount and deactivate its volumes, and flexd starts the lockspace again; by hand: lvmlockctl --drop %s, vgchange --lockstart %s", group, ErrStale, vg, vg)
	case lease.List == "rem":
		return Stopping, newWaitError("the lockspace of volume group %s is being stopped", vg)
	case lease.Dead:
		return Lost, unusable("%s", lostReason(vg, "sanlock stops its users"))
	case lease.HostID != l.HostID:
		return Unavailable, unusable("%slvmlockd and sanlock disagree on the host id (%d, %d): stop and start its lockspace", group, l.HostID, lease.HostID)
	case age > staleAfter(lease.IOTimeout) || lease.Result < 0:
		return Unavailable, unusable("%sits lease on the disks was not renewed for %d s (sanlock: result %d): are its disks reachable? This node stops using the group %d s after the last renewal", group, age, lease.Result, failAfter(lease.IOTimeout))
	}
	return Started, nil
}

// watchdogState observes the watchdog of a lockspace, and returns the state and the error if the group
// must not be used because of it.
func (m *Manager) watchdogState(st *Status, f *facts, group string) (State, error) {
	vg, name := st.VG, "lvm_"+st.VG
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
			return Unavailable, unusable("%swdmd does not guard its lease (was it restarted?): vgchange --lockstop %s while no volume of the group is active; flexd starts the lockspace again", group, vg)
		case guarded && expires <= 0 && lease.List == "spaces":
			return Lost, unusable("%sits lease was not renewed in time: the watchdog is about to reset this node", group)
		}
	}
	return "", nil
}

// isLost reports whether the locks of a lockspace are lost, and updates the reason. Locks stay lost
// until lvmlockd has dropped them; sanlock kills an lvmlockd that does not.
func (s *space) isLost(f *facts, l LockdSpace, listed bool) bool {
	if f.lvmlockdErr != nil {
		return s.lost != "" && s.lockType != ""
	}
	if s.lost != "" && !listed && f.at.After(s.lostAt) {
		s.lost = "" // they were dropped
	}
	if l.Killed || l.Dropped {
		s.lost = cmp.Or(s.lost, "its lease could not be renewed")
	}
	return s.lost != ""
}

// lockdState returns the state of a lockspace in lvmlockd.
func (m *Manager) lockdState(s *space, l LockdSpace, listed bool) (State, error) {
	switch {
	case !listed || l.Failed:
		return Stopped, nil
	case l.Stopping:
		return Stopping, newWaitError("the lockspace of volume group %s is being stopped", s.status.VG)
	case !l.Started:
		return Starting, m.startingError(s)
	}
	return Started, nil
}

func lostReason(vg, why string) string {
	return fmt.Sprintf("volume group %s has lost its locks (%s), and nothing is set up in it: stop the programs that use its volumes, deactivate the volumes, then lvmlockctl --drop %s; otherwise the watchdog resets this node", vg, why, vg)
}

func newWaitError(format string, a ...any) error {
	reason := fmt.Sprintf(format, a...)
	return &volume.WaitError{Reason: reason, Err: volume.Errorf(volume.Unusable, "%s", reason)}
}

// startingError returns the error of a lockspace that is being started. m.mu is held.
func (m *Manager) startingError(s *space) error {
	since := s.starting
	if since.IsZero() && s.status.State == Starting {
		since = s.status.Since // another program starts it
	}
	if since.IsZero() {
		since = m.now()
	}
	timeout := int(cmp.Or(s.status.IOTimeout, defaultIOTimeout).Seconds())
	usual := 2*timeout + 5
	return newWaitError("the lockspace of volume group %s has been starting since %s: sanlock takes about %d s to join it, and up to %d s after this node was reset (io timeout %d s)",
		s.status.VG, since.Format(time.TimeOnly), usual, usual+deadAfter(timeout), timeout)
}

// mismatch describes different versions of LVM and lvmlockd, an untested combination; "" = they agree.
func (v Versions) mismatch() string {
	if v.LVM == "" || v.Lvmlockd == "" || v.LVM == v.Lvmlockd {
		return ""
	}
	return fmt.Sprintf("LVM %s and lvmlockd %s are of different versions: install the packages of one release", v.LVM, v.Lvmlockd)
}

// globalLockReason describes a problem of LVM's global lock, which no volume needs; "" = none.
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

// keptLocks describes the locks that sanlock keeps while lvmlockd does not run.
func (d Sanlock) keptLocks(vg string) string {
	n := d.Spaces["lvm_"+vg].Locks
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; sanlock keeps its locks (%d) for this node, and mounted volumes can be used", n)
}

// orphanReason describes how to release locks of a killed lvmlockd that the next lvmlockd has not
// adopted. With --adopt 1 it adopts those of active volumes.
func orphanReason(orphans []string) string {
	if len(orphans) == 0 {
		return ""
	}
	return fmt.Sprintf("sanlock has locks of an earlier lvmlockd (%d, ORPHAN), so that no node can activate their volumes: %s", len(orphans), ReleaseOrphan(orphans[0]))
}

// ReleaseOrphan returns the command that releases such a lock.
func ReleaseOrphan(lease string) string {
	return "while the volume is inactive on this node (dmsetup ls): sanlock client release -r " + lease + " -O 1 -p $(pidof lvmlockd)"
}
