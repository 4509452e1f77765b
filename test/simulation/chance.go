package simulation

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/flex"
)

// decisions is how long a life is.
const decisions = 400

// A chance decides one life. Each has a temper of its own: what often happens in
// one never happens in another, one is about few pods, and in one somebody is
// always the last to go on. Rare meetings of rare things are common that way.
type chance struct {
	*rand.Rand
	weights []weight
	crowd   []int  // which pods come and go
	slow    uint32 // whose stops are long
	left    int    // decisions
	first   []decision
}

type weight struct {
	what   deed
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
		{holds, 14, seldom}, {frees, 8, usual}, {umounts, 16, seldom}, {covers, 4, seldom}, {borrows, 8, seldom}, {hides, 4, seldom}, {shows, 8, usual},
		{makes, 3, seldom}, {activates, 8, seldom}, {deactivates, 6, seldom}, {attaches, 2, seldom}, {opens, 10, seldom},
	}
)

func chanceOf(seed uint64) *chance {
	c := &chance{Rand: rand.New(rand.NewPCG(seed, 0)), left: decisions}
	for _, w := range weights {
		w.of *= pick(c, w.tempts)
		c.weights = append(c.weights, w)
	}
	c.crowd = c.Perm(volumes * podsPerVolume)[:pick(c, []int{1, 2, 2, 3, volumes * podsPerVolume})]
	if c.IntN(2) == 0 {
		c.slow = c.Uint32() | 1
	}
	for v := range volumes { // who has a volume may have used it before
		if c.IntN(4) == 0 {
			c.first = append(c.first, decision{what: makes, on: fmt.Sprintf("lv%d %s", v, pick(c, contents))})
		}
	}
	return c
}

func pick[T any](c *chance, of []T) T { return of[c.IntN(len(of))] }

func (c *chance) next(w *world) (decision, bool) {
	c.left--
	if len(c.first) > 0 {
		d := c.first[0]
		c.first = c.first[1:]
		return d, c.left >= 0
	}
	all := 0
	for _, w := range c.weights {
		all += w.of
	}
	roll := c.IntN(all)
	for _, of := range c.weights {
		if roll -= of.of; roll < 0 {
			return c.decide(w, of.what), c.left >= 0
		}
	}
	panic("unreachable")
}

// decide says what the deed is done to.
func (c *chance) decide(w *world, what deed) decision {
	d := decision{what: what}
	stopped := w.schedule.names()
	switch what {
	case lets:
		if d.on = c.one(stopped); d.on == "" { // all is quiet
			d.what = pick(c, []deed{passes, passes, starts, starts, stops})
			d.on = c.pod(w).pod.UID
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
		d.on = pick(c, []string{flex.Mount, flex.Unmount}) + " " + c.pod(w).pod.UID
	case holds, umounts:
		if all := w.Mounts(); len(all) > 0 {
			d.on = pick(c, all)
		}
		d.on = c.landing(stopped, d.on)
	case covers:
		d.on = c.landing(stopped, w.kubelet.Dir(c.pod(w).pod))
	case borrows, hides, activates, deactivates, attaches, opens:
		d.on = fmt.Sprintf("lv%d", c.IntN(volumes))
	case makes:
		d.on = fmt.Sprintf("lv%d %s", c.IntN(volumes), pick(c, contents))
	}
	if d.what == passes {
		d.pass = []time.Duration{time.Millisecond, 100 * time.Millisecond, time.Second, 3 * time.Second,
			11 * time.Second, 40 * time.Second, 2 * time.Minute, 5 * time.Minute}[max(c.IntN(16)-8, 0)]
	}
	return d
}

// landing is often where a mount is about to land or has just landed, if there is
// such a place: what matters there is over soon.
func (c *chance) landing(stopped []string, otherwise string) string {
	dirs := []string{otherwise}
	for _, s := range stopped {
		if at, ok := strings.CutPrefix(s, "child mount "); ok {
			dir, _, _ := strings.Cut(at, " ")
			dirs = append(dirs, dir)
		}
	}
	return pick(c, dirs)
}

func (c *chance) pod(w *world) *actor { return w.pods[pick(c, c.crowd)] }

// one is one of those that have stopped, seldom a slow one; "" if there is none.
func (c *chance) one(of []string) string {
	quick := of
	if c.slow != 0 && c.IntN(12) > 0 {
		quick = slices.DeleteFunc(slices.Clone(of), c.isSlow)
	}
	if len(quick) == 0 {
		return ""
	}
	return pick(c, quick)
}

func (c *chance) isSlow(name string) bool {
	h := fnv.New32a()
	fmt.Fprint(h, c.slow, name)
	return h.Sum32()%4 == 0
}
