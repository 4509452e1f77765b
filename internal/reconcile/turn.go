package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// prune answers and removes the calls whose caller has ended or stopped waiting.
func (l *lane) prune() {
	for _, c := range callsOf(l.n.requests.Free(l.uuid)) {
		if !c.callerAlive() {
			err := ErrCallerGone
			if cause := context.Cause(c.ctx); errors.Is(cause, ErrDeadline) {
				err = l.n.explainEnd(c, cause) // the caller still reads this answer
			}
			l.n.requests.Abandon(&c.Request, dsw.Answer{Err: err})
		}
	}
}

// turn runs one turn of the lane. It does nothing while a child works on the volume, or if
// the volume is not identified, no call waits for it, and no creation was interrupted.
func (l *lane) turn() {
	l.publish(true)
	defer l.publish(false)
	l.facts, l.pending, l.waits = volume.FS{}, nil, false
	defer func() {
		l.table, l.answered = nil, nil // an idle lane must not keep a whole mount table in memory
		l.endWaitOfTurn()
	}()
	_, creating := l.n.Store.Lease(l.uuid)
	unused := l.byName && len(l.calls()) == 0
	if l.isParked() || unused && !creating || l.held() {
		return
	}
	if !unused {
		l.work()
		return
	}
	if l.retryLater() {
		return
	}
	step, started := volume.Step{Kind: volume.Deactivate}, time.Now()
	l.begin(step)
	err := l.endCreation(l.n.ctx)
	if l.end(step, started, err); err != nil && !l.park(step, err) {
		l.fail(l.n.ctx, step, step.Kind.String(), err)
	}
}

// work observes, plans and takes steps until none is left or the next one must wait.
func (l *lane) work() {
	ctx := l.n.ctx
	var (
		last volume.Step
		h    volume.Have
		err  error
	)
	for ctx.Err() == nil {
		l.prune()
		// Read the want before the observation: a call that arrives during the
		// observation must be answered from a later one.
		w := l.want()
		if last.Kind == volume.NoteLease && l.unchanged() {
			// Writing a lease changes nothing that is observed: the last observation is current.
		} else if h, err = l.observe(ctx, w); err != nil {
			if ids := l.answerable(); len(ids) > 0 {
				l.fail(ctx, volume.Step{Calls: ids}, "look", volume.WithCode(volume.CodeOr(err, volume.Unknown), err))
			}
			l.fail(ctx, volume.Step{}, "look", err) // flexd's own work is retried
			return
		}
		observed := time.Now()
		l.postponeLookUp()
		next := l.markWaiting(&w, h, observed)
		v := l.planAndAnswer(&w, h)
		if len(v.Steps) == 0 && v.Waiting {
			l.wakeIn(next)
			return
		}
		if len(v.Steps) == 0 {
			l.endTurn(w, h)
			return
		}
		step := v.Steps[0]
		if len(step.Calls) == 0 && hasBackoff(step.Kind) && l.retryLater() {
			return
		}
		if repeats(step, last) {
			// The step reported success, but its effect was not observed.
			l.fail(ctx, step, step.Kind.String(), errors.New("it succeeded, but its effect is not observed; flexd does not repeat it"))
			if last = (volume.Step{}); len(step.Calls) == 0 {
				return
			}
			continue
		}
		last = step
		waits, err := l.take(ctx, step, &h)
		if err == nil {
			continue
		}
		if last = (volume.Step{}); !waits && (l.park(step, err) || !l.fail(ctx, step, step.Kind.String(), err)) {
			return
		}
	}
}

// take takes a step and records it for status. It reports whether the step must wait.
func (l *lane) take(ctx context.Context, step volume.Step, h *volume.Have) (waits bool, err error) {
	l.begin(step)
	started := time.Now()
	if err = l.act(ctx, step, h); ctx.Err() == nil && l.postpone(step, err, time.Since(started)) {
		l.clearStep()
		return true, err
	}
	l.endWait(step)
	l.end(step, started, err)
	if errors.Is(err, mount.ErrUnwritten) {
		err = nil // it is unmounted, and the kernel does not write again
	}
	return false, err
}

// unchanged reports whether the last observation is current: since then the lane was not
// woken and its device did not change.
func (l *lane) unchanged() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.mustLook()
}

// planAndAnswer plans, answers the calls that the plan completes or refuses, and plans again
// for the remaining calls, all from one observation.
func (l *lane) planAndAnswer(w *volume.Want, h volume.Have) volume.Verdict {
	for {
		v := volume.Plan(*w, h)
		if len(v.Done)+len(v.Refused) == 0 {
			return v
		}
		answered := l.answer(v, h)
		w.Calls = slices.DeleteFunc(w.Calls, func(c volume.Call) bool { return slices.Contains(answered, c.ID) })
	}
}

// hasBackoff reports whether a step that no call waits for is delayed after a failure. The
// steps that only write or remove a note are not: steps of a waiting call may follow them.
func hasBackoff(k volume.StepKind) bool {
	switch k {
	case volume.NoteHeld, volume.Drop, volume.NoteLease, volume.DropLease:
		return false
	}
	return true
}

// repeats reports whether step a repeats step b, which was just taken. NoteHeld may be taken twice
// in succession, and NoteLease: an EndLease call may have ended the lease meanwhile.
func repeats(a, b volume.Step) bool {
	return a.Kind != volume.NoteHeld && a.Kind != volume.NoteLease &&
		a.Kind == b.Kind && a.Dir == b.Dir && a.Size == b.Size && a.Below == b.Below
}

// endTurn ends a turn that has no further step, and schedules the next one: after a delay
// if a fact is unknown, for the next recheck, or at the end of the lease.
func (l *lane) endTurn(w volume.Want, h volume.Have) {
	if mustRetry(w, h) {
		l.mu.Lock()
		if l.retry.next.Before(time.Now()) {
			l.retry.failed(time.Now())
		}
		l.mu.Unlock()
		l.retryLater()
		return
	}
	l.mu.Lock()
	l.retry = backoff{}
	if w.Recheck { // a recheck was due, but the plan has no step for it
		l.recheck = recheck{}
	}
	rechecks, next := l.recheck.left, l.recheck.next
	l.mu.Unlock()
	if rechecks > 0 {
		l.wakeIn(max(time.Until(next), 0)) // that turn also detects the end of a lease
		return
	}
	// The lease may have ended since want was called: then the next turn starts at once.
	if lease, ok := l.n.Store.Lease(l.uuid); ok && w.Lease.Live {
		l.wakeIn(max(lease.Until-l.n.Boot(), 0))
	}
}

// mustRetry reports whether a fact about a claim, or about the device of a lease that has
// ended, is unknown. No event reports that it has become known, so flexd polls.
func mustRetry(w volume.Want, h volume.Have) bool {
	if len(w.Claims) == 0 && (!w.Lease.Noted || w.Lease.Live) {
		return false
	}
	for _, s := range h.Targets {
		if s.Unknown != "" {
			return true
		}
	}
	return w.Lease.Noted && !w.Lease.Live && h.Device.Activity == volume.ActivityUnknown
}

// retryLater schedules the next turn and returns true if the delay after the last failure
// has not ended.
func (l *lane) retryLater() bool {
	l.mu.Lock()
	left := time.Until(l.retry.next)
	l.mu.Unlock()
	if left <= 0 {
		return false
	}
	l.wakeIn(left)
	return true
}

// wakeIn wakes the lane after d. It replaces an earlier timer.
func (l *lane) wakeIn(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.AfterFunc(d+time.Millisecond, l.wake)
}
