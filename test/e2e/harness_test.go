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
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	mib  = 1 << 20
	node = "node-1"
	// lease is short, so that a test sees the end of it.
	lease = 300 * time.Millisecond
)

// logLines is how much of flexd's log a failed test shows.
var logLines = 80

// built is where the two executables are.
var built string

func TestMain(m *testing.M) {
	if traced() {
		return
	}
	if os.Getuid() == 0 && os.Getenv(inside) == "" {
		os.Exit(again())
	}
	code := 1
	defer func() { os.Exit(code) }()
	if os.Getuid() == 0 {
		if err := alone(); err != nil {
			fmt.Println(err)
			return
		}
	}
	// A child of flexd's that freeze has stopped survives flexd's kill only if
	// its next parent lives in this session: the kernel hangs up on stopped
	// process groups that nobody could continue.
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
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
// name, unless everything is to be tried.
func pass() {
	flag.Parse()
	if run, skip := flag.Lookup("test.run").Value, flag.Lookup("test.skip").Value; len(long) > 0 && !soak && run.String() == "" && skip.String() == "" {
		skip.Set("^(" + strings.Join(long, "|") + ")$")
	}
}

const inside = "FLEXD_E2E_INSIDE" // set in the mount namespace of the tests

// again runs the tests in a mount namespace of their own: a copy of a test's
// mount in the namespace of another program's tests would keep its volume in use.
func again() int {
	runtime.LockOSThread() // Pdeathsig is about the thread
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), inside+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := c.Run(); err != nil {
		if c.ProcessState == nil || c.ProcessState.ExitCode() < 1 {
			fmt.Println(err)
			return 1
		}
	}
	return c.ProcessState.ExitCode()
}

