package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "child" {
		syscall.Exit(testChild(os.Args[2], os.Args[3])) // not os.Exit: the race detector would sleep for a second
	}
	os.Exit(m.Run())
}

// testChild is what the test binary does when it is started as a child.
func testChild(op, arg string) int {
	BeChild()
	switch op {
	case "echo":
		return Answer(arg, nil)
	case "panic":
		panic("it broke")
	case "fail":
		return Answer(nil, &ChildError{Kind: "sort", Text: "it failed", Detail: []byte(`{"n":1}`)})
	case "gated":
		if err := AwaitGo(); err != nil {
			return Answer(nil, err)
		}
		if err := os.WriteFile(strings.Trim(arg, `"`), []byte("done"), 0o600); err != nil {
			return Answer(nil, err)
		}
		return Answer("done", nil)
	case "hold": // starts and abandons a gated child, as a daemon that is killed
		c := Cmd{Step: "gated", Argv: Self("gated", strings.Trim(arg, `"`)), Gate: func() error {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}}
		NewExec().Run(context.Background(), c)
	}
	return 1
}

func sh(script string, args ...string) Cmd {
	return Cmd{Step: "test", Argv: append([]string{"sh", "-c", script, "sh"}, args...), Deadline: time.Minute}
}

func mustRun(t *testing.T, c Cmd) Result {
	t.Helper()
	res, err := NewExec().Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func alive(pid int) bool { return unix.Kill(pid, 0) == nil }

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for range 500 {
		if f() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not within 5 s: %s", what)
}

// Ensure that a child has its own process group, a minimal environment, / as
// its directory and no descriptor but the first three.
func TestChildsWorld(t *testing.T) {
	t.Setenv("SECRET", "x")
	leak, err := unix.Open("/dev/null", unix.O_RDONLY, 0) // without O_CLOEXEC, as inherited from a parent
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	lock := filepath.Join(t.TempDir(), "lock")
	c := sh(`ls -1 /proc/$$/fd; echo --; pwd; echo --; tr '\0' '\n' < /proc/$$/environ | sort; echo --; cut -d' ' -f5 /proc/$$/stat; echo $$; echo err >&2; readlink /proc/$$/fd/0`)
	c.Lock = lock
	res := mustRun(t, c)
	parts := strings.Split(string(res.Stdout), "--\n")
	if got, want := parts[0], "0\n1\n2\n"; got != want {
		t.Errorf("descriptors: got %q, want %q", got, want)
	}
	if got, want := parts[1], "/\n"; got != want {
		t.Errorf("directory: got %q, want %q", got, want)
	}
	if got, want := parts[2], "LC_ALL=C\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\n"; got != want {
		t.Errorf("environment: got %q, want %q", got, want)
	}
	last := strings.Fields(parts[3])
	if last[0] != last[1] {
		t.Errorf("process group: got %s, want the child's own %s", last[0], last[1])
	}
	if last[2] != lock {
		t.Errorf("standard input: got %s, want %s", last[2], lock)
	}
	if got, want := string(res.Stderr), "err\n"; got != want {
		t.Errorf("stderr: got %q, want %q", got, want)
	}
}

// Ensure that a child that fails gives its exit status, signal and words.
func TestExitError(t *testing.T) {
	for _, row := range []struct {
		script, signal, stderr string
		code                   int
	}{
		{"echo no  good >&2; echo really >&2; exit 3", "", "no good really", 3},
		{"kill -TERM $$", "SIGTERM", "", -1},
	} {
		_, err := NewExec().Run(t.Context(), sh(row.script))
		var exit *ExitError
		if !errors.As(err, &exit) {
			t.Fatalf("%s: got %v", row.script, err)
		}
		if exit.Code != row.code || exit.Signal != row.signal || exit.Stderr != row.stderr || exit.Err != nil {
			t.Errorf("%s: got %+v", row.script, exit)
		}
	}
	// Of the Go runtime's output, the reason counts, not the stacks.
	_, err := NewExec().Run(t.Context(), Cmd{Step: "test", Argv: Self("panic", nil), Deadline: time.Minute})
	if want := "test: /proc/self/exe exit status 2: panic: it broke"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	_, err = NewExec().Run(t.Context(), Cmd{Step: "x", Argv: []string{"no-such-program"}})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing program: got %v", err)
	}
}

// Ensure that output beyond the limits is read and dropped, and noted.
func TestOutputLimits(t *testing.T) {
	res, err := NewExec().Run(t.Context(), sh("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2"))
	if err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("got %v", err)
	}
	if len(res.Stdout) != maxStdout || len(res.Stderr) != maxStderr {
		t.Errorf("kept %d and %d bytes", len(res.Stdout), len(res.Stderr))
	}
	more := sh("head -c 3000000 /dev/zero")
	for more.MaxOut = 3000000; more.MaxOut >= 2999999; more.MaxOut-- {
		res, err := NewExec().Run(t.Context(), more)
		if len(res.Stdout) != more.MaxOut || (err != nil) != (more.MaxOut < 3000000) {
			t.Errorf("limit %d: kept %d, %v", more.MaxOut, len(res.Stdout), err)
		}
	}
}

