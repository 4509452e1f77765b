package hosttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/run"
)

// A Moment is a kind of point where a fault occurs, counted from the last Arm.
type Moment int

// The moments of a fault.
const (
	Never        Moment = iota
	CrashBefore         // flexd dies before it starts the k-th command
	CrashWithin         // while the k-th command runs, which lives on or finds its gate closed
	CrashAfter          // when the k-th command has ended, before flexd knows
	CrashLooking        // when flexd looks at the mount table for the k-th time
	CrashNoting         // in the middle of its k-th change of a note: the new one lies beside its place, or the old one is still there
	CrashAnswer         // when flexd has made its k-th answer and kubelet has not received it
	FailBefore          // the k-th command fails without having done anything
	FailAfter           // the k-th command does its work and says that it failed
	KillBefore          // the flexdrivers that wait are killed before flexd starts the k-th command
	KillWithin          // while the k-th command runs; a mount is about to land
	KillLooking         // when flexd looks at the mount table for the k-th time
)

func (m Moment) String() string {
	return [...]string{"never", "crash before command", "crash within command", "crash after command", "crash at look",
		"crash in a note", "crash before answer", "failure of command", "false failure of command",
		"flexdriver killed before command", "flexdriver killed within command", "flexdriver killed at look"}[m]
}

// Moments returns all moments of faults.
func Moments() []Moment {
	return []Moment{CrashBefore, CrashWithin, CrashAfter, CrashLooking, CrashNoting, CrashAnswer, FailBefore, FailAfter, KillBefore, KillWithin, KillLooking}
}

// A tap counts the commands, looks, notes and answers of flexd, and causes one fault. It
// is the same on both machines.
type tap struct {
	e *Env

	mu     sync.Mutex
	fault  fault
	steps  map[string]int // since Arm, by step; "" = commands in all
	struck []string
	total  int // commands in all
	refuse map[string]error
}

// A fault is an injected failure and its time.
type fault struct {
	moment Moment
	k      int
	step   string // strike only at this step, "" = any
	each   bool   // strike once at each step
}

// The steps that are not commands.
const look, answer, note = "look", "answer", "note"

// arm sets the fault; counting starts anew.
func (t *tap) arm(f fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fault, t.steps, t.struck = f, map[string]int{}, nil
}

// count counts a step, and reports whether the fault occurs now.
func (t *tap) count(step string, moments ...Moment) Moment {
	f := t.fault
	t.steps[step]++
	at := t.steps[step]
	if step != look && step != answer && step != note && f.step == "" && !f.each {
		t.steps[""]++
		at = t.steps[""]
	}
	switch {
	case at != f.k, !slices.Contains(moments, f.moment),
		f.step != "" && f.step != step,
		!f.each && len(t.struck) > 0:
		return Never
	}
	t.struck = append(t.struck, step)
	return f.moment
}

// errCrashed is the error of a dead flexd's goroutines. It has no effect.
var errCrashed = errors.New("flexd was killed")

// errStruck is an ordinary failure.
var errStruck = errors.New("simulated failure")

// lifeRunner is the runner of one life of flexd.
type lifeRunner struct {
	t     *tap
	l     *life
	inner func(started func()) run.Runner
}

func (r lifeRunner) Run(ctx context.Context, c run.Cmd) (run.Result, error) {
	t := r.t
	if r.l.dead.Load() {
		return run.Result{}, errCrashed
	}
	t.mu.Lock()
	t.total++
	moment := t.count(c.Step, CrashBefore, CrashWithin, CrashAfter, FailBefore, FailAfter, KillBefore, KillWithin)
	refused := t.refuse[c.Step]
	t.mu.Unlock()
	if t.e.Command != nil {
		t.e.Command(c)
	}
	if refused != nil {
		return run.Result{}, refused
	}
	started := func() {}
	switch moment {
	case CrashBefore:
		r.l.crash()
		return run.Result{}, errCrashed
	case KillBefore:
		t.e.killDrivers()
	case KillWithin:
		gate := c.Gate
		if gate == nil {
			started = t.e.killDrivers
			break
		}
		c.Gate = func() error {
			t.e.killDrivers()
			err := gate()
			if err == nil && c.Step == "mount" {
				t.e.broke("a mount was permitted without a waiting request")
			}
			return err
		}
	case FailBefore:
		return run.Result{}, fmt.Errorf("%s: %w", c.Step, errStruck)
	case CrashWithin:
		if c.Gate == nil {
			started = r.l.crash
			break
		}
		gate := c.Gate
		c.Gate = func() error {
			if c.Step == "mkfs" { // its record may be written
				_ = gate()
			}
			r.l.crash()
			return errCrashed
		}
	}
	res, err := r.inner(started).Run(ctx, c)
	switch {
	case r.l.dead.Load():
		return run.Result{}, errCrashed
	case moment == CrashAfter:
		r.l.crash()
		return run.Result{}, errCrashed
	case moment == FailAfter && err == nil:
		return run.Result{}, fmt.Errorf("%s: %w", c.Step, errStruck)
	}
	return res, err
}

// lifeMounts is the mount source of one life of flexd.
type lifeMounts struct {
	asw.MountSource
	t *tap
	l *life
}

func (m lifeMounts) Changed() bool {
	m.t.e.pause(m.l, "look")
	m.t.mu.Lock()
	moment := m.t.count(look, CrashLooking, KillLooking)
	m.t.mu.Unlock()
	switch moment {
	case CrashLooking:
		m.l.crash()
	case KillLooking:
		m.t.e.killDrivers()
	}
	return m.MountSource.Changed()
}

// noting is called in the middle of each change of a note.
func (t *tap) noting(l *life) {
	if l.dead.Load() {
		return
	}
	t.mu.Lock()
	moment := t.count(note, CrashNoting)
	t.mu.Unlock()
	if moment != Never {
		l.crash()
	}
}

// startedRunner is a Host that reports when one command has begun.
type startedRunner struct {
	h       *Host
	started func()
}

func (r startedRunner) Run(ctx context.Context, c run.Cmd) (run.Result, error) {
	return r.h.run(ctx, c, r.started)
}
