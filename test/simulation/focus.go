package simulation

import (
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/flexvolume"
)

// calm has the weights of the actions outside the focus of a focused run.
var calm = map[action]int{lets: 640, passes: 10, starts: 15, stops: 12, expands: 3, kills: 4, fails: 4}

// A focus is a point where a goroutine is held, and the most frequent actions meanwhile.
type focus struct {
	after   string // held only if the last goroutine continued from such a point; "" = any
	points  string // see matches
	verb    string // held only while such a call waits; "" = any
	actions []action
	inOrder bool // exactly these actions, one after the other
	then    *focus
}

// inOrder returns a focus with these actions, one after the other, while a goroutine is
// held. An action on a command ends the hold.
func inOrder(points, verb string, actions ...action) focus {
	return focus{points: points, verb: verb, actions: actions, inOrder: true}
}

// every returns n: a focus holds a goroutine at one of n of its points. n is larger at
// common points.
func (f focus) every() int {
	switch common := slices.Contains([]string{"look", "turn of *", "child *"}, f.points); {
	case common && f.after == "" && f.verb == "":
		return 20
	case common && f.after == "":
		return 10
	}
	return 2
}

// following restricts a focus to points right after such a point.
func following(after string, f focus) focus {
	f.after = after
	return f
}

// foci are the points that matter for the promises: the last observation before a mount,
// its permission and its appearance, the ends of unmounts, answers before kubelet
// receives them, commands in the middle of their effect.
var foci = []focus{
	{points: "child mount * before", actions: []action{covers, covers, borrows, stops, strays, diesOf, flexdDies, kubeletDies, deactivates}},
	{points: "child mount * within", actions: []action{strays, stops, diesOf, kubeletDies, flexdDies, covers, passes}},
	{points: "child mount * after", actions: []action{umounts, umounts, tears, tears, blinds, diesOf, diesOf, kubeletDies, flexdDies, strays, stops, passes}},
	{points: "child umount * before", actions: []action{holds, umounts, strays, diesOf, kubeletDies, flexdDies, starts, covers, freezes}},
	{points: "child umount * after", actions: []action{starts, strays, tears, diesOf, flexdDies, covers}},
	{points: "child format * within", actions: []action{flexdDies, kubeletDies, diesOf, stops, passes}},
	{points: "child format * before", actions: []action{flexdDies, kubeletDies, makes, stops, borrows, opens, writes}},
	{points: "child check * before", actions: []action{flexdDies, kubeletDies, diesOf, borrows, deactivates, shrinks, writes, passes}},
	{points: "child grow * before", actions: []action{flexdDies, umounts, stops, passes}},
	{points: "child loop-extend * before", actions: []action{flexdDies, kubeletDies, stops}},
	{points: "child loop-create *", actions: []action{flexdDies, kubeletDies, makes, passes}},
	{points: "child loop-attach *", actions: []action{flexdDies, kubeletDies, makes, hides, attaches, diesOf, passes}},
	{points: "child loop-detach *", actions: []action{starts, flexdDies, opens, makes, passes}},
	{points: "child *", actions: []action{flexdDies, kubeletDies, passes, blinds, tears}},
	{points: "look", actions: []action{kubeletDies, diesOf, activates, tears, strays, umounts, covers}},
	{points: "turn of *", actions: []action{kubeletDies, diesOf, activates, strays, blinds, cuts}},
	{points: "kubelet calls mount*", actions: []action{strays, stops, flexdDies, blinds}},
	{points: "kubelet receives answer to mount *", actions: []action{strays, strays, stops, umounts, flexdDies}},
	{points: "kubelet receives answer to unmount *", actions: []action{strays, strays, strays, starts, passes}},
	{points: "writing record *", actions: []action{flexdDies, kubeletDies, makes, passes}},
}

