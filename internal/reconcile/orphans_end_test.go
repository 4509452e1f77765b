package reconcile_test

import (
	"fmt"
	"testing"

	"github.com/flexd/flexd/internal/hosttest"
)

// A release that ends while orphans are looked for leaves the orphan an orphan.
func TestReleaseEndsDuringLook(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		cgroup(t, e, a, "0")
		works(t, k.Start(a))
		var others []hosttest.Pod // so that a look takes its time
		for i := range 60 / stride {
			p := hosttest.Pod{UID: fmt.Sprint("other-", i), Volume: fmt.Sprint("pv-", i), LV: fmt.Sprint("other-", i), Size: "64m"}
			cgroup(t, e, p, "1")
			works(t, k.Start(p))
			others = append(others, p)
		}
		e.Eventually("status names it", func() bool { return differ(e) == "orphaned-pod data" })
		leave := e.M.Hold(k.Dir(a))
		o := only(t, e, "orphaned-pod")
		for range 50 / stride {
			over := make(chan struct{})
			looks := behind(func() error {
				for {
					select {
					case <-over:
						return nil
					default:
						e.Node().Orphans(t.Context(), nil)
					}
				}
			})
			err := reclaim(e, o.UUID, o.Dir)
			close(over)
			works(t, looks())
			if says(t, err, "is busy"); t.Failed() {
				return
			}
		}
		leave()
		works(t, reclaim(e, o.UUID, o.Dir))
		for _, p := range others {
			works(t, k.Finish(p))
		}
		e.Empty()
	})
}
