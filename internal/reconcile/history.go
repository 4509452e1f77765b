package reconcile

import (
	"slices"
	"time"

	"github.com/sirupsen/logrus"

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
	l.begun(step.Kind.String())
}

// begun shows what the lane does from now on.
func (l *lane) begun(what string) {
	l.mu.Lock()
	l.working, l.since = what, time.Now()
	l.mu.Unlock()
	l.publish(true)
}

// progressed adds to what the lane does how far it has come.
func (l *lane) progressed(what string) {
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
	} else if level := levelOf(step.Kind); l.n.Log.Logger.IsLevelEnabled(level) {
		l.stepLog(step).WithField("took", took).Log(level, "done")
	}
	l.mu.Lock()
	l.working = ""
	l.remember(op)
	if err == nil && l.lastErr != nil && l.lastErr.step == step.Kind.String() {
		l.lastErr = nil
	}
	l.mu.Unlock()
	l.acted = time.Now()
	l.publish(true)
	l.n.auditor.Changed(l.group())
}

// remember adds to the history, in order. The caller holds l.mu.
func (l *lane) remember(done ...operation) {
	l.history = append(l.history, done...)
	slices.SortStableFunc(l.history, func(a, b operation) int { return a.started.Compare(b.started) })
	l.history = slices.Delete(l.history, 0, max(len(l.history)-historySize, 0))
}

// levelOf returns the log level of a step: notes are internal, and the step that they are
// for follows.
func levelOf(k volume.StepKind) logrus.Level {
	switch k {
	case volume.NoteMaking, volume.NoteHeld, volume.NoteReleasing, volume.NoteLease:
		return logrus.DebugLevel
	}
	return logrus.InfoLevel
}