// orders are sequences that matter for a promise and are rare in random runs.
var orders = []focus{
	// A caller that ends just before a step of its call.
	inOrder("look", flexvolume.Mount, diesOf),
	inOrder("look", flexvolume.Unmount, diesOf),
	following("look", inOrder("look", flexvolume.Unmount, diesOf)),
	following("turn of *", inOrder("look", flexvolume.WaitForAttach, stops, diesOf, activates)),
	inOrder("child mount * before", flexvolume.Mount, diesOf),
	following("child mount * before", inOrder("look", flexvolume.Mount, diesOf)),
	following("child probe * after", inOrder("look", flexvolume.Mount, diesOf)),
	// A call that arrives during an observation.
	inOrder("look", "", expands, lets, lets),
	// Late calls: after an answer; after the newest call has ended; into a mount that fails.
	inOrder("kubelet receives answer to mount *", "", strays),
	inOrder("kubelet receives answer to unmount *", "", strays),
	then(inOrder("kubelet receives answer to unmount *", "", kubeletDies), inOrder("kubelet receives answer to unmount *", "", strays)),
	then(inOrder("turn of *", flexvolume.Mount, kubeletDies), inOrder("kubelet serves *", "", strays, strays)),
	then(inOrder("child * before", flexvolume.Mount, kubeletDies), inOrder("kubelet serves *", "", strays, strays)),
	then(inOrder("kubelet receives answer to unmount *", "", starts), then(inOrder("child * before", flexvolume.Mount, kubeletDies), inOrder("kubelet serves *", "", strays))),
	inOrder("child mount * within", flexvolume.Mount, strays, lets, lets, lets, diesOf, fails),
	// A mount that has appeared or may still appear, when its deadline ends, the next observation fails, or its child is killed.
	inOrder("child mount * within", flexvolume.Mount, passes, passes),
	inOrder("child mount * after", flexvolume.Mount, passes, passes),
	inOrder("child mount * after", flexvolume.Mount, tears, lets, tears),
	inOrder("child mount * after", flexvolume.Mount, kills),
	inOrder("child mount * within", "", flexdDies),
	// Changes by others just before a step.
	inOrder("child mount * before", "", covers),
	inOrder("child mount /sim/kubelet/pods/* before", "", borrows),
	inOrder("child mount /sim/kubelet/pods/* before", flexvolume.Mount, borrows, borrows),
	inOrder("turn of *", flexvolume.Mount, borrows),
	inOrder("child probe * before", "", opens),
	inOrder("child probe * before", "", shrinks),
	inOrder("turn of *", "", activates),
	following("turn of *", inOrder("look", "", blinds)),
	// Unmounts that fail, or whose volume is still in use.
	inOrder("child umount * before", "", busies),
	inOrder("child umount * before", "", holds),
	inOrder("child umount * before", "", freezes),
	inOrder("child umount * after", "", cuts),
	inOrder("child umount /sim/kubelet/pods/* after", "", cuts),
	// Commands that outlive flexd, or their deadline.
	inOrder("child *", "", flexdDies, passes),
	inOrder("child loop-attach * before", "", flexdDies, passes, passes),
	inOrder("child umount * before", "", passes, passes),
	then(inOrder("child format * within", "", flexdDies, kills), inOrder("child probe * before", "", writes)),
}

// then returns a focus whose hold is followed by a hold of next.
func then(f, next focus) focus {
	f.then = &next
	return f
}

// meanwhile has the weights of the actions while a goroutine is held: pods, callers that
// end, late calls, faults, and actions of an operator.
var meanwhile = []weight{
	{stops, 30, nil}, {starts, 15, nil}, {kubeletDies, 20, nil}, {diesOf, 20, nil}, {flexdDies, 20, nil}, {strays, 40, nil}, {passes, 20, nil},
	{umounts, 15, nil}, {covers, 8, nil}, {clears, 6, nil}, {holds, 10, nil}, {borrows, 8, nil}, {freezes, 4, nil}, {shrinks, 3, nil}, {turns, 3, nil}, {opens, 6, nil}, {attaches, 3, nil}, {activates, 6, nil}, {deactivates, 8, nil},
	{hides, 6, nil}, {shows, 4, nil}, {makes, 6, nil}, {writes, 6, nil}, {tears, 8, nil}, {blinds, 10, nil}, {cuts, 8, nil}, {expands, 8, nil}, {frees, 4, nil},
}

