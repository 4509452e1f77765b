package reconcile_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/status"
)

// explained returns the explanation of a pod's mount.
func explained(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) status.ExplainedCall {
	t.Helper()
	doc := e.Flex().Explain(context.Background(), []string{flexvolume.Mount + " " + k.Blob(p, true)})
	if len(doc.Calls) != 1 {
		t.Fatalf("%+v", doc)
	}
	return doc.Calls[0]
}

// Explain changes nothing and starts no process in any state of the volume. (If LVM's metadata, or a loop
// device, is new, a process reads it, as for status.)
func TestExplainStartsNothing(t *testing.T) {
	onSim(t, "states", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		p, q := pod("p"), pod("q")
		says := func(about string, p hosttest.Pod, result string, steps ...string) {
			t.Helper()
			state := func() string { return fmt.Sprintln(e.Commands(), len(e.Claims()), e.Mounts(), e.Active()) }
			before := state()
			c := explained(t, e, k, p)
			if c.Result != result || strings.Join(c.Steps, ", ") != strings.Join(steps, ", ") {
				t.Errorf("%s: %+v", about, c)
			}
			if after := state(); after != before {
				t.Errorf("%s: from %s to %s", about, before, after)
			}
		}
		says("new", p, status.WouldSucceed, "create vg0/"+p.LV+" with 64.0 MiB", "activate vg0/"+p.LV, "look at its content", "mkfs.ext4", "mount the ext4")
		works(t, k.Start(p))
		says("mounted", q, status.WouldSucceed, "mount the ext4")
		says("mounted there already", p, status.WouldSucceed)
		works(t, k.Finish(p))
		other := q
		other.FSType = "xfs"
		says("another filesystem", other, status.WouldRefuse, "look at its content")
		e.Empty()
	})
}

// Explanations that run beside lanes see intermediate states, and are answered.
func TestExplainBesideLanes(t *testing.T) {
	onSim(t, "churn", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		var work, looks sync.WaitGroup
		done := make(chan struct{})
		for i := range 4 {
			p := pod(fmt.Sprint("p", i))
			p.LV, p.Volume = fmt.Sprint("lv", i%2), fmt.Sprint("pv", i%2)
			work.Go(func() {
				for range 5 {
					works(t, k.Start(p))
					works(t, k.Finish(p))
				}
			})
			looks.Go(func() {
				for {
					select {
					case <-done:
						return
					case <-time.After(time.Millisecond): // the simulated clock stands still while any goroutine runs
					}
					if c := explained(t, e, k, p); c.Result == status.WouldRefuse {
						t.Errorf("%+v", c)
						return
					}
				}
			})
		}
		work.Wait()
		close(done)
		looks.Wait()
		e.Empty()
	})
}
