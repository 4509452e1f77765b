// Package run is the only package that starts processes.
//
// A child does everything that may wait for a volume: it is a system tool, or flexd itself
// re-executed. A child has its own process group, a deadline, LC_ALL=C, and its lane's lock
// file as standard input: a held lock shows that the child lives, also to the next flexd. The
// package does not parse the output of tools.
package run

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/procfs"
)

// A Cmd is one child to start.
type Cmd struct {
	Step     string        // the step of the volume, for logs and status: "mkfs"
	Argv     []string      // never empty, and never holds a secret
	Lock     string        // lock file, flock'ed for the child's life and given as its standard input; "" = /dev/null
	Deadline time.Duration // after it the process group is killed, or only reported if NoKill
	NoKill   bool          // never killed: it is reported as stuck and left to end by itself
	MaxOut   int           // bytes of standard output, beyond which it has failed; 0 = 1 MiB
	Mutates  bool          // changes something: false lets tests verify that an observation changes nothing

	// Line, if set, is called with each line of standard output as it comes, also after Run has
	// reported the child as stuck.
	Line func(line []byte)

	// Gate, if set, makes the command two-phased. The child prints a line when it is ready
	// and waits on descriptor 3; Gate is then called. If it returns nil, the child
	// continues; otherwise Run closes the pipe, the child ends without an effect, and Run
	// returns Gate's error.
	Gate func() error
}

// A Result is the output of a child that has ended.
type Result struct {
	Stdout []byte // without the ready line; at most Cmd.MaxOut
	Stderr []byte // at most 64 KiB
}

// A Runner starts children. It returns an *ExitError when the child failed, a *StuckError
// when the child did not end by its deadline, and a *LockedError when a living child holds
// the lock. The result has the output of a killed child, too.
type Runner interface {
	Run(ctx context.Context, c Cmd) (Result, error)
}

// An ExitError is the failure of a child that has ended.
type ExitError struct {
	Step   string
	Argv   []string
	Code   int    // exit status, -1 if it died by a signal
	Signal string // the signal's name, or ""
	Stderr string // trimmed, one line
	Err    error  // context.DeadlineExceeded when it was killed at its deadline, or nil
}

func (e *ExitError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s ", e.Step, e.Argv[0])
	switch {
	case e.Err != nil:
		fmt.Fprintf(&b, "was killed: %v", e.Err)
	case e.Signal != "":
		fmt.Fprintf(&b, "died by %s", e.Signal)
	default:
		fmt.Fprintf(&b, "exit status %d", e.Code)
	}
	if e.Stderr != "" {
		fmt.Fprintf(&b, ": %s", e.Stderr)
	}
	return b.String()
}

func (e *ExitError) Unwrap() error { return e.Err }

// A StuckError describes a child that does not end. Its volume stays parked until Done is
// closed.
type StuckError struct {
	Step  string
	Pid   int
	Since time.Time
	Wchan string          // where in the kernel it waits, "" = not known
	For   string          // the reason of its wait, as text, if the caller of Run knows it; "" = not known
	Done  <-chan struct{} // closed when the child has ended
}

func (e *StuckError) Error() string {
	where := ""
	if e.Wchan != "" {
		where = " in " + e.Wchan
	}
	if e.For != "" {
		where += " for " + e.For
	}
	return fmt.Sprintf("%s: pid %d has been running since %s (waits%s)", e.Step, e.Pid, e.Since.Format(time.TimeOnly), where)
}

// A LockedError reports that a child of an earlier flexd, or a stuck child, still holds the
// lane's lock. Done is closed when the lock is free.
type LockedError struct {
	Step  string
	Pids  []int          // the holders that were found
	Child procfs.Waiting // of these, the one that the others wait for; zero = none was found
	Done  <-chan struct{}
}

func (e *LockedError) Error() string {
	if len(e.Pids) == 0 {
		return fmt.Sprintf("%s: an earlier child is still running on this volume", e.Step)
	}
	return fmt.Sprintf("%s: an earlier child is still running on this volume (pid %s)", e.Step, strings.Trim(fmt.Sprint(e.Pids), "[]"))
}
