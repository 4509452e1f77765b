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

// decisions is the length of a run.
const decisions = 400

// A random takes the decisions of one run. Each run has its own weights: an action that is
// frequent in one run never occurs in another, some runs have few pods, and in some one
// goroutine always continues last. That makes combinations of rare actions common.
//
// Most runs have a focus, too: one goroutine is held at a point that matters, and actions
// on its volume or directory follow before it continues.
type random struct {
	*rand.Rand
	weights []weight
	crowd   []int  // the pods that start and stop
	slow    uint32 // hash key of the slow points; 0 = none is slow
	left    int    // decisions that are left
	first   []decision

	focused bool
	foci    []focus // of this run
	focus   focus   // of the hold
	then    *focus  // of the next hold; nil = any of them
	last    string  // the point from which a goroutine continued last
	held    string  // the point, "" = none yet
	events  int     // actions that are left
	others  int     // decisions for the other goroutines before it continues
	waits   int     // how often kubelet alone was waiting
}

type weight struct {
	what   action
	of     int
	tempts []int // the possible factors
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
	c.focused = c.IntN(6) > 0
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
		c.foci = []focus{pick(c, foci)}
		for range 7 {
			c.foci = append(c.foci, pick(c, orders))
		}
	}
	if c.IntN(2) == 0 {
		c.slow = c.Uint32() | 1
	}
	if c.IntN(6) == 0 { // each mount has a hidden copy
		c.first = append(c.first, decision{what: binds})
	}
	for v := range volumes { // a volume may have been used before
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
	d, ok := c.concentrate(w)
	if !ok {
		d = c.decide(w, drawn(c, c.weights))
	}
	if d.what == lets {
		c.last = d.on
	}
	return d, c.left >= 0
}

// decide chooses the object of the action.
func (c *random) decide(w *world, what action) decision {
	d := decision{what: what}
	stopped := slices.DeleteFunc(w.schedule.names(), func(s string) bool { return s == c.held })
	switch what {
	case lets:
		if d.on = c.one(stopped); d.on == "" {
			return c.decide(w, c.quiet(w))
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
		if d.on = fmt.Sprint(pick(c, []int{0, 1, 1, 2, 3})); c.held != "" && c.focus.inOrder && c.IntN(2) == 0 {
			d.on = "1" // between the notes of one step
		}
	case starts, stops, expands:
		a := c.pod(w)
		if d.on = a.pod.UID; a.isWanted() == (what == starts) { // another pod may be a possible object
			for _, i := range c.crowd {
				if w.pods[i].isWanted() != (what == starts) {
					d.on = w.pods[i].pod.UID
				}
			}
		}
	case strays:
		verbs, attempts := []string{flexvolume.Mount, flexvolume.Unmount}, []int{0, 0, 1, 2, 3}
		if c.held != "" && c.focus.inOrder {
			verbs = []string{flexvolume.Mount, flexvolume.Mount, flexvolume.Unmount}
		}
		if strings.HasPrefix(c.held, "kubelet receives answer to unmount ") {
			verbs, attempts = verbs[:1], []int{0, 0, 0, 0, 1, 2}
		} else if strings.HasPrefix(c.held, "kubelet serves ") { // kubelet has tried again since
			verbs, attempts = append(verbs, flexvolume.Mount), []int{0, 1, 1, 1, 2}
		}
		d.on = fmt.Sprintf("%s %s %d", pick(c, verbs), c.pod(w).pod.UID, pick(c, attempts))
	case holds, umounts, freezes:
		if all := w.Mounts(); len(all) > 0 {
			d.on = pick(c, all)
		}
		d.on = c.mountTarget(stopped, d.on)
	case covers:
		if d.on = c.mountTarget(stopped, w.kubelet.Dir(c.pod(w).pod)); c.IntN(8) == 0 {
			d.on = w.Root + pick(c, []string{"/pods", "/plugins", ""})
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
		if c.held != "" { // so that leases and deadlines end
			d.pass = pick(c, []time.Duration{time.Second, 3 * time.Second, 11 * time.Second, 40 * time.Second, 2 * time.Minute, 5 * time.Minute})
		}
		if len(stopped) == 0 { // kubelet waits before it tries again
			d.pass = max(d.pass, pick(c, []time.Duration{time.Second, 5 * time.Second, 2 * time.Minute}))
		}
	}
	return d
}

// quiet chooses an action when no goroutine has stopped.
func (c *random) quiet(w *world) action {
	if w.resting() {
		c.waits = 0
		return pick(c, []action{passes, starts, starts, stops, stops})
	}
	if c.waits++; c.focused && c.waits > 12 { // kubelet makes no progress
		c.left = 0
	}
	all := []action{passes, passes, passes, passes, stops}
	if len(w.hidden) > 0 {
		all = append(all, shows)
	}
	if len(w.free) > 0 {
		all = append(all, frees)
	}
	return pick(c, all)
}

// mountTarget returns mostly the directory of a mount command that is running, if there is
// one: the time in which it matters is short.
func (c *random) mountTarget(stopped []string, otherwise string) string {
	if dir := mountDir(c.held); dir != "" && c.IntN(8) > 0 {
		return dir
	}
	dirs := []string{otherwise}
	for _, s := range stopped {
		if dir := mountDir(s); dir != "" {
			dirs = append(dirs, dir)
		}
	}
	return pick(c, dirs)
}

// mountDir returns the directory of a mount command's point, or "".
func mountDir(point string) string {
	at, ok := strings.CutPrefix(point, "child mount ")
	if !ok {
		return ""
	}
	dir, _, _ := strings.Cut(at, " ")
	return dir
}

// lv returns a volume: in a focused run mostly that of its pods.
func (c *random) lv() string {
	if c.focused && c.IntN(8) > 0 {
		return fmt.Sprintf("lv%d", c.crowd[0]/podsPerVolume)
	}
	return fmt.Sprintf("lv%d", c.IntN(volumes))
}

// drawn returns a random action by weight.
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

// pod returns one of the pods that start and stop, mostly that of the held point.
func (c *random) pod(w *world) *actor {
	for _, a := range w.pods {
		if strings.Contains(c.held, a.pod.UID) && c.IntN(8) > 0 {
			return a
		}
	}
	return w.pods[pick(c, c.crowd)]
}

// one returns one of the points, rarely a slow one; "" if there is none.
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