// Ensure that a child's end is seen although its own child keeps the pipes.
func TestGrandchildHoldsPipes(t *testing.T) {
	start := time.Now()
	res := mustRun(t, sh("sleep 60 & echo $!"))
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(res.Stdout)))
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Errorf("the grandchild: %v", err)
	}
}

// Ensure that children that take long keep no threads: their stacks would stay.
func TestChildrenKeepNoThreads(t *testing.T) {
	must := func(all []os.DirEntry, err error) []os.DirEntry {
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	threads := func() int { return len(must(os.ReadDir("/proc/self/task"))) }
	const children = 100
	before := threads()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	dir := t.TempDir()
	for range children {
		all.Go(func() {
			_, _ = NewExec().Run(ctx, Cmd{Step: "x", Argv: []string{"sh", "-c", "echo >" + dir + "/$$; exec sleep 1000"}})
		})
	}
	for end := time.Now().Add(time.Minute); len(must(os.ReadDir(dir))) < children; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("they do not start")
		}
	}
	time.Sleep(100 * time.Millisecond)
	if more := threads() - before; more > children/2 {
		t.Errorf("%d children keep %d threads", children, more)
	}
	cancel()
	all.Wait()
}

// Ensure that the deadline kills the whole process group.
func TestDeadlineKillsGroup(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	c := sh(`trap "" TERM INT HUP; sleep 60 & echo $! $$ > "$1"; wait`, pids) // deaf to what is polite
	c.Lock = filepath.Join(t.TempDir(), "lock")
	c.Deadline = 300 * time.Millisecond
	_, err := NewExec().Run(t.Context(), c)
	var exit *ExitError
	if !errors.As(err, &exit) || !errors.Is(err, context.DeadlineExceeded) || exit.Signal != "SIGKILL" {
		t.Fatalf("got %v", err)
	}
	b, _ := os.ReadFile(pids)
	for _, f := range strings.Fields(string(b)) {
		pid, _ := strconv.Atoi(f)
		eventually(t, "death of "+f, func() bool { return !alive(pid) })
	}
	if free, _, err := LockFree(c.Lock); !free || err != nil {
		t.Errorf("lock: free %v, %v", free, err)
	}
}

// Ensure that a killed child whose own child left the group, and still works,
// is reported as stuck: the lock says so.
func TestDeadlineEscapedGrandchild(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	c := sh(`setsid sleep 60 & echo $! > "$1"; wait`, pids)
	c.Argv[2] = `(exec 3<&0; setsid sleep 60 <&3 >/dev/null 2>&1 & echo $! > "$1"); sleep 60`
	c.Lock = filepath.Join(t.TempDir(), "lock")
	c.Deadline = 300 * time.Millisecond
	_, err := NewExec().Run(t.Context(), c)
	var stuck *StuckError
	if !errors.As(err, &stuck) {
		t.Fatalf("got %v", err)
	}
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", stuck.Pid))
	if got := strings.TrimSpace(string(comm)); got != "sleep" && got != "setsid" {
		t.Errorf("stuck pid %d is %q", stuck.Pid, got)
	}
	if err := unix.Kill(stuck.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stuck.Done:
	case <-time.After(time.Minute):
		t.Error("Done is not closed")
	}
}

// Ensure that a spared child is never killed, and reported until it ends.
func TestSpare(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "go"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := sh(`read x < "$1"; echo done > "$1.done"`, filepath.Join(dir, "go"))
	c.Lock = filepath.Join(dir, "lock")
	c.Deadline = 200 * time.Millisecond
	c.NoKill, c.Mutates = true, true
	e := NewExec()
	_, err := e.Run(t.Context(), c)
	var stuck *StuckError
	if !errors.As(err, &stuck) || stuck.Pid == 0 || stuck.Wchan == "" {
		t.Fatalf("got %v", err)
	}

	// Meanwhile the lane is locked, and the holder is known.
	_, err = e.Run(t.Context(), c)
	var locked *LockedError
	if !errors.As(err, &locked) || !slices.Contains(locked.Pids, stuck.Pid) {
		t.Fatalf("got %v", err)
	}
	if free, pids, err := LockFree(c.Lock); free || err != nil || !slices.Contains(pids, stuck.Pid) {
		t.Errorf("LockFree: %v, %v, %v", free, pids, err)
	}
	select {
	case <-stuck.Done:
		t.Fatal("Done is closed too early")
	case <-locked.Done:
		t.Fatal("the lock's Done is closed too early")
	default:
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, done := range []<-chan struct{}{stuck.Done, locked.Done} {
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatal("Done is not closed")
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "go.done")); err != nil {
		t.Error(err)
	}
	mustRun(t, Cmd{Step: "after", Argv: []string{"true"}, Lock: c.Lock})
}

