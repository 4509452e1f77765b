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
	"path/filepath"
	"testing"
	"time"

	"github.com/flexd/flexd/test/host"
)

const (
	mib      = 1 << 20
	nodeName = host.Name
	driver   = "flexd/lvm"
	// lease is short, so that a test sees the end of it.
	lease = 300 * time.Millisecond
	// soon is how long the slowest of these machines may take for what is quick,
	// kubelet's doubling pauses (0.5 s, 1 s, 2 s ... two minutes) included.
	soon = 3 * time.Minute
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
	if err := host.Alone(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
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
	n := &host.Node{Dir: dir, Volumes: host.Loops{Dir: dir}}
	defer n.Close() // the mounts have gone with their namespace
	return host.Again(os.Stdout, os.Args[1:], role+"="+isTests, place+"="+dir)
}

var (
	times   = host.Times
	mounted = host.Mounted
	mounts  = host.Mounts
)

func seeded(t *testing.T) *rand.Rand { return host.Random(t) }
