package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

func (f *fakeLVM) activate(ctx context.Context, p *Provider, lv volume.LV) error {
	err := p.Activate(ctx, "", lv)
	return err
}

// Ensure that callers that arrive while a command runs share the next one, that a
// caller does not wait for an idle lane, and that each gets its own error.
func TestGroupCommit(t *testing.T) {
	const n = 50
	f, p := newFake(t, n)
	var lvs []volume.LV
	for i := range n {
		lvs = append(lvs, f.lookUp(p, fmt.Sprintf("v%d", i)))
	}
	if got := f.commands(); !slices.Equal(got, []string{"lvmconfig", "fullreport"}) {
		t.Fatalf("%d look-ups took %q", n, got)
	}
	f.broken["v7"] = "device-mapper: reload ioctl on v7 failed: Invalid argument"
	delete(f.lvs, "v8")
	f.lvs["v9"].uuid = fakeUUID(999)

	first, release := make(chan bool), make(chan bool)
	var once sync.Once
	f.before = func(string) error {
		once.Do(func() { close(first); <-release })
		return nil
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	wg.Go(func() { errs[0] = f.activate(t.Context(), p, lvs[0]) })
	<-first
	for i := 1; i < n; i++ {
		wg.Go(func() { errs[i] = f.activate(t.Context(), p, lvs[i]) })
	}
	g, _ := p.group("vg0")
	eventually(t, "all have joined", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.next[activate]) == n-1
	})
	close(release)
	wg.Wait()
	for i, err := range errs {
		switch i {
		case 7:
			is(t, err, ErrFailed, "Invalid argument")
		case 8:
			is(t, err, ErrNoLV, "does not exist any more")
		case 9:
			if err == nil || !strings.Contains(err.Error(), "another volume") {
				t.Errorf("got %v", err)
			}
		default:
			if _, found, _ := p.find(lvs[i].UUID); err != nil || !found {
				t.Errorf("v%d: %v %v", i, err, found)
			}
		}
	}
	if _, found, _ := p.find(fakeUUID(999)); found {
		t.Error("the new v9 was activated")
	}
	got := f.commands()
	changes := len(got) - strings.Count(strings.Join(got, " "), "fullreport")
	if changes != 5 { // one, all others, and the three that failed alone
		t.Errorf("got %q", got)
	}
}

// Ensure that an error of the group is not retried for each volume.
func TestGroupErrorForAll(t *testing.T) {
	f, p := newFake(t, 10)
	lvs := make([]volume.LV, 10)
	for i := range lvs {
		lvs[i] = f.lookUp(p, fmt.Sprintf("v%d", i))
	}
	f.commands()
	f.before = func(words string) error { return nil }
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		if c.Argv[1] != "lvchange" {
			return run.Result{}, nil, false
		}
		f.mu.Lock()
		f.ran = append(f.ran, c.Argv[1])
		f.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		res, err := utterance{Argv: c.Argv, Code: 5, Stderr: "  Volume group vg0 is exported\n"}.result()
		return res, err, true
	}
	var wg sync.WaitGroup
	for _, lv := range lvs {
		wg.Go(func() { is(t, f.activate(t.Context(), p, lv), ErrExported) })
	}
	wg.Wait()
	if got := f.commands(); len(got) > 3 {
		t.Errorf("got %q", got)
	}
}

// Ensure that a command that hangs opens the breaker of only its group, which closes when the command ends.
func TestBreaker(t *testing.T) {
	f, p := newFake(t, 2)
	one, two := f.lookUp(p, "v0"), f.lookUp(p, "v1")
	done := make(chan struct{})
	since := time.Now()
	f.before = func(words string) error {
		if strings.HasPrefix(words, "lvchange") {
			return &run.StuckError{Step: "activate", Pid: 4711, Since: since, Wchan: "io_getevents", Done: done}
		}
		return nil
	}
	var stuck *run.StuckError
	if err := f.activate(t.Context(), p, one); !errors.As(err, &stuck) {
		t.Fatalf("got %v", err)
	}
	f.commands()
	for _, err := range []error{
		f.activate(t.Context(), p, two),
		p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "new"}, 1, ""),
		p.Extend(t.Context(), "", two, volume.Device{}, 1<<20),
	} {
		var blocked *BlockedError
		if !errors.As(err, &blocked) || errors.As(err, new(*run.StuckError)) {
			t.Errorf("got %v", err)
			continue
		}
		for _, w := range []string{"vg0", "4711", "io_getevents", since.Format(time.TimeOnly)} {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q does not say %q", err, w)
			}
		}
	}
	if lv := f.lookUp(p, "v1"); lv.UUID != two.UUID { // what is known needs no command
		t.Errorf("got %+v", lv)
	}
	if got := f.commands(); len(got) != 0 {
		t.Errorf("started %q", got)
	}
	if _, err := p.LookUp(t.Context(), volume.Name{VG: "other", LV: "x"}); !errors.Is(err, ErrNoVG) {
		t.Errorf("the other group: got %v", err)
	}
	f.before = nil
	close(done)
	eventually(t, "the breaker closes", func() bool { return len(p.Blocks()) == 0 })
	if err := f.activate(t.Context(), p, two); err != nil {
		t.Error(err)
	}
}

