package reconcile_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/hosttest"
)

// A volume that is hidden by a mount over kubelet's root has its note: mounts elsewhere cause no look at it.
func TestHiddenVolumeAtRest(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		e.Sim.Lenient = true
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		if !e.Sim.BindItself(e.Root) {
			t.Fatal("not bound")
		}
		time.Sleep(time.Minute)
		var looks atomic.Int32
		e.Sim.WhileLooking(func() { looks.Add(1) })
		for range 20 {
			works(t, e.M.MountTmpfs("/mnt/x"))
			time.Sleep(time.Second)
			works(t, e.M.Umount("/mnt/x"))
			time.Sleep(time.Second)
		}
		e.Sim.WhileLooking(nil)
		if n := looks.Load(); n > 3 {
			t.Errorf("%d looks\n%s", n, e.Describe())
		}
		works(t, e.M.Umount(e.Root))
		works(t, k.Finish(a))
		e.Empty()
	})
}
