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

// A Moment is when a fault strikes, counted from the last Arm.
type Moment int

// The moments of a fault.
const (
	Never        Moment = iota
	CrashBefore         // flexd dies before it starts the k-th command
	CrashWithin         // while the k-th command runs, which lives on or finds its gate closed
	CrashAfter          // when the k-th command has ended and flexd has not heard of it
	CrashLooking        // when flexd looks at the mount table for the k-th time
	CrashAnswer         // when flexd has made its k-th answer and kubelet has not heard it
	FailBefore          // the k-th command fails without having done anything
	FailAfter           // the k-th command does its work and says that it failed
)

func (m Moment) String() string {
	return [...]string{"never", "crash before command", "crash within command", "crash after command", "crash at look",
		"crash before answer", "failure of command", "false failure of command"}[m]
}

// Moments are all that strike.
func Moments() []Moment {
	return []Moment{CrashBefore, CrashWithin, CrashAfter, CrashLooking, CrashAnswer, FailBefore, FailAfter}
}

// A tap counts what passes between flexd and the machine, and lets one fault
// strike. It is the same on both machines.
type tap struct {
	e *Env

	mu       sync.Mutex
	moment   Moment
	k        int
	op       string // strike only at this operation, "" = any
	commands int    // since Arm
	looks    int
	answers  int
	struck   bool
	total    int // commands in all
	refuse   map[string]error
}

// Arm sets the one fault; counting starts anew.
func (t *tap) arm(m Moment, k int, op string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moment, t.k, t.op, t.commands, t.looks, t.answers, t.struck = m, k, op, 0, 0, 0, false
}

// strikes says whether the fault is now.
func (t *tap) strikes(at int, moments ...Moment) Moment {
	if t.struck || at != t.k || !slices.Contains(moments, t.moment) {
		return Never
	}
	t.struck = true
	return t.moment
}

// errCrashed is what a dead flexd's goroutines get. Nobody hears it.
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
	t, op := r.t, opOf(c)
	if r.l.dead.Load() {
		return run.Result{}, errCrashed
	}
	t.mu.Lock()
	t.total++
	moment := Never
	if t.op == "" || t.op == op {
		t.commands++
		moment = t.strikes(t.commands, CrashBefore, CrashWithin, CrashAfter, FailBefore, FailAfter)
	}
	refused := t.refuse[op]
	t.mu.Unlock()
	if refused != nil {
		return run.Result{}, refused
	}
	started := func() {}
	switch moment {
	case CrashBefore:
		r.l.crash()
		return run.Result{}, errCrashed
	case FailBefore:
		return run.Result{}, fmt.Errorf("%s: %w", c.Step, errStruck)
	case CrashWithin:
		if c.Gate == nil {
			started = r.l.crash
			break
		}
		c.Gate = func([]byte) error {
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

func opOf(c run.Cmd) string {
	if len(c.Argv) > 2 {
		return c.Argv[2]
	}
	return c.Argv[0]
}

// lifeMounts is the mount source of one life of flexd.
type lifeMounts struct {
	asw.MountSource
	t *tap
	l *life
}

func (m lifeMounts) Changed() bool {
	m.t.mu.Lock()
	m.t.looks++
	moment := m.t.strikes(m.t.looks, CrashLooking)
	m.t.mu.Unlock()
	if moment != Never {
		m.l.crash()
	}
	return m.MountSource.Changed()
}

// startedRunner is a Host that says when one command has begun.
type startedRunner struct {
	h       *Host
	started func()
}

func (r startedRunner) Run(ctx context.Context, c run.Cmd) (run.Result, error) {
	return r.h.run(ctx, c, r.started)
}
