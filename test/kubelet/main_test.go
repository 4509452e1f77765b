// Package kubelet lets kubelet's own code drive the real flexdriver and flexd:
// its prober, its exec, its FlexVolume plugin, its operation executor, its volume
// manager. Only what surrounds these is played: an API server that is a list of
// objects, a controller that attaches, and containers that are a moment of
// waiting.
//
// Each kubelet is a process of its own (this test's executable, started again),
// so that killing it is kill -9 and a crash of it is a crash. What it calls is
// written down between its exec and the real one, and is shown when a test fails.
package kubelet

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	mib      = 1 << 20
	nodeName = "node-1"
	driver   = "flexd/lvm"
	// lease is short, so that a test sees the end of it.
	lease = 300 * time.Millisecond
	// soon is how long the slowest of these machines may take for what is quick,
	// a few of kubelet's doubling pauses (0.5 s, 1 s, 2 s, 4 s ...) included.
	soon = time.Minute
)

var update = flag.Bool("update", false, "write the golden files again")

// What this executable is, in the environment.
const (
	role      = "FLEXD_TEST_ROLE"
	isTests   = "tests" // in a mount namespace of their own
	isKubelet = "kubelet"
	place     = "FLEXD_TEST_PLACE" // the directory in which every node lies
)

// built is where the two executables are.
var built = "../../bin"

func TestMain(m *testing.M) {
	if os.Getenv(role) == isKubelet {
		serveKubelet()
		return
	}
	if os.Getuid() != 0 {
		fmt.Println("kubelet mounts: needs root")
		os.Exit(1)
	}
	if os.Getenv(role) != isTests {
		os.Exit(again())
	}
	if err := alone(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// A child of flexd's that is stopped survives flexd's kill only if its next
	// parent lives in this session: the kernel hangs up on others.
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if dir := os.Getenv("FLEXD_TEST_BIN"); dir != "" {
		built = dir
	}
	built, _ = filepath.Abs(built)
	// Where the controller runs there is no flexd, not even this machine's.
	os.Setenv("FLEXD_SOCKET", "/nonexistent/flexd-is-not-here.sock")
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	os.Exit(m.Run())
}

// again runs the tests in a mount namespace of their own, and takes away what they
// leave, even if they panic.
func again() int {
	dir, err := os.MkdirTemp("", "flexd-kubelet-")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer sweep(dir)
	runtime.LockOSThread() // Pdeathsig is about the thread
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), role+"="+isTests, place+"="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := c.Run(); err != nil {
		if c.ProcessState == nil || c.ProcessState.ExitCode() < 1 {
			fmt.Println(err)
			return 1
		}
	}
	return c.ProcessState.ExitCode()
}

// sweep ends what runs below dir, and removes it. The mounts have gone with their
// namespace.
func sweep(dir string) {
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		running := processes(dir)
		for pid := range running {
			if pid != os.Getpid() {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		left := loops(dir)
		for _, l := range left {
			free(l)
		}
		if len(running) == 0 && len(left) == 0 {
			break
		}
	}
	os.RemoveAll(dir)
}

// alone lets go, in this namespace only, of what others have mounted.
func alone() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("a mount namespace of the tests' own: %w", err)
	}
	tmp := strings.TrimSuffix(os.TempDir(), "/")
	for _, dir := range mounts(tmp) {
		if dir != tmp {
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	}
	return nil
}

// times scales how often something is repeated: FLEXD_REPEAT=0.1 for a tenth.
func times(n int) int {
	f, err := strconv.ParseFloat(os.Getenv("FLEXD_REPEAT"), 64)
	if err != nil || f <= 0 {
		f = 1
	}
	return max(1, int(float64(n)*f))
}

// seeded is random, and can be had again: FLEXD_SEED=N.
func seeded(t *testing.T) *rand.Rand {
	seed, err := strconv.ParseUint(os.Getenv("FLEXD_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("FLEXD_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
