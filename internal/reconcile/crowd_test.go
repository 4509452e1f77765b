package reconcile_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
)

// together runs n calls at once and requires each to succeed.
func together(t *testing.T, n int, do func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { works(t, do(i)) })
	}
	wg.Wait()
}

func TestSixtyFourCallersAtOnce(t *testing.T) {
	n := times(64)
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		p := func(i int) hosttest.Pod { return pod(fmt.Sprintf("p%d", i)) }
		if k.Attach {
			works(t, k.Start(p(0))) // kubelet itself stages one volume once at a time
		}
		together(t, n, func(i int) error { return k.Start(p(i)) })
		if got := len(e.Mounts()); got < n {
			t.Errorf("%d mounts", got)
		}
		together(t, n-1, func(i int) error { return k.Finish(p(i + 1)) })
		works(t, k.Finish(p(0)))
		e.Empty()
	})
	onBoth(t, "the same call", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		works(t, e.M.Mkdir(k.Dir(a)))
		call := func(verb string, args ...string) {
			together(t, n, func(int) error {
				r, err := k.Call(verb, args...)
				if err == nil && r.Status != flexvolume.StatusSuccess {
					err = fmt.Errorf("%+v", r)
				}
				return err
			})
		}
		call(flexvolume.WaitForAttach, "", k.Blob(a, false))
		call(flexvolume.Mount, k.Dir(a), k.Blob(a, true))
		mountsAre(t, e, k.Dir(a))
		call(flexvolume.Unmount, k.Dir(a))
		mountsAre(t, e)
		works(t, e.M.Remove(k.Dir(a)))
		e.Empty()
	})
	onSim(t, "many volumes", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		p := func(i int) hosttest.Pod {
			p := pod(fmt.Sprintf("p%d", i))
			p.LV, p.Volume = fmt.Sprintf("lv%d", i), fmt.Sprintf("pv%d", i)
			return p
		}
		// One of them hangs, and no other waits for it.
		hit, release := e.Sim.Hang("format-half", false, false)
		slow := behind(func() error { return k.Up(p(n)) })
		<-hit
		began := time.Now()
		together(t, n, func(i int) error { return k.Start(p(i)) })
		if took := time.Since(began); took > time.Second {
			t.Errorf("they waited for %v", took)
		}
		release()
		works(t, slow())
		together(t, n+1, func(i int) error { return k.Finish(p(i)) })
		e.Empty()
	})
}

// Pods come and go on a few volumes, concurrently and in any order, while flexd is killed, commands fail and
// an operator interferes.
func TestPodsComeAndGoInAnyOrder(t *testing.T) {
	rng := seeded(t)
	for round := range 12 {
		seed := rng.Uint64()
		t.Run(fmt.Sprintf("round %d", round), func(t *testing.T) {
			modes(t, onSim, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
				rng := rand.New(rand.NewPCG(seed, 1))
				var wg sync.WaitGroup
				for v := range 3 {
					pods := 3
					if k.Attach {
						pods = 1 // kubelet serialises the pods of an attachable volume
					}
					for i := range pods {
						choices := rand.New(rand.NewPCG(seed, uint64(10*v+i+2)))
						p := pod(fmt.Sprintf("v%d-p%d", v, i))
						p.LV, p.Volume = fmt.Sprintf("lv%d", v), fmt.Sprintf("pv%d", v)
						p.RO = choices.IntN(3) == 0
						wg.Go(func() {
							for range 4 {
								works(t, k.Start(p))
								time.Sleep(time.Duration(choices.IntN(5000)) * time.Millisecond)
								works(t, k.Finish(p))
								time.Sleep(time.Duration(choices.IntN(40000)) * time.Millisecond)
							}
						})
					}
				}
				over := make(chan struct{})
				go func() { wg.Wait(); close(over) }()
				for {
					select {
					case <-over:
						e.Empty()
						return
					case <-time.After(time.Duration(rng.IntN(8000)) * time.Millisecond):
						all := hosttest.Moments()
						e.Arm(all[rng.IntN(len(all))], 1+rng.IntN(6))
					}
				}
			})
		})
	}
}
