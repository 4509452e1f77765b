package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/audit"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A sharing provider has steps that may wait for another host.
type sharing struct {
	reconcile.Provider
	audit.Surveyor
	*shared
}

// A shared has the state that the providers of successive flexds share.
type shared struct {
	boot func() time.Duration

	mu    sync.Mutex
	waits map[string]*volume.WaitError // by step; nil = it need not wait
	tries map[string][]time.Duration   // by step
	does  map[string]func(volume.Name) error

	events []status.Event
	slow   time.Duration // the time that it takes to record an event
}

func (s *shared) step(step string, name volume.Name) error {
	s.mu.Lock()
	s.tries[step] = append(s.tries[step], s.boot())
	e, does := s.waits[step], s.does[step]
	s.mu.Unlock()
	if e != nil {
		return fmt.Errorf("lvchange: %w", e)
	}
	if does != nil {
		return does(name)
	}
	return nil
}

func (s *shared) must(step string, e *volume.WaitError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits[step] = e
}

func (s *shared) tried(step string) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tries[step])
}

// story returns the events about waiting.
func (s *shared) story() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Type == status.WaitingEvent || e.Type == status.WaitedEvent {
			all = append(all, fmt.Sprintf("%s %s %s", e.Type, e.Step, strings.TrimSpace(e.LV)))
		} else if e.Type == status.StepEvent && (e.Step == "activate" || e.Step == "create") {
			all = append(all, e.Step+" "+e.Code)
		}
	}
	return all
}

func (s sharing) LookUp(ctx context.Context, name volume.Name) (volume.LV, error) {
	if err := s.step("look-up", name); err != nil {
		return volume.LV{}, err
	}
	return s.Provider.LookUp(ctx, name)
}

func (s sharing) Create(ctx context.Context, lock string, name volume.Name, size int64, namespace string) error {
	if err := s.step("create", name); err != nil {
		return err
	}
	return s.Provider.Create(ctx, lock, name, size, namespace)
}

func (s sharing) Activate(ctx context.Context, lock string, lv volume.LV) error {
	if err := s.step("activate", lv.Name); err != nil {
		return err
	}
	return s.Provider.Activate(ctx, lock, lv)
}

func (s sharing) Extend(ctx context.Context, lock string, lv volume.LV, d volume.Device, size int64) error {
	if err := s.step("extend", lv.Name); err != nil {
		return err
	}
	return s.Provider.Extend(ctx, lock, lv, d, size)
}

func (s sharing) Deactivate(ctx context.Context, lock string, lv volume.LV, d volume.Device) error {
	if err := s.step("deactivate", lv.Name); err != nil {
		return err
	}
	return s.Provider.Deactivate(ctx, lock, lv, d)
}

func (s sharing) WouldWait(context.Context, volume.LV) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.waits["foretold"]; w != nil {
		return w
	}
	return nil
}

// share makes the volume group a shared one.
func share(e *hosttest.Env) *shared {
	s := &shared{boot: e.M.Boot, waits: map[string]*volume.WaitError{}, tries: map[string][]time.Duration{}, does: map[string]func(volume.Name) error{}}
	e.Parts = func(p *reconcile.Parts) {
		inner := p.Providers[hosttest.VG]
		outer := sharing{inner, inner.(audit.Surveyor), s}
		p.Providers[hosttest.VG], p.Observer.Providers[hosttest.VG] = outer, outer
		p.Record = func(ev status.Event) {
			s.mu.Lock()
			s.events = append(s.events, ev)
			slow := s.slow
			s.mu.Unlock()
			time.Sleep(slow)
		}
	}
	e.Again()
	return s
}

var errBusy = volume.WithCode(volume.Busy, errors.New("lvchange failed"))

func heldBy(host string) *volume.WaitError {
	return &volume.WaitError{Reason: "another host has it active", Err: errBusy,
		Holder: &volume.Holder{HostID: 7, Host: host, Since: time.Now(), State: volume.LeaseLive, Renewed: time.Now()}}
}

