package kubelet

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/flexd/flexd/test/host"
)

// The three ways in which kubelet drives a driver.
type mode string

const (
	noAttach     mode = "attach false"
	byKubelet    mode = "kubelet attaches"
	byController mode = "controller attaches"
)

var modes = []mode{noAttach, byKubelet, byController}

// each runs a test in each mode, on a node made with change. Of the two modes with an attach, one is drawn
// unless a test is named.
func each(t *testing.T, f func(*testing.T, *node), change ...func(*node)) {
	t.Helper()
	some := modes
	if os.Getenv("FLEXD_SOAK") == "" && flag.Lookup("test.run").Value.String() == "" {
		some = []mode{noAttach, modes[1+seeded(t).IntN(2)]}
	}
	in(t, some, f, change...)
}

// always runs a test in each mode, whatever else is left out.
func always(t *testing.T, f func(*testing.T, *node)) {
	t.Helper()
	in(t, modes, f)
}

func in(t *testing.T, some []mode, f func(*testing.T, *node), change ...func(*node)) {
	t.Helper()
	t.Parallel()
	for _, m := range some {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			f(t, newNode(t, m, change...))
		})
	}
}

// A node is a machine in a temporary directory: flexd on loop devices, and kubelet. At the end of its test
// nothing of it may remain on the machine, every call must have succeeded and no pod may have a warning,
// unless the test expects them.
type node struct {
	*host.Node
	t        *testing.T
	mode     mode
	plugins  string
	vg       string
	later    bool // flexdriver is not installed yet
	shell    bool // the driver is test/host/shell-driver, and flexd does not run
	migrates bool // from that driver, which may say "Not supported"
	failures bool // are expected
	settings host.Settings

	mu         sync.Mutex
	world      World
	inUse      []v1.UniqueVolumeName // node.status.volumesInUse, as last reported
	kubelet    *process
	kubelets   int
	controller *controller
}

func newNode(t *testing.T, m mode, change ...func(*node)) *node {
	t.Helper()
	dir, err := os.MkdirTemp(os.Getenv(place), "")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, mode: m, plugins: dir + "/plugins", vg: dir + "/vg0"}
	// As systemd's machines have it: what is mounted is seen in every namespace.
	n.must(unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	n.must(unix.Mount("", dir, "", unix.MS_SHARED, ""))
	n.Node, err = host.At(dir, host.Loops{Dir: dir})
	n.must(err)
	n.Own = func(mount string) bool { return !isVolume(mount) }
	t.Cleanup(n.close)
	n.settings = host.Settings{Lease: lease, Lines: "log: {level: debug}\n",
		Groups: "  - {name: vg0, provider: loopdev, directory: " + n.vg + ", overcommit: true, reserve: 0%, create: true, maxSize: 20GiB, namespaces: ['*']}\n"}
	n.must(os.Mkdir(n.vg, 0o755))
	for _, f := range change {
		f(n)
	}
	n.must(n.Configure(n.settings))
	n.must(os.WriteFile(n.calls(), nil, 0o600))
	n.must(os.WriteFile(n.eventsFile(), nil, 0o600))
	n.must(host.Install(built+"/flexd", n.Flexd()))
	if !n.later {
		n.install(n.Driver)
	}
	if m == byController {
		n.controller = newController(n)
	}
	if !n.shell {
		n.startFlexd()
	}
	n.startKubelet()
	return n
}

// install installs flexdriver in kubelet's plugin directory by a rename, after the dotfile with the mode.
func (n *node) install(driver string) {
	n.t.Helper()
	dir := filepath.Dir(driver)
	n.must(os.MkdirAll(dir, 0o755))
	if n.shell {
		n.must(host.Install(n.shellDriver(), driver))
		return
	}
	answer := `{"attach": true, "supportsMetrics": true}`
	if n.mode == noAttach {
		answer = `{"attach": false, "supportsMetrics": true}`
	}
	n.must(os.WriteFile(dir+"/.lvm.init.json", []byte(answer), 0o644)) // first, and once
	n.must(host.Install(built+"/flexdriver", driver))
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) calls() string      { return n.Dir + "/calls" }
func (n *node) eventsFile() string { return n.Dir + "/events" }

