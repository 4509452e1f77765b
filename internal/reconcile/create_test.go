package reconcile

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// creator is a provider with one volume, which does not exist at first.
type creator struct {
	Provider
	create func() error // makes the volume, or fails
	there  atomic.Bool
	gone   atomic.Bool // its device
	ours   bool        // flexd created it
	left   atomic.Bool // an interrupted creation has left its device
	open   atomic.Bool // something has this device open
	runs   atomic.Int32
}

func (p *creator) NoteLock(volume.UUID) {}

func (p *creator) EndCreation(context.Context, string, volume.Name) error {
	if p.open.Load() {
		return volume.Errorf(volume.Busy, "it is open")
	}
	p.left.Store(false)
	return nil
}

func (p *creator) Refresh(context.Context, string) error { return nil }

func (p *creator) LookUp(_ context.Context, name volume.Name) (volume.LV, error) {
	if !p.there.Load() {
		lv := volume.LV{Name: name, Presence: volume.Absent}
		if p.left.Load() {
			lv.UUID = "u"
		}
		return lv, nil
	}
	return volume.LV{Name: name, Presence: volume.Present, UUID: "u", Created: p.ours}, nil
}

func (p *creator) Create(ctx context.Context, _ string, _ volume.Name, _ int64, _ string) error {
	p.runs.Add(1)
	run.Progress(ctx, "zeroing 42 %")
	return p.create()
}

func (p *creator) Device(context.Context, volume.LV) (volume.Device, error) {
	if p.gone.Load() {
		return volume.Device{Activity: volume.Inactive}, nil
	}
	return volume.Device{Activity: volume.Active}, nil
}

func (p *creator) Identify(context.Context, string) (volume.Identity, error) {
	return volume.Identity{}, nil
}

// noMounts is a mount table without volumes.
type noMounts struct{}

func (noMounts) Open() (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("1 0 0:1 / / rw - tmpfs none rw\n")), nil
}
func (noMounts) Changed() bool { return false }
func (noMounts) Wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// A creating node has a provider with one volume that calls create.
type creating struct {
	*creator
	n     *Node
	store *dsw.Store
	notes string // their directory
}

func newCreating(t *testing.T, p *creator) *creating {
	t.Helper()
	log := logrus.New()
	log.SetLevel(logrus.PanicLevel)
	boot := func() time.Duration { return time.Hour }
	records, err := dsw.OpenRecords(t.TempDir(), "boot", boot)
	if err != nil {
		t.Fatal(err)
	}
	notes := t.TempDir()
	store, err := dsw.Open(notes, "boot")
	if err != nil {
		t.Fatal(err)
	}
	o := asw.New(nil, map[string]asw.Provider{"vg0": p}, records.Get, noMounts{})
	n := New(Parts{Config: config.NewLive(&config.Config{Files: config.Files{RunDir: t.TempDir()}, Times: config.Times{Lease: time.Hour, CallDeadline: time.Minute},
		VolumeGroups: []config.VolumeGroup{{Name: "vg0", Create: true, Volumes: []string{"*"}, Namespaces: []string{"*"}}}}), Log: logrus.NewEntry(log), Records: records,
		Store: store, Observer: o, Providers: map[string]Provider{"vg0": p}, Boot: boot, Held: func(string) *run.LockedError { return nil }})
	close(n.ready)
	return &creating{p, n, store, notes}
}

var created = volume.Name{VG: "vg0", LV: "a"}

// call waits for the volume. Its ctx is canceled if the caller is gone.
func (k *creating) call(ctx context.Context, id string) error {
	c := &call{Request: dsw.Request{Call: volume.Call{ID: id, Verb: volume.Publish, Size: 1 << 30}, Name: created}, asked: Request{Verb: volume.Publish}}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, ErrDeadline)
	defer cancel()
	return k.n.create(ctx, c)
}

// calls lets several callers wait at once.
func (k *creating) calls(ids ...string) <-chan error {
	all := make(chan error, len(ids))
	for _, id := range ids {
		go func() { all <- k.call(context.Background(), id) }()
	}
	synctest.Wait()
	return all
}

// status returns the volume as `flexd status` shows it.
func (k *creating) status(t *testing.T) status.VolumeDetail {
	t.Helper()
	d, ok := k.n.VolumeDetail("vg0", "a")
	if listed := len(k.n.List().Volumes) > 0; listed != ok {
		t.Errorf("listed is %v, found is %v", listed, ok)
	}
	return d
}

func steps(d status.VolumeDetail) (all []string) {
	for _, op := range d.History {
		all = append(all, strings.TrimSpace(op.Step+" "+op.Error))
	}
	return all
}

