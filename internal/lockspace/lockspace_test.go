package lockspace

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// An utterance is one command of a transcript: what the daemons of a real node said, recorded
// in a VM.
type utterance struct {
	argv           string
	code           int
	stdout, stderr string
	err            error // instead: the runner's own
}

// transcript reads a transcript, by command without the words of LVM's configuration.
func transcript(t testing.TB, name string) map[string]utterance {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".transcript"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]utterance{}
	var u *utterance
	keep := func() {
		if u != nil {
			all[u.argv] = *u
		}
	}
	for line := range strings.Lines(string(b)) {
		mark, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch mark {
		case "$":
			keep()
			u = &utterance{argv: strings.ReplaceAll(rest, " ␣ ", " ")}
		case "status":
			u.code, _ = strconv.Atoi(rest)
		case "1":
			u.stdout += rest + "\n"
		case "2":
			u.stderr += rest + "\n"
		}
	}
	keep()
	return all
}

// A node answers commands with what was recorded.
type node struct {
	t    testing.TB
	mu   sync.Mutex
	says map[string]utterance // guarded by mu
	ran  []string             // guarded by mu
	then func(argv string)    // called before each answer, without mu

	leases func(a leasesArg) (*leasesAnswer, error) // reads the leases on the disk
}

func (n *node) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	argv := strings.Join(c.Argv, " ")
	if c.Deadline == 0 {
		n.t.Errorf("no deadline: %s", argv)
	}
	if onDisk := c.Argv[0] == "/proc/self/exe" || c.Argv[0] == "lvm" && c.Argv[1] != "version"; onDisk != (c.Lock != "") {
		n.t.Errorf("the lock of what may hang with the disks is %q: %s", c.Lock, argv)
	}
	if n.then != nil {
		n.then(argv)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.Argv[0] == "/proc/self/exe" {
		return n.child(c.Argv)
	}
	n.ran = append(n.ran, argv)
	u, ok := n.says[argv]
	res := run.Result{Stdout: []byte(u.stdout), Stderr: []byte(u.stderr)}
	switch {
	case !ok:
		return res, &fs.PathError{Op: "exec", Path: c.Argv[0], Err: fs.ErrNotExist}
	case u.err != nil:
		return res, u.err
	case u.code != 0:
		return res, &run.ExitError{Step: c.Step, Argv: c.Argv, Code: u.code, Stderr: strings.TrimSpace(u.stderr)}
	}
	return res, nil
}

// child is the child of flexd that reads leases.
func (n *node) child(argv []string) (run.Result, error) {
	var a leasesArg
	if err := json.Unmarshal([]byte(argv[3]), &a); err != nil || argv[2] != "lockspace-leases" {
		n.t.Errorf("%q: %v", argv, err)
	}
	answer := map[string]any{}
	if got, err := n.leases(a); err != nil {
		answer["error"] = err.Error()
	} else {
		answer["value"] = got
	}
	b, err := json.Marshal(answer)
	return run.Result{Stdout: b}, err
}

// replace makes the node answer with another transcript.
func (n *node) replace(says map[string]utterance) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.says = says
}

func (n *node) count(argv string) (times int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.ran {
		if a == argv {
			times++
		}
	}
	return times
}

// newNode returns a manager on a node that answers with the transcripts, the later over the
// earlier.
func newNode(t testing.TB, transcripts ...string) (*Manager, *node) {
	n := &node{t: t, says: map[string]utterance{}}
	for _, name := range transcripts {
		maps.Copy(n.says, transcript(t, name))
	}
	return New(Options{Runner: n, LockDir: t.TempDir()}), n
}

const lockstart = "lvm vgchange --lockstart svg"

// settle waits until no start runs.
func settle(m *Manager, vg string) {
	running := true
	for running {
		m.mu.Lock()
		running = !m.space(vg).starting.IsZero()
		m.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
}

func TestReady(t *testing.T) {
	m, n := newNode(t, "started")
	if err := m.Ready(t.Context(), "svg"); err != nil {
		t.Fatal(err)
	}
	st := m.Status("svg")
	if st.State != Started || st.HostID != 2 || st.HostName != "n2" || st.LockType != "sanlock" || st.Watchdog != "live" || st.IOTimeout != 2*time.Second || st.Reason != "" {
		t.Errorf("%+v", st)
	}
	if age := time.Since(st.Renewed); age < 0 || age > time.Minute {
		t.Errorf("renewed %v ago", age)
	}
	if n.count(lockstart) != 0 {
		t.Error("started again")
	}
}

// All who ask at the same time share one look.
func TestReadyIsShared(t *testing.T) {
	m, n := newNode(t, "started")
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			if err := m.Ready(t.Context(), "svg"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if c := n.count("lvmlockctl --info --dump"); c > 2 {
		t.Errorf("%d looks", c)
	}
	m.now = func() time.Time { return time.Now().Add(2 * lookMaxAge) }
	before := n.count("lvmlockctl --info --dump")
	if err := m.Ready(t.Context(), "svg"); err != nil {
		t.Error(err)
	}
	if c := n.count("lvmlockctl --info --dump"); c != before+1 {
		t.Errorf("an old look was reused")
	}
}

// A lockspace that is not started is started once, and waited for.
func TestStart(t *testing.T) {
	m, n := newNode(t, "started", "stopped")
	began, joined := make(chan bool, 1), make(chan bool)
	n.says[lockstart] = utterance{}
	n.then = func(argv string) {
		if argv == lockstart {
			began <- true
			<-joined
			n.replace(transcript(t, "started"))
		}
	}
	for range 3 {
		err := m.Ready(t.Context(), "svg")
		if wait := new(volume.WaitError); !errors.As(err, &wait) || !strings.Contains(wait.Reason, "has been starting since") {
			t.Fatalf("%v", err)
		}
	}
	if st := m.Status("svg"); st.State != Starting || st.Since.IsZero() {
		t.Errorf("%+v", st)
	}
	<-began
	close(joined)
	settle(m, "svg")
	if err := m.Ready(t.Context(), "svg"); err != nil {
		t.Fatal(err)
	}
	if c := n.count(lockstart); c != 1 {
		t.Errorf("started %d times", c)
	}
	if v := m.Status("svg").Versions; v.Sanlock == "" {
		t.Errorf("%+v", v)
	}
}
