package mount

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/run"
)

// printed has the output of a program, its exit status, and whether it wrote to a device, or may have.
type printed struct {
	out, errs []byte
	code      int
	wrote     bool
}

// ordinaryScore is the OOM score of programs that parse data that a pod may have written. Without
// it they would inherit flexd's own score, which protects flexd.
const ordinaryScore = 0

// limits are those of one program.
type limits struct {
	time   time.Duration // after which it is killed; 0 = never
	memory int64         // bytes of its address space; 0 = no limit
}

// tool runs a program for a child and returns its output and its exit status. The
// program gets the lane's lock as standard input like the child itself, so that the lock is
// held until both have ended, and the files as its descriptors 3, 4, .... It fails only if
// the program could not be run or died.
func tool(limit limits, pkg string, files []*os.File, argv ...string) (printed, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return printed{}, notInstalled(argv[0], pkg)
	}
	var out, errs bytes.Buffer
	var p printed
	c := exec.Cmd{
		Path: path, Args: argv, Dir: "/",
		Stdin: os.Stdin, Stdout: &out, Stderr: &errs,
		ExtraFiles: files,
		WaitDelay:  time.Second,
	}
	if err = c.Start(); err == nil {
		limited := restrict(c.Process.Pid, limit.memory)
		if limited != nil {
			_ = c.Process.Kill()
		}
		if limit.time > 0 {
			defer time.AfterFunc(limit.time, func() { _ = c.Process.Kill() }).Stop()
		}
		written, chars, unknown := ended(c.Process.Pid)
		err = cmp.Or(limited, c.Wait())
		p.code, p.wrote = c.ProcessState.ExitCode(), unknown != nil || wrote(written, chars-int64(out.Len()+errs.Len()))
	}
	p.out, p.errs = out.Bytes(), errs.Bytes()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !(ok && exit.Exited()) {
		return p, fmt.Errorf("%s: %w", argv[0], err)
	}
	return p, nil
}

// ended waits until a program has ended, and returns what it has written as the kernel counts it. The kernel has that
// until the exit status is read.
func ended(pid int) (bytes, chars int64, err error) {
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	}
	if err != nil {
		return 0, 0, err
	}
	return procfs.Process(pid).Written()
}

// wrote reports whether a program has written to a device, by the bytes of the pages that it made dirty and by the
// characters that it wrote. At its end the kernel may write 64 characters to a file (acct(2)), and counts a large folio
// as dirty. No mkfs writes asynchronously, which would not be counted as characters.
func wrote(bytes, chars int64) bool {
	const sector = 512
	return bytes > 0 && chars >= sector
}

// restrict limits a program that has just started and has read nothing yet. Both limits apply to
// later allocations.
func restrict(pid int, memory int64) error {
	if err := procfs.SetOOMScore(pid, ordinaryScore); err != nil {
		return err
	}
	if memory == 0 {
		return nil
	}
	limit := unix.Rlimit{Cur: uint64(memory), Max: uint64(memory)}
	if err := unix.Prlimit(pid, unix.RLIMIT_AS, &limit, nil); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("limit the memory of %d: %w", pid, err)
	}
	return nil
}

func notInstalled(program, pkg string) error {
	return fmt.Errorf("%w: %s is not installed (Debian package %s)", ErrNoTool, program, pkg)
}

// oneLine makes the output of a program one line.
func oneLine(outputs ...[]byte) string {
	return run.OneLine(bytes.Join(outputs, []byte(" ")), 600)
}