// Ensure that a volume which an operator creates between a call's observation and flexd's attempt is used
// without a lease, that a volume which flexd creates gets a lease, and that a missing volume is an error.
func TestVolumeCreatedMeanwhileIsUsed(t *testing.T) {
	for _, row := range []struct {
		err    error
		there  bool
		ours   bool
		leases int
	}{
		{fs.ErrExist, true, false, 0},
		{fs.ErrExist, true, true, 1},
		{nil, true, false, 1},
		{fs.ErrExist, false, false, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &creator{ours: row.ours}
			p.create = func() error { p.there.Store(row.there); return row.err }
			k := newCreating(t, p)
			defer k.n.stop(ErrStopping)
			err := k.call(t.Context(), "1")
			if row.there && err != nil || !row.there && !errors.Is(err, fs.ErrExist) {
				t.Errorf("%+v: %v", row, err)
			}
			time.Sleep(time.Minute) // no call waits any more
			if got := len(k.store.Leases()); got != row.leases {
				t.Errorf("%+v: %d leases", row, got)
			}
		})
	}
}

// A creation is a step like any other: status shows it while it runs, the history has it, and all waiting
// calls get its outcome.
func TestCreationIsAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan error)
		p := &creator{ours: true, create: func() error { return <-end }}
		k := newCreating(t, p)
		defer k.n.stop(ErrStopping)
		callers := k.calls("1", "2")
		later := k.calls("3")
		d := k.status(t)
		if d.State != status.Working || d.Step != "create (zeroing 42 %)" || len(d.Calls) != 3 || d.UUID != "" {
			t.Errorf("while it is created: %+v", d)
		}
		end <- errors.New("no space")
		for _, err := range []error{<-callers, <-callers, <-later} {
			if err == nil || err.Error() != "create: no space" {
				t.Errorf("a caller got %v", err)
			}
		}
		if runs := p.runs.Load(); runs != 1 {
			t.Errorf("%d creations for callers that waited for one", runs)
		}
		d = k.status(t)
		if d.State != status.Failed || d.Error == nil || !slices.Equal(steps(d), []string{"create no space"}) {
			t.Errorf("after it failed: %+v", d)
		}
		time.Sleep(failedAge + time.Second)
		if d = k.status(t); d.LV != "" {
			t.Errorf("still listed: %+v", d)
		}

		callers = k.calls("4", "5")
		p.there.Store(true)
		end <- nil
		if err := errors.Join(<-callers, <-callers); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if d = k.status(t); d.UUID != "u" || !slices.Equal(steps(d), []string{"create"}) {
			t.Errorf("after it succeeded: %+v", d)
		}
	})
}

// A call that waits for another node is checked against the reloaded configuration.
func TestReloadWhileCreationWaits(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*config.VolumeGroup)
		says   string
	}{
		"create":     {func(g *config.VolumeGroup) { g.Create = false }, "does not let flexd create it"},
		"maxSize":    {func(g *config.VolumeGroup) { g.MaxSize = 1 << 20 }, "more than maxSize"},
		"volumes":    {func(g *config.VolumeGroup) { g.Volumes = nil }, "does not allow volume"},
		"namespaces": {func(g *config.VolumeGroup) { g.Namespaces = []string{"other"} }, "does not allow pods of namespace"},
		"nothing":    {func(g *config.VolumeGroup) {}, "its disk is full"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var free atomic.Bool
				k := newCreating(t, &creator{create: func() error {
					if !free.Load() {
						return &volume.WaitError{Reason: "another node has the lock"}
					}
					return errors.New("its disk is full")
				}})
				defer k.n.stop(ErrStopping)
				dir, answer := t.TempDir(), make(chan error, 1)
				go func() {
					ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, ErrDeadline)
					defer cancel()
					_, err := k.n.Do(ctx, Request{ID: "1", Verb: volume.Publish, Name: created, Target: Target{Dir: dir}, Options: Options{Size: 1 << 30, Pod: dsw.Pod{Namespace: "ns"}}, Caller: Caller{Started: time.Hour}})
					answer <- err
				}()
				time.Sleep(10 * time.Second)
				tries := k.runs.Load()
				next := *k.n.Config.Get()
				next.VolumeGroups = slices.Clone(next.VolumeGroups)
				row.change(&next.VolumeGroups[0])
				if restart := k.n.Config.Reload(&next); len(restart) > 0 {
					t.Fatal(restart)
				}
				free.Store(true)
				if err := <-answer; err == nil || !strings.Contains(err.Error(), row.says) {
					t.Errorf("the answer is %v", err)
				}
				if more := k.runs.Load() - tries; tries == 0 || (more > 0) != (name == "nothing") {
					t.Errorf("%d tries, and %d after the reload", tries, more)
				}
			})
		})
	}
}

// A volume is renamed while it is in use, after a call has looked for its old name: the call creates none.
func TestRenamedBeforeCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &creator{create: func() error { return nil }}
		k := newCreating(t, p)
		defer k.n.stop(ErrStopping)
		k.n.Observer.Publish("u", volume.Have{LV: volume.LV{UUID: "u", Name: created, Now: volume.Name{VG: "vg0", LV: "b"}}})
		err := k.call(context.Background(), "1")
		if err == nil || !strings.Contains(err.Error(), "(uuid u) is now named vg0/b") {
			t.Errorf("got %v", err)
		}
		if p.runs.Load() != 0 {
			t.Error("it was created")
		}
	})
}

