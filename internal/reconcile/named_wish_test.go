package reconcile_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
)

// A mount call that arrives after the unmount of a newer kubelet, because it waited for the socket while
// kubelet died, is refused.
func TestMountOlderThanUnmount(t *testing.T) {
	onBoth(t, "by its start", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		works(t, k.Start(a))
		works(t, k.Finish(a))
		e.Settle(time.Minute)
		started := e.M.Boot() // of the old kubelet's flexdriver
		e.Settle(time.Second)
		works(t, e.M.Mkdir(k.Dir(a)))
		r, err := k.Call(flexvolume.Unmount, k.Dir(a))
		works(t, err)
		if r.Status != flexvolume.StatusSuccess {
			t.Error(r)
		}
		r, err = k.CallAt(started, flexvolume.Mount, k.Dir(a), k.Blob(a, true))
		works(t, err)
		if r.Status != flexvolume.StatusFailure || !strings.Contains(r.Message, "superseded") {
			t.Errorf("an old mount got %+v", r)
		}
		mountsAre(t, e)
		works(t, k.Start(a)) // a new one is served
		works(t, k.Finish(a))
		e.Empty()
	})
	onBoth(t, "by its parent", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		works(t, e.M.Mkdir(k.Dir(a)))
		// This process is a flexdriver that was the child of another process.
		r := flexvolume.Request{V: flexvolume.Version, ID: "orphan", Verb: flexvolume.Mount, Args: []string{k.Dir(a), k.Blob(a, true)},
			Started: int64(e.M.Boot()), Parent: os.Getppid() + 100000}
		if got := e.Flex().Serve(context.Background(), r, os.Getpid()); got.Status != flexvolume.StatusFailure {
			t.Errorf("it got %+v", got)
		}
		if steps := e.Steps(); strings.Contains(steps, "create") {
			t.Errorf("a volume was created, and no call waits for it: %s", steps)
		}
		mountsAre(t, e)
		works(t, e.M.Remove(k.Dir(a)))
		e.Empty()
	})
}

func TestUnmountDuringMountOfTheSameDirectory(t *testing.T) {
	onSim(t, "before it lands the mount gives way", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		hit, release := e.Sim.Hang("mount", false, false)
		mount := behind(func() error { return k.Up(a) })
		<-hit
		time.Sleep(time.Second)
		unmount := behind(func() error { return k.Down(a) })
		fails(t, mount(), "superseded")
		release()
		works(t, unmount())
		mountsAre(t, e)
		e.Empty()
	})
	onSim(t, "once it lands both are served", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		hit, release := e.Sim.Hang("mount", true, false)
		mount := behind(func() error { return k.Up(a) })
		<-hit
		time.Sleep(time.Second)
		unmount := behind(func() error { return k.Down(a) })
		time.Sleep(time.Second)
		release()
		_ = mount() // Success, or superseded after it stood
		works(t, unmount())
		mountsAre(t, e)
		e.Empty()
	})
	onSim(t, "during mkfs", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		hit, release := e.Sim.Hang("format-half", false, false)
		mount := behind(func() error { return k.Up(a) })
		<-hit
		time.Sleep(time.Second)
		unmount := behind(func() error { return k.Down(a) })
		fails(t, mount(), "superseded")
		time.Sleep(time.Second)
		release()
		works(t, unmount())
		mountsAre(t, e)
		e.Empty()
	})
	onReal(t, "at any instant", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		works(t, k.Start(a))
		works(t, k.Finish(a))
		began := time.Now()
		works(t, k.Up(a))
		took := time.Since(began)
		works(t, k.Finish(a))
		n := max(3, times(12))
		for i := range n {
			mount := behind(func() error { return k.Up(a) })
			time.Sleep(took * time.Duration(i) / time.Duration(n))
			_, err := k.Call(flexvolume.Unmount, k.Dir(a))
			works(t, err)
			_ = mount()
			works(t, k.Finish(a))
			mountsAre(t, e)
		}
		e.Empty()
	})
}

func TestSupersededInBothDirections(t *testing.T) {
	onBoth(t, "an unmount that is older than the mount", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		e.Settle(time.Second)
		old := e.M.Boot()
		e.Settle(time.Second)
		works(t, k.Start(a))
		r, err := k.CallAt(old, flexvolume.Unmount, k.Dir(a))
		works(t, err)
		if r.Status != flexvolume.StatusFailure || !strings.Contains(r.Message, "superseded") {
			t.Errorf("an old unmount got %+v", r)
		}
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
	onSim(t, "a newer mount while an unmount waits", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		works(t, k.Start(a))
		hit, release := e.Sim.Hang("umount", false, false)
		unmount := behind(func() error { return k.Down(a) })
		<-hit
		time.Sleep(time.Second)
		mount := behind(func() error {
			_, err := k.Call(flexvolume.Mount, k.Dir(a), k.Blob(a, true))
			return err
		})
		fails(t, unmount(), "superseded")
		release()
		works(t, mount())
		e.AtRest()
		mountsAre(t, e, k.Dir(a)) // the umount had begun; what is wanted now was made again
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A call does not wait for the backoff of a deactivation.
func TestCallIgnoresBackoff(t *testing.T) {
	onSim(t, "busy device", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a, b := pod("a"), pod("b")
		works(t, k.Start(a))
		release := e.Sim.HoldDevice(e.File("data"))
		works(t, k.Finish(a))
		time.Sleep(10 * time.Minute) // by now it is tried every two minutes
		release()
		e.Refuse("mount", errSimulated)
		fails(t, k.Up(a), "simulated") // its claim is to be dropped
		e.Refuse("mount", nil)
		began := time.Now()
		works(t, k.Up(b))
		if took := time.Since(began); took > time.Second {
			t.Errorf("the call waited for %v", took)
		}
		works(t, k.Finish(b))
		e.Empty()
	})
	onSim(t, "the numbers are kubelet's", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		works(t, k.Start(a))
		release := e.Sim.HoldDevice(e.File("data"))
		works(t, k.Finish(a))
		time.Sleep(30*time.Second + 65*time.Second) // tries at 0, .5, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5 after the lease
		if n := e.Sim.Count("loop-detach"); n != 8 {
			t.Errorf("deactivation was tried %d times", n)
		}
		release()
		e.Empty()
	})
}