// A command that waits for udev is distinguished from one that waits for a disk.
func TestWaitsForUdev(t *testing.T) {
	f, p := newFake(t, 1)
	done := make(chan struct{})
	defer close(done)
	lv := f.lookUp(p, "v0")
	f.before = func(string) error {
		return &run.StuckError{Step: "activate", Pid: 4711, Since: time.Now(), Wchan: "__do_semtimedop", Done: done}
	}
	for range 2 { // the command's own error, then that of the breaker
		if err := f.activate(t.Context(), p, lv); err == nil || !strings.Contains(err.Error(), "for udev (restart systemd-udevd") {
			t.Errorf("got %v", err)
		}
	}
}

// Ensure that two commands do not run on a volume at once when a caller leaves.
func TestCallerLeaves(t *testing.T) {
	f, p := newFake(t, 1)
	lv := f.lookUp(p, "v0")
	started, release := make(chan bool), make(chan bool)
	f.before = func(words string) error { close(started); <-release; return nil }
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { left <- f.activate(ctx, p, lv) }()
	<-started
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	var locked *run.LockedError
	if err := p.Extend(t.Context(), "", lv, volume.Device{}, 1); !errors.As(err, &locked) {
		t.Fatalf("got %v", err)
	}
	f.before = nil
	close(release)
	<-locked.Done
	if _, found, _ := p.find(lv.UUID); !found {
		t.Error("the command did not go on")
	}
	if err := p.Extend(t.Context(), "", lv, volume.Device{}, 1); err != nil {
		t.Error(err)
	}
}

// Ensure that readers share a report, that a report is reused until a change is notified, and that absence
// and failure are not reused.
func TestLook(t *testing.T) {
	f, p := newFake(t, 3)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { f.lookUp(p, "v1") })
	}
	wg.Wait()
	if got := f.commands(); len(got) != 2 {
		t.Errorf("got %q", got)
	}
	for range 2 {
		if lv := f.lookUp(p, "none"); lv.Presence != volume.Absent {
			t.Errorf("got %+v", lv)
		}
		if got := f.commands(); !slices.Equal(got, []string{"fullreport"}) {
			t.Errorf("got %q", got)
		}
	}
	f.mu.Lock()
	delete(f.lvs, "v1")
	f.mu.Unlock()
	f.lookUp(p, "v1")
	p.Invalidate("vg0")
	if lv := f.lookUp(p, "v1"); lv.Presence != volume.Absent {
		t.Errorf("got %+v", lv)
	}
	f.before = func(string) error { return errors.New("no") }
	p.Invalidate("")
	for range 2 {
		if _, err := p.LookUp(t.Context(), volume.Name{VG: "vg0", LV: "v0"}); err == nil || len(f.commands()) == 0 {
			t.Errorf("got %v", err)
		}
	}
	f.before = nil
	f.lookUp(p, "v0")

	// A change while a report runs: its reader asks again.
	started, release := make(chan bool, 9), make(chan bool)
	f.before = func(string) error { started <- true; <-release; return nil }
	p.Invalidate("")
	result := make(chan volume.LV)
	go func() { result <- f.lookUp(p, "v0") }()
	<-started
	p.Invalidate("")
	go func() { result <- f.lookUp(p, "v0") }()
	close(release)
	<-result
	<-result
	if len(started) != 1 {
		t.Errorf("%d more reports, want 1", len(started))
	}
}