// concentrate takes the decisions that belong to the focus of the run.
func (c *random) concentrate(w *world) (decision, bool) {
	if !c.focused {
		return decision{}, false
	}
	names := w.schedule.names()
	if c.held != "" && !slices.Contains(names, c.held) { // its goroutine has ended
		c.released()
	}
	if c.held == "" && !c.hold(w, names) {
		return decision{}, false
	}
	switch {
	case c.events > 0:
		if c.others > 0 && !c.focus.inOrder && c.IntN(3) == 0 { // a decision outside the focus
			c.others--
			return decision{}, false
		}
		c.events--
		what := drawn(c, meanwhile)
		switch {
		case c.focus.inOrder:
			what = c.focus.actions[len(c.focus.actions)-1-c.events]
		case c.IntN(3) > 0:
			what = pick(c, c.focus.actions)
		}
		if c.focus.inOrder && slices.Contains([]action{kills, fails, busies}, what) {
			d := decision{what: what, on: c.held}
			c.released()
			return d, true
		}
		return c.decide(w, what), true
	case c.others > 0 && len(names) > 1:
		c.others--
		return decision{}, false
	}
	d := decision{what: lets, on: c.held}
	every := 3
	if c.focus.inOrder {
		every = 10
	}
	if child := strings.HasPrefix(c.held, "child "); child && c.IntN(every) == 0 {
		d.what = pick(c, []action{kills, kills, fails, garbles})
		if strings.HasPrefix(c.held, "child umount ") && strings.HasSuffix(c.held, " before") {
			d.what = pick(c, []action{kills, fails, busies, busies})
		}
	}
	c.released()
	return d, true
}

// hold holds a goroutine at a point of one of the run's foci, rarely at a common point,
// and reports whether it does.
func (c *random) hold(w *world, names []string) bool {
	points := func(f focus) []string {
		if f.after != "" && !matches(f.after, c.last) || f.verb != "" && len(w.callers(f.verb)) == 0 {
			return nil
		}
		return slices.DeleteFunc(slices.Clone(names), func(s string) bool { return !matches(f.points, s) })
	}
	foci := c.foci
	if c.then != nil {
		foci = []focus{*c.then}
	}
	foci = slices.DeleteFunc(slices.Clone(foci), func(f focus) bool { return len(points(f)) == 0 })
	if len(foci) == 0 {
		if c.IntN(40) == 0 { // its point may never be reached
			c.then = nil
		}
		return false
	}
	f := pick(c, foci)
	if c.then == nil && c.IntN(f.every()) > 0 {
		return false
	}
	c.focus, c.waits = f, 0
	c.held, c.events, c.others = pick(c, points(f)), 1+c.IntN(3), pick(c, []int{0, 0, 3, 10, 20})
	if f.inOrder {
		c.events, c.others = len(f.actions), pick(c, []int{0, 0, 0, 10, 40})
		if strings.HasPrefix(f.points, "kubelet ") || f.actions[c.events-1] == passes { // the other goroutines matter here
			c.others = pick(c, []int{20, 40, 40})
		}
	}
	return true
}

// released ends the hold of a goroutine.
func (c *random) released() {
	c.held, c.then = "", c.focus.then
}

// matches reports whether a point's name begins and ends as the pattern does.
func matches(pattern, name string) bool {
	begin, end, _ := strings.Cut(pattern, "*")
	return strings.HasPrefix(name, begin) && strings.HasSuffix(name, end) && len(name) >= len(begin)+len(end)
}
