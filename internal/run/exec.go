package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
)

// The time that a child may take to end after a kill, and the time that its output may stay open
// after its end (a grandchild may hold the pipes forever).
const (
	killGrace = 2 * time.Second
	pipeGrace = time.Second
)

// The directories in which a program without a slash in its name is looked up, and the
// whole environment of every child. Children do not inherit flexd's own environment.
var (
	path = []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	env  = []string{"LC_ALL=C", "PATH=" + strings.Join(path, ":")}
)

// An Exec is the real Runner.
type Exec struct {
	// Started, if set, is called after each start: it lets tests and
	// benches count processes. It must be set before the first Run.
	Started func(c Cmd)

	mu      sync.Mutex
	waiters map[string]<-chan struct{} // guarded by mu: locks with a waiter, by path
}

// NewExec returns the real Runner. It sets close-on-exec on every descriptor that flexd was
// started with: a child inherits none of them.
func NewExec() *Exec {
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) // Go sets it on its own descriptors
	return &Exec{}
}

// Run starts c and waits for its end, for its deadline, or for ctx to be done. When ctx is
// done, Run returns at once: it kills a child that changes nothing, and lets other children
// end by themselves.
func (e *Exec) Run(ctx context.Context, c Cmd) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	program, err := lookPath(c.Argv[0])
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", c.Step, err)
	}
	stdin, err := e.stdin(c)
	if err != nil {
		return Result{}, err
	}
	k, err := start(program, c, stdin)
	if err != nil {
		release(stdin)
		return Result{}, fmt.Errorf("%s: %w", c.Step, err)
	}
	stdin.Close() // from here on only the child holds the lock
	if e.Started != nil {
		e.Started(c)
	}
	return e.watch(ctx, k)
}

// watch waits for the end of a child, kills it at its deadline, or reports it as stuck.
func (e *Exec) watch(ctx context.Context, k *child) (Result, error) {
	defer k.closeGate() // a child that still waits ends without an effect
	var deadline <-chan time.Time
	if k.cmd.Deadline > 0 {
		t := time.NewTimer(k.cmd.Deadline)
		defer t.Stop()
		deadline = t.C
	}
	var refused error
	ready := k.ready
	for {
		select {
		case <-ready:
			ready = nil
			if refused = k.cmd.Gate(); refused == nil && ctx.Err() == nil {
				k.openGate()
			}
			k.closeGate()

		case <-k.ended:
			res, err := k.result()
			if refused != nil {
				err = refused
			}
			return res, err

		case <-deadline:
			k.closeGate()
			if k.cmd.NoKill {
				return Result{}, k.stuck(k.proc.Pid, k.ended)
			}
			k.kill()
			return e.afterKill(k)

		case <-ctx.Done():
			k.closeGate()
			if !k.cmd.Mutates && !k.cmd.NoKill {
				k.kill()
				select {
				case <-k.ended:
				case <-time.After(killGrace):
				}
			}
			return Result{}, ctx.Err()
		}
	}
}

// afterKill waits briefly for a killed child and its own children: the lock is free only
// when all of them have ended.
func (e *Exec) afterKill(k *child) (Result, error) {
	limit := time.NewTimer(killGrace)
	defer limit.Stop()
	select {
	case <-k.ended:
	case <-limit.C:
		return Result{Stdout: k.out.bytes()}, k.stuck(k.proc.Pid, k.ended)
	}
	res, err := k.result()
	if exit, ok := errors.AsType[*ExitError](err); ok {
		exit.Err = context.DeadlineExceeded
	} else if err == nil {
		return res, nil // it succeeded just before the kill
	}
	if k.cmd.Lock == "" {
		return res, err
	}
	for {
		free, pids, lerr := LockFree(k.cmd.Lock)
		if lerr != nil || free {
			return res, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-limit.C:
			pid := k.proc.Pid
			if w := procfs.Deepest(pids); w != nil {
				pid = w.Pid
			}
			return res, k.stuck(pid, e.lockDone(k.cmd.Lock))
		}
	}
}

// stdin opens the child's standard input, locked if c has a lock.
func (e *Exec) stdin(c Cmd) (*os.File, error) {
	if c.Lock == "" {
		return os.Open(os.DevNull)
	}
	f, pids, err := tryLock(c.Lock, unix.O_CREAT)
	switch {
	case err == nil:
		return f, nil
	case !errors.Is(err, unix.EWOULDBLOCK):
		return nil, fmt.Errorf("%s: lock: %w", c.Step, err)
	}
	return nil, locked(c.Step, pids, e.lockDone(c.Lock))
}

// lockDone returns a channel that is closed when the lock is free. All waiters for one lock
// share one thread.
func (e *Exec) lockDone(lock string) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if done, ok := e.waiters[lock]; ok {
		return done
	}
	done := LockDone(lock)
	if e.waiters == nil {
		e.waiters = map[string]<-chan struct{}{}
	}
	e.waiters[lock] = done
	go func() {
		<-done
		e.mu.Lock()
		delete(e.waiters, lock)
		e.mu.Unlock()
	}()
	return done
}

func lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range path {
		p := filepath.Join(dir, name)
		if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", &fs.PathError{Op: "exec", Path: name, Err: syscall.ENOENT}
}
