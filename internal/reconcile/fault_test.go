//go:build !vm

package reconcile_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/flexd/flexd/internal/hosttest"
)

// TestEveryFault plays every scenario once for each moment at which something
// can go wrong in it: flexd is killed before, within and after each command, at
// each of its looks at the mount table (that is between any two of its steps),
// and after each answer that kubelet has not received yet; each command fails, or
// does its work and says that it failed. Each time flexd comes back, kubelet
// asks again, the scenario ends well, and nothing is left. A play without a fault comes first,
// and counts the moments.
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

// spare is how many more occasions than a play without a fault another one may have, in which
// the goroutines run in another order.
const spare = 2

// strike plays a scenario with one fault, and returns the node afterwards.
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

// TestFaultsOnTheRealMachine is the same with the kernel as the judge, for one
// scenario in each mode; FLEXD_SOAK has all of them.
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