// Ensure that a caller does not fail because of a report that began before it arrived.
func TestLookThatFailsOfAnother(t *testing.T) {
	f, p := newFake(t, 1)
	f.lookUp(p, "v0")
	f.commands()
	started, release := make(chan bool), make(chan bool)
	var once sync.Once
	f.before = func(string) (err error) {
		once.Do(func() { started <- true; <-release; err = context.DeadlineExceeded })
		return err
	}
	p.Invalidate("vg0")
	first := make(chan error)
	go func() {
		_, err := p.LookUp(t.Context(), volume.Name{VG: "vg0", LV: "v0"})
		first <- err
	}()
	<-started
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { f.lookUp(p, "v0") })
	}
	g, _ := p.group("vg0")
	eventually(t, "all have come", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.clock == 2+2+10 // two of each report, one of each who joins
	})
	close(release)
	if err := <-first; err == nil {
		t.Error("the caller that began it gets no error")
	}
	wg.Wait()
	if got := f.commands(); len(got) != 2 {
		t.Errorf("got %q, want one more report for all", got)
	}
}

// Ensure that facts expire if a disk cannot be watched, and only then.
func TestUnwatchedDisk(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	notify, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(notify)
	for path, want := range map[string]int{disk: 0, disk + "2": 1} {
		f, p := newFake(t, 1)
		f.pvs = fmt.Sprintf(`{"pv_name":%q,"pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-PVPVPV","pv_missing":"","pv_allocatable":"allocatable","pv_size":"2143289344","pv_free":"0","pv_tags":""}`, path)
		p.watch.Store(&watch{p: p, notify: notify, disks: map[string]string{}, paths: map[int32]string{}})
		g, err := p.configured("vg0")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 { // the first one that watches a disk does not count
			f.lookUp(p, "v0")
		}
		f.commands()
		f.lookUp(p, "v0")
		if got := f.commands(); len(got) != 0 {
			t.Errorf("%s: at once: %q", path, got)
		}
		g.mu.Lock()
		g.at = g.at.Add(-unwatchedFactsAge)
		g.mu.Unlock()
		f.lookUp(p, "v0")
		if got := f.commands(); len(got) != want {
			t.Errorf("%s: later: %q", path, got)
		}
	}
}

// A blank volume is marked from its extension until the added space is zeroed, so that the next flexd
// continues.
func TestExtendBlank(t *testing.T) {
	f, p := newFake(t, 1)
	f.lvs["v0"].tags = []string{tagCreated}
	lv := f.lookUp(p, "v0")
	if err := p.Activate(t.Context(), "", lv); err != nil {
		t.Fatal(err)
	}
	f.commands()
	var at []string
	failed := errors.New("flexd ended")
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		if c.Step != "zero" {
			return run.Result{}, nil, false
		}
		at = append(at, fmt.Sprint(c.Argv, f.lvs["v0"].tags))
		return run.Result{}, failed, len(at) == 1
	}
	err := p.ExtendBlank(t.Context(), "", lv, volume.Device{}, 16*mib)
	if ran := f.commands(); !errors.Is(err, failed) || !slices.Equal(slices.DeleteFunc(ran, func(s string) bool { return s == "fullreport" || s == "lvmconfig" }), []string{"lvchange", "lvextend"}) {
		t.Errorf("%v, ran %q", err, ran)
	}
	if lv = f.lookUp(p, "v0"); lv.Unzeroed != 8*mib || lv.Size != 16*mib || lv.Presence != volume.Present {
		t.Errorf("cut: %+v", lv)
	}
	if err := p.ExtendBlank(t.Context(), "", lv, volume.Device{}, 24*mib); err != nil {
		t.Error(err)
	}
	if len(at) != 2 || !strings.Contains(at[1], `"from":8388608`) || !strings.Contains(at[1], tagBlank+"8388608") {
		t.Errorf("zeroed %q", at)
	}
	if lv = f.lookUp(p, "v0"); lv.Unzeroed != 0 || lv.Size != 24*mib || !lv.Created {
		t.Errorf("done: %+v", lv)
	}
	f.commands()
	if err := p.ExtendBlank(t.Context(), "", lv, volume.Device{}, 24*mib); err != nil || slices.Contains(f.commands(), "lvchange") {
		t.Errorf("of its size: %v", err)
	}
}

