package reconcile_test

import (
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
)

// An unmount does not wait for a volume group whose metadata cannot be read.
func TestUnmountGroupHangs(t *testing.T) {
	unmount := func(t *testing.T, k *hosttest.Kubelet, dir string) {
		t.Helper()
		began := time.Now()
		r, err := k.Call(flexvolume.Unmount, dir)
		works(t, err)
		if took := time.Since(began); r.Status != flexvolume.StatusSuccess || took > 10*time.Second {
			t.Errorf("%v after %v", r, took)
		}
	}
	onSim(t, "of a pod that runs", func(t *testing.T, e *hosttest.Env) {
		k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
		works(t, k.Up(a))
		works(t, k.Up(b))
		release := e.Sim.HangGroup()
		unmount(t, k, k.Dir(a))
		unmount(t, k, k.Dir(b))
		mountsAre(t, e)
		e.Settle(10 * time.Minute)
		release()
		e.Empty()
	})
	onSim(t, "after a crash", func(t *testing.T, e *hosttest.Env) {
		k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
		works(t, k.Up(a))
		works(t, k.Up(b))
		e.Patient = true
		e.Crash()
		release := e.Sim.HangGroup()
		e.Start()
		e.Settle(time.Minute)
		unmount(t, k, k.Dir(a))
		e.Settle(time.Minute)
		unmount(t, k, k.Dir(b))
		mountsAre(t, e)
		e.Settle(10 * time.Minute)
		release()
		e.Empty()
	})
	onSim(t, "beside a mount that appears", func(t *testing.T, e *hosttest.Env) {
		k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
		works(t, k.Up(a))
		hit, land := e.Sim.Hang("mount", false, false)
		up := behind(func() error { return k.Up(b) })
		<-hit
		release := e.Sim.HangGroup()
		land()
		works(t, up())
		unmount(t, k, k.Dir(a))
		mountsAre(t, e, k.Dir(b))
		unmount(t, k, k.Dir(b))
		release()
		e.Empty()
	})
	onSim(t, "beside a mount that waits for the group", func(t *testing.T, e *hosttest.Env) {
		e.Sim.AddFile(hosttest.File{FileInfo: info(64 << 20), Type: "ext4", State: hosttest.Whole, Bytes: 64 << 20, Data: 1}, e.File("data"))
		k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
		hit, probed := e.Sim.Hang("probe", false, false)
		upA, upB := behind(func() error { return k.Up(a) }), behind(func() error { return k.Up(b) })
		<-hit
		time.Sleep(time.Second)
		release := e.Sim.HangGroup()
		probed()
		time.Sleep(time.Minute)
		unmount(t, k, k.Dir(a)) // it supersedes the mount there
		fails(t, upA(), "superseded")
		time.Sleep(time.Minute)
		mountsAre(t, e)
		release()
		works(t, upB())
		mountsAre(t, e, k.Dir(b))
		works(t, k.Finish(b))
		e.Empty()
	})
	onSim(t, "beside a mount that waits until its deadline", func(t *testing.T, e *hosttest.Env) {
		e.Sim.AddFile(hosttest.File{FileInfo: info(64 << 20), Type: "ext4", State: hosttest.Whole, Bytes: 64 << 20, Data: 1}, e.File("data"))
		k, a := hosttest.NewKubelet(e, false), pod("a")
		hit, probed := e.Sim.Hang("probe", false, false)
		up := behind(func() error { return k.Up(a) })
		<-hit
		release := e.Sim.HangGroup()
		probed()
		fails(t, up(), "timed out reading the metadata of volume group vg0")
		release()
		e.Empty()
	})
	onSim(t, "with a global mount", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, true), pod("a")
		works(t, k.Up(a))
		release := e.Sim.HangGroup()
		began := time.Now()
		works(t, k.Finish(a))
		if took := time.Since(began); took > time.Minute {
			t.Error(took)
		}
		mountsAre(t, e)
		e.Settle(10 * time.Minute)
		release()
		e.Empty()
	})
}