// alone releases what others have mounted, in this namespace only.
func alone() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("a mount namespace of the tests' own: %w", err)
	}
	for _, dir := range mounts(strings.TrimSuffix(os.TempDir(), "/")) {
		if dir != strings.TrimSuffix(os.TempDir(), "/") {
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	}
	return nil
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

// times scales how often something is repeated: FLEXD_REPEAT=0.1 for a tenth.
func times(n int) int {
	f, err := strconv.ParseFloat(os.Getenv("FLEXD_REPEAT"), 64)
	if err != nil || f <= 0 {
		f = 1
	}
	return max(1, int(float64(n)*f))
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

// seeded is random, and can be had again: FLEXD_SEED=N.
func seeded(t *testing.T) *rand.Rand {
	seed, err := strconv.ParseUint(os.Getenv("FLEXD_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("FLEXD_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// A host is a node: flexd with directories of its own, and kubelet's.
type host struct {
	storage
	t        *testing.T
	dir      string // everything lies below it
	root     string // kubelet's
	runDir   string
	stateDir string
	driver   string // flexdriver, where kubelet finds it
	cfg      string
	log      string
	settings settings
	enter    []string // a command that runs flexd, such as unshare -m
	disks    []string // filesystems of the test's own for flexd's files, see disk

	mu    sync.Mutex
	flexd *exec.Cmd
	ended chan error
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
	h := &host{
		t: t, dir: dir, root: dir + "/kubelet", runDir: dir + "/run", stateDir: dir + "/state",
		driver: dir + "/plugins/flexd~lvm/lvm", cfg: dir + "/flexd.yaml", log: dir + "/flexd.log",
	}
	h.storage = newStorage(h)
	for _, d := range []string{h.root, filepath.Dir(h.driver), dir + "/bin"} {
		h.must(os.MkdirAll(d, 0o755))
	}
	// Where the kernel names the executable tells whose process it is.
	copyFile(t, built+"/flexd", dir+"/bin/flexd")
	copyFile(t, built+"/flexdriver", h.driver)
	t.Cleanup(h.close)
	h.settings.roots = []string{h.root}
	h.settings.lease = lease
	h.settings.vg = "create: true, maxSize: 20GiB"
	for _, f := range change {
		f(h)
	}
	h.configure()
	h.start()
	return h
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if os.Link(from, to) == nil {
		return
	}
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) configure() {
	roots, _ := json.Marshal(h.settings.roots) // JSON is YAML
	text := fmt.Sprintf(`nodeName: %s
kubeletRoots: %s
runDir: %s
stateDir: %s
lease: %s
log: {level: debug}
%s
volumeGroups:
  - {name: vg0, %s, %s}
%s`, node, roots, h.runDir, h.stateDir, h.settings.lease, h.settings.extra, h.group("vg0"), h.settings.vg, h.settings.groups)
	h.must(os.WriteFile(h.cfg, []byte(text), 0o600))
}

// start runs flexd and returns when it serves.
func (h *host) start() {
	h.t.Helper()
	log, err := os.OpenFile(h.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	h.must(err)
	defer log.Close()
	argv := append(slices.Clone(h.enter), h.dir+"/bin/flexd", "serve", "--config", h.cfg)
	c := exec.Command(argv[0], argv[1:]...)
	c.Stdout, c.Stderr = log, log
	h.must(c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	h.mu.Lock()
	h.flexd, h.ended = c, ended
	h.mu.Unlock()
	h.eventually("flexd serves", func() string {
		select {
		case err := <-ended:
			h.mu.Lock()
			h.flexd = nil
			h.mu.Unlock()
			h.t.Fatalf("flexd ended: %v\n%s", err, h.logTail(20))
		default:
		}
		code, body, err := h.get("/healthz")
		if err != nil || code != 200 {
			return fmt.Sprint(code, body, err)
		}
		return ""
	})
}

// gone waits until flexd has ended by itself, having said why.
func (h *host) gone(why string) {
	h.t.Helper()
	select {
	case err := <-h.ended:
		if err == nil {
			h.t.Error("flexd ended as if it had been told to")
		}
	case <-time.After(soon):
		h.t.Fatal("flexd does not end")
	}
	h.mu.Lock()
	h.flexd = nil
	h.mu.Unlock()
	if log := h.logTail(5); !strings.Contains(log, why) {
		h.t.Errorf("flexd's last words: %s", log)
	}
}

// stop ends flexd as systemd does. It returns how long that took.
func (h *host) stop() time.Duration {
	h.t.Helper()
	begun := time.Now()
	h.must(h.flexd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-h.ended:
		if err != nil {
			h.t.Errorf("flexd ended by SIGTERM: %v", err)
		}
	case <-time.After(soon):
		h.t.Errorf("flexd does not end")
		h.flexd.Process.Kill()
		<-h.ended
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flexd = nil
	return time.Since(begun)
}

// kill is kill -9.
func (h *host) kill() {
	h.flexd.Process.Kill()
	<-h.ended
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flexd = nil
}

// An answer is what kubelet reads.
type answer struct {
	Status   string
	Message  string
	Device   string
	Attached *bool

	killed bool // flexdriver died by a signal
	took   time.Duration
	about  string // which call
}

func (a answer) ok() bool { return a.Status == "Success" }

func (a answer) String() string {
	s := a.about + ": " + a.Status
	if a.killed {
		s = a.about + ": killed"
	}
	if a.Message != "" {
		s += ": " + a.Message
	}
	return s
}

// command is flexdriver as kubelet runs it.
func (h *host) command(env []string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	out := &bytes.Buffer{}
	c := exec.Command(h.driver, args...) // its standard input is /dev/null
	c.Stdout, c.Stderr = out, out        // one pipe, as CombinedOutput
	c.Dir = "/"
	c.Env = append([]string{"PATH=/usr/bin:/bin", "FLEXD_SOCKET=" + h.runDir + "/driver.sock"}, env...)
	return c, out
}

// call runs flexdriver and holds it to the contract of kubelet.
func (h *host) call(args ...string) answer {
	h.t.Helper()
	return h.callWith(nil, args...)
}

func (h *host) callWith(env []string, args ...string) answer {
	h.t.Helper()
	c, out := h.command(env, args...)
	begun := time.Now()
	if err := c.Start(); err != nil {
		h.t.Errorf("%s: %v", args[0], err)
		return answer{about: args[0]}
	}
	return h.read(c, out, begun, args)
}

// read waits for flexdriver and understands what it printed.
func (h *host) read(c *exec.Cmd, out *bytes.Buffer, begun time.Time, args []string) answer {
	h.t.Helper()
	err := c.Wait()
	a := answer{about: args[0], took: time.Since(begun)}
	if s, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		a.killed = true
		return a
	}
	if err != nil {
		h.t.Errorf("%s: %v, want exit status 0: %s", args[0], err, out)
	}
	d := json.NewDecoder(bytes.NewReader(out.Bytes()))
	d.DisallowUnknownFields()
	var fields struct {
		Status       string          `json:"status"`
		Message      string          `json:"message"`
		Device       string          `json:"device"`
		Attached     *bool           `json:"attached"`
		Capabilities json.RawMessage `json:"capabilities"`
	}
	if err := d.Decode(&fields); err != nil {
		h.t.Errorf("%s: its output is no answer: %v: %q", args[0], err, out)
	} else if _, err := d.Token(); err != io.EOF {
		h.t.Errorf("%s: more than one JSON value: %q", args[0], out)
	}
	a.Status, a.Message, a.Device, a.Attached = fields.Status, fields.Message, fields.Device, fields.Attached
	switch {
	case a.Status != "Success" && a.Status != "Failure" && a.Status != "Not supported":
		h.t.Errorf("%s: status %q", args[0], a.Status)
	case a.Status == "Failure" && a.Message == "":
		h.t.Errorf("%s: Failure without a reason", args[0])
	case len(a.Message) > 900 || strings.ContainsAny(a.Message, "\n\r"):
		h.t.Errorf("%s: a message of %d bytes, want one line of at most 900: %q", args[0], len(a.Message), a.Message)
	}
	return a
}

// begun is a call that runs.
type begun struct {
	cmd  *exec.Cmd
	done chan answer
}

// begin starts a call and does not wait for it.
func (h *host) begin(args ...string) *begun {
	h.t.Helper()
	c, out := h.command(nil, args...)
	at := time.Now()
	h.must(c.Start())
	b := &begun{cmd: c, done: make(chan answer, 1)}
	go func() { b.done <- h.read(c, out, at, args) }()
	return b
}

func (b *begun) wait(t *testing.T) answer {
	t.Helper()
	select {
	case a := <-b.done:
		return a
	case <-time.After(2 * soon):
		t.Fatalf("%v gets no answer", b.cmd.Args)
		return answer{}
	}
}

// ok fails the test unless the answer is Success.
func (h *host) ok(a answer) answer {
	h.t.Helper()
	if !a.ok() {
		h.t.Errorf("%s", a)
	}
	return a
}

// refused fails the test unless the answer is a Failure that says all the words.
func (h *host) refused(a answer, words ...string) {
	h.t.Helper()
	if a.Status != "Failure" {
		h.t.Errorf("%s, want a Failure that says %q", a, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(a.Message, w) {
			h.t.Errorf("%s\n\tdoes not say %q", a, w)
		}
	}
}

// eventually waits until what is wrong is nothing.
func (h *host) eventually(what string, wrong func() string) {
	h.t.Helper()
	if s := h.within(soon, wrong); s != "" {
		h.t.Errorf("%s: not after %v: %s", what, soon, s)
	}
}

func (h *host) within(d time.Duration, wrong func() string) string {
	for end := time.Now().Add(d); ; time.Sleep(pace * 10 * time.Millisecond) {
		s := wrong()
		if s == "" || time.Now().After(end) {
			return s
		}
	}
}

// Status.

type (
	volumeStatus struct {
		VG, LV, UUID, State, Step, Device, Filesystem string

		Size     int64
		Pods     []podStatus
		Error    *struct{ Step, Message, CallID string }
		Claims   []claimStatus
		Lease    *struct{ Live bool }
		Observed []struct{ Name, Value string }
		Plan     []string
		Refused  []string
		History  []struct {
			Step, Error string
			CallIDs     []string
		}
	}
	podStatus   struct{ Namespace, Name, UID, Dir string }
	claimStatus struct {
		Kind, Phase, Dir, Note string
		Mounted                bool
	}
	listStatus struct {
		Node          string
		Volumes       []volumeStatus
		Problems      []string
		Disagreements []disagreement
	}
	disagreement struct{ Class, VG, LV, UUID, Message, Hint string }
)

// get asks the status socket.
func (h *host) get(path string) (int, string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", h.runDir+"/status.sock")
		},
	}}
	r, err := client.Get("http://flexd" + path)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, string(b), err
}

// show is `flexd status`.
func (h *host) show(args ...string) string {
	h.t.Helper()
	c := exec.Command(h.dir+"/bin/flexd", append([]string{"status", "--socket", h.runDir + "/status.sock"}, args...)...)
	out, err := c.CombinedOutput()
	if err != nil {
		h.t.Errorf("flexd status %v: %v: %s", args, err, out)
	}
	return string(out)
}

// release is `flexd release`; it returns what it says and its exit status.
func (h *host) release(args ...string) (string, int) {
	h.t.Helper()
	c := exec.Command(h.dir+"/bin/flexd", append([]string{"release", "--socket", h.runDir + "/status.sock", "--driver-socket", h.runDir + "/driver.sock"}, args...)...)
	out, _ := c.CombinedOutput()
	return string(out), c.ProcessState.ExitCode()
}

// check is `flexd check`; it returns what it says and its exit status.
func (h *host) check() (string, int) {
	h.t.Helper()
	c := exec.Command(h.dir+"/bin/flexd", "check", "--socket", h.runDir+"/status.sock")
	out, _ := c.CombinedOutput()
	return string(out), c.ProcessState.ExitCode()
}

// list is `flexd status -o json`.
func (h *host) list() (l listStatus) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(h.show("-o", "json")), &l); err != nil {
		h.t.Errorf("flexd status -o json: %v", err)
	}
	return l
}

// story is what `flexd status vg0/LV -o json` prints, without its process.
func (h *host) story(lv string) (s volumeStatus) {
	h.t.Helper()
	return h.storyOf("vg0/" + lv)
}

// storyOf is that of any volume: VG/LV, or -/UUID.
func (h *host) storyOf(volume string) (s volumeStatus) {
	h.t.Helper()
	code, body, err := h.get("/v1/volumes/" + volume)
	if err == nil && code == http.StatusOK {
		err = json.Unmarshal([]byte(body), &s)
	}
	if err != nil || code != http.StatusOK {
		h.t.Errorf("status of %s: %d %s %v", volume, code, body, err)
	}
	return s
}

// state waits until the volume is in the state.
func (h *host) state(lv, want string) {
	h.t.Helper()
	h.eventually("vg0/"+lv+" is "+want, func() string {
		s := h.story(lv)
		if s.State == want {
			return ""
		}
		return fmt.Sprintf("%+v", s)
	})
}

// The world.

// mounts lists the mount points below dir, the last made first.
func mounts(dir string) []string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		panic(err)
	}
	var all []string
	for line := range strings.Lines(string(b)) {
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(strings.Fields(line)[4])
		if at == dir || strings.HasPrefix(at, dir+"/") {
			all = append(all, at)
		}
	}
	slices.Reverse(all)
	return all
}

// mounted says whether a lookup of dir reaches a mount's root, as kubelet asks.
func mounted(dir string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	if err != nil && !os.IsNotExist(err) { // a mount in error
		return slices.Contains(mounts(dir), dir)
	}
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// processes lists what runs for this host, by pid.
func (h *host) processes() map[int]string {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	all := map[int]string{}
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		if pid == os.Getpid() {
			continue
		}
		exe, _ := os.Readlink(d + "/exe")
		in, _ := os.Readlink(d + "/fd/0") // a child's is its lane's lock
		cmdline, _ := os.ReadFile(d + "/cmdline")
		if strings.HasPrefix(exe, h.dir+"/") || strings.HasPrefix(in, h.dir+"/") || bytes.Contains(cmdline, []byte(h.dir+"/")) {
			all[pid] = strings.TrimSpace(string(bytes.ReplaceAll(cmdline, []byte{0}, []byte(" "))))
		}
	}
	return all
}

// notes lists the notes of claims and leases.
func (h *host) notes() []string {
	files, _ := filepath.Glob(h.runDir + "/notes/*")
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	return files
}

// left says what of the host is still on the machine.
func (h *host) left() string {
	all := slices.DeleteFunc(mounts(h.dir), func(m string) bool { return slices.Contains(h.disks, m) })
	for _, name := range h.active() {
		all = append(all, name+" is active")
	}
	for pid, p := range h.processes() {
		if h.flexd == nil || pid != h.flexd.Process.Pid {
			all = append(all, fmt.Sprintf("process %d: %s", pid, p))
		}
	}
	return strings.Join(append(all, h.notes()...), "; ")
}

// quiet waits until nothing is left of the host but an idle flexd.
func (h *host) quiet() {
	h.t.Helper()
	h.eventually("nothing is left", h.left)
}

// close ends the host: whatever the test did, kubelet has released everything,
// and flexd is to have done so, too.
func (h *host) close() {
	defer h.force()
	if h.flexd != nil {
		if !h.t.Failed() {
			h.quiet()
		}
		h.stop()
		if s := h.left(); s != "" && !h.t.Failed() {
			h.t.Errorf("after flexd's end: %s", s)
		}
	}
	for _, dir := range h.disks {
		if err := unix.Unmount(dir, 0); err != nil && !h.t.Failed() {
			h.t.Errorf("%s: %v", dir, err)
		}
	}
	if b, _ := os.ReadFile(h.log); bytes.Contains(b, []byte("panic: ")) || bytes.Contains(b, []byte("\ngoroutine ")) {
		h.t.Errorf("flexd panicked")
	}
	if h.t.Failed() {
		h.t.Logf("flexd's log:\n%s", h.logTail(logLines))
	}
}

// force leaves a clean machine to the next test, whatever has failed.
func (h *host) force() {
	for pid := range h.processes() {
		syscall.Kill(pid, syscall.SIGCONT)
		syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, m := range mounts(h.dir) {
		unix.Unmount(m, unix.MNT_DETACH)
	}
	h.clear()
	os.RemoveAll(h.dir)
}

func (h *host) logTail(n int) string {
	b, _ := os.ReadFile(h.log)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
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
// its pid: the first word is its program's name, or an operation of flexd's own;
// the others are among its arguments. It is quick: mkfs is so, too.
func (h *host) freeze(words ...string) int {
	h.t.Helper()
	if pace == 1 { // mkfs takes an instant, and the machine may be busy
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) == nil {
			defer unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 0)
		}
	}
	others := map[string]bool{} // that will not become it
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(pace * 200 * time.Microsecond) {
		proc, err := os.Open("/proc")
		h.must(err)
		names, _ := proc.Readdirnames(-1)
		proc.Close()
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil || others[name] {
				continue
			}
			b, _ := os.ReadFile("/proc/" + name + "/comm")
			switch got := strings.TrimSpace(string(b)); got {
			case "exe", words[0]:
				b, _ := os.ReadFile("/proc/" + name + "/cmdline")
				argv := strings.Split(string(b), "\x00")
				if got == "exe" && len(argv) > 2 { // /proc/self/exe child OPERATION
					argv = argv[2:]
				}
				if filepath.Base(argv[0]) != words[0] || slicesHave(words[1:], func(w string) bool { return !slices.Contains(argv, w) }) {
					continue
				}
				in, _ := os.Readlink("/proc/" + name + "/fd/0")
				if !strings.HasPrefix(in, h.dir+"/") || syscall.Kill(pid, syscall.SIGSTOP) != nil {
					continue
				}
				if h.within(time.Second, func() string {
					stat, _ := os.ReadFile("/proc/" + name + "/stat")
					if bytes.Contains(stat, []byte(") T ")) {
						return ""
					}
					return "not stopped"
				}) == "" {
					return pid
				}
				h.t.Fatalf("%q ended before it could be stopped", words)
			case "flexd":
			default:
				others[name] = true
			}
		}
	}
	h.t.Fatalf("flexd runs no %q", words)
	return 0
}

// growsExt4 says whether the kernel lets us grow a mounted ext4.
func growsExt4() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&hdr, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}
