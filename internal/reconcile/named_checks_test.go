package reconcile_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/audit"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// At most maxChecks mkfs run at once, and status shows that the others wait. A volume without an mkfs does
// not wait, and a volume without a waiting call keeps no turn.
func TestChecksAtOnce(t *testing.T) {
	onSim(t, "mkfs", func(t *testing.T, e *hosttest.Env) {
		e.Config.MaxChecks = 2
		k := hosttest.NewKubelet(e, false)
		p := func(i int) hosttest.Pod {
			p := pod(fmt.Sprintf("p%d", i))
			p.LV, p.Volume = fmt.Sprintf("lv%d", i), fmt.Sprintf("pv%d", i)
			return p
		}
		made := p(9)
		works(t, k.Up(made))
		works(t, k.Finish(made))

		var running, most atomic.Int64
		release := make(chan struct{})
		e.Command = func(c run.Cmd) {
			if c.Step == "mkfs" {
				n := running.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				<-release
				running.Add(-1)
			}
		}
		var joins []func() error
		for i := range 6 {
			joins = append(joins, behind(func() error { return k.Start(p(i)) }))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		waiting, working := 0, 0
		for _, v := range e.Node().List().Volumes {
			switch {
			case v.Step == "waiting for mkfs":
				waiting++
			case strings.HasPrefix(v.Step, "mkfs"):
				working++
			}
		}
		if waiting != 4 || working != 2 {
			t.Errorf("%d wait and %d run", waiting, working)
		}
		works(t, k.Up(made))
		fails(t, k.Up(p(6)), "are running; flexd status shows them")
		time.Sleep(10 * time.Minute) // the calls end; kubelet asks again
		close(release)
		for _, join := range joins {
			works(t, join())
		}
		if most.Load() != 2 {
			t.Errorf("%d mkfs at once", most.Load())
		}
		works(t, k.Up(p(6)))
		for i := range 7 {
			works(t, k.Finish(p(i)))
		}
		works(t, k.Finish(made))
		e.Empty()
	})
}

// failing is a provider whose devices become unusable while on is set, as in a thin pool with full metadata.
type failing struct {
	reconcile.Provider
	audit.Surveyor
	on atomic.Bool
}

func (f *failing) Device(ctx context.Context, lv volume.LV) (volume.Device, error) {
	d, err := f.Provider.Device(ctx, lv)
	if f.on.Load() && d.Activity == volume.Active {
		d.Unusable, d.Reason = true, "the pool's metadata is full"
	}
	return d, err
}

// If a check or a mount fails because the device has failed, the refusal names the device, not a repair of
// the filesystem.
func TestFaultOfDevice(t *testing.T) {
	damaged := &mount.Refusal{What: "e2fsck found errors", Hint: "e2fsck -f DEV", Why: volume.Damaged}
	for _, row := range []struct {
		step  string
		err   error
		fails bool // the device
		want  volume.Code
		says  string
	}{
		{"fsck", errSimulated, true, volume.Unusable, "its device is not usable: the pool's metadata is full"},
		{"fsck", damaged, true, volume.Unusable, "its device is not usable: the pool's metadata is full"},
		{"fsck", damaged, false, volume.Damaged, "e2fsck -f DEV"},
		{"mount", errSimulated, true, volume.Unusable, "its device is not usable: the pool's metadata is full"},
		{"mount", volume.WithCode(volume.Busy, errSimulated), true, volume.Busy, errSimulated.Error()},
	} {
		onSim(t, row.step, func(t *testing.T, e *hosttest.Env) {
			f := &failing{}
			e.Parts = func(p *reconcile.Parts) {
				f.Provider = p.Providers[hosttest.VG]
				f.Surveyor = f.Provider.(audit.Surveyor)
				p.Providers[hosttest.VG], p.Observer.Providers[hosttest.VG] = f, f
			}
			e.Again()
			k := hosttest.NewKubelet(e, false)
			works(t, k.Up(pod("a")))
			works(t, k.Finish(pod("a")))
			e.Refuse(row.step, row.err)
			e.Command = func(c run.Cmd) { f.on.Store(f.on.Load() || row.fails && c.Step == row.step) }
			works(t, e.M.Mkdir(k.Dir(pod("a"))))
			a, err := k.Call(flexvolume.Mount, k.Dir(pod("a")), k.Blob(pod("a"), true))
			if works(t, err); a.Code != string(row.want) || !strings.Contains(a.Message, row.says) {
				t.Errorf("got %+v, want the code %s and %q", a, row.want, row.says)
			}
			e.Refuse(row.step, nil)
			f.on.Store(false)
		})
	}
}
