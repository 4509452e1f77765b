package reconcile

import (
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// An operation is one step that was done.
type operation struct {
	step    string
	started time.Time
	took    time.Duration
	err     string
	calls   []string
}

// historySize is the number of operations that a lane remembers.
const historySize = 20

func (l *lane) begin(step volume.Step) {
	if l.n.Log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		l.stepLog(step).Debug("begins")
	}
	l.setStep(step.Kind.String())
}

// setStep sets the lane's present step.
func (l *lane) setStep(what string) {
	l.mu.Lock()
	l.working, l.since = what, time.Now()
	l.mu.Unlock()
	l.publish(true)
}

// setProgress replaces the present step by its text with the progress.
func (l *lane) setProgress(what string) {
	l.mu.Lock()
	l.working = what
	l.mu.Unlock()
}

func (l *lane) end(step volume.Step, started time.Time, err error) {
	op := operation{step: step.String(), started: started, took: time.Since(started), calls: step.Calls}
	took := op.took.Round(time.Millisecond / 10)
	if l.n.Stepped != nil {
		l.n.Stepped(l.group(), step.Kind, op.took, err)
	}
	if err != nil {
		op.err = err.Error()
		l.stepLog(step).WithField("took", took).WithError(err).Warn("failed")
	} else if step.Why == volume.Adopted {
		l.stepLog(step).Info(step.Why)
	} else if level := levelOf(step.Kind); l.n.Log.Logger.IsLevelEnabled(level) {
		l.stepLog(step).WithField("took", took).Log(level, "done")
	}
	if err != nil || isWork(step.Kind) {
		l.recordStep(step, op, err)
	}
	l.mu.Lock()
	l.remember(op)
	if err == nil && l.lastErr != nil && l.lastErr.step == step.Kind.String() {
		l.lastErr = nil
	}
	l.mu.Unlock()
	l.clearStep()
	l.n.auditor.Changed(l.group())
}

// clearStep is called when the present step has ended.
func (l *lane) clearStep() {
	l.mu.Lock()
	l.working = ""
	l.mu.Unlock()
	l.acted = time.Now()
	l.publish(true)
}

// isWork reports whether a step is more than a note or a record.
func isWork(k volume.StepKind) bool {
	switch k {
	case volume.Drop, volume.DropLease, volume.RecordSeen:
		return false
	}
	return levelOf(k) == logrus.InfoLevel
}

// recordStep adds a step to the history of the node.
func (l *lane) recordStep(step volume.Step, op operation, err error) {
	e := l.event(status.StepEvent)
	e.Step, e.Dir, e.CallIDs, e.Duration = step.Kind.String(), step.Dir, step.Calls, op.took.Seconds()
	if err != nil {
		e.Code, e.Message = string(volume.CodeOf(err)), op.err
	}
	e.Pod = EventPod(l.podOf(step))
	l.n.record(e)
}

// podOf returns the pod for which a step is taken: the pod of a call, or of the step's directory.
func (l *lane) podOf(step volume.Step) (p dsw.Pod) {
	for _, c := range l.calls() {
		if p == (dsw.Pod{}) && slices.Contains(step.Calls, c.ID) {
			p = c.asked.Options.Pod
		}
	}
	if p == (dsw.Pod{}) && step.Dir != "" {
		p = l.n.podAt(step.Dir)
	}
	return p
}

// record adds to the history of the node, with the pod of the event's directory.
func (n *Node) record(e status.Event) {
	if e.Pod == nil && e.Dir != "" {
		e.Pod = EventPod(n.podAt(e.Dir))
	}
	n.Record(e)
}

// event begins an event of the lane's volume.
func (l *lane) event(t status.EventType) status.Event {
	name := l.nameNow()
	e := status.Event{Type: t, VG: name.VG, LV: name.LV}
	if !l.byName {
		e.UUID = string(l.uuid)
	}
	return e
}

// podAt returns the pod whose claim is at a directory, or at least its uid.
func (n *Node) podAt(dir string) dsw.Pod {
	for _, c := range n.Store.At(dir) {
		if c.Pod != nil {
			return *c.Pod
		}
	}
	return dsw.Pod{UID: n.Observer.Place(dir).Pod}
}

// EventPod returns the pod of an event; nil = it has none.
func EventPod(p dsw.Pod) *status.EventPod {
	if p.UID == "" && p.Name == "" {
		return nil
	}
	return &status.EventPod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// remember adds to the history, in order. The caller holds l.mu.
func (l *lane) remember(done ...operation) {
	l.history = append(l.history, done...)
	slices.SortStableFunc(l.history, func(a, b operation) int { return a.started.Compare(b.started) })
	l.history = slices.Delete(l.history, 0, max(len(l.history)-historySize, 0))
}

// levelOf returns the log level of a step. Notes are internal: the step that needs them is logged
// after them.
func levelOf(k volume.StepKind) logrus.Level {
	switch k {
	case volume.NoteMaking, volume.NoteHeld, volume.NoteReleasing, volume.NoteLease:
		return logrus.DebugLevel
	}
	return logrus.InfoLevel
}
