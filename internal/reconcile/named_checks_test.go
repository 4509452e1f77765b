package reconcile_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/run"
)

// At most maxChecks mkfs run at once; the others are shown as waiting, a volume without an
// mkfs does not wait, nor does one that no call waits for keep a turn.
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
		time.Sleep(10 * time.Minute) // the calls end; kubelet asks again
		close(release)
		for _, join := range joins {
			works(t, join())
		}
		if most.Load() != 2 {
			t.Errorf("%d mkfs at once", most.Load())
		}
		for i := range 6 {
			works(t, k.Finish(p(i)))
		}
		works(t, k.Finish(made))
		e.Empty()
	})
}