// A creation continues when its callers leave, and the new volume has a lease.
func TestCreationOutlivesItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan error)
		p := &creator{ours: true, create: func() error { return <-end }}
		k := newCreating(t, p)
		defer k.n.stop(ErrStopping)
		gone, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { left <- k.call(gone, "1") }()
		late := make(chan error)
		go func() { late <- k.call(t.Context(), "2") }()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the call that left got %v", err)
		}
		if err := <-late; err == nil || !strings.HasPrefix(err.Error(), "still preparing: create (zeroing 42 %) since ") {
			t.Errorf("at the deadline: %v", err)
		}
		if d := k.status(t); d.Step != "create (zeroing 42 %)" || len(d.Calls) > 0 {
			t.Errorf("without callers: %+v", d)
		}
		p.there.Store(true)
		end <- nil
		synctest.Wait()
		if d := k.status(t); d.Lease == nil || !slices.Equal(steps(d), []string{"create"}) {
			t.Errorf("after it ended: %+v", d)
		}
		// Nothing is created for a caller that is gone before it begins.
		p.there.Store(false)
		if err := k.call(gone, "3"); err == nil || p.runs.Load() != 1 {
			t.Errorf("%v, %d creations", err, p.runs.Load())
		}
	})
}

// Nothing is created while notes cannot be written, since the device of a volume without a lease would stay
// active. If that fails after the creation, the volume gets its lease later.
func TestCreationIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &creator{ours: true}
		k := newCreating(t, p)
		defer k.n.stop(ErrStopping)
		fill := func() error { return errors.Join(os.RemoveAll(k.notes), os.WriteFile(k.notes, nil, 0o600)) }
		p.create = func() error {
			p.there.Store(true)
			return fill()
		}
		for runs := range int32(2) {
			if runs == 0 {
				if err := fill(); err != nil {
					t.Fatal(err)
				}
			}
			if err := k.call(t.Context(), "1"); err == nil || !strings.Contains(err.Error(), "note: ") || p.runs.Load() != runs {
				t.Errorf("%d creations, %v", p.runs.Load(), err)
			}
			if err := os.Remove(k.notes); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if _, ok := k.store.Lease("u"); !ok || len(k.store.Leases()) != 1 {
			t.Errorf("leases: %+v", k.store.Leases())
		}
	})
}

// The device of a creation whose command was killed is deactivated when no call waits for the volume. While
// something has it open, status shows that flexd tries again.
func TestCreationKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &creator{}
		p.create = func() error {
			p.left.Store(true)
			p.open.Store(true)
			return &run.ExitError{Step: "create", Argv: []string{"lvm"}, Code: -1, Signal: "SIGKILL"}
		}
		k := newCreating(t, p)
		defer k.n.stop(ErrStopping)
		if err := k.call(t.Context(), "1"); err == nil {
			t.Error("no error")
		}
		k.n.lane("u", volume.Name{VG: "vg0", LV: "a"}) // as after a survey
		time.Sleep(time.Minute)
		if d := k.status(t); len(d.Plan) != 1 || !strings.HasPrefix(d.Plan[0], "deactivate what an interrupted creation has left (again in ") {
			t.Errorf("while it is open: %q", d.Plan)
		}
		p.open.Store(false)
		time.Sleep(time.Minute)
		if p.left.Load() || len(k.store.Leases()) > 0 {
			t.Errorf("active: %v, leases: %+v", p.left.Load(), k.store.Leases())
		}
	})
}

// A creation whose child does not end parks its lane. A volume that appears after its callers have gone
// gets a lease.
func TestCreationParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		p := &creator{ours: true}
		p.create = func() error {
			return &run.StuckError{Step: "create", Pid: 4711, Wchan: "io_schedule", Since: time.Now(), Done: done}
		}
		k := newCreating(t, p)
		defer k.n.stop(ErrStopping)
		callers := k.calls("1", "2")
		d := k.status(t)
		if d.State != status.Stuck || d.Stuck == nil || d.Stuck.Step != "create" || d.Stuck.Pid != 4711 || d.Stuck.Wchan != "io_schedule" || len(d.Calls) != 2 {
			t.Errorf("while its child does not end: %+v", d)
		}
		for range 2 {
			if err := <-callers; err == nil || !strings.HasPrefix(err.Error(), "stuck: create has been running since ") {
				t.Errorf("at the deadline: %v", err)
			}
		}
		again := k.calls("3")
		if runs := p.runs.Load(); runs != 1 {
			t.Errorf("%d creations at once", runs)
		}
		p.there.Store(true)
		close(done)
		if err := <-again; err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		p := &creator{ours: true}
		p.create = func() error { return &run.StuckError{Step: "create", Done: done} }
		k := newCreating(t, p)
		defer k.n.stop(ErrStopping)
		if err := k.call(t.Context(), "1"); err == nil {
			t.Error("no error")
		}
		p.there.Store(true)
		close(done)
		time.Sleep(time.Minute)
		if _, ok := k.store.Lease("u"); !ok {
			t.Errorf("leases: %+v", k.store.Leases())
		}
	})
}
