package reconcile

import (
	"cmp"
	"errors"
	"fmt"
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
	p := &parked{step: step.Kind.String(), since: time.Now()}
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
func (p *parked) text() string {
	s := fmt.Sprintf("%s has been running since %s", p.step, p.since.Format(time.TimeOnly))
	if p.pid != 0 {
		s += fmt.Sprintf(" (pid %d", p.pid)
		if where := cmp.Or(p.wchan, procfs.Wchan(p.pid)); where != "" { // the child may have begun to wait since
			s += " waits in " + where
		}
		if p.what != "" {
			s += " for " + p.what
		}
		s += ")"
	}
	return s + "; nothing is done to this volume until it ends; look at flexd check, the volume's disk and dmesg"
}
