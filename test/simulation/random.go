package simulation

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
)

// decisions is how long a life is.
const decisions = 400

// A random decides one life. Each has a temper of its own: what often happens in
// one never happens in another, one is about few pods, and in one somebody is
// always the last to go on. Rare meetings of rare things are common that way.
//
// Most lives have a focus besides: one goroutine is held at a point that matters,
// and something happens that concerns its volume or directory, before it goes on.
type random struct {
	*rand.Rand
	weights []weight
	crowd   []int  // which pods come and go
	slow    uint32 // whose stops are long
	left    int    // decisions
	first   []decision

	focused bool
	focus   focus
	held    string // the point, "" = none yet
	events  int    // that are still to happen
	others  int    // decisions for the other goroutines before it goes on
	waits   int    // how often only kubelet's pauses were left
}

type weight struct {
	what   action
	of     int
	tempts []int // by what it may be multiplied
}

var (
	usual   = []int{0, 1, 1, 2, 6}
	seldom  = []int{0, 0, 1, 1, 3, 10}
	weights = []weight{
		{lets, 640, []int{1, 1, 2, 4, 12}}, {passes, 100, []int{0, 1, 1, 2}}, {starts, 65, []int{1, 1, 3}}, {stops, 65, []int{0, 0, 1, 3}}, {kills, 30, usual},
		{fails, 30, usual}, {garbles, 40, usual}, {cuts, 10, usual}, {blinds, 6, usual},
		{flexdDies, 18, usual}, {kubeletDies, 12, usual}, {reboots, 2, usual}, {tears, 6, usual}, {expands, 10, usual}, {strays, 8, seldom},
		{holds, 14, seldom}, {frees, 8, usual}, {umounts, 16, seldom}, {covers, 4, seldom}, {borrows, 8, seldom}, {turns, 2, seldom}, {clears, 6, usual}, {freezes, 4, seldom}, {shrinks, 2, seldom}, {hides, 4, seldom}, {shows, 8, usual},
		{busies, 10, usual}, {diesOf, 10, usual}, {makes, 3, seldom}, {writes, 3, seldom}, {activates, 8, seldom}, {deactivates, 6, seldom}, {attaches, 2, seldom}, {opens, 10, seldom},
	}
)

func newRandom(seed uint64) *random {
	c := &random{Rand: rand.New(rand.NewPCG(seed, 0)), left: decisions}
	c.focused = c.IntN(4) > 0
	for _, w := range weights {
		if w.of *= pick(c, w.tempts); c.focused {
			w.of = calm[w.what]
		}
		c.weights = append(c.weights, w)
	}
	c.crowd = c.Perm(volumes * podsPerVolume)[:pick(c, []int{1, 2, 2, 3, volumes * podsPerVolume})]
	if c.focused { // one pod, or both of one volume
		v := c.IntN(volumes)
		c.crowd = []int{v * podsPerVolume, v*podsPerVolume + 1}[:1+c.IntN(podsPerVolume)]
		c.focus = pick(c, foci)
	}
	if c.IntN(2) == 0 {
		c.slow = c.Uint32() | 1
	}
	if c.IntN(6) == 0 { // each mount has a hidden copy
		c.first = append(c.first, decision{what: binds})
	}
	for v := range volumes { // who has a volume may have used it before
		if c.IntN(4) == 0 {
			c.first = append(c.first, decision{what: makes, on: fmt.Sprintf("lv%d %s", v, pick(c, contents))})
		}
	}
	return c
}

func pick[T any](c *random, of []T) T { return of[c.IntN(len(of))] }

func (c *random) next(w *world) (decision, bool) {
	c.left--
	if len(c.first) > 0 {
		d := c.first[0]
		c.first = c.first[1:]
		return d, c.left >= 0
	}
	if d, ok := c.concentrate(w); ok {
		return d, c.left >= 0
	}
	return c.decide(w, drawn(c, c.weights)), c.left >= 0
}

