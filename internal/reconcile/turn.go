package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/volume"
)

// prune abandons the calls whose caller is gone.
func (l *lane) prune() {
	for _, c := range callsOf(l.n.requests.Free(l.uuid)) {
		if !c.callerAlive() {
			err := ErrCallerGone
			if cause := context.Cause(c.ctx); errors.Is(cause, ErrDeadline) {
				err = l.n.explainEnd(c, cause) // the caller hears it
			}
			l.n.requests.Abandon(&c.Request, dsw.Answer{Err: err})
		}
	}
}

// turn works on the volume unless a child still does.
func (l *lane) turn() {
	l.publish(true)
	defer l.publish(false)
	l.facts, l.pending = volume.FS{}, nil
	defer func() { l.table, l.answered = nil, nil }() // a lane that rests keeps no table of all mounts alive
	if l.isParked() || l.byName && len(l.calls()) == 0 || l.held() {
		return
	}
	l.work()
}

// work observes, plans and acts until no step is left, or until the remaining steps have
// to wait.
func (l *lane) work() {
	ctx := l.n.ctx
	var (
		last volume.Step
		h    volume.Have
		err  error
	)
	for ctx.Err() == nil {
		l.prune()
		// The want first, the observation after it: a call that arrives during the
		// observation is answered from the next one.
		w := l.want()
		if last.Kind == volume.NoteLease && l.unchanged() {
			// A lease changes nothing observable, and no call has arrived.
		} else if h, err = l.observe(ctx, w); err != nil {
			if ids := l.answerable(); len(ids) > 0 {
				l.fail(ctx, volume.Step{Calls: ids}, "look", volume.WithCode(volume.CodeOr(err, volume.Unknown), err))
			}
			l.fail(ctx, volume.Step{}, "look", err) // flexd's own work is retried
			return
		}
		l.markPatient(&w, h)
		v := l.settle(&w, h)
		if len(v.Steps) == 0 && v.Waiting {
			l.wakeIn(resumePause)
			return
		}
		if len(v.Steps) == 0 {
			l.rest(w, h)
			return
		}
		step := v.Steps[0]
		if len(step.Calls) == 0 && hasBackoff(step.Kind) && l.retryLater() {
			return
		}
		if sameStep(step, last) {
			// A successful step counts only when its effect is observed.
			l.fail(ctx, step, step.Kind.String(), errors.New("it succeeded, but its effect is not observed; flexd does not repeat it"))
			if last = (volume.Step{}); len(step.Calls) == 0 {
				return
			}
			continue
		}
		last = step
		if err = l.take(ctx, step, &h); err == nil {
			continue
		}
		if last = (volume.Step{}); l.park(step, err) || !l.fail(ctx, step, step.Kind.String(), err) {
			return
		}
	}
}

// take takes a step, and remembers it.
func (l *lane) take(ctx context.Context, step volume.Step, h *volume.Have) error {
	l.begin(step)
	started := time.Now()
	err := l.act(ctx, step, h)
	l.end(step, started, err)
	return err
}

// unchanged reports whether nothing was heard that the last look may have missed.
func (l *lane) unchanged() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.mustLook()
}

// How long a call waits for a suspended device, and how often the lane looks
// meanwhile.
const (
	resumePatience = 10 * time.Second
	resumePause    = 200 * time.Millisecond
)

// markPatient notes which calls still wait for a suspended device.
func (l *lane) markPatient(w *volume.Want, h volume.Have) {
	for _, c := range l.calls() {
		switch {
		case !h.Device.Suspended:
			c.suspended = time.Time{}
			continue
		case c.suspended.IsZero():
			c.suspended = time.Now()
		}
		i := slices.IndexFunc(w.Calls, func(o volume.Call) bool { return o.ID == c.ID })
		if i >= 0 {
			w.Calls[i].Patient = time.Since(c.suspended) < resumePatience
		}
	}
}

// settle plans, answers calls by the plan, and plans again for the remaining calls, all
// from one observation.
func (l *lane) settle(w *volume.Want, h volume.Have) volume.Verdict {
	for {
		v := volume.Plan(*w, h)
		if len(v.Done)+len(v.Refused) == 0 {
			return v
		}
		answered := l.answer(v, h)
		w.Calls = slices.DeleteFunc(w.Calls, func(c volume.Call) bool { return slices.Contains(answered, c.ID) })
	}
}

// hasBackoff reports whether flexd's own step of that kind waits after a failure. A
// note does not: the steps of a call that waits may come after it.
func hasBackoff(k volume.StepKind) bool {
	switch k {
	case volume.NoteHeld, volume.Drop, volume.NoteLease, volume.DropLease:
		return false
	}
	return true
}

// sameStep reports whether a step equals the one just taken.
func sameStep(a, b volume.Step) bool {
	switch a.Kind {
	case 0, volume.NoteHeld:
		return false
	case volume.NoteLease:
		return false // an EndLease may have ended the lease meanwhile
	}
	return a.Kind == b.Kind && a.Dir == b.Dir && a.Size == b.Size && a.Below == b.Below
}

// rest ends a turn without a further step, or with steps that need an unknown fact.
func (l *lane) rest(w volume.Want, h volume.Have) {
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
	l.retry.succeeded()
	if w.Recheck { // and there is nothing to look at
		l.recheck = recheck{}
	}
	looks, next := l.recheck.left, l.recheck.next
	l.mu.Unlock()
	if looks > 0 {
		l.wakeIn(max(time.Until(next), 0)) // the end of a lease is found then, too
		return
	}
	// It may have ended since want was called: then the next turn is due now.
	if lease, ok := l.n.Store.Lease(l.uuid); ok && w.Lease.Live {
		l.wakeIn(max(lease.Until-l.n.Boot(), 0))
	}
}

// mustRetry reports whether flexd must release or observe something that is unknown now:
// there is no event when it becomes known.
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

// retryLater reports whether flexd's own work has to wait after a failure.
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

// wakeIn replaces the lane's one timer.
func (l *lane) wakeIn(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.AfterFunc(d+time.Millisecond, l.wake)
}
