package host

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Again runs this program once more in a mount namespace of its own, with these
// arguments and additions to its environment, and returns its exit status: a copy of a mount
// in the namespace of another program's tests would keep its volume in use.
//
// It adopts and reaps what killed processes leave. A child of flexd's that a test has stopped
// survives flexd's kill only if its next parent lives in this session: the kernel hangs up on
// stopped process groups that no process could continue. And each zombie makes every search of
// /proc longer.
func Again(stdout io.Writer, args []string, env ...string) int {
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	c := exec.Command("/proc/self/exe", args...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, stdout, os.Stderr
	c.Env = append(os.Environ(), env...)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if err == nil {
		err = c.Start()
	}
	var status unix.WaitStatus
	for pid := 0; err == nil && pid != c.Process.Pid; {
		if pid, err = unix.Wait4(-1, &status, 0, nil); err == unix.EINTR {
			err = nil
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = c.Wait() // for its output; it is reaped
	if !status.Exited() {
		fmt.Fprintln(os.Stderr, status.Signal())
		return 1
	}
	return status.ExitStatus()
}

// Alone makes such a namespace private and unmounts there what others have mounted
// in temporary places.
func Alone() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("a mount namespace of its own: %w", err)
	}
	for _, tmp := range []string{filepath.Clean(os.TempDir()), "/dev/shm"} {
		for _, dir := range Mounts(tmp) {
			if dir != tmp {
				unix.Unmount(dir, unix.MNT_DETACH)
			}
		}
	}
	return nil
}