// decide says what the action is done to.
func (c *random) decide(w *world, what action) decision {
	d := decision{what: what}
	stopped := slices.DeleteFunc(w.schedule.names(), func(s string) bool { return s == c.held })
	switch what {
	case lets:
		if d.on = c.one(stopped); d.on == "" { // all is quiet
			if d.what = pick(c, []action{passes, starts, starts, stops, stops}); !w.resting() {
				d.what = pick(c, []action{passes, passes, shows, frees, stops})
				if c.waits++; c.focused && c.waits > 10 { // whatever has happened, kubelet gets no further
					c.left = 0
				}
			}
			d.on = c.pod(w).pod.UID
		}
	case busies:
		d.on = c.one(slices.DeleteFunc(stopped, func(s string) bool { return !strings.HasPrefix(s, "child umount ") || !strings.HasSuffix(s, " before") }))
	case diesOf:
		if calls := w.callers(c.focus.verb); len(calls) > 0 {
			d.on = pick(c, calls)
		}
	case kills, fails:
		d.on = c.one(slices.DeleteFunc(stopped, func(s string) bool { return !strings.HasPrefix(s, "child ") }))
	case garbles:
		d.on = c.one(slices.DeleteFunc(stopped, func(s string) bool { return !strings.HasPrefix(s, "child ") || !strings.HasSuffix(s, " after") }))
	case cuts:
		d.on = fmt.Sprint(c.IntN(4))
	case starts, stops, expands:
		d.on = c.pod(w).pod.UID
	case strays:
		verbs, attempts := []string{flexvolume.Mount, flexvolume.Unmount}, []int{0, 0, 1, 2, 3}
		if strings.HasPrefix(c.held, "kubelet hears of unmount ") {
			verbs, attempts = verbs[:1], []int{0, 0, 0, 0, 1, 2}
		}
		d.on = fmt.Sprintf("%s %s %d", pick(c, verbs), c.pod(w).pod.UID, pick(c, attempts))
	case holds, umounts, freezes:
		if all := w.Mounts(); len(all) > 0 {
			d.on = pick(c, all)
		}
		d.on = c.mountTarget(stopped, d.on)
	case covers:
		if d.on = c.mountTarget(stopped, w.kubelet.Dir(c.pod(w).pod)); c.IntN(4) == 0 {
			d.on = w.Root + pick(c, []string{"/pods", "/plugins"})
		}
	case borrows:
		d.on = c.lv() + " " + pick(c, []string{"/mnt", w.Root + "/pods", w.Root + "/pods/x/volumes/kubernetes.io~csi/data/mount",
			w.Root + "/plugins/kubernetes.io/csi/x.example.org/0123/globalmount"})
	case hides, writes, activates, deactivates, attaches, opens, shrinks:
		d.on = c.lv()
	case makes:
		d.on = c.lv() + " " + pick(c, contents)
	}
	if d.what == passes {
		d.pass = []time.Duration{time.Millisecond, 100 * time.Millisecond, time.Second, 3 * time.Second,
			11 * time.Second, 40 * time.Second, 2 * time.Minute, 5 * time.Minute}[max(c.IntN(16)-8, 0)]
		if len(stopped) == 0 { // kubelet waits before it tries again
			d.pass = max(d.pass, pick(c, []time.Duration{time.Second, 5 * time.Second, 2 * time.Minute}))
		}
	}
	return d
}

// mountTarget is often where a mount is about to land or has just landed, if there is
// such a place: what matters there is over soon.
func (c *random) mountTarget(stopped []string, otherwise string) string {
	dirs := []string{otherwise}
	for _, s := range append(stopped, c.held) {
		if at, ok := strings.CutPrefix(s, "child mount "); ok {
			dir, _, _ := strings.Cut(at, " ")
			dirs = append(dirs, dir)
		}
	}
	return pick(c, dirs)
}

// lv is a volume: in a focused life that of its pods, nearly always.
func (c *random) lv() string {
	if c.focused && c.IntN(8) > 0 {
		return fmt.Sprintf("lv%d", c.crowd[0]/podsPerVolume)
	}
	return fmt.Sprintf("lv%d", c.IntN(volumes))
}

// calm is how often what happens in a focused life beside its focus.
var calm = map[action]int{lets: 640, passes: 10, starts: 15, stops: 12, expands: 3, kills: 4, fails: 4}

// A focus is where a goroutine is held, and what then happens most of all.
type focus struct {
	points  string // see matches
	verb    string // held only while such a call waits; "" = any
	actions []action
	inOrder bool // just these happen, one after the other
	then    *focus
}

// unheard: kubelet unmounts again what it has not heard of, and a mount call is late.
var unheard = focus{points: "kubelet hears of unmount *", actions: []action{kubeletDies}, inOrder: true,
	then: &focus{points: "kubelet hears of unmount *", actions: []action{strays}, inOrder: true}}

// foci are the points that promises are about: the last look before a mount, its
// permission and its appearance, the ends of unmounts, answers on their way to
// kubelet, commands in the middle of their effect.
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
	{points: "kubelet hears of mount *", actions: []action{strays, strays, stops, umounts, flexdDies}},
	{points: "kubelet hears of unmount *", actions: []action{strays, strays, strays, starts, passes}},
	{points: "kubelet hears of unmount *", actions: []action{strays, strays, strays, starts, passes}},
	{points: "look", actions: []action{tears}},
	{points: "kubelet hears of mount *", actions: []action{strays}, inOrder: true},
	{points: "kubelet hears of unmount *", actions: []action{strays}, inOrder: true},
	{points: "kubelet hears of unmount *", actions: []action{strays}, inOrder: true},
	unheard, unheard, unheard,
	{points: "child mount * before", actions: []action{borrows}, inOrder: true},
	{points: "child mount * before", actions: []action{borrows}, inOrder: true},
	{points: "look", verb: flexvolume.WaitForAttach, actions: []action{diesOf, activates}, inOrder: true},
	{points: "look", verb: flexvolume.WaitForAttach, actions: []action{diesOf, activates}, inOrder: true},
	{points: "look", verb: flexvolume.Unmount, actions: []action{diesOf}, inOrder: true},
	{points: "look", verb: flexvolume.Mount, actions: []action{diesOf}, inOrder: true},
	{points: "child *", actions: []action{flexdDies, passes}, inOrder: true},
	{points: "kubelet hears of mount *", actions: []action{strays}},
	{points: "writing record *", actions: []action{flexdDies, kubeletDies, makes, passes}},
}

