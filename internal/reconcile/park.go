package reconcile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A parked lane has a child that does not end. The lane does nothing until the child has ended.
type parked struct {
	step  string
	pid   int
	wchan string
	what  string // what the child waits for, if that is known
	since time.Time
	dir   string // where the volume was to be mounted
}

func (l *lane) isParked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parked != nil
}

// held reports whether a child of an earlier flexd still works on the volume. The mount table is
// not reliable meanwhile: the kernel removes a mount from it before the data is written.
func (l *lane) held() bool {
	e := l.n.Held(l.lock)
	name := l.nameNow()
	if p, ok := l.n.Providers[name.VG].(earlierFinder); ok && e == nil {
		e = p.Earlier(name)
	}
	return e != nil && l.park(volume.Step{}, e)
}

// An earlierFinder is a provider whose commands hold a lock of their group instead of the lane's.
type earlierFinder interface {
	// Earlier returns the command of an earlier flexd that still works on a volume, or nil.
	Earlier(name volume.Name) *run.LockedError
}

// park stops the lane until a child has ended, if err is about such a child.
func (l *lane) park(step volume.Step, err error) bool {
	p := &parked{step: step.Kind.String(), since: time.Now(), dir: l.mountedAt()}
	var done <-chan struct{}
	var stuck *run.StuckError
	var locked *run.LockedError
	switch {
	case errors.As(err, &stuck):
		p.pid, p.wchan, p.what, p.since, done = stuck.Pid, stuck.Wchan, stuck.For, stuck.Since, stuck.Done
	case errors.As(err, &locked):
		if done = locked.Done; step.Kind == 0 {
			p.step = "a child of an earlier flexd"
		}
		if len(locked.Pids) > 0 {
			p.pid = locked.Pids[0]
		}
		if c := locked.Child; c.Pid != 0 {
			p.pid, p.wchan, p.since = c.Pid, c.Wchan, c.Since
		}
	default:
		return false
	}
	l.log().WithField("step", p.step).WithError(err).Warn("parked: nothing is done to this volume until the child has ended")
	e := l.event(status.StuckEvent)
	e.Step, e.Code, e.Message, e.CallIDs = p.step, string(volume.CodeOr(err, volume.InProgress)), p.text(), step.Calls
	l.n.record(e)
	l.mu.Lock()
	l.parked = p
	l.mu.Unlock()
	go func() {
		select {
		case <-done:
		case <-l.n.ctx.Done():
			return
		}
		l.log().WithField("step", p.step).Info("the child has ended")
		e := l.event(status.EndedEvent)
		e.Step, e.CallIDs, e.Duration = p.step, step.Calls, time.Since(p.since).Seconds()
		l.n.record(e)
		l.mu.Lock()
		l.parked = nil
		l.wakeLocked()
		l.mu.Unlock()
	}()
	return true
}

// unfinished reports whether an error is about a child that has not ended.
func unfinished(err error) bool {
	return errors.As(err, new(*run.StuckError)) || errors.As(err, new(*run.LockedError))
}

// text describes the child, with the remedy.
func (p *parked) text() string { return p.state() + "; " + stepHint(p.wait(), p.dir) }

// state describes the child.
func (p *parked) state() string {
	s := fmt.Sprintf("%s has been running since %s", p.step, p.since.Format(time.TimeOnly))
	if p.pid != 0 {
		s += fmt.Sprintf(" (pid %d", p.pid)
		if where := p.wait(); where != "" {
			s += " waits in " + where
		}
		if p.what != "" {
			s += " for " + p.what
		}
		s += ")"
	}
	return s + "; nothing is done to this volume until it ends"
}

// wait returns the wait channel of the child, which may have begun to wait since it was parked.
func (p *parked) wait() string { return cmp.Or(p.wchan, procfs.Wchan(p.pid)) }

// frozenWait is the wait channel of a process that would change a frozen filesystem.
const frozenWait = "percpu_rwsem_wait"

// stepHint is the remedy for a step that does not end, and whose child has that wait channel.
func stepHint(wchan, dir string) string {
	if wchan == frozenWait {
		return fmt.Sprintf("the filesystem may be frozen (fsfreeze -f by a backup): when that has ended, fsfreeze -u %s; otherwise look at the volume's disk and dmesg", cmp.Or(dir, "DIR"))
	}
	return "look at flexd check, the volume's disk and dmesg"
}

// mountedAt returns a directory where the volume was to be mounted, for the owner's commands.
func (l *lane) mountedAt() string {
	if claims := l.n.Store.Claims(l.uuid); len(claims) > 0 {
		return claims[0].Dir
	}
	return ""
}

// stuckClass is the class of the finding, and stuckAfter the time after which there is one.
const (
	stuckClass = "stuck"
	stuckAfter = 20 * time.Second
)

// stuckSteps returns a finding for each volume with a child that does not end, or that waits for a frozen filesystem.
func (n *Node) stuckSteps() (all []status.Finding) {
	for _, l := range n.allLanes() {
		if f, ok := l.stuckStep(); ok && time.Since(f.Since) > stuckAfter {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b status.Finding) int { return strings.Compare(a.VG+"/"+a.LV, b.VG+"/"+b.LV) })
	return all
}

func (l *lane) stuckStep() (f status.Finding, stuck bool) {
	l.mu.Lock()
	p, step, since := l.parked, l.working, l.since
	f = status.Finding{Class: stuckClass, VG: l.name.VG, LV: l.name.LV, UUID: string(l.uuid)}
	l.mu.Unlock()
	if p == nil && step != "" && time.Since(since) > stuckAfter {
		if child := run.Holder(l.lock); child != nil && child.Wchan == frozenWait {
			p = &parked{step: step, pid: child.Pid, wchan: child.Wchan, since: since, dir: l.mountedAt()}
		}
	}
	if p == nil {
		return f, false
	}
	f.Since, f.Message, f.Hint = p.since, p.state(), stepHint(p.wait(), p.dir)
	return f, true
}