// Ensure that the end of the context kills a look, and leaves a change alone.
func TestContext(t *testing.T) {
	for _, mutates := range []bool{false, true} {
		dir := t.TempDir()
		c := sh(`echo $$ > "$1"; exec sleep 60`, filepath.Join(dir, "pid"))
		c.Mutates = mutates
		ctx, cancel := context.WithCancel(t.Context())
		var pid int
		go func() {
			for pid == 0 {
				b, _ := os.ReadFile(filepath.Join(dir, "pid"))
				pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
				time.Sleep(10 * time.Millisecond)
			}
			cancel()
		}()
		if _, err := NewExec().Run(ctx, c); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		time.Sleep(50 * time.Millisecond)
		if got := alive(pid); got != mutates {
			t.Errorf("mutates %v: the child is alive: %v", mutates, got)
		}
		if mutates {
			unix.Kill(pid, unix.SIGKILL)
			eventually(t, "its death", func() bool { return !alive(pid) })
		}
	}
}

// Ensure that a gated child continues only with permission.
func TestGate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	c := Cmd{Step: "gated", Argv: Self("gated", file), Deadline: time.Minute}

	no := errors.New("no")
	c.Gate = func() error { return no }
	if _, err := NewExec().Run(t.Context(), c); err != no {
		t.Errorf("got %v, want the gate's error", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a refused child went on")
	}

	c.Gate = func() error { return nil }
	var value string
	if err := Ask(t.Context(), NewExec(), c, &value); err != nil || value != "done" {
		t.Errorf("got %q, %v", value, err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}

	// A child that fails before it is ready.
	c.Argv, c.Gate = Self("fail", nil), func() error { t.Error("called"); return nil }
	if err := Ask(t.Context(), NewExec(), c, nil); err == nil {
		t.Error("no error")
	}
}

// Ensure that a gated child does nothing when flexd is killed.
func TestGateOfDeadDaemon(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	argv := Self("hold", file)
	cmd := exec.Command(argv[0], argv[1:]...)
	if err := cmd.Run(); err == nil {
		t.Fatal("it was to be killed")
	}
	time.Sleep(300 * time.Millisecond)
	if _, err := os.Stat(file); err == nil {
		t.Error("the child went on although flexd is dead")
	}
}

// Ensure that answers and errors of children arrive.
func TestAsk(t *testing.T) {
	var got string
	e := NewExec()
	started := 0
	e.Started = func(Cmd) { started++ }
	if err := Ask(t.Context(), e, Cmd{Step: "echo", Argv: Self("echo", "hello")}, &got); err != nil || got != `"hello"` {
		t.Errorf("got %q, %v", got, err)
	}
	err := Ask(t.Context(), e, Cmd{Step: "fail", Argv: Self("fail", nil)}, &got)
	var ce *ChildError
	if !errors.As(err, &ce) || ce.Kind != "sort" || ce.Text != "it failed" || !bytes.Equal(ce.Detail, []byte(`{"n":1}`)) {
		t.Errorf("got %#v", err)
	}
	if err := Ask(t.Context(), e, sh("echo nonsense"), &got); err == nil {
		t.Error("no error for nonsense")
	}
	if started != 3 {
		t.Errorf("started: got %d, want 3", started)
	}
}

// Ensure that a lock whose file was removed excludes no process, and is never used.
func TestLockWithoutName(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	if free, _, err := LockFree(lock); !free || err != nil {
		t.Errorf("no lock file: free %v, %v", free, err)
	}
	f, err := takeLock(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := takeLock(lock); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("got %v", err)
	}
	os.Remove(lock)
	g, err := takeLock(lock)
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
}

// Ensure that many lanes at once never find their own lock taken.
func TestManyLanes(t *testing.T) {
	dir := t.TempDir()
	e := NewExec()
	errs := make(chan error)
	for i := range 8 {
		go func() {
			for range 25 {
				if _, err := e.Run(t.Context(), Cmd{Step: "true", Argv: []string{"true"}, Lock: filepath.Join(dir, strconv.Itoa(i))}); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// TestOutputReadAfterGrace verifies that a child's output is read even if, on a busy
// machine, the grace for it ends before the first read.
func TestOutputReadAfterGrace(t *testing.T) {
	for _, ready := range []chan struct{}{nil, make(chan struct{})} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close() // a grandchild has it
		const answer = "{\"value\":1}\n"
		if _, err := w.WriteString(answer); err != nil {
			t.Fatal(err)
		}
		if err := r.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
			t.Fatal(err)
		}
		d := newDrain(r, 100, ready, nil)
		<-d.done
		if got := string(d.bytes()); got != answer {
			t.Errorf("read %q, want %q", got, answer)
		}
	}
}

// The lines of a child are known as they come: it may hang before its end.
func TestLine(t *testing.T) {
	lines := make(chan string, 3)
	ended := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := NewExec().Run(ctx, Cmd{Step: "test", Argv: []string{"sh", "-c", "echo a; echo b; printf c; sleep 1000"}, Deadline: time.Hour,
			Line: func(line []byte) { lines <- string(line) }})
		ended <- err
	}()
	for _, want := range []string{"a\n", "b\n"} {
		if got := <-lines; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || len(lines) > 0 {
		t.Errorf("got %v, and %d more lines", err, len(lines))
	}
}
