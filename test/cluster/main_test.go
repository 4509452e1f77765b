// Package cluster is a Kubernetes cluster on one machine, whose nodes mount volumes with the
// real flexdriver and flexd: an API (pkg/registry's resources over an embedded etcd), the
// scheduler, the controller manager's controllers, the attach-detach controller among them,
// and whole kubelets. Only containers, and what a cloud would add, are missing.
//
// The API and the scheduler live in the process of the tests. The controllers, each kubelet
// and each flexd are processes of their own, so that killing one is kill -9, and each node
// has a mount namespace, as a machine has. The controllers have a flexdriver and no flexd.
package cluster

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/shared/nodes"
)

const (
	mib   = 1 << 20
	lease = 300 * time.Millisecond // of flexd: short, so that a test sees the end of it
	// soon is how long the slowest of these machines may take for what is quick, kubelet's
	// and the controllers' doubling pauses included.
	soon = 4 * time.Minute
)

// What a process of this executable is, in the environment.
const (
	role      = "FLEXD_TEST_ROLE"
	place     = "FLEXD_TEST_PLACE"   // its directory
	nodeName  = "FLEXD_TEST_NODE"    // kubelet's
	apiDir    = "FLEXD_TEST_API"     // the cluster's directory
	pluginDir = "FLEXD_TEST_PLUGINS" // --flex-volume-plugin-dir
	callsFile = "FLEXD_TEST_CALLS"   // where calls of the driver are written down
)

// built is where the two executables are.
var built = "../../bin"

func TestMain(m *testing.M) {
	nodes.Agent()
	switch os.Getenv(role) {
	case "controllers":
		serve(serveControllers, func() {})
	case "kubelet":
		serve(serveKubelet, func() {})
	case "machine":
		serve(serveMachine, endMachine)
	case "guest":
		serve(serveGuest, func() {})
	case "tests":
		os.Exit(tests(m))
	}
	if os.Getuid() != 0 {
		fmt.Println("kubelet mounts: needs root")
		os.Exit(1)
	}
	os.Exit(again())
}

// serve is a process that lives until it is killed, or the tests have ended, however that was.
func serve(f func() error, end func()) {
	logs("v", "2")
	go func() {
		io.Copy(io.Discard, os.Stdin)
		end()
		os.Exit(0)
	}()
	if err := f(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

// logs sets klog's flags.
func logs(flags ...string) {
	fs := flag.NewFlagSet("klog", flag.ExitOnError)
	klog.InitFlags(fs)
	for i := 0; i < len(flags); i += 2 {
		fs.Set(flags[i], flags[i+1])
	}
}

func tests(m *testing.M) int {
	err := host.Alone()
	if dir := os.Getenv("FLEXD_TEST_BIN"); dir != "" {
		built = dir
	}
	built, _ = filepath.Abs(built)
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	log, err2 := os.Create(os.Getenv(place) + "/control.log") // what the API and the scheduler say
	if err != nil || err2 != nil {
		fmt.Println(err, err2)
		return 1
	}
	logs("logtostderr", "false", "stderrthreshold", "FATAL", "one_output", "true")
	klog.SetOutput(log)
	return m.Run()
}

// again runs the tests in a mount namespace of their own, and takes away what they
// leave, even if they panic.
func again() int {
	dir, err := os.MkdirTemp("", "flexd-cluster-")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	n := &host.Node{Dir: dir, Volumes: host.Loops{Dir: dir}}
	defer n.Close() // the mounts have gone with their namespaces
	// A signal is usually for the tests, too, which end.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	go func() {
		<-stop
		time.Sleep(10 * time.Second)
		os.Exit(1) // and they are killed
	}()
	return host.Again(os.Stdout, os.Args[1:], role+"=tests", place+"="+dir)
}
