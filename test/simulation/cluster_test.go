package simulation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCluster takes FLEXD_STEPS decisions (10,000, and 1,000 under the race detector) for two
// nodes with a shared volume group, in runs of 400, each with its own seed, from FLEXD_SEED on.
func TestCluster(t *testing.T) {
	first := number("FLEXD_SEED", uint64(time.Now().UnixNano()))
	limit := int(number("FLEXD_STEPS", steps/10))
	fmt.Printf("FLEXD_SEED=%d\n", first) // also if the test binary crashes
	taken, done := 0, map[action]int{}
	for seed := first; taken < limit; seed++ {
		o := playCluster(t, mode(seed), newClusterRandom(seed).decision)
		for _, d := range o.sequence {
			done[d.what]++
		}
		if taken += len(o.sequence); len(o.wrong) > 0 {
			t.Fatalf("FLEXD_SEED=%d, after %d decisions in all:\n%s\nFLEXD_SEED=%d", seed, taken, reportCluster(t, seed, o), seed)
		}
	}
	t.Logf("%d decisions: %v", taken, done)
}

func reportCluster(t *testing.T, seed uint64, o outcome) string {
	return describe(o, func(s scenario) outcome { return playCluster(t, mode(seed), again[*cluster](s)) })
}

// A turn is a decision in a cluster and the moment for it; nil = at once.
type turn struct {
	when func(*cluster) bool
	decision
}

// followCluster makes a run of these decisions, in which all goroutines of nodes that run
// continue, but for those at the held point, and returns what was wrong.
func followCluster(t *testing.T, watchdog bool, held string, plan ...turn) []string {
	t.Helper()
	o := playCluster(t, false, func(c *cluster) (decision, bool) {
		for _, w := range c.nodes {
			w.Locking().Watchdog = watchdog
		}
		if len(plan) == 0 || len(c.recorder.found()) > 0 || c.nodes[1].M.Boot() > time.Hour {
			return decision{}, false
		}
		if next := plan[0]; next.when == nil || next.when(c) {
			plan = plan[1:]
			return next.decision, true
		}
		for _, w := range c.nodes {
			all := slices.DeleteFunc(w.names(), func(s string) bool { return s == held })
			if w.runs() && len(all) > 0 {
				return c.at(lets, w.at+all[0]), true
			}
		}
		return decision{what: passes, pass: time.Second}, true
	})
	if len(plan) > 0 && len(o.wrong) == 0 {
		t.Errorf("%d decisions are left; the sequence:\n%s", len(plan), o.sequence)
	}
	return o.wrong
}

// mountedOn returns whether a pod of lv0 has its volume on a node.
func mountedOn(node int) func(*cluster) bool {
	return func(c *cluster) bool {
		w := c.nodes[node-1]
		return w.Sim.MountedAt(w.kubelet.Dir(w.actor("pod0a").pod)) != ""
	}
}

// TestPausedNode verifies that a paused node does not continue with a volume that another has
// taken over: its watchdog has reset it. Without a watchdog it does, and the simulation must
// show that.
func TestPausedNode(t *testing.T) {
	for _, watchdog := range []bool{true, false} {
		wrong := followCluster(t, watchdog, "",
			turn{nil, decision{what: starts, on: "pod0a", node: 1}},
			turn{mountedOn(1), decision{what: pauses, node: 1}},
			turn{nil, decision{what: starts, on: "pod0a", node: 2}},
			turn{mountedOn(2), decision{what: resumes, node: 1}},
			turn{nil, decision{what: passes, pass: time.Second}})
		if conflict := slices.ContainsFunc(wrong, func(s string) bool { return strings.Contains(s, "lv0 is mounted on the hosts [1 2], and writable") }); conflict == watchdog || watchdog && len(wrong) > 0 {
			t.Errorf("watchdog %v: %q", watchdog, wrong)
		}
	}
}

