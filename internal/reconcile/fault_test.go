//go:build !vm

package reconcile_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/flexd/flexd/internal/hosttest"
)

// TestEveryFault runs every scenario once for each moment at which a fault is possible: flexd is killed
// before, within and after each command, at each look at the mount table (that is between any two steps), and
// after each answer before kubelet receives it; each command fails, or succeeds and reports a failure. After
// each fault flexd restarts, kubelet retries, and the scenario must succeed and leave nothing. A first run
// without a fault counts the moments.
func TestEveryFault(t *testing.T) {
	var points atomic.Int64
	t.Cleanup(func() { t.Logf("%d faults, one at a time", points.Load()) })
	for _, s := range scenarios() {
		most := strikeSim(t, s, hosttest.Never, 0)
		for _, m := range hosttest.Moments() {
			t.Run(s.name+"/"+m.String(), func(t *testing.T) {
				t.Parallel()
				for k := 1; k <= most.Occasions(m)+spare; k += stride {
					if len(strikeSim(t, s, m, k).Struck()) == 0 {
						break
					}
					points.Add(1)
					if t.Failed() {
						t.Fatalf("at %s %d", m, k)
					}
				}
			})
		}
	}
}

// spare is how many more moments than a run without a fault another run may have, with goroutines in another
// order.
const spare = 2

// strike runs a scenario with one fault, and returns the node.
func strike(t *testing.T, e *hosttest.Env, s scenario, m hosttest.Moment, k int) *hosttest.Env {
	defer e.Close()
	if s.prepare != nil {
		s.prepare(e)
	}
	e.Arm(m, k)
	play(t, e, s)
	return e
}

func strikeSim(t *testing.T, s scenario, m hosttest.Moment, k int) (e *hosttest.Env) {
	tmp := hosttest.TempDir(t)
	synctest.Test(t, func(t *testing.T) { e = strike(t, hosttest.NewSim(t, tmp), s, m, k) })
	return e
}

// TestFaultsOnTheRealMachine is the same with the real kernel, for one scenario in each mode; FLEXD_SOAK runs
// all of them.
func TestFaultsOnTheRealMachine(t *testing.T) {
	if why := hosttest.NoReal(); why != "" {
		t.Skip(why)
	}
	var points atomic.Int64
	t.Cleanup(func() { t.Logf("%d faults, one at a time", points.Load()) })
	step, first := realStride, 1+seeded(t).IntN(realStride)
	if soak {
		step, first = 1, 1
	}
	for _, s := range scenarios() {
		if !s.realFaults && !soak {
			continue
		}
		most := strike(t, hosttest.NewReal(t), s, hosttest.Never, 0)
		for _, m := range hosttest.Moments() {
			t.Run(s.name+"/"+m.String()+"/real", func(t *testing.T) {
				t.Parallel()
				for k, struck := first, true; struck && k <= most.Occasions(m)+spare && !t.Failed(); k += step {
					t.Run(fmt.Sprint(k), func(t *testing.T) {
						if struck = len(strike(t, hosttest.NewReal(t), s, m, k).Struck()) > 0; struck {
							points.Add(1)
						}
					})
				}
			})
		}
	}
}