func onShared(t *testing.T, name string, test func(t *testing.T, e *hosttest.Env, s *shared)) {
	t.Helper()
	onSim(t, name, func(t *testing.T, e *hosttest.Env) {
		works(t, e.Storage.Make("data", 64<<20))
		test(t, e, share(e))
	})
}

func state(e *hosttest.Env, lv string) status.VolumeDetail {
	d, _ := e.Node().VolumeDetail(hosttest.VG, lv)
	return d
}

// A call waits for a volume that another host has active.
func TestWaiting(t *testing.T) {
	for _, attach := range []bool{false, true} {
		onShared(t, fmt.Sprintf("until the other host has deactivated it, attach:%t", attach), func(t *testing.T, e *hosttest.Env, s *shared) {
			k := hosttest.NewKubelet(e, attach)
			s.must("activate", heldBy("node-7"))
			if attach {
				// It needs no device.
				works(t, k.Insist("attach", k.Blob(pod("a"), false), e.Config.NodeName))
			}
			up := behind(func() error { return k.Up(pod("a")) })
			time.Sleep(30*time.Second + 100*time.Millisecond)
			d := state(e, "data")
			if c := explained(t, e, k, pod("b")); c.Result != status.OutcomeUnknown || !strings.Contains(c.Message, "it would wait: another host has it active: host node-7") || len(c.Steps) != 1 {
				t.Errorf("explained: %+v", c)
			}
			if d.State != status.Waiting || d.Step != "activate" || d.Waiting == nil || d.Waiting.Holder == nil || d.Waiting.Holder.Host != "node-7" || d.Waiting.Holder.HostID != 7 ||
				time.Since(d.Waiting.Since) < 29*time.Second || !strings.Contains(d.Waiting.Reason, "another host has it active: host node-7 (host id 7), seen since ") || d.Error != nil || len(d.Calls) != 1 {
				t.Errorf("while it waits: %+v %+v", d, d.Waiting)
			}
			if n := len(s.tried("activate")); n < 30 || n > 33 {
				t.Errorf("%d tries in 30 s", n)
			}
			s.must("activate", nil)
			begun := time.Now()
			works(t, up())
			if took := time.Since(begun); took > 2*time.Second {
				t.Errorf("it took %s", took)
			}
			if got, want := s.story(), []string{"waiting activate data", "waited activate data", "activate "}; !slices.Equal(got, want) {
				t.Errorf("the history has %q, want %q", got, want)
			}
			if d := state(e, "data"); d.State != status.Mounted || d.Waiting != nil {
				t.Errorf("afterwards: %+v", d)
			}
			works(t, k.Finish(pod("a")))
			e.Empty()
		})
	}
	onShared(t, "and a try takes long", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		s.does["activate"] = func(volume.Name) error {
			if len(s.tried("activate")) > 1 {
				return nil
			}
			time.Sleep(2 * time.Minute)
			return heldBy("node-7")
		}
		begun := time.Now()
		works(t, k.Up(pod("a")))
		if took := time.Since(begun); took > 2*time.Minute+40*time.Second {
			t.Errorf("it took %s", took)
		}
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
	onShared(t, "until the deadline", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		h := heldBy("node-7")
		h.Holder.State, h.Holder.FreeAt = volume.LeaseFailing, time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
		s.must("activate", h)
		begun := time.Now()
		err := k.Up(pod("a"))
		for _, words := range []string{"vg0/data", "activate: has waited since ", "host node-7 (host id 7)", "seen since ", "it does not renew its lease", "the lock manager frees the volume at 03:04:05", "look at its disks"} {
			fails(t, err, words)
		}
		if took := time.Since(begun); took < 4*time.Minute {
			t.Errorf("it ended after %s", took)
		}
		s.must("activate", nil)
		k.Forget(pod("a"))
		time.Sleep(5 * time.Minute)
		if d := state(e, "data"); d.State != "" && d.State != status.Idle || len(e.Active()) > 0 || len(e.Claims()) > 0 {
			t.Errorf("left: %+v, active %v, claims %v", d, e.Active(), e.Claims())
		}
		if got, want := s.story(), []string{"waiting activate data", "waited activate data"}; !slices.Equal(got, want) {
			t.Errorf("the history has %q, want %q", got, want)
		}
		e.Empty()
	})
	onShared(t, "until its pod is deleted", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		s.must("activate", heldBy("node-7"))
		up := behind(func() error { return k.Up(pod("a")) })
		time.Sleep(10*time.Second + 300*time.Millisecond)
		begun, tries := time.Now(), len(s.tried("activate"))
		works(t, k.Down(pod("a")))
		fails(t, up(), "superseded")
		if took := time.Since(begun); took > 500*time.Millisecond {
			t.Errorf("it ended after %s", took)
		}
		s.must("activate", nil)
		time.Sleep(time.Minute)
		if n := len(s.tried("activate")); n != tries || len(e.Active()) > 0 || len(e.Claims()) > 0 {
			t.Errorf("%d more tries, active %v, claims %v", n-tries, e.Active(), e.Claims())
		}
		e.Empty()
	})
	onShared(t, "until its caller is gone", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		s.must("activate", heldBy("node-7"))
		up := behind(func() error { return k.Up(pod("a")) })
		time.Sleep(10*time.Second + 300*time.Millisecond)
		e.KillDriver("")
		fails(t, up(), "killed")
		time.Sleep(2 * time.Second)
		tries := len(s.tried("activate"))
		s.must("activate", nil)
		k.Forget(pod("a"))
		time.Sleep(time.Minute)
		if n := len(s.tried("activate")); n != tries || len(e.Active()) > 0 || len(e.Claims()) > 0 {
			t.Errorf("%d more tries, active %v, claims %v", n-tries, e.Active(), e.Claims())
		}
		e.Empty()
	})
	onShared(t, "while flexd is killed", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		s.must("activate", heldBy("node-7"))
		up := behind(func() error { return k.Up(pod("a")) })
		for range 3 {
			time.Sleep(10*time.Second + 300*time.Millisecond)
			e.Again()
		}
		time.Sleep(5 * time.Second)
		if d := state(e, "data"); d.State != status.Waiting {
			t.Errorf("after a restart: %+v", d)
		}
		s.must("activate", nil)
		works(t, up())
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
	onShared(t, "for another reason than before", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		s.must("look-up", &volume.WaitError{Reason: "the locks of the volume group are being started", Err: errBusy})
		up := behind(func() error { return k.Up(pod("a")) })
		time.Sleep(10 * time.Second)
		if d := state(e, "data"); d.State != status.Waiting || d.UUID != "" || d.Waiting == nil || d.Waiting.Holder != nil || d.Waiting.Step != "look-up" || len(d.Calls) != 1 {
			t.Errorf("%+v", d)
		}
		s.must("activate", heldBy("node-7"))
		s.must("look-up", nil)
		time.Sleep(10 * time.Second)
		for range 5 {
			s.must("activate", heldBy("node-8"))
			time.Sleep(2 * time.Second)
			s.must("activate", &volume.WaitError{Reason: "another host has it active", Err: errBusy})
			time.Sleep(2 * time.Second)
		}
		s.must("activate", nil)
		works(t, up())
		want := []string{"waiting look-up data", "waited look-up data", "waiting activate data", "waited activate data", "waiting activate data", "waited activate data", "activate "}
		if got := s.story(); !slices.Equal(got, want) {
			t.Errorf("the history has %q, want %q", got, want)
		}
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
	onShared(t, "for the look-up until the deadline", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		s.must("look-up", &volume.WaitError{Reason: "the locks of the volume group are being started", Err: errBusy})
		fails(t, k.Up(pod("a")), "look-up: has waited since ")
		k.Forget(pod("a"))
		up := behind(func() error { return k.Up(pod("a")) })
		time.Sleep(10 * time.Second)
		works(t, k.Down(pod("a")))
		fails(t, up(), "superseded")
		s.must("look-up", nil)
		fails(t, k.Up(hosttest.Pod{UID: "b", Volume: "pv2", LV: "none"}), "does not exist")
		e.Empty()
	})
	// The time of the next try comes while the lane records that it waits.
	onShared(t, "for the look-up on a slow node", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		s.slow = 1500 * time.Millisecond
		s.must("look-up", &volume.WaitError{Reason: "the locks of the volume group are being started", Err: errBusy})
		up := behind(func() error { return k.Up(pod("a")) })
		time.Sleep(10 * time.Second)
		s.must("look-up", nil)
		begun := time.Now()
		works(t, up())
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("it took %s", took)
		}
		if got, want := s.story(), []string{"waiting look-up data", "waited look-up data", "activate "}; !slices.Equal(got, want) {
			t.Errorf("the history has %q, want %q", got, want)
		}
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
	onShared(t, "for the look-up, to release a volume", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		works(t, k.Up(pod("a")))
		uuid := state(e, "data").UUID
		works(t, k.Finish(pod("a")))
		works(t, loseLease(e))
		e.Eventually("status names it", func() bool {
			e.Node().Check(t.Context())
			return differ(e) == "active-unclaimed data"
		})
		s.must("look-up", &volume.WaitError{Reason: "the locks of the volume group are being started", Err: errBusy})
		released := behind(func() error { return reclaim(e, uuid, "") })
		time.Sleep(10 * time.Second)
		s.must("look-up", nil)
		begun := time.Now()
		works(t, released())
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
		e.Empty()
	})
	onShared(t, "by several pods", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		s.must("activate", heldBy("node-7"))
		var ups []func() error
		pods := []hosttest.Pod{pod("a"), readOnly(pod("b")), pod("c"), readOnly(pod("d"))}
		for _, p := range pods {
			ups = append(ups, behind(func() error { return k.Up(p) }))
			time.Sleep(1700 * time.Millisecond)
		}
		works(t, k.Down(pods[2]))
		fails(t, ups[2](), "superseded")
		s.must("activate", nil)
		for i, up := range ups {
			if i != 2 {
				works(t, up())
				works(t, k.Finish(pods[i]))
			}
		}
		e.Empty()
	})
	onShared(t, "as explained", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		s.must("foretold", heldBy("node-7"))
		if c := explained(t, e, k, pod("a")); c.Result != status.OutcomeUnknown || !strings.Contains(c.Message, "it would wait: another host has it active: host node-7") {
			t.Errorf("held elsewhere: %+v", c)
		}
		s.must("foretold", nil)
		if c := explained(t, e, k, pod("a")); strings.Contains(c.Message, "wait") || len(s.tried("activate")) > 0 {
			t.Errorf("free: %+v", c)
		}
		s.must("look-up", &volume.WaitError{Reason: "the locks of the volume group are being started", Err: errBusy})
		if c := explained(t, e, k, pod("a")); c.Result != status.OutcomeUnknown || !strings.Contains(c.Message, "locks of the volume group are being started") {
			t.Errorf("not started: %+v", c)
		}
		s.must("look-up", nil)
		e.Empty()
	})
	onShared(t, "to be extended", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		works(t, k.Up(pod("a")))
		s.must("extend", &volume.WaitError{Reason: "the lock of the volume group is held", Err: errBusy})
		expand := behind(func() error { return k.Expand(pod("a"), 128<<20) })
		time.Sleep(10 * time.Second)
		if d := state(e, "data"); d.State != status.Waiting || d.Step != "extend" {
			t.Errorf("%+v", d)
		}
		// The mounts of other pods do not wait, and no unmount.
		begun := time.Now()
		works(t, k.Up(pod("b")))
		works(t, k.Down(pod("b")))
		if took := time.Since(begun); took > 500*time.Millisecond {
			t.Errorf("they took %s", took)
		}
		s.must("extend", nil)
		works(t, expand())
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
	onShared(t, "and then fails", func(t *testing.T, e *hosttest.Env, s *shared) {
		k := hosttest.NewKubelet(e, false)
		s.must("activate", heldBy("node-7"))
		up := behind(func() error { return k.Up(pod("a")) })
		time.Sleep(10 * time.Second)
		s.mu.Lock()
		s.does["activate"] = func(volume.Name) error { return errSimulated }
		s.mu.Unlock()
		s.must("activate", nil)
		fails(t, up(), "activate: "+errSimulated.Error())
		if d := state(e, "data"); d.State != status.Failed || d.Waiting != nil {
			t.Errorf("%+v", d)
		}
		k.Forget(pod("a"))
		e.Empty()
	})
}