// TestStoppedNode verifies that a node whose time was stopped, too, which its watchdog does not
// notice, fences a volume that another has taken over; and not one that no other has.
func TestStoppedNode(t *testing.T) {
	for _, other := range []bool{true, false} {
		fenced := false
		plan := []turn{
			{nil, decision{what: starts, on: "pod0a", node: 1}},
			{mountedOn(1), decision{what: stopsTime, node: 1}},
			{nil, decision{what: starts, on: "pod0a", node: 2}},
			{mountedOn(2), decision{what: goesOn, node: 1}},
			{nil, decision{what: passes, pass: 10 * time.Second}},
			{func(c *cluster) bool { fenced = c.nodes[0].Sim.Fenced("lv0"); return true }, decision{what: stops, on: "pod0a", node: 1}},
		}
		if !other {
			plan[2], plan[3] = turn{nil, decision{what: passes, pass: time.Hour / 2}}, turn{nil, decision{what: goesOn, node: 1}}
		}
		if wrong := followCluster(t, true, "", plan...); len(wrong) > 0 || fenced != other {
			t.Errorf("taken over %v: fenced %v; %q", other, fenced, wrong)
		}
	}
}

// TestSanlockKilled verifies that no filesystem is made when sanlock was killed after the
// volume got its tag: nothing renews the lease of the node, so another may take the volume over.
func TestSanlockKilled(t *testing.T) {
	mkfs, points := -1, []string{"child format lv0 before", "child lvchange vg0/lv0 after", "child fullreport vg0 after"}
	tagged := func(c *cluster) bool { // and that was read
		if slices.Contains(c.nodes[0].names(), points[0]) {
			points = append(points[1:], "")
		}
		return points[0] == ""
	}
	var killed time.Duration
	if wrong := followCluster(t, true, "",
		turn{nil, decision{what: makes, on: "lv0", node: 1}},
		turn{nil, decision{what: starts, on: "pod0a", node: 1}},
		turn{tagged, decision{what: sanlockDie, node: 1}},
		turn{nil, decision{what: passes, pass: 2 * time.Second}}, // the managers are asked again after one
		turn{func(c *cluster) bool {
			now := c.nodes[0].M.Boot()
			killed = cmp.Or(killed, now)
			mkfs = c.nodes[0].Sim.FileAt(c.nodes[0].File("lv0")).Mkfs
			return now > killed+20*time.Second
		}, decision{what: passes, pass: time.Second}}); len(wrong) > 0 || mkfs != 0 {
		t.Errorf("mkfs was started %d times; %q", mkfs, wrong)
	}
}

// TestLockReadTakesLong verifies that a filesystem is not checked if the call ends while the lock
// of its volume is read: the simulation reports a check for which no call waits.
func TestLockReadTakesLong(t *testing.T) {
	const read = "child locks vg0 "
	at := func(name string) func(*cluster) bool {
		return func(c *cluster) bool { return slices.Contains(c.nodes[0].names(), name) }
	}
	mounted := mountedOn(1)
	if wrong := followCluster(t, true, "",
		turn{nil, decision{what: makes, on: "lv0", node: 1}},
		turn{nil, decision{what: starts, on: "pod0a", node: 1}},
		turn{mounted, decision{what: stops, on: "pod0a", node: 1}},
		turn{func(c *cluster) bool { return !mounted(c) && len(c.schedule.names()) == 0 }, decision{what: starts, on: "pod0a", node: 1}},
		turn{at("child probe lv0 after"), decision{what: passes, pass: 2 * time.Second}}, // the managers are asked again after one
		turn{at(read + "before"), decision{what: lets, on: read + "before", node: 1}},
		turn{nil, decision{what: passes, pass: 5 * time.Minute}},
		turn{nil, decision{what: lets, on: read + "after", node: 1}},
		turn{nil, decision{what: passes, pass: time.Second}}); len(wrong) > 0 {
		t.Errorf("%q", wrong)
	}
}

