package reconcile_test

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/test/host"
)

// wholeLife is a scenario with every step of flexd: create, format, mount, expand, release, and activate
// again.
func wholeLife(e *hosttest.Env, k *hosttest.Kubelet) error {
	a := pod("a")
	if !host.GrowsExt4() {
		a = xfs(a)
	}
	inactive := func() error {
		e.Eventually("the volume is inactive", func() bool { return len(e.Active()) == 0 })
		return nil
	}
	return all(start(k, a), write(e, k, a), func() error { return k.Expand(a, 400<<20) }, stop(k, a), inactive,
		start(k, a), write(e, k, a), stop(k, a))
}

// TestKilledAtEachStep kills flexd before, within and after the first command of each step in the life of a
// volume.
func TestKilledAtEachStep(t *testing.T) {
	for i, m := range []hosttest.Moment{hosttest.CrashBefore, hosttest.CrashWithin, hosttest.CrashAfter} {
		onReal(t, m.String(), func(t *testing.T, e *hosttest.Env) { eachStep(t, e, m, i%2 == 0) })
	}
}

// TestEachStepFails is the same with commands that fail, or that succeed and report a failure.
func TestEachStepFails(t *testing.T) {
	for _, m := range []hosttest.Moment{hosttest.FailBefore, hosttest.FailAfter} {
		onLoops(t, m.String(), func(t *testing.T, e *hosttest.Env) { eachStep(t, e, m, true) })
	}
}

func eachStep(t *testing.T, e *hosttest.Env, m hosttest.Moment, attach bool) {
	t.Helper()
	e.ArmEach(m)
	play(t, e, scenario{name: "a whole life", attach: attach, play: wholeLife})
	struck := e.Struck()
	t.Logf("%d times: %s", len(struck), strings.Join(struck, ", "))
	for _, step := range append(ownSteps, "create", "activate", "probe", "mkfs", "mount", "check growth", "extend", "grow filesystem", "umount", "deactivate") {
		if !slices.Contains(struck, step) {
			t.Errorf("there was no %s", step)
		}
	}
}

// TestFaultAtAnyMoment draws moments other than the first command of a step, and causes one fault in each
// run. With FLEXD_SOAK it causes every fault in a twentieth of the pairs of a scenario and a kind of moment,
// and with the next seed in another twentieth: there are more than 4,000, and a run takes seconds. On real
// machines see TestFaultsOnTheRealMachine.
func TestFaultAtAnyMoment(t *testing.T) {
	moments, list := hosttest.Moments(), scenarios()
	strike := func(s scenario, m hosttest.Moment, k int) (struck bool) {
		onLVM(t, s.name+"/"+m.String()+" "+strconv.Itoa(k), func(t *testing.T, e *hosttest.Env) {
			if s.prepare != nil {
				s.prepare(e)
			}
			e.Arm(m, k)
			play(t, e, s)
			t.Logf("struck: %q", e.Struck())
			struck = len(e.Struck()) > 0
		})
		return struck
	}
	if soak {
		const rounds = 20
		i := host.Seed(t)
		for _, m := range moments {
			for _, s := range list {
				if i++; i%rounds != 0 {
					continue
				}
				for k := 1; strike(s, m, k) && !t.Failed(); k++ {
				}
			}
		}
		return
	}
	rng := seeded(t)
	rng.Shuffle(len(moments), func(i, k int) { moments[i], moments[k] = moments[k], moments[i] })
	for i := range times(40) {
		s, m, k := list[rng.IntN(len(list))], moments[i%len(moments)], 1+rng.IntN(15)
		if m == hosttest.CrashAnswer {
			k = 1 + k%4
		}
		strike(s, m, k)
	}
}

// soak reports whether to run all cases, not a sample.
var soak = os.Getenv("FLEXD_SOAK") != ""

// drawn returns one element of a list, for tests with runs of seconds. The seed is printed, and repeats the
// choice.
func drawn[T any](t *testing.T, list []T) []T {
	t.Helper()
	i := seeded(t).IntN(len(list))
	return list[i : i+1]
}

var times = host.Times

// seeded returns a random source for this test; FLEXD_SEED=N repeats it.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	name := fnv.New64()
	_, _ = name.Write([]byte(t.Name()))
	return rand.New(rand.NewPCG(host.Seed(t), name.Sum64()))
}
