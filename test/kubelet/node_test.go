package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// The three ways in which kubelet drives a driver.
type mode string

const (
	noAttach     mode = "attach false"
	byKubelet    mode = "kubelet attaches"
	byController mode = "controller attaches"
)

var modes = []mode{noAttach, byKubelet, byController}

// each runs a test in each mode, on a node made with change.
func each(t *testing.T, f func(*testing.T, *node), change ...func(*node)) {
	t.Parallel()
	for _, m := range modes {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			f(t, newNode(t, m, change...))
		})
	}
}

// A node is a machine in a temporary place: flexd on loop devices, and kubelet.
// When its test ends nothing of it may be left on the machine, every call must
// have succeeded and no pod may have got a warning, unless the test expects them.
type node struct {
	t        *testing.T
	mode     mode
	dir      string // everything lies below it
	root     string // kubelet's
	plugins  string
	driver   string // flexdriver, where kubelet finds it
	vg       string
	runDir   string
	later    bool // flexdriver is not installed yet
	failures bool // are expected
	config   string

	mu         sync.Mutex
	world      World
	inUse      []v1.UniqueVolumeName // node.status.volumesInUse, as last reported
	kubelet    *process
	kubelets   int
	controller *controller
	flexd      *exec.Cmd
	flexdEnded chan struct{}
}

func newNode(t *testing.T, m mode, change ...func(*node)) *node {
	t.Helper()
	dir, err := os.MkdirTemp(os.Getenv(place), "")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		t: t, mode: m, dir: dir, root: dir + "/kubelet", plugins: dir + "/plugins", driver: dir + "/plugins/flexd~lvm/lvm",
		vg: dir + "/vg0", runDir: dir + "/run",
	}
	t.Cleanup(n.close)
	// As systemd's machines have it: what is mounted is seen in every namespace.
	n.must(unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	n.must(unix.Mount("", dir, "", unix.MS_SHARED, ""))
	n.config = fmt.Sprintf(`nodeName: %s
kubeletRoots: [%s]
runDir: %s
stateDir: %s/state
lease: %s
log: {level: debug}
volumeGroups:
  - {name: vg0, provider: loopdev, directory: %s, create: true, maxSize: 20GiB}
`, nodeName, n.root, n.runDir, dir, lease, n.vg)
	for _, d := range []string{n.root, n.vg, n.plugins, dir + "/bin"} {
		n.must(os.MkdirAll(d, 0o755))
	}
	for _, f := range change {
		f(n)
	}
	n.must(os.WriteFile(dir+"/flexd.yaml", []byte(n.config), 0o600))
	n.must(os.WriteFile(n.calls(), nil, 0o600))
	n.must(os.WriteFile(n.eventsFile(), nil, 0o600))
	copyFile(t, built+"/flexd", dir+"/bin/flexd")
	if !n.later {
		n.install(n.driver)
	}
	if m == byController {
		n.controller = newController(n)
	}
	n.startFlexd()
	n.startKubelet()
	return n
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	t.Helper()
	// By another process: an executable that one of ours had open for writing, in the
	// instant after a fork, would be busy.
	if out, err := exec.Command("install", "-m", "755", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s (make build)", err, out)
	}
}

// install puts flexdriver where kubelet looks for the first time: in one instant,
// after the dotfile that says how this node attaches.
func (n *node) install(driver string) {
	n.t.Helper()
	dir := filepath.Dir(driver)
	n.must(os.MkdirAll(dir, 0o755))
	answer := `{"attach": true, "supportsMetrics": true}`
	if n.mode == noAttach {
		answer = `{"attach": false, "supportsMetrics": true}`
	}
	n.must(os.WriteFile(dir+"/.lvm.init.json", []byte(answer), 0o644)) // first, and once
	copyFile(n.t, built+"/flexdriver", dir+"/.lvm.new")
	n.must(os.Rename(dir+"/.lvm.new", driver))
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) calls() string      { return n.dir + "/calls" }
func (n *node) eventsFile() string { return n.dir + "/events" }

// trace is all calls until now.
func (n *node) trace() trace {
	n.t.Helper()
	t, err := readTrace(n.calls())
	n.must(err)
	return t
}

// since is the calls that f causes.
func (n *node) since(f func()) trace {
	n.t.Helper()
	before := len(n.trace())
	f()
	return n.trace()[before:]
}

// events is what kubelet told about pods.
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

// warnings is those that tell of trouble.
func (n *node) warnings() []event {
	return slices.DeleteFunc(n.events(), func(e event) bool { return e.Type == v1.EventTypeNormal })
}

// flexd.

func (n *node) startFlexd() {
	n.t.Helper()
	log, err := os.OpenFile(n.dir+"/flexd.log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	n.must(err)
	defer log.Close()
	c := exec.Command(n.dir+"/bin/flexd", "serve", "--config", n.dir+"/flexd.yaml")
	c.Stdout, c.Stderr = log, log
	n.must(c.Start())
	ended := make(chan struct{})
	go func() { c.Wait(); close(ended) }()
	n.mu.Lock()
	n.flexd, n.flexdEnded = c, ended
	n.mu.Unlock()
	n.eventually("flexd serves", func() string {
		select {
		case <-ended:
			n.t.Fatalf("flexd ended: %s", tail(n.dir+"/flexd.log", 20))
		default:
		}
		if _, err := n.get("/healthz"); err != nil {
			return err.Error()
		}
		return ""
	})
}

// endFlexd ends it with a signal.
func (n *node) endFlexd(s syscall.Signal) {
	n.t.Helper()
	n.mu.Lock()
	c, ended := n.flexd, n.flexdEnded
	n.flexd = nil
	n.mu.Unlock()
	if c == nil {
		return
	}
	c.Process.Signal(s)
	select {
	case <-ended:
	case <-time.After(soon):
		n.t.Errorf("flexd does not end by %v", s)
		c.Process.Kill()
		<-ended
	}
}

// get asks flexd's status socket.
func (n *node) get(path string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", n.runDir+"/status.sock")
		},
	}}
	r, err := client.Get("http://flexd" + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, b)
	}
	return string(b), err
}