// TestOtherDevice verifies that a probe says nothing about the next device of the volume.
func TestOtherDevice(t *testing.T) {
	at := func(name string) func(*cluster) bool {
		return func(c *cluster) bool { return slices.Contains(c.nodes[0].names(), name) }
	}
	probed := false
	next := func(c *cluster) bool { // the probe has ended, and its result has not been used
		probed = probed || at("child probe lv0 after")(c)
		return probed && at("look")(c) && !at("child probe lv0 after")(c)
	}
	if wrong := followCluster(t, true, "",
		turn{nil, decision{what: makes, on: "lv0", node: 1}},
		turn{nil, decision{what: starts, on: "pod0a", node: 1}},
		turn{next, decision{what: deactivates, on: "lv0", node: 1}},
		turn{at("child format lv0 before"), decision{what: opens, on: "lv0", node: 1}},
		turn{func(c *cluster) bool { return !at("child format lv0 before")(c) }, decision{what: passes, pass: time.Second}}); len(wrong) > 0 {
		t.Errorf("%q", wrong)
	}
}

// TestCommandOutlivesFlexd verifies that a volume is released which a command of an earlier
// flexd activates when no call waits for it any more.
func TestCommandOutlivesFlexd(t *testing.T) {
	const activation = "child lvchange -aey vg0/lv0 before"
	stands := func(c *cluster) bool { return slices.Contains(c.nodes[0].names(), activation) }
	alone := func(c *cluster) bool {
		return stands(c) && len(c.schedule.names()) == 1 && c.nodes[0].M.Boot() > 10*time.Minute
	}
	wrong := followCluster(t, true, activation,
		turn{nil, decision{what: makes, on: "lv0", node: 1}},
		turn{nil, decision{what: starts, on: "pod0a", node: 1}},
		turn{stands, decision{what: flexdDies, node: 1}},
		turn{nil, decision{what: stops, on: "pod0a", node: 1}},
		turn{alone, decision{what: lets, on: activation, node: 1}})
	if len(wrong) > 0 {
		t.Errorf("%s", strings.Join(wrong, "\n"))
	}
}

// TestCreationInterrupted verifies that another node gets a volume whose creation ended with
// flexd, or whose creation no call waits for any more.
func TestCreationInterrupted(t *testing.T) {
	for _, point := range []string{"child lvcreate vg0/lv0 before", "child lvcreate vg0/lv0 within", "child zero lv0 before"} {
		for _, dies := range []bool{true, false} {
			stands := func(c *cluster) bool { return slices.Contains(c.nodes[0].names(), point) }
			plan := []turn{
				{nil, decision{what: starts, on: "pod0a", node: 1}},
				{stands, decision{what: stops, on: "pod0a", node: 1}},
				{nil, decision{what: flexdDies, node: 1}},
				{func(c *cluster) bool { return c.nodes[0].M.Boot() > 10*time.Minute }, decision{what: lets, on: point, node: 1}},
			}
			if !dies {
				plan = slices.Delete(plan, 2, 3)
			}
			if wrong := followCluster(t, true, point, plan...); len(wrong) > 0 {
				t.Errorf("%s, flexd dies %v: %s", point, dies, strings.Join(wrong, "\n"))
			}
		}
	}
}

// TestKilledWithLock verifies that another node gets a volume whose lock was left by a command
// that was killed.
func TestKilledWithLock(t *testing.T) {
	for _, point := range []string{"child lvchange -aey vg0/lv0 within", "child lvchange -an vg0/lv0 unlocking"} {
		for _, dies := range []bool{true, false} {
			stands := func(c *cluster) bool { return slices.Contains(c.nodes[0].names(), point) }
			plan := []turn{
				{nil, decision{what: makes, on: "lv0", node: 1}},
				{nil, decision{what: starts, on: "pod0a", node: 1}},
				{func(c *cluster) bool { return mountedOn(1)(c) || stands(c) }, decision{what: stops, on: "pod0a", node: 1}},
				{stands, decision{what: flexdDies, node: 1}},
				{nil, decision{what: kills, on: point, node: 1}},
			}
			if !dies {
				plan = slices.Delete(plan, 3, 4)
				plan[3].when = stands
			}
			if wrong := followCluster(t, true, point, plan...); len(wrong) > 0 {
				t.Errorf("%s, flexd dies %v: %s", point, dies, strings.Join(wrong, "\n"))
			}
		}
	}
}
