package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// seen are the system calls with effects that other processes can see: files, locks, processes, devices,
// mounts, sockets.
var seen = map[uint64]string{
	unix.SYS_RENAME: "rename", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2",
	unix.SYS_UNLINK: "unlink", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_LINKAT: "linkat",
	unix.SYS_SYMLINK: "symlink", unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_MKDIR: "mkdir", unix.SYS_MKDIRAT: "mkdirat",
	unix.SYS_OPENAT: "openat", unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FALLOCATE: "fallocate",
	unix.SYS_SETXATTR: "setxattr", unix.SYS_FSETXATTR: "fsetxattr",
	unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync",
	unix.SYS_FLOCK: "flock", unix.SYS_FCNTL: "fcntl", unix.SYS_IOCTL: "ioctl",
	unix.SYS_CLONE: "clone", unix.SYS_CLONE3: "clone3", unix.SYS_FORK: "fork", unix.SYS_VFORK: "vfork",
	unix.SYS_EXECVE: "execve", unix.SYS_WAITID: "waitid", unix.SYS_WAIT4: "wait4", unix.SYS_EXIT_GROUP: "exit_group", unix.SYS_KILL: "kill",
	unix.SYS_MOUNT: "mount", unix.SYS_UMOUNT2: "umount2", unix.SYS_OPEN_TREE: "open_tree", unix.SYS_MOVE_MOUNT: "move_mount",
	unix.SYS_FSOPEN: "fsopen", unix.SYS_FSCONFIG: "fsconfig", unix.SYS_FSMOUNT: "fsmount", unix.SYS_MOUNT_SETATTR: "mount_setattr",
	unix.SYS_SOCKET: "socket", unix.SYS_CONNECT: "connect", unix.SYS_ACCEPT4: "accept4", unix.SYS_CLOSE: "close", unix.SYS_SHUTDOWN: "shutdown",
}

// matters reports whether such a call changes what others see.
func matters(call uint64, args [6]uint64) bool {
	switch call {
	case unix.SYS_OPENAT:
		return args[2]&(unix.O_CREAT|unix.O_TRUNC) != 0
	case unix.SYS_FCNTL:
		return args[1] == unix.F_OFD_SETLK || args[1] == unix.F_SETLK || args[1] == unix.F_SETLKW
	case unix.SYS_CLONE:
		return args[0]&unix.CLONE_THREAD == 0
	}
	return seen[call] != ""
}

// A point is a system call of a process's or of a child's: the n-th one that
// matters, whichever of them makes it.
type point struct {
	n     int
	child bool
	call  string
}

func (p point) String() string {
	if p.child {
		return fmt.Sprintf("call %d, %s of a child", p.n, p.call)
	}
	return fmt.Sprintf("call %d, %s", p.n, p.call)
}

// A tracer follows a process and all that it starts.
type tracer struct {
	cmd  *exec.Cmd
	in   io.Closer
	done chan struct{} // closed when it has reported all
	at   point         // the k-th, if it came
	all  int           // how many came
}

const tracing = "FLEXD_E2E_TRACE" // set where this executable is a tracer

// trace follows a process and its children, and kills it right before the k-th visible call; 0 = never.
// Children are not killed: they outlive flexd.
func (h *host) trace(pid, k int) *tracer {
	h.t.Helper()
	t := &tracer{cmd: exec.Command("/proc/self/exe"), done: make(chan struct{})}
	t.cmd.Env = append(os.Environ(), tracing+"="+fmt.Sprint(pid, " ", k))
	t.cmd.Stderr = os.Stderr
	in, err := t.cmd.StdinPipe()
	h.must(err)
	t.in = in
	out, err := t.cmd.StdoutPipe()
	h.must(err)
	h.must(t.cmd.Start())
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		in.Close()
		t.cmd.Wait()
		h.t.Fatalf("process %d cannot be traced: %q", pid, lines.Text())
	}
	go func() {
		defer close(t.done)
		for lines.Scan() {
			var p point
			if _, err := fmt.Sscan(lines.Text(), &p.n, &p.child, &p.call); err != nil {
				fmt.Fprintln(os.Stderr, lines.Text())
				continue
			}
			if t.all = p.n; p.n == k && k > 0 {
				t.at = p
			}
		}
	}()
	return t
}

// end releases the processes that live, and returns the k-th point, if it was reached, and
// the number of points.
func (t *tracer) end() (at point, all int) {
	t.in.Close()
	<-t.done
	t.cmd.Wait()
	return t.at, t.all
}

// traces is the tracer's process, for "PID K". It prints "ready", and then each point. It
// ends with its standard input, or when no process is left; the kernel then releases the
// traced processes.
func traces(of string) error {
	runtime.LockOSThread() // which all of ptrace is about
	var pid, k int
	if _, err := fmt.Sscan(of, &pid, &k); err != nil {
		return err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK
	known := map[int]bool{}
	for more := true; more; { // until there is no thread that came meanwhile
		more = false
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil || len(tasks) == 0 {
			return fmt.Errorf("no process %d", pid)
		}
		for _, task := range tasks {
			tid, _ := strconv.Atoi(filepath.Base(task))
			if known[tid] {
				continue
			}
			more, known[tid] = true, true
			if err := ptrace(unix.PTRACE_SEIZE, tid, 0, options); err != nil && err != unix.EPERM && err != unix.ESRCH { // traced already, or gone
				return err
			}
			_ = ptrace(unix.PTRACE_INTERRUPT, tid, 0, 0)
		}
	}
	fmt.Println("ready")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	n := 0
	for {
		var status unix.WaitStatus
		tid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			return nil
		case err != nil:
			return err
		case !status.Stopped():
			continue
		}
		signal := 0
		switch stop := status.StopSignal(); {
		case stop == unix.SIGTRAP|0x80:
			call, args, entry := syscallOf(tid)
			if !entry || !matters(call, args) {
				break
			}
			n++
			child := !isThread(pid, tid)
			fmt.Println(n, child, seen[call])
			if n == k {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					return err
				}
			}
		case int(status)>>16 == unix.PTRACE_EVENT_STOP && stop != unix.SIGTRAP:
			_ = ptrace(unix.PTRACE_LISTEN, tid, 0, 0) // it is stopped, and stays so
			continue
		case int(status)>>16 == 0:
			signal = int(stop)
		}
		_ = ptrace(unix.PTRACE_SYSCALL, tid, 0, uintptr(signal))
	}
}

// syscallOf returns the call that a stopped task is about to make.
func syscallOf(tid int) (call uint64, args [6]uint64, entry bool) {
	var info struct { // ptrace_syscall_info
		op     uint8
		_      [3]uint8
		arch   uint32
		ip, sp uint64
		call   uint64
		args   [6]uint64
	}
	const get = 0x420e // PTRACE_GET_SYSCALL_INFO
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, get, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0); errno != 0 {
		return 0, args, false
	}
	return info.call, info.args, info.op == 1
}

func isThread(pid, tid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", pid, tid))
	return err == nil
}

func ptrace(request, tid int, addr, data uintptr) error {
	if _, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, uintptr(request), uintptr(tid), addr, data, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// traced runs this executable as a tracer if it was started as one.
func traced() bool {
	of, yes := os.LookupEnv(tracing)
	if !yes {
		return false
	}
	if err := traces(strings.TrimSpace(of)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	return true
}
