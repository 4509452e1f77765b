package reconcile_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/volume"
)

// reshaping is a provider whose devices are on a RAID that is reshaped while on is set.
type reshaping struct {
	asw.Provider
	on atomic.Bool
}

func (r *reshaping) Device(ctx context.Context, lv volume.LV) (volume.Device, error) {
	d, err := r.Provider.Device(ctx, lv)
	if err == nil && d.Activity == volume.Active && r.on.Load() {
		d.Reshaped = "vg0/data"
	}
	return d, err
}

// While a RAID is reshaped, its volume is not extended. Pods get it.
func TestReshaped(t *testing.T) {
	onSim(t, "expandfs", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		e.Crash()
		n := e.Start()
		r := &reshaping{Provider: n.Observer.Providers[hosttest.VG]}
		n.Observer.Providers[hosttest.VG] = r
		k := hosttest.NewKubelet(e, false)
		works(t, k.Up(pod("a")))
		r.on.Store(true)
		works(t, k.Up(pod("b")))
		expand := func() flexvolume.Answer {
			a, err := k.Call(flexvolume.ExpandFS, k.Blob(pod("a"), false), "", k.Dir(pod("a")), fmt.Sprint(128<<20), "0")
			works(t, err)
			return a
		}
		if a := expand(); a.Code != string(volume.Busy) || !strings.Contains(a.Message, "the RAID vg0/data is being reshaped (lvconvert)") ||
			strings.Contains(a.Message, "spec.capacity.storage") { // the cause ends without a smaller size
			t.Errorf("got %+v", a)
		}
		r.on.Store(false)
		if a := expand(); a.Status != flexvolume.StatusSuccess {
			t.Errorf("got %+v", a)
		}
		works(t, k.Finish(pod("a")))
		works(t, k.Finish(pod("b")))
		e.Empty()
	})
}