// meanwhile is what happens while a goroutine is held: the usual, callers that end,
// late calls, faults, and what an operator does.
var meanwhile = []weight{
	{stops, 30, nil}, {starts, 15, nil}, {kubeletDies, 20, nil}, {diesOf, 20, nil}, {flexdDies, 20, nil}, {strays, 40, nil}, {passes, 20, nil},
	{umounts, 15, nil}, {covers, 8, nil}, {clears, 6, nil}, {holds, 10, nil}, {borrows, 8, nil}, {freezes, 4, nil}, {shrinks, 3, nil}, {turns, 3, nil}, {opens, 6, nil}, {attaches, 3, nil}, {activates, 6, nil}, {deactivates, 8, nil},
	{hides, 6, nil}, {shows, 4, nil}, {makes, 6, nil}, {writes, 6, nil}, {tears, 8, nil}, {blinds, 10, nil}, {cuts, 8, nil}, {expands, 8, nil}, {frees, 4, nil},
}

// concentrate decides what the focus of the life is about.
func (c *random) concentrate(w *world) (decision, bool) {
	if !c.focused {
		return decision{}, false
	}
	names := w.schedule.names()
	if c.held != "" && !slices.Contains(names, c.held) { // it is dead
		c.released()
	}
	if c.held == "" {
		at := slices.DeleteFunc(names, func(s string) bool {
			return !matches(c.focus.points, s) || len(w.callers(c.focus.verb)) == 0 && c.focus.verb != ""
		})
		if len(at) == 0 && c.IntN(40) == 0 { // it may never be reached
			c.focus = pick(c, foci)
		}
		if len(at) == 0 || !c.focus.inOrder && c.IntN(3) == 0 {
			return decision{}, false
		}
		c.held, c.events, c.others = pick(c, at), 1+c.IntN(3), pick(c, []int{0, 0, 3, 10, 40})
		if c.focus.inOrder {
			c.events, c.others = len(c.focus.actions), pick(c, []int{0, 10, 40, 60})
		}
	}
	switch {
	case c.events > 0:
		if c.others > 0 && !c.focus.inOrder && c.IntN(3) == 0 { // in between
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
		return c.decide(w, what), true
	case c.others > 0 && len(names) > 1:
		c.others--
		return decision{}, false
	}
	d := decision{what: lets, on: c.held}
	if child := strings.HasPrefix(c.held, "child "); child && c.IntN(3) == 0 {
		d.what = pick(c, []action{kills, kills, fails, garbles})
		if strings.HasPrefix(c.held, "child umount ") && strings.HasSuffix(c.held, " before") {
			d.what = pick(c, []action{kills, fails, busies, busies})
		}
	}
	c.released()
	return d, true
}

// released ends the hold of a goroutine; another focus may be next.
func (c *random) released() {
	c.held = ""
	switch {
	case c.focus.then != nil:
		c.focus = *c.focus.then
	case c.IntN(2) == 0:
		c.focus = pick(c, foci)
	}
}

// matches says whether a point's name begins and ends as the pattern does.
func matches(pattern, name string) bool {
	begin, end, _ := strings.Cut(pattern, "*")
	return strings.HasPrefix(name, begin) && strings.HasSuffix(name, end) && len(name) >= len(begin)+len(end)
}

// drawn is one of them by its weight.
func drawn(c *random, of []weight) action {
	all := 0
	for _, w := range of {
		all += w.of
	}
	roll := c.IntN(all)
	for _, w := range of {
		if roll -= w.of; roll < 0 {
			return w.what
		}
	}
	panic("unreachable")
}

// pod is one of those that come and go, nearly always that of the held point.
func (c *random) pod(w *world) *actor {
	for _, a := range w.pods {
		if c.held != "" && strings.HasSuffix(c.held, w.kubelet.Dir(a.pod)) && c.IntN(8) > 0 {
			return a
		}
	}
	return w.pods[pick(c, c.crowd)]
}

// one is one of those that have stopped, seldom a slow one; "" if there is none.
func (c *random) one(of []string) string {
	quick := of
	if c.slow != 0 && c.IntN(12) > 0 {
		quick = slices.DeleteFunc(slices.Clone(of), c.isSlow)
	}
	if len(quick) == 0 {
		return ""
	}
	return pick(c, quick)
}

func (c *random) isSlow(name string) bool {
	h := fnv.New32a()
	fmt.Fprint(h, c.slow, name)
	return h.Sum32()%4 == 0
}
