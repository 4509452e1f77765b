// Package e2e runs the real flexd and the real flexdriver as kubelet does, on
// real loop devices and filesystems, in a temporary directory of each test's
// own. When a test ends nothing of it may be left on the machine.
//
// With the tag vm the same tests run on real LVM, in the virtual machine of
// `make test-vm`, and those of files *_vm_test.go with them; those that are about
// files and their loop devices are in *_loop_test.go. What takes long there is left to
// FLEXD_SOAK: see long.
package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	testhost "github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/umount"
)

const (
	mib  = 1 << 20
	node = testhost.Name
	// lease is short, so that a test sees the end of it.
	lease = 300 * time.Millisecond
)

var (
	mounts    = testhost.Mounts
	mounted   = testhost.Mounted
	times     = testhost.Times
	growsExt4 = testhost.GrowsExt4
)

func seeded(t *testing.T) *rand.Rand { return testhost.Random(t) }

// logLines is how much of flexd's log a failed test shows.
var logLines = 80

// built is where the two executables are.
var built string

const inside = "FLEXD_E2E_INSIDE" // set in the mount namespace of the tests

func TestMain(m *testing.M) {
	if traced() {
		return
	}
	if os.Getuid() == 0 && os.Getenv(inside) == "" && testhost.Unit == "" {
		os.Exit(testhost.Again(os.Stdout, os.Args[1:], inside+"=1"))
	}
	code := 1
	defer func() { os.Exit(code) }()
	if os.Getuid() == 0 {
		if err := testhost.Alone(); err != nil {
			fmt.Println(err)
			return
		}
	}
	dir, err := os.MkdirTemp("", "flexd-e2e-bin-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	if built, err = executables(dir); err != nil {
		fmt.Println(err)
		return
	}
	pass()
	code = m.Run()
}

// pass leaves out what is too long for a run in which nothing is asked for by
// name, unless everything is to be tried, and what is not for systemd. With -skip, it leaves out more.
func pass() {
	flag.Parse()
	run, skip := flag.Lookup("test.run").Value, flag.Lookup("test.skip").Value
	if run.String() != "" {
		return
	}
	if testhost.Unit != "" {
		run.Set("^(" + strings.Join(restricted, "|") + ")$")
		return
	}
	left := restricted
	if !soak {
		left = append(left, long...)
	}
	var all []string
	if len(left) > 0 {
		all = append(all, "^("+strings.Join(left, "|")+")$")
	}
	if skip.String() != "" {
		all = append(all, skip.String())
	}
	skip.Set(strings.Join(all, "|"))
}

// need is the only place that skips: what this machine lacks. CI lacks nothing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	skip := t.Skipf
	if os.Getenv("CI") == "true" {
		skip = t.Fatalf
	}
	if os.Getuid() != 0 {
		skip("needs root")
	}
	if what := lacks(); what != "" {
		skip("needs %s", what)
	}
	for _, p := range append(programs, tools...) {
		if _, err := exec.LookPath(p); err != nil {
			if _, err := os.Stat("/usr/sbin/" + p); err != nil {
				skip("needs %s", p)
			}
		}
	}
}

// some are rows of a table: all of them, or as many as times scales it to, at
// random, but that many at least.
func some[T any](r *rand.Rand, rows []T, least int) []T {
	n := max(least, times(len(rows)))
	if n >= len(rows) {
		return rows
	}
	drawn := make([]T, 0, n)
	for _, i := range r.Perm(len(rows))[:n] {
		drawn = append(drawn, rows[i])
	}
	return drawn
}

// A host is a node, and its test.
type host struct {
	*testhost.Node
	storage
	t        *testing.T
	settings settings
	disks    []string // filesystems of the test's own for flexd's files, see disk
}

// settings are what a test may want else than usual in the configuration.
type settings struct {
	roots  []string // kubeletRoots
	lease  time.Duration
	extra  string // further lines
	groups string // further volume groups
	vg     string // lines of vg0 instead of "create: true, maxSize: 20GiB"
}