// Ensure that a volume is created step by step, and that an interruption at each step is completed.
func TestCreateCut(t *testing.T) {
	name := volume.Name{VG: "vg0", LV: "new"}
	for cut := 1; cut < 6; cut++ { // the last are beyond the end
		f, p := newFake(t, 1)
		n := 0
		f.before = func(words string) error {
			if n++; strings.HasPrefix(words, "lvmconfig") || strings.HasPrefix(words, "fullreport") {
				n--
			}
			if n == cut {
				n = 100
				return errors.New("killed")
			}
			return nil
		}
		first := p.Create(t.Context(), "", name, 5*mib, "")
		if n < 100 {
			if first != nil {
				t.Errorf("cut %d: %v", cut, first)
			}
		} else if first == nil {
			t.Errorf("cut %d: no error", cut)
		} else if lv := f.lookUp(p, "new"); lv.Presence != volume.Absent {
			t.Errorf("cut %d: got %+v", cut, lv)
		} else {
			p.Invalidate("")
			if err := p.Create(t.Context(), "", name, 5*mib, ""); err != nil {
				t.Errorf("cut %d: %v", cut, err)
			}
		}
		if lv := f.lookUp(p, "new"); lv.Presence != volume.Present || !lv.Created || lv.Size != 8*mib {
			t.Errorf("cut %d: got %+v", cut, lv)
		}
		if err := p.Create(t.Context(), "", name, 5*mib, ""); err == nil {
			t.Errorf("cut %d: it was made twice", cut)
		}
	}
}

// If an interrupted creation is completed with a larger size, only its former part is proved blank: the added
// space may have signatures.
func TestCreateCutLarger(t *testing.T) {
	for cut := range 9 { // the last are beyond the end
		f, p := newFake(t, 1)
		f.lvs["v0"].tags = []string{tagCreating}
		n, from := 0, 0
		f.before = func(words string) error {
			if strings.HasPrefix(words, "lvmconfig") || strings.HasPrefix(words, "fullreport") {
				return nil
			}
			if n++; n == cut {
				return errors.New("killed")
			}
			return nil
		}
		f.hook = func(c run.Cmd) (run.Result, error, bool) {
			if c.Step == "zero" {
				switch rest := f.lvs["v0"].size > 8*mib; {
				case rest && strings.Contains(fmt.Sprint(c.Argv), `"from":8388608`):
					from++
				case rest && from == 0:
					t.Errorf("cut %d: what was added is taken for the volume's", cut)
				}
			}
			return run.Result{}, nil, false
		}
		name := volume.Name{VG: "vg0", LV: "v0"}
		if err := p.Create(t.Context(), "", name, 16*mib, ""); err != nil {
			p.Invalidate("")
			if err = p.Create(t.Context(), "", name, 16*mib, ""); err != nil {
				t.Errorf("cut %d: %v", cut, err)
			}
		}
		if tags := f.lvs["v0"].tags; from == 0 || !slices.Equal(tags, []string{tagCreated}) || f.lvs["v0"].size != 16*mib {
			t.Errorf("cut %d: zeroed %d times from there, tags %q, %d bytes", cut, from, tags, f.lvs["v0"].size)
		}
	}
}

// Ensure that a report can have ten thousand volumes.
func TestManyVolumes(t *testing.T) {
	const n = 10000
	f, p := newFake(t, n)
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		if c.Argv[1] == "fullreport" && len(f.report()) > c.MaxOut {
			t.Errorf("a report of %d bytes is cut at %d", len(f.report()), c.MaxOut)
		}
		return run.Result{}, nil, false
	}
	if lv := f.lookUp(p, fmt.Sprint("v", n-1)); lv.UUID != fakeUUID(n-1) {
		t.Errorf("got %+v", lv)
	}
}

// Ensure that no argument of a command is too long for the kernel, for any number of volumes.
func TestCrowd(t *testing.T) {
	const n = maxBatchMembers + 100
	f, p := newFake(t, n)
	first := f.lookUp(p, "v0")
	f.commands()
	joined := make(chan struct{})
	f.before = func(words string) error {
		<-joined // the first command runs until all others wait for the next
		if len(words) >= 100<<10 || strings.Count(words, "lv_uuid=") > maxBatchMembers {
			t.Errorf("a command of %d bytes", len(words))
		}
		return nil
	}
	var wg sync.WaitGroup
	for i := range n {
		lv := first
		lv.Name.LV, lv.UUID = fmt.Sprint("v", i), fakeUUID(i)
		wg.Go(func() {
			if err := f.activate(t.Context(), p, lv); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all have joined", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.inflight) == n
	})
	close(joined)
	wg.Wait()
	if got := f.commands(); len(got) > 5 {
		t.Errorf("%d commands", len(got))
	}
}
