package reconcile

import (
	"errors"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A waiting is a step that cannot succeed yet, and is tried again while a call waits for it.
type waiting struct {
	step  volume.StepKind // 0 = the look-up of the volume
	err   *volume.WaitError
	host  string // the last known host that has the volume; "" = none
	since time.Time
	calls []string // the first that waited for it, and their pod
	pod   dsw.Pod
}

// waitingFor returns the reason if a step must wait.
func waitingFor(err error) *volume.WaitError {
	if errors.As(err, new(*run.StuckError)) {
		return nil
	}
	e, _ := errors.AsType[*volume.WaitError](err)
	return e
}

func (w *waiting) stepName() string {
	if w.step == 0 {
		return "look-up"
	}
	return w.step.String()
}

func (w *waiting) view() *status.Wait {
	v := &status.Wait{Step: w.stepName(), Since: w.since, Reason: w.err.Error()}
	if h := w.err.Holder; h != nil {
		v.Holder = &status.Holder{HostID: h.HostID, Host: h.Host, Since: h.Since, Lease: h.State, Renewed: h.Renewed, FreeAt: h.FreeAt}
	}
	return v
}

// A call waits for a suspended device for resumeTimeout. Its lane observes the device every resumePause.
const (
	resumeTimeout = 10 * time.Second
	resumePause   = 200 * time.Millisecond
)

// The interval at which a step that must wait is tried, and the limit of the pause after a try that took long.
const (
	retryPause    = time.Second
	maxRetryPause = 30 * time.Second
)

// untilRetry returns the time until a step that must wait is tried again; took = the duration of its last
// try. Lanes try at the same moments, so that their provider can serve them with one command, and pause
// for at least as long as a try takes, but for a long try: the reason to wait may end soon after it.
func (n *Node) untilRetry(interval, took time.Duration) time.Duration {
	if interval <= 0 {
		interval = retryPause
	}
	now := n.Boot()
	return ((now+min(took, maxRetryPause))/interval+1)*interval - now
}

// markWaiting sets Waits for each call whose step is not to be tried again yet, and for each
// that has waited for a suspended device for less than resumeTimeout. It returns the time
// until the lane must look again. now is the end of the observation: a try that has become due since then waits for the
// next observation.
func (l *lane) markWaiting(w *volume.Want, h volume.Have, now time.Time) time.Duration {
	next := lastBackoff
	if h.Device.Suspended {
		next = resumePause
	}
	l.waits = false
	for _, c := range l.calls() {
		if !h.Device.Suspended {
			c.suspended = time.Time{}
		} else if c.suspended.IsZero() {
			c.suspended = now
		}
		i := slices.IndexFunc(w.Calls, func(o volume.Call) bool { return o.ID == c.ID })
		if i < 0 {
			continue
		}
		if c.retry.After(now) {
			l.waits, next = true, min(next, time.Until(c.retry))
			w.Calls[i].Waits = true
		} else if h.Device.Suspended {
			w.Calls[i].Waits = now.Sub(c.suspended) < resumeTimeout
		}
	}
	return next
}

// postpone makes the calls of a set-up step wait for its next try, if err asks for that. A release
// does not wait.
func (l *lane) postpone(step volume.Step, err error, took time.Duration) bool {
	e := waitingFor(err)
	if e == nil || len(step.Calls) == 0 || step.Kind == volume.Deactivate || step.Kind == volume.Unmount {
		return false
	}
	now := time.Now()
	next := now.Add(l.n.untilRetry(e.Retry, took))
	for _, c := range l.calls() {
		if slices.Contains(step.Calls, c.ID) {
			c.retry = next
		}
	}
	w := &waiting{step: step.Kind, err: e, since: now, calls: step.Calls, pod: l.podOf(step)}
	if e.Holder != nil {
		w.host = e.Holder.Name()
	}
	l.mu.Lock()
	old := l.waiting
	known := old != nil && old.step == w.step && (w.host == old.host || w.host == "") // which host it is may be unknown for a moment
	if known {
		w.host, w.since, w.calls, w.pod = old.host, old.since, old.calls, old.pod
	}
	l.waiting = w
	l.mu.Unlock()
	if known {
		return true
	}
	if old != nil {
		l.recordWait(status.WaitedEvent, old, "")
	}
	l.log().WithField("step", w.stepName()).WithError(e).Info("waits")
	l.recordWait(status.WaitingEvent, w, e.Error())
	return true
}

// postponeLookUp makes the calls that may need the volume's metadata wait, if the last look-up had to
// wait. Otherwise it ends their wait for the metadata.
func (l *lane) postponeLookUp() {
	if l.blocked == nil {
		l.endWait(volume.Step{})
		return
	}
	var step volume.Step
	for _, c := range l.calls() {
		if c.Verb != volume.Release {
			step.Calls = append(step.Calls, c.ID)
		}
	}
	l.postpone(step, l.blocked, 0)
}

// endWait ends the wait for a step that was taken.
func (l *lane) endWait(step volume.Step) {
	l.mu.Lock()
	w := l.waiting
	l.mu.Unlock()
	if w != nil && w.step == step.Kind {
		l.dropWait(w, "")
	}
}

// endWaitOfTurn ends the wait for a step that no call waits for any more.
func (l *lane) endWaitOfTurn() {
	l.mu.Lock()
	w := l.waiting
	l.mu.Unlock()
	if w == nil || l.waits || l.n.ctx.Err() != nil {
		return
	}
	why := ""
	if len(l.calls()) == 0 {
		why = "no call waits for it any more"
	}
	l.dropWait(w, why)
}

func (l *lane) dropWait(w *waiting, why string) {
	l.mu.Lock()
	l.waiting = nil
	l.mu.Unlock()
	for _, c := range l.calls() {
		c.retry = time.Time{}
	}
	l.recordWait(status.WaitedEvent, w, why)
}

func (l *lane) recordWait(t status.EventType, w *waiting, message string) {
	e := l.event(t)
	e.Step, e.CallIDs, e.Pod, e.Message = w.stepName(), w.calls, EventPod(w.pod), message
	if t == status.WaitedEvent {
		e.Duration = time.Since(w.since).Seconds()
	}
	l.n.record(e)
}