// Releasing a volume does not wait.
func TestReleaseDoesNotWait(t *testing.T) {
	onLoops(t, "an orphan", func(t *testing.T, e *hosttest.Env) {
		s := share(e)
		k := hosttest.NewKubelet(e, false)
		works(t, k.Up(pod("a")))
		uuid := state(e, "data").UUID
		works(t, k.Finish(pod("a")))
		works(t, loseLease(e))
		e.Eventually("status names it", func() bool {
			e.Node().Check(t.Context())
			return differ(e) == "active-unclaimed data"
		})
		s.must("deactivate", heldBy("node-7"))
		fails(t, reclaim(e, uuid, ""), "deactivate: lvchange: another host has it active")
		s.must("deactivate", nil)
		works(t, reclaim(e, uuid, ""))
		e.Empty()
	})
}

// Two hosts create a volume at once: one waits for the other's lock, and uses the existing volume.
func TestWaitingToCreate(t *testing.T) {
	onSim(t, "another host was faster", func(t *testing.T, e *hosttest.Env) {
		s := share(e)
		k := hosttest.NewKubelet(e, false)
		s.must("create", &volume.WaitError{Reason: "another host changes the volume group", Err: errBusy})
		up := behind(func() error { return k.Up(pod("a")) })
		time.Sleep(10 * time.Second)
		if d := state(e, "data"); d.State != status.Waiting || d.Step != "create" || d.UUID != "" {
			t.Errorf("%+v", d)
		}
		works(t, e.Storage.Make("data", 64<<20))
		works(t, up())
		if got, want := s.story(), []string{"waiting create data", "waited create data", "activate "}; !slices.Equal(got, want) {
			t.Errorf("the history has %q, want %q", got, want)
		}
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
	onSim(t, "at the same moment", func(t *testing.T, e *hosttest.Env) {
		s := share(e)
		k := hosttest.NewKubelet(e, false)
		s.does["create"] = func(name volume.Name) error {
			works(t, e.Storage.Make(name.LV, 64<<20))
			return errors.New("it exists in the volume group")
		}
		works(t, k.Up(pod("a")))
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
}

// Waiting volumes are tried at the same moments, so that one command can serve all of them.
func TestWaitingTogether(t *testing.T) {
	for _, step := range []string{"activate", "look-up"} {
		onSim(t, "fifty wait for "+step, func(t *testing.T, e *hosttest.Env) {
			s := share(e)
			k := hosttest.NewKubelet(e, false)
			var ups []func() error
			var pods []hosttest.Pod
			for i := range 50 {
				p := pod(fmt.Sprint("p", i))
				p.LV, p.Volume = fmt.Sprint("lv", i), fmt.Sprint("pv", i)
				pods = append(pods, p)
			}
			together(t, len(pods), func(i int) error { return all(start(k, pods[i]), stop(k, pods[i])) })
			e.Eventually("they are inactive", func() bool { return len(e.Active()) == 0 })
			s.must(step, heldBy("node-7"))
			for _, p := range pods {
				ups = append(ups, behind(func() error { return k.Up(p) }))
				time.Sleep(77 * time.Millisecond)
			}
			time.Sleep(time.Second)
			before := len(s.tried(step))
			time.Sleep(20 * time.Second)
			tries := s.tried(step)[before:]
			moments := map[time.Duration]bool{}
			for _, at := range tries {
				moments[at.Round(10*time.Millisecond)] = true // looks at the mount table are shared, too
			}
			if len(tries) < 50*19 || len(tries) > 50*21 || len(moments) > 21 {
				t.Errorf("%d tries at %d moments", len(tries), len(moments))
			}
			s.must(step, nil)
			for i, up := range ups {
				works(t, up())
				works(t, k.Finish(pods[i]))
			}
			e.Empty()
		})
	}
}
