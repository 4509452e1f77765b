package reconcile_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
)

// answers requires the status of an answer.
func answers(t *testing.T, k *hosttest.Kubelet, started time.Duration, want, verb string, args ...string) {
	t.Helper()
	r, err := k.CallAt(started, verb, args...)
	works(t, err)
	if r.Status != want {
		t.Errorf("%s, started at %v: %+v", verb, started, r)
	}
}

// A mount that started before an unmount is refused, even if a newer mount came in between.
func TestLateMount(t *testing.T) {
	onBoth(t, "after unmount and mount", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, e.M.Mkdir(k.Dir(a)))
		e.Settle(time.Second)
		first := e.M.Boot()
		e.Settle(time.Second)
		answers(t, k, e.M.Boot(), flexvolume.StatusSuccess, flexvolume.Unmount, k.Dir(a))
		e.Settle(time.Second)
		e.Refuse("mount", errSimulated)
		answers(t, k, e.M.Boot(), flexvolume.StatusFailure, flexvolume.Mount, k.Dir(a), k.Blob(a, true))
		e.Refuse("mount", nil)
		answers(t, k, first, flexvolume.StatusFailure, flexvolume.Mount, k.Dir(a), k.Blob(a, true))
		mountsAre(t, e)
		works(t, e.M.Remove(k.Dir(a)))
		e.Empty()
	})
}

// A late unmount is refused while a newer mount exists, even if a newer unmount came before that.
func TestLateUnmount(t *testing.T) {
	onBoth(t, "after unmount and mount", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, e.M.Mkdir(k.Dir(a)))
		e.Settle(time.Second)
		first := e.M.Boot()
		e.Settle(time.Second)
		answers(t, k, e.M.Boot(), flexvolume.StatusSuccess, flexvolume.Mount, k.Dir(a), k.Blob(a, true))
		e.Settle(time.Second)
		late := e.M.Boot()
		e.Settle(time.Second)
		answers(t, k, e.M.Boot(), flexvolume.StatusSuccess, flexvolume.Unmount, k.Dir(a))
		answers(t, k, late, flexvolume.StatusSuccess, flexvolume.Unmount, k.Dir(a)) // nothing newer is mounted
		answers(t, k, first, flexvolume.StatusFailure, flexvolume.Unmount, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A late unmount is refused while a newer mount exists, even after flexd was killed.
func TestLateUnmountAfterRestart(t *testing.T) {
	for _, again := range []bool{false, true} { // the newest mount call found its mount
		name := "mount"
		if again {
			name = "second mount"
		}
		onBoth(t, name, func(t *testing.T, e *hosttest.Env) {
			k, a := hosttest.NewKubelet(e, false), pod("a")
			works(t, e.M.Mkdir(k.Dir(a)))
			if again {
				answers(t, k, e.M.Boot(), flexvolume.StatusSuccess, flexvolume.Mount, k.Dir(a), k.Blob(a, true))
			}
			e.Settle(time.Second)
			late := e.M.Boot()
			e.Settle(time.Second)
			answers(t, k, e.M.Boot(), flexvolume.StatusSuccess, flexvolume.Mount, k.Dir(a), k.Blob(a, true))
			e.Again()
			answers(t, k, late, flexvolume.StatusFailure, flexvolume.Unmount, k.Dir(a))
			mountsAre(t, e, k.Dir(a))
			works(t, k.Finish(a))
			e.Empty()
		})
	}
}

// A late mount is refused after a newer unmount, even after flexd was killed, with and without a newer mount
// in between.
func TestLateMountAfterRestart(t *testing.T) {
	onBoth(t, "unmount", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, e.M.Mkdir(k.Dir(a)))
		answers(t, k, e.M.Boot(), flexvolume.StatusSuccess, flexvolume.Mount, k.Dir(a), k.Blob(a, true))
		e.Settle(time.Second)
		late := e.M.Boot()
		e.Settle(time.Second)
		answers(t, k, e.M.Boot(), flexvolume.StatusSuccess, flexvolume.Unmount, k.Dir(a))
		for range 2 {
			e.Again()
			answers(t, k, late, flexvolume.StatusFailure, flexvolume.Mount, k.Dir(a), k.Blob(a, true))
			mountsAre(t, e)
		}
		answers(t, k, e.M.Boot(), flexvolume.StatusSuccess, flexvolume.Mount, k.Dir(a), k.Blob(a, true))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A call that is older than the remembered calls for its directory is refused.
func TestTooOld(t *testing.T) {
	onSim(t, "mount, unmount", func(t *testing.T, e *hosttest.Env) { // a real machine may be up for less than that
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, e.M.Mkdir(k.Dir(a)))
		time.Sleep(time.Hour)
		old := e.M.Boot() - time.Hour + time.Second
		answers(t, k, old, flexvolume.StatusFailure, flexvolume.Mount, k.Dir(a), k.Blob(a, true))
		answers(t, k, e.M.Boot(), flexvolume.StatusSuccess, flexvolume.Mount, k.Dir(a), k.Blob(a, true))
		answers(t, k, old, flexvolume.StatusFailure, flexvolume.Unmount, k.Dir(a))
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A slowClock stops the k-th reading of the clock.
type slowClock struct {
	hosttest.Machine
	left    *atomic.Int32
	stopped chan struct{}
	on      chan struct{}
}

func (c slowClock) Boot() time.Duration {
	if c.left.Add(-1) == 0 {
		close(c.stopped)
		<-c.on
	}
	return c.Machine.Boot()
}

// An unmount that finds nothing pauses at any point while an older mount succeeds: after the unmount has
// succeeded, nothing is mounted.
func TestUnmountDuringOlderMount(t *testing.T) {
	for k := range int32(4) {
		onSim(t, "stops at reading "+string(rune(49+k)), func(t *testing.T, e *hosttest.Env) {
			clock := slowClock{e.M, new(atomic.Int32), make(chan struct{}), make(chan struct{})}
			e.Patient = true
			e.Crash()
			e.M = clock
			e.Start()
			kubelet, a := hosttest.NewKubelet(e, false), pod("a")
			works(t, e.M.Mkdir(kubelet.Dir(a)))
			time.Sleep(time.Second)
			first := clock.Machine.Boot()
			time.Sleep(time.Second)
			second := clock.Machine.Boot()
			clock.left.Store(1 + k)
			unmount := behind(func() error {
				answers(t, kubelet, second, flexvolume.StatusSuccess, flexvolume.Unmount, kubelet.Dir(a))
				return nil
			})
			synctest.Wait()
			clock.left.Store(0)
			_, err := kubelet.CallAt(first, flexvolume.Mount, kubelet.Dir(a), kubelet.Blob(a, true)) // Success, or superseded
			works(t, err)
			close(clock.on)
			works(t, unmount())
			e.AtRest()
			mountsAre(t, e)
			works(t, e.M.Remove(kubelet.Dir(a)))
			e.Empty()
		})
	}
}