// The machine.

// mounts lists the mount points below dir, the last made first.
func mounts(dir string) []string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		panic(err)
	}
	var all []string
	for line := range strings.Lines(string(b)) {
		if at := strings.Fields(line)[4]; at == dir || strings.HasPrefix(at, dir+"/") {
			all = append(all, at)
		}
	}
	slices.Reverse(all)
	return all
}

func mounted(dir string) bool { return slices.Contains(mounts(dir), dir) }

// volumes lists what is mounted for kubelet.
func (n *node) volumes() []string {
	return slices.DeleteFunc(mounts(n.dir), func(dir string) bool {
		return !strings.Contains(dir, "flexd~lvm/") && !strings.Contains(dir, "/mounts/") && !strings.Contains(dir, "/volume-subpaths/")
	})
}

// loops lists the loop devices with a file below dir.
func loops(dir string) []string {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	var names []string
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), dir+"/") {
			names = append(names, strings.Split(f, "/")[3])
		}
	}
	return names
}

// free takes a loop device's file away.
func free(name string) {
	if fd, err := unix.Open("/dev/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0)
		unix.Close(fd)
	}
}

// processes lists what runs from dir or for it, by pid.
func processes(dir string) map[int]string {
	all := map[int]string{}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range procs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		exe, _ := os.Readlink(d + "/exe")
		in, _ := os.Readlink(d + "/fd/0") // a child's is its lane's lock
		cmdline, _ := os.ReadFile(d + "/cmdline")
		if strings.HasPrefix(exe, dir+"/") || strings.HasPrefix(in, dir+"/") || bytes.Contains(cmdline, []byte(dir+"/")) {
			all[pid] = strings.TrimSpace(string(bytes.ReplaceAll(cmdline, []byte{0}, []byte(" "))))
		}
	}
	return all
}

// processes is those of the node, without flexd.
func (n *node) processes() map[int]string {
	all := processes(n.dir)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.flexd != nil {
		delete(all, n.flexd.Process.Pid)
	}
	return all
}

// left says what of the node's volumes is still on the machine.
func (n *node) left() string {
	all := n.volumes()
	for _, l := range loops(n.dir) {
		all = append(all, "/dev/"+l)
	}
	for pid, p := range n.processes() {
		all = append(all, fmt.Sprintf("process %d: %s", pid, p))
	}
	notes, _ := filepath.Glob(n.runDir + "/notes/*")
	return strings.Join(append(all, notes...), "; ")
}

// quiet waits until flexd has released everything.
func (n *node) quiet() {
	n.t.Helper()
	n.eventually("nothing is left", n.left)
}

// reboot takes the machine's memory away: processes, mounts, devices, /run. What
// kubelet and flexd have on disk stays, and neither runs.
func (n *node) reboot() {
	n.t.Helper()
	n.killKubelet()
	n.force()
	n.must(os.RemoveAll(n.runDir))
}

// force ends and unmounts everything.
func (n *node) force() {
	n.endFlexd(syscall.SIGKILL)
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for pid := range n.processes() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		for _, dir := range mounts(n.dir) {
			if dir != n.dir {
				unix.Unmount(dir, unix.MNT_DETACH)
			}
		}
		left := loops(n.dir)
		for _, l := range left {
			free(l)
		}
		if len(left) == 0 && len(n.processes()) == 0 && len(mounts(n.dir)) <= 1 {
			return
		}
	}
	n.t.Errorf("still there: %v %v %v", n.processes(), mounts(n.dir), loops(n.dir))
}

// close is the end of the test: every promise that holds for each of them.
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
	if log := tail(n.dir+"/flexd.log", 1<<20); strings.Contains(log, "panic: ") {
		t.Error("flexd panicked")
	}
	if t.Failed() {
		calls := n.trace()
		t.Logf("the calls:\n%s", calls[max(0, len(calls)-200):])
		t.Logf("the events: %q", n.events())
		t.Logf("flexd's log:\n%s", tail(n.dir+"/flexd.log", 60))
		t.Logf("kubelet's log:\n%s", tail(n.dir+"/kubelet.log", 40))
		if status, err := n.get("/v1/volumes"); err == nil {
			t.Logf("flexd's status: %s", status)
		}
	}
	n.force()
	unix.Unmount(n.dir, unix.MNT_DETACH)
	os.RemoveAll(n.dir)
}

// expected judges all calls of the test, and the events.
func (n *node) expected() {
	n.t.Helper()
	for _, c := range n.trace() {
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
	if f := n.trace().failed(); len(f) > 0 {
		n.t.Errorf("failed calls:\n%s", f)
	}
	if w := n.warnings(); len(w) > 0 {
		n.t.Errorf("warnings: %q", w)
	}
}

// eventually waits until what is wrong is nothing.
func (n *node) eventually(what string, wrong func() string) {
	n.t.Helper()
	s := ""
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if s = wrong(); s == "" {
			return
		}
	}
	n.t.Fatalf("%s: not after %v: %s", what, soon, s)
}

func tail(file string, lines int) string {
	b, _ := os.ReadFile(file)
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
