package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/volume"
)

// Requests of operators, Prometheus and device events share no data with working lanes without a lock; for
// the race detector. Readers ask all the time, since a missing lock shows only if a reader runs between two
// locks of a lane.
func TestReadersBesideLanes(t *testing.T) {
	onSim(t, "all that can be asked", func(t *testing.T, e *hosttest.Env) {
		k, n := hosttest.NewKubelet(e, false), e.Node()
		p := func(i int) hosttest.Pod {
			p := pod(fmt.Sprintf("p%d", i))
			p.LV, p.Volume = fmt.Sprintf("lv%d", i), fmt.Sprintf("pv%d", i)
			return p
		}
		const pods = 3
		ctx, stop := context.WithCancel(t.Context())
		call := []string{flexvolume.Mount + " " + k.Blob(p(0), true)}
		var readers sync.WaitGroup
		for _, ask := range []func(){
			func() { n.List(); n.Known(); n.Mounted(); n.Health() },
			func() {
				for i := range pods {
					n.VolumeDetail("vg0", fmt.Sprintf("lv%d", i))
				}
			},
			func() { e.Flex().Explain(ctx, call) },
			func() { n.Orphans(ctx, nil); n.Check(ctx) },
			func() {
				now := map[volume.UUID]time.Time{}
				for _, v := range n.List().Volumes {
					now[volume.UUID(v.UUID)] = time.Now()
				}
				n.NotifyChanged("vg0", now)
			},
		} {
			readers.Go(func() {
				for ctx.Err() == nil {
					for range 5 {
						ask()
					}
					time.Sleep(3 * time.Millisecond) // the others' time goes on
				}
			})
		}
		readers.Go(func() { // steps that fail, and a call that is refused
			other := p(0)
			other.UID, other.FSType = "other", "xfs"
			for ctx.Err() == nil {
				for _, step := range []string{"mount", "umount", "activate", "probe"} {
					e.Refuse(step, errors.New("broken"))
					_ = e.M.Mkdir(k.Dir(other))
					_, _ = k.Call(flexvolume.Mount, k.Dir(other), k.Blob(other, true))
					e.Refuse(step, nil)
					time.Sleep(20 * time.Millisecond)
				}
			}
			_, _ = k.Call(flexvolume.Unmount, k.Dir(other))
			_ = e.M.Remove(k.Dir(other))
		})
		for range 10 {
			together(t, pods, func(i int) error { return k.Start(p(i)) })
			together(t, pods, func(i int) error { return k.Finish(p(i)) })
		}
		stop()
		readers.Wait()
		e.Empty()
	})
}
