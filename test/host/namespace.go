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
func Again(stdout io.Writer, args []string, env ...string) int {
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	c := exec.Command("/proc/self/exe", args...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, stdout, os.Stderr
	c.Env = append(os.Environ(), env...)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := c.Run(); err != nil && (c.ProcessState == nil || c.ProcessState.ExitCode() < 1) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return c.ProcessState.ExitCode()
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
