package reconcile_test

import (
	"testing"
	"time"

	"github.com/flexd/flexd/internal/hosttest"
)

// A call whose caller has gone causes no step, at any point. The simulation found these cases.

// A mount that an operator removed as soon as it appeared is not made again for a dead caller.
func TestMountGoneCallerDead(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		b := pod("b")
		works(t, k.Start(a))
		hit, release := e.Sim.Hang("mount", true, false)
		join := behind(func() error { return k.Up(b) })
		<-hit // it has landed, and its child has not ended
		works(t, e.M.Umount(k.Dir(a)))
		works(t, e.M.Umount(k.Dir(b)))
		k = k.Kill()
		release()
		_ = join()
		e.AtRest()
		if n := e.Sim.Count("mount"); n != 2 {
			t.Errorf("mounted %d times", n)
		}
		mountsAre(t, e)
		works(t, k.Finish(a))
		works(t, k.Finish(b))
		e.Empty()
	})
}

// The note of a staged claim is removed without a call when kubelet has removed the
// directory.
func TestStagedClaimDirGone(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, true)
		a := pod("a")
		works(t, k.Start(a))
		works(t, e.M.Umount(k.Dir(a)))
		works(t, e.M.Umount(k.Global(a.Volume)))
		time.Sleep(20 * time.Minute) // there is nothing more for the lane to wake up for
		if n := len(e.Claims()); n != 2 {
			t.Errorf("%d claims", n)
		}
		works(t, k.Finish(a)) // unmountdevice is not called for what is no mount point
		e.Empty()
	})
}

// An unmount is not done if its caller dies during the observation before it.
func TestUnmountCallerDies(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		works(t, k.Start(a))
		dir := k.Dir(a)
		e.Sim.WhileLooking(func() {
			for _, c := range e.Claims() { // the look after the release is noted
				if c.Phase == "releasing" {
					k.Kill()
				}
			}
		})
		_ = k.Down(a)
		e.Sim.WhileLooking(nil)
		e.AtRest()
		mountsAre(t, e, dir) // the next kubelet counts it for the pod that it wants
		works(t, hosttest.NewKubelet(e, false).Finish(a))
		e.Empty()
	})
}
