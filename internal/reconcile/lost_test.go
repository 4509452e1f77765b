package reconcile_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// lostLocks is a lock manager that forgets a group when its locks are dropped.
type lostLocks struct {
	mu      sync.Mutex
	why     string // guarded by mu, as all that follows
	since   time.Time
	dropped int
	healthy error // nothing is lost
}

func (k *lostLocks) Ready(context.Context, string) error {
	if why, _ := k.LostReason(""); why != "" {
		return errors.New(why)
	}
	return nil
}

func (k *lostLocks) Lost(_ context.Context, _, why string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.healthy != nil {
		return k.healthy
	}
	k.why, k.since = "vg0 has lost its locks: "+why, time.Now()
	return nil
}

func (k *lostLocks) LostReason(string) (string, time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.why, k.since
}

func (k *lostLocks) Unavailable(string) (string, time.Time) { return "", time.Time{} }

func (k *lostLocks) Observe(context.Context, []string) {}

func (k *lostLocks) State(string) status.Locks {
	why, _ := k.LostReason("")
	if why == "" {
		return status.Locks{State: "started"}
	}
	return status.Locks{State: "lost", Reason: why}
}

func (k *lostLocks) Drop(context.Context, string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.why = ""
	k.dropped++
	return nil
}

func (k *lostLocks) drops() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.dropped
}

// onLosing runs a test on a node whose group is shared.
func onLosing(t *testing.T, name string, test func(t *testing.T, e *hosttest.Env, k *lostLocks)) {
	onSim(t, name, func(t *testing.T, e *hosttest.Env) {
		k := &lostLocks{}
		e.Patient = true
		e.Crash()
		e.Parts = func(p *reconcile.Parts) {
			p.Locks, p.RemoveUnused = k, e.Sim.RemoveUnused
			p.Config.VG(hosttest.VG).Shared = true
		}
		e.Start()
		e.Patient = false
		test(t, e, k)
	})
}

// lose runs `flexd lockspace-lost`.
func lose(e *hosttest.Env) error {
	a := e.Flex().Serve(context.Background(), flexvolume.Request{V: flexvolume.Version, ID: "lost1", Verb: flexvolume.LockspaceLost, Args: []string{hosttest.VG}, Started: int64(e.M.Boot())}, 0)
	if a.Status != flexvolume.StatusSuccess {
		return &refusedError{a.Message}
	}
	return nil
}

// With lost locks an unused volume is unmounted and deactivated, and its claims are removed, so kubelet's
// unmounts succeed. Nothing is set up until the locks are dropped.
func TestLostLocksOfUnusedVolume(t *testing.T) {
	onLosing(t, "unused", func(t *testing.T, e *hosttest.Env, locks *lostLocks) {
		k, a := hosttest.NewKubelet(e, true), pod("a")
		works(t, k.Start(a))
		cgroup(t, e, a, "0") // its containers have ended, and kubelet has not unmounted yet
		works(t, lose(e))
		mountsAre(t, e)
		e.Empty()
		says(t, k.Start(pod("b")), "lost its locks")
		list := e.Node().List()
		if p := strings.Join(list.Problems, " "); !strings.Contains(p, "lost its locks") || list.Groups[0].State != status.GroupUnusable {
			t.Errorf("status: %q %+v", p, list.Groups)
		}
		if c := e.Node().Check(t.Context()); c.Verdict != status.Disagree || c.Findings[0].Class != "locks-lost" || c.Findings[0].Hint == "" {
			t.Errorf("%+v", c)
		}
		works(t, lose(e)) // a second time
		works(t, k.Finish(a))
		if locks.drops() != 0 {
			t.Error("flexd dropped the locks that lvmlockctl drops")
		}
		works(t, locks.Drop(t.Context(), hosttest.VG))
		works(t, k.Start(pod("b")))
	})
}

// `flexd lockspace-lost` fails for a group that is not shared.
func TestLostLocksOfLocalGroup(t *testing.T) {
	onLosing(t, "local", func(t *testing.T, e *hosttest.Env, locks *lostLocks) {
		e.Node().Config.VG(hosttest.VG).Shared = false
		k, a := hosttest.NewKubelet(e, true), pod("a")
		works(t, k.Start(a))
		cgroup(t, e, a, "0")
		says(t, lose(e), "is not shared")
		works(t, k.Start(pod("b"))) // nothing was marked, nothing unmounted
		works(t, k.Finish(a))
		works(t, k.Finish(pod("b")))
	})
}