// trace returns all calls until now.
func (n *node) trace() trace {
	n.t.Helper()
	t, err := readTrace(n.calls())
	n.must(err)
	return t
}

// since returns the calls that f causes.
func (n *node) since(f func()) trace {
	n.t.Helper()
	before := len(n.trace())
	f()
	return n.trace()[before:]
}

// events returns kubelet's events about pods.
func (n *node) events() []event {
	text, err := os.ReadFile(n.eventsFile())
	n.must(err)
	var all []event
	for line := range bytes.Lines(text) {
		var e event
		if json.Unmarshal(line, &e) == nil {
			all = append(all, e)
		}
	}
	return all
}

// warnings returns the events that are not of type Normal.
func (n *node) warnings() []event {
	return slices.DeleteFunc(n.events(), func(e event) bool { return e.Type == v1.EventTypeNormal })
}

// flexd.

func (n *node) startFlexd() {
	n.t.Helper()
	n.must(n.Start())
}

// endFlexd ends it with a signal.
func (n *node) endFlexd(s syscall.Signal) {
	n.t.Helper()
	if err := n.Signal(s); err != nil {
		n.t.Error(err)
	}
}

// isVolume reports whether a mount is one for kubelet.
func isVolume(dir string) bool {
	return strings.Contains(dir, "~lvm/") || strings.Contains(dir, "/mounts/") || strings.Contains(dir, "/volume-subpaths/")
}

// volumes lists the mounts for kubelet.
func (n *node) volumes() []string {
	return slices.DeleteFunc(mounts(n.Dir), func(dir string) bool { return !isVolume(dir) })
}

// quiet waits until flexd has released everything.
func (n *node) quiet() {
	n.t.Helper()
	n.eventually("nothing is left", n.Left)
}

// reboot removes the contents of the machine's memory: processes, mounts, devices, /run. The files on disk
// stay, and neither kubelet nor flexd runs.
func (n *node) reboot() {
	n.t.Helper()
	n.killKubelet()
	n.must(n.Clear())
	n.must(os.RemoveAll(n.Run))
}

// close ends the test and checks the promises that hold for every test.
func (n *node) close() {
	t := n.t
	if !t.Failed() {
		for _, p := range slices.Clone(n.world.Pods) {
			n.end(p)
		}
		n.quiet()
		n.expected()
	}
	if n.controller != nil {
		n.controller.stop()
	}
	n.killKubelet()
	if log := n.LogTail(1 << 20); strings.Contains(log, "panic: ") {
		t.Error("flexd panicked")
	}
	if t.Failed() {
		calls := n.trace()
		t.Logf("the calls:\n%s", calls[max(0, len(calls)-200):])
		t.Logf("the events: %q", n.events())
		t.Logf("flexd's log:\n%s", n.LogTail(60))
		t.Logf("kubelet's log:\n%s", host.Tail(n.Dir+"/kubelet.log", 40))
		if status, err := n.Get("/v1/volumes"); err == nil {
			t.Logf("flexd's status: %s", status)
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// expected checks all calls of the test, and the events.
func (n *node) expected() {
	n.t.Helper()
	calls := n.trace()
	if n.migrates {
		calls = slices.DeleteFunc(calls, func(c call) bool { return c.status() == "Not supported" })
	}
	for _, c := range calls {
		switch {
		case c.Exit != "" && !strings.HasPrefix(c.Exit, "signal:"):
			n.t.Errorf("exit status: %s", c)
		case c.status() == "Not supported" && c.verb() != "getvolumename":
			n.t.Errorf("kubelet would never call it again: %s", c)
		}
	}
	if n.failures {
		return
	}
	if f := calls.failed(); len(f) > 0 {
		n.t.Errorf("failed calls:\n%s", f)
	}
	if w := n.warnings(); len(w) > 0 {
		n.t.Errorf("warnings: %q", w)
	}
}

// eventually waits until wrong returns "".
func (n *node) eventually(what string, wrong func() string) {
	n.t.Helper()
	s := ""
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if s = wrong(); s == "" {
			return
		}
	}
	n.t.Fatalf("%s: not after %v: %s", what, soon, s)
}
