package reconcile_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/volume"
)

// suspending is a provider whose devices are suspended while on is set.
type suspending struct {
	asw.Provider
	on atomic.Bool
}

func (s *suspending) Device(ctx context.Context, lv volume.LV) (volume.Device, error) {
	d, err := s.Provider.Device(ctx, lv)
	d.Suspended = err == nil && d.Activity == volume.Active && s.on.Load()
	return d, err
}

// lvcreate -s suspends its origin for a moment: a call waits for the end, and is refused only if the device
// stays suspended.
func TestSuspended(t *testing.T) {
	begin := func(t *testing.T, e *hosttest.Env) (*hosttest.Kubelet, *suspending) {
		e.Patient = true
		e.Crash()
		n := e.Start()
		s := &suspending{Provider: n.Observer.Providers[hosttest.VG]}
		n.Observer.Providers[hosttest.VG] = s
		k := hosttest.NewKubelet(e, false)
		works(t, k.Up(pod("a")))
		s.on.Store(true)
		return k, s
	}
	onSim(t, "for a moment", func(t *testing.T, e *hosttest.Env) {
		k, s := begin(t, e)
		up := behind(func() error { return k.Up(pod("b")) })
		time.Sleep(3 * time.Second)
		mountsAre(t, e, k.Dir(pod("a")))
		s.on.Store(false)
		works(t, up())
		works(t, k.Finish(pod("a")))
		works(t, k.Finish(pod("b")))
		e.Empty()
	})
	onSim(t, "for long", func(t *testing.T, e *hosttest.Env) {
		k, s := begin(t, e)
		begun := time.Now()
		err := k.Up(pod("b"))
		if took := time.Since(begun); err == nil || !strings.Contains(err.Error(), "stays suspended") || took < 9*time.Second || took > 30*time.Second {
			t.Errorf("after %s: %v", took, err)
		}
		begun = time.Now()
		works(t, k.Finish(pod("a")))
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("an unmount took %s", took)
		}
		s.on.Store(false)
		e.Empty()
	})
}