func newHost(t *testing.T, change ...func(*host)) *host {
	t.Helper()
	need(t, "mkfs.ext4")
	dir, err := os.MkdirTemp("", "flexd-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t}
	h.Node, err = testhost.At(dir, nil)
	h.must(err)
	h.storage = newStorage(h)
	h.Volumes = h.storage
	h.Own = func(mount string) bool { return slices.Contains(h.disks, mount) }
	t.Cleanup(h.close)
	h.must(testhost.Install(built+"/flexd", h.Flexd()))
	h.must(testhost.Install(built+"/flexdriver", h.Driver))
	h.settings = settings{roots: []string{h.Root}, lease: lease, vg: "create: true, maxSize: 20GiB"}
	for _, f := range change {
		f(h)
	}
	h.configure()
	h.start()
	return h
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// everyNamespace ends the configuration of a group.
const everyNamespace = ", namespaces: ['*']"

func (h *host) configure() {
	h.t.Helper()
	s := h.settings
	provider := h.group("vg0")
	if strings.Contains(s.vg, "namespaces:") {
		provider = strings.TrimSuffix(provider, everyNamespace)
	}
	h.must(h.Configure(testhost.Settings{
		Roots: s.roots, Lease: s.lease, Lines: "log: {level: debug}\n" + s.extra,
		Groups: fmt.Sprintf("  - {name: vg0, %s, %s}\n%s", provider, s.vg, s.groups),
	}))
}

// start runs flexd and returns when it serves.
func (h *host) start() {
	h.t.Helper()
	h.must(h.Start())
}

// gone waits until flexd has ended by itself, having said why.
func (h *host) gone(why string) {
	h.t.Helper()
	how, err := h.Wait()
	h.must(err)
	if how == "exit status 0" {
		h.t.Error("flexd exited with status 0 without a signal")
	}
	if log := h.LogTail(5); !strings.Contains(log, why) {
		h.t.Errorf("flexd's last words: %s", log)
	}
}

// stop ends flexd as systemd does. It returns how long that took.
func (h *host) stop() time.Duration {
	h.t.Helper()
	begun := time.Now()
	if err := h.Signal(syscall.SIGTERM); err != nil {
		h.t.Error(err)
	}
	return time.Since(begun)
}

// kill is kill -9.
func (h *host) kill() {
	h.t.Helper()
	h.must(h.Signal(syscall.SIGKILL))
}

// restart is kill -9 and the start of the next flexd.
func (h *host) restart() {
	h.t.Helper()
	h.kill()
	h.start()
}

// eventually waits until what is wrong is nothing.
func (h *host) eventually(what string, wrong func() string) {
	h.t.Helper()
	if s := h.within(soon, wrong); s != "" {
		h.t.Errorf("%s: not after %v: %s", what, soon, s)
	}
}

func (h *host) within(d time.Duration, wrong func() string) string {
	begun := time.Now()
	for {
		s := wrong()
		passed := time.Since(begun)
		if s == "" || passed > d {
			return s
		}
		time.Sleep(min(max(passed/20, pace*10*time.Millisecond), 200*time.Millisecond)) // each look costs the tests beside it their time
	}
}

// quiet waits until nothing is left of the host but an idle flexd.
func (h *host) quiet() {
	h.t.Helper()
	h.eventually("nothing is left", h.Left)
}

// close ends the host: after any test, kubelet has released everything, and flexd is to
// have done so, too.
func (h *host) close() {
	if h.Pid() != 0 {
		if !h.t.Failed() {
			h.quiet()
		}
		h.stop()
		if !h.t.Failed() {
			h.eventually("nothing is left after flexd's end", h.Left) // a child that observes may end after flexd
		}
	}
	for _, dir := range h.disks {
		if err := umount.Plain(dir); err != nil && !h.t.Failed() {
			h.t.Errorf("%s: %v", dir, err)
		}
	}
	if b, _ := os.ReadFile(h.Log); bytes.Contains(b, []byte("panic: ")) || bytes.Contains(b, []byte("\ngoroutine ")) {
		h.t.Errorf("flexd panicked")
	}
	if h.t.Failed() {
		h.t.Logf("flexd's log:\n%s", h.LogTail(logLines))
	}
	if err := h.Close(); err != nil {
		h.t.Error(err)
	}
}

// sh runs a command of an operator's.
func (h *host) sh(argv ...string) string {
	h.t.Helper()
	c := exec.Command(argv[0], argv[1:]...)
	c.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	out, err := c.CombinedOutput()
	if err != nil {
		h.t.Fatalf("%v: %v: %s", argv, err, out)
	}
	return string(out)
}

// freeze stops a command that flexd runs, in the middle of its work, and returns
// its pid: see Node.Freeze.
func (h *host) freeze(words ...string) int {
	h.t.Helper()
	pid := h.Freeze(func() bool { return false }, words...)
	if pid == 0 {
		h.t.Fatalf("flexd runs no %q", words)
	}
	return pid
}