// A running pod keeps its volume, and the answer names it. When it ends, flexd drops the locks.
func TestLostLocksOfPod(t *testing.T) {
	onLosing(t, "in use", func(t *testing.T, e *hosttest.Env, locks *lostLocks) {
		k, a := hosttest.NewKubelet(e, true), pod("a")
		works(t, k.Start(a))
		cgroup(t, e, a, "1")
		begun := time.Now()
		says(t, lose(e), "vg0/data", "ns/a", "its pod still runs", "delete the pod")
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("it took %s", took)
		}
		mountsAre(t, e, k.Global(a.Volume), k.Dir(a))
		if c := e.Node().Check(t.Context()); !strings.Contains(c.Findings[0].Hint, "ns/a") {
			t.Errorf("%+v", c)
		}
		cgroup(t, e, a, "")
		works(t, k.Finish(a))
		e.Eventually("the locks are dropped", func() bool { return locks.drops() == 1 })
		e.Empty()
	})
}

// The answer also names a volume that is open without a pod.
func TestLostLocksOfOpenVolume(t *testing.T) {
	onLosing(t, "open", func(t *testing.T, e *hosttest.Env, locks *lostLocks) {
		works(t, e.Storage.Make("data", 64<<20))
		if !e.Sim.Activate(e.File("data")) {
			t.Fatal("no volume")
		}
		release := e.Sim.HoldDevice(e.File("data"))
		says(t, lose(e), "vg0/data", "not in use by a pod")
		release()
		e.Node().NotifyChanged("", nil) // an event of device-mapper that names no group
		e.Eventually("the locks are dropped", func() bool { return locks.drops() == 1 })
		works(t, lose(e))
	})
}

// An unmount that hangs, as on a disk that does not answer, delays the answer only for seconds.
func TestLostLocksWhileUnmountHangs(t *testing.T) {
	onLosing(t, "hangs", func(t *testing.T, e *hosttest.Env, locks *lostLocks) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Start(a))
		cgroup(t, e, a, "0")
		_, release := e.Sim.Hang("umount", true, true)
		begun := time.Now()
		says(t, lose(e), "vg0/data")
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("it took %s", took)
		}
		release()
		e.Eventually("the locks are dropped", func() bool { return locks.drops() == 1 })
		e.Empty()
	})
}

// `flexd lockspace-lost` without a loss does not unmount the volume of a starting pod.
func TestLostLocksByMistake(t *testing.T) {
	onLosing(t, "healthy", func(t *testing.T, e *hosttest.Env, locks *lostLocks) {
		k, a := hosttest.NewKubelet(e, true), pod("a")
		works(t, k.Start(a))
		cgroup(t, e, a, "0") // it has no process yet
		locks.healthy = volume.Errorf(volume.NotAllowed, "vg0 has not lost its locks")
		says(t, lose(e), "not lost")
		works(t, k.Start(pod("b")))
		works(t, k.Finish(a))
		works(t, k.Finish(pod("b")))
	})
}

// A call is refused at once, although the group's disk does not answer.
func TestLostLocksRefuseAtOnce(t *testing.T) {
	onLosing(t, "hanging group", func(t *testing.T, e *hosttest.Env, locks *lostLocks) {
		release := e.Sim.HangGroup()
		defer release()
		k := hosttest.NewKubelet(e, false)
		_ = locks.Lost(t.Context(), "", "test")
		begun := time.Now()
		answer, err := k.Call(flexvolume.Mount, k.Dir(pod("a")), k.Blob(pod("a"), true))
		works(t, err)
		if !strings.Contains(answer.Message, "lost its locks") || time.Since(begun) > time.Second {
			t.Errorf("%+v after %s", answer, time.Since(begun))
		}
	})
}

// A mount is not committed after the loss of the locks, and the claim of its call is removed.
func TestLostLocksBeforeMount(t *testing.T) {
	for _, step := range []string{"activate", "probe", "mkfs", "mount"} {
		onLosing(t, step, func(t *testing.T, e *hosttest.Env, locks *lostLocks) {
			k := hosttest.NewKubelet(e, false)
			works(t, e.Sim.Mkdir(k.Dir(pod("a"))))
			var once sync.Once
			e.Command = func(c run.Cmd) {
				if c.Step == step {
					once.Do(func() { _ = locks.Lost(t.Context(), "", "test") })
				}
			}
			answer, err := k.Call(flexvolume.Mount, k.Dir(pod("a")), k.Blob(pod("a"), true))
			works(t, err)
			if !strings.Contains(answer.Message, "lost its locks") {
				t.Errorf("%+v", answer)
			}
			mountsAre(t, e)
			works(t, lose(e))
			e.Empty()
		})
	}
}
