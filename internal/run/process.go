package run

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
)

// A child is one started process.
type child struct {
	cmd     Cmd
	proc    *os.Process
	started time.Time
	ready   chan struct{} // closed when a gated child is ready
	ended   chan struct{} // closed when the process was waited for
	out     *drain
	errs    *drain
	gate    *os.File // our end of the child's descriptor 3; nil once closed

	mu     sync.Mutex // guards gone, so that no kill can hit a later process with the same pid
	gone   bool
	status syscall.WaitStatus // written before ended is closed
	err    error              // of the wait
}

func start(program string, c Cmd, stdin *os.File) (*child, error) {
	k := &child{cmd: c, ended: make(chan struct{})}
	files := []*os.File{stdin}
	var theirs, ours []*os.File
	fail := func(err error) (*child, error) {
		for _, f := range append(theirs, ours...) {
			f.Close()
		}
		return nil, err
	}
	for range 2 {
		r, w, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		ours, theirs, files = append(ours, r), append(theirs, w), append(files, w)
	}
	if c.Gate != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		ours, theirs, files = append(ours, w), append(theirs, r), append(files, r)
		k.gate = w
		k.ready = make(chan struct{})
	}
	k.started = time.Now()
	pidfd := -1
	proc, err := os.StartProcess(program, c.Argv, &os.ProcAttr{
		Dir:   "/",
		Env:   env,
		Files: files,
		Sys:   &syscall.SysProcAttr{Setpgid: true, PidFD: &pidfd},
	})
	switch {
	case errors.Is(err, unix.EAGAIN):
		return fail(fmt.Errorf("%w: the limit of processes is reached (TasksMax of the unit, pids.max of the container, or that of the node)", err))
	case err != nil:
		return fail(err)
	}
	for _, f := range theirs {
		f.Close()
	}
	k.proc = proc
	k.out = newDrain(ours[0], c.maxOut(), k.ready, c.Line)
	k.errs = newDrain(ours[1], maxStderr, nil, nil)
	go k.wait(pidfd)
	return k, nil
}

// wait waits for the process in a goroutine, without a limit.
func (k *child) wait(pidfd int) {
	// Wait without reaping first: as long as the zombie exists, no other process
	// can have its number, and a kill under the mutex is safe.
	if !ended(pidfd) {
		for {
			err := unix.Waitid(unix.P_PID, k.proc.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			if err != unix.EINTR {
				break
			}
		}
	}
	k.mu.Lock()
	k.gone = true
	state, err := k.proc.Wait()
	k.mu.Unlock()
	if err != nil {
		k.err = err
	} else if s, ok := state.Sys().(syscall.WaitStatus); ok {
		k.status = s
	}
	k.out.finish(pipeGrace)
	k.errs.finish(pipeGrace)
	close(k.ended)
}

// ended waits for the end of the process of a pidfd, which it closes, and reports whether
// it could wait. Unlike waitid it blocks no thread: the threads of a burst, with their
// stacks, would never be freed.
func ended(pidfd int) bool {
	if pidfd < 0 || unix.SetNonblock(pidfd, true) != nil {
		return false // before Linux 5.4
	}
	f := os.NewFile(uintptr(pidfd), "pidfd")
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	known := true
	err = conn.Read(func(fd uintptr) bool {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		known = err == nil || err == unix.EINTR
		return !known || info.Signo != 0
	})
	return known && err == nil
}

func (k *child) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.gone {
		_ = unix.Kill(-k.proc.Pid, unix.SIGKILL)
	}
}

// openGate permits a gated child to continue.
func (k *child) openGate() {
	if k.gate != nil {
		_, _ = k.gate.Write([]byte{'g'}) // the result shows a child that is gone
	}
}

func (k *child) closeGate() {
	if k.gate != nil {
		k.gate.Close()
		k.gate = nil
	}
}

// result is valid after ended.
func (k *child) result() (Result, error) {
	res := Result{Stdout: k.out.bytes(), Stderr: k.errs.bytes()}
	switch {
	case k.err != nil:
		return res, fmt.Errorf("%s: wait: %w", k.cmd.Step, k.err)
	case k.status.Signaled():
		return res, k.exitError(-1, unix.SignalName(k.status.Signal()), res)
	case k.status.ExitStatus() != 0:
		return res, k.exitError(k.status.ExitStatus(), "", res)
	case k.out.overflowed():
		return res, fmt.Errorf("%s: %s printed more than %d bytes", k.cmd.Step, k.cmd.Argv[0], k.cmd.maxOut())
	}
	return res, nil
}

func (k *child) exitError(code int, signal string, res Result) *ExitError {
	said := res.Stderr
	if k.cmd.Argv[0] == selfPath { // the Go runtime prints its stacks after the reason
		said, _, _ = bytes.Cut(said, []byte("\n\n"))
	}
	return &ExitError{Step: k.cmd.Step, Argv: k.cmd.Argv, Code: code, Signal: signal, Stderr: OneLine(said, 1024)}
}

func (k *child) stuck(pid int, done <-chan struct{}) *StuckError {
	return &StuckError{Step: k.cmd.Step, Pid: pid, Since: k.started, Wchan: procfs.Wchan(pid), Done: done}
}

// OneLine makes the output of a program one line of at most so many bytes, with the end of longer
// output, since programs print the reason last.
func OneLine(b []byte, most int) string {
	s := strings.Join(strings.Fields(string(bytes.ToValidUTF8(b, []byte("?")))), " ")
	if len(s) > most {
		s = "…" + strings.ToValidUTF8(s[len(s)-most:], "")
	}
	return s
}
