package simulation

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// One processor: the effects of a decision then occur in one order.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

// number reads a number from the environment.
func number(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// again repeats a sequence without the decisions that are not possible any more.
func again[W any](s scenario) func(W) (decision, bool) {
	return func(W) (decision, bool) {
		if len(s) == 0 {
			return decision{}, false
		}
		d := s[0]
		s = s[1:]
		return d, true
	}
}

func mode(seed uint64) bool { return seed%2 == 0 }

// TestSimulation takes FLEXD_STEPS decisions (100,000, and 10,000 under the race detector) in runs of 400, each
// with its own seed, from FLEXD_SEED on.
func TestSimulation(t *testing.T) {
	first := number("FLEXD_SEED", uint64(time.Now().UnixNano()))
	limit := int(number("FLEXD_STEPS", steps))
	fmt.Printf("FLEXD_SEED=%d\n", first) // also if the test binary crashes
	taken, done := 0, map[action]int{}
	for seed := first; taken < limit; seed++ {
		o := play(t, mode(seed), newRandom(seed).next)
		for _, d := range o.sequence {
			done[d.what]++
		}
		if taken += len(o.sequence); len(o.wrong) > 0 {
			t.Fatalf("FLEXD_SEED=%d, after %d decisions in all:\n%s\nFLEXD_SEED=%d", seed, taken, report(t, seed, o), seed)
		}
	}
	for _, w := range weights {
		if taken >= 100_000 && done[w.what] == 0 {
			t.Errorf("an action that never occurred: %q", w.what)
		}
	}
	t.Logf("%d decisions: %v", taken, done)
}

// An event is a decision and the moment for it; nil = at once.
type event struct {
	when func(*world) bool
	decision
}

// follow makes a run of these decisions, in which all goroutines continue.
func follow(t *testing.T, attach bool, plan ...event) {
	t.Helper()
	o := play(t, attach, func(w *world) (decision, bool) {
		if len(plan) == 0 || w.M.Boot() > time.Hour {
			return decision{}, false
		}
		if next := plan[0]; next.when == nil || next.when(w) {
			plan = plan[1:]
			return next.decision, true
		}
		if all := w.schedule.names(); len(all) > 0 {
			return decision{what: lets, on: all[0]}, true
		}
		return decision{what: passes, pass: time.Second}, true
	})
	if len(o.wrong) > 0 || len(plan) > 0 {
		t.Errorf("%d decisions are left; %s\nthe sequence:\n%s", len(plan), strings.Join(o.wrong, "\n"), o.sequence)
	}
}

// TestEndOfHiddenMounts verifies that a run ends without mounts if a tmpfs hides one global
// mount, and is busy because of another one that kubelet does not know.
func TestEndOfHiddenMounts(t *testing.T) {
	staged := func(volume string) func(*world) bool {
		return func(w *world) bool { return w.Sim.StandsAt(w.kubelet.Global(volume)) }
	}
	follow(t, true,
		event{nil, decision{what: starts, on: "pod0a"}},
		event{staged("pv0"), decision{what: covers, on: "/sim/kubelet/plugins"}},
		event{nil, decision{what: starts, on: "pod1a"}},
		event{staged("pv1"), decision{what: stops, on: "pod1a"}})
}

// TestUncoveredBeforeMount verifies that a run goes on if an operator's mount at a pod's
// directory becomes visible between kubelet's attempt and its look at the directory.
func TestUncoveredBeforeMount(t *testing.T) {
	dir := "/sim/kubelet/pods/pod2a/volumes/flexd~lvm/pv2"
	serves := at("kubelet serves pod2a")
	follow(t, false,
		event{nil, decision{what: starts, on: "pod2a"}},
		event{func(w *world) bool { return w.Sim.StandsAt(dir) }, decision{what: covers, on: dir}},
		event{nil, decision{what: holds, on: dir}},
		event{nil, decision{what: covers, on: "/sim/kubelet/pods"}},
		event{nil, decision{what: kubeletDies}},
		event{serves, decision{what: lets, on: "kubelet serves pod2a"}},
		event{nil, decision{what: clears}})
}

// TestWrittenBeforeExtension verifies that flexd may extend a volume that it found blank,
// although an owner has written to it since.
func TestWrittenBeforeExtension(t *testing.T) {
	follow(t, false,
		event{nil, decision{what: starts, on: "pod0a"}},
		event{at("child loop-attach lv0 before"), decision{what: shrinks, on: "lv0"}},
		event{at("child probe lv0 after"), decision{what: writes, on: "lv0"}},
		event{at("child loop-extend lv0 before"), decision{what: stops, on: "pod0a"}})
}

// TestActivatedDuringCreation verifies that flexd may deactivate a volume that it has just
// created, although an operator activated it before flexd looked whether it is active.
func TestActivatedDuringCreation(t *testing.T) {
	follow(t, true,
		event{nil, decision{what: starts, on: "pod1a"}},
		event{at("child loop-attach lv1 before"), decision{what: starts, on: "pod0a"}}, // the devices are read
		event{at("child loop-create lv0 after"), decision{what: kubeletDies}},
		event{nil, decision{what: stops, on: "pod0a"}},
		event{nil, decision{what: lets, on: "child loop-create lv0 after"}},
		event{nil, decision{what: activates, on: "lv0"}})
}

// at returns whether a goroutine has stopped at a point.
func at(point string) func(*world) bool {
	return func(w *world) bool { return slices.Contains(w.schedule.names(), point) }
}

// TestShorter verifies that the decisions that cause the failure remain, in their order.
func TestShorter(t *testing.T) {
	var long scenario
	for range 50 {
		long = append(long, decision{what: tears}, decision{what: flexdDies}, decision{what: blinds})
	}
	long[40].what, long[90].what, long[130].what = starts, stops, reboots
	played := 0
	fails := func(s scenario) bool {
		played++
		is := func(what action) int { return slices.IndexFunc(s, func(d decision) bool { return d.what == what }) }
		return is(starts) >= 0 && is(starts) < is(stops) && is(reboots) >= 0
	}
	if got := shorter(long, 400, fails); got.String() != (scenario{{what: starts}, {what: stops}, {what: reboots}}).String() {
		t.Errorf("the remaining sequence:\n%s", got)
	}
	played = 0
	if got := shorter(long, 10, fails); played != 10 || !fails(got) {
		t.Errorf("%d runs, want 10; the remaining sequence fails: %v", played, fails(got))
	}
}

func report(t *testing.T, seed uint64, o outcome) string {
	return describe(o, func(s scenario) outcome { return play(t, mode(seed), again[*world](s)) })
}

// describe describes a failed run. It shortens the sequence, which repeat repeats.
func describe(o outcome, repeat func(scenario) outcome) string {
	last := o
	fails := func(s scenario) bool {
		o := repeat(s)
		if len(o.wrong) == 0 {
			return false
		}
		last = o
		return true
	}
	if !fails(o.sequence) {
		return fmt.Sprintf("%s\nthe sequence, which did not fail when it was repeated:\n%s", strings.Join(o.wrong, "\n"), o.sequence)
	}
	if os.Getenv("FLEXD_UNCUT") == "" {
		shorter(o.sequence, 400, fails)
	}
	return fmt.Sprintf("%s\nthe sequence:\n%s", strings.Join(last.wrong, "\n"), last.sequence)
}
