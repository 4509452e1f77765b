package lockspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/run"
)

// commandDeadline is the time after which a daemon counts as hanging. Its commands do no disk I/O.
const commandDeadline = 10 * time.Second

// lookMaxAge is how long the result of a look is reused.
const lookMaxAge = time.Second

// facts are the states of the daemons at one time. An error says why a state is unknown.
type facts struct {
	at       time.Time // when the look began
	lvmlockd map[string]LockdSpace
	sanlock  Sanlock
	wdmd     map[string]int // the expiry of each client, in seconds from now

	lvmlockdErr, sanlockErr, wdmdErr error
}

// A flight is a look that runs.
type flight struct {
	done  chan struct{}
	facts *facts // set before done is closed
}

// look queries the daemons. Concurrent callers share one look, and a look that began less than
// lookMaxAge ago is reused.
func (m *Manager) look(ctx context.Context) (*facts, error) {
	m.mu.Lock()
	if m.looking == nil {
		if m.last != nil && m.now().Sub(m.last.at) < lookMaxAge {
			defer m.mu.Unlock()
			return m.last, nil
		}
		m.looking = &flight{done: make(chan struct{})}
		go m.ask(m.looking, &facts{at: m.now()})
	}
	l := m.looking
	m.mu.Unlock()
	select {
	case <-l.done:
		return l.facts, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("the lock managers have not answered yet: %w", ctx.Err())
	}
}

// lookNow is look for a caller that has changed something: the look begins after the call.
func (m *Manager) lookNow(ctx context.Context) (*facts, error) {
	m.mu.Lock()
	running := m.looking != nil
	m.mu.Unlock()
	if running {
		if _, err := m.look(ctx); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	m.last = nil
	m.mu.Unlock()
	return m.look(ctx)
}

// ask runs the commands at the same time, since each mostly waits.
func (m *Manager) ask(l *flight, f *facts) {
	var all sync.WaitGroup
	all.Go(func() { f.lvmlockd, f.lvmlockdErr = m.askLvmlockd() })
	all.Go(func() { f.sanlock, f.sanlockErr = m.askSanlock() })
	all.Go(func() { f.wdmd, f.wdmdErr = m.askWdmd() })
	all.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	l.facts, m.last, m.looking = f, f, nil
	for name, lease := range f.sanlock.Spaces {
		if lease.List == "spaces" && strings.HasPrefix(lease.Path, "/dev/") {
			m.leases[name] = lease
		}
	}
	close(l.done)
}

// command runs one of the daemons' commands and returns what it printed.
func (m *Manager) command(step string, argv ...string) (string, error) {
	res, err := m.Runner.Run(context.Background(), run.Cmd{Step: step, Argv: argv, Deadline: commandDeadline})
	return string(res.Stdout), err
}

// A downError reports that a daemon does not run, or does not answer.
type downError struct {
	daemon string // "sanlock"
	pkg    string // Debian's package
	hangs  bool
	absent bool   // it is not installed
	said   string // the output of its command
}

func (e *downError) Error() string {
	switch {
	case e.absent:
		return fmt.Sprintf("%s is not installed (package %s)", e.daemon, e.pkg)
	case e.hangs:
		return fmt.Sprintf("%s does not answer", e.daemon)
	case e.said != "":
		return fmt.Sprintf("%s does not run (%s)", e.daemon, e.said)
	}
	return fmt.Sprintf("%s does not run", e.daemon)
}

// remedy returns the text, to follow the error, with the command that starts a daemon.
func remedy(err error) string {
	if e, ok := errors.AsType[*downError](err); ok && !e.absent && !e.hangs {
		return ": systemctl start " + e.daemon
	}
	return ""
}

// down returns a *downError for the error of a daemon's command, if it is about the daemon.
func down(daemon, pkg, said string, err error) error {
	e := &downError{daemon: daemon, pkg: pkg, said: strings.Join(strings.Fields(said), " ")}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.absent = true
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*run.StuckError)):
		e.hangs = true
	case !errors.As(err, new(*run.ExitError)):
		return err
	}
	return e
}

// askLvmlockd returns the lockspaces of lvmlockd, by VG.
func (m *Manager) askLvmlockd() (map[string]LockdSpace, error) {
	for try := 0; ; try++ {
		out, err := m.command("lvmlockctl", "lvmlockctl", "--info", "--dump")
		if strings.HasPrefix(out, "socket error -98") && try < 10 { // another lvmlockctl receives its dump
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if err != nil {
			return nil, down("lvmlockd", "lvm2-lockd", out, err)
		}
		return ParseLvmlockd(out)
	}
}

func (m *Manager) askSanlock() (Sanlock, error) {
	out, err := m.command("sanlock", "sanlock", "client", "status", "-D")
	if err != nil {
		return Sanlock{}, down("sanlock", "sanlock", "", err)
	}
	return ParseSanlock(out)
}

func (m *Manager) askWdmd() (map[string]int, error) {
	out, err := m.command("wdmd", "wdmd", "-d")
	if err != nil {
		return nil, down("wdmd", "sanlock", "", err)
	}
	return parseWdmd(out)
}
