package volume

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// start enumerates the worlds that make sense.
func start(yield func(world)) {
	each := func(base world) {
		for pg := range phs {
			for pp := range phs {
				for lease := range uint8(3) {
					for c0 := range ops {
						for c1 := oNone; c1 <= c0; c1++ {
							w := base
							w.phase, w.lease, w.calls = [2]ph{pg, pp}, lease, [2]op{c0, c1}
							yield(w)
							if w.wants(oReclaimP) || w.wants(oReclaimPAlone) {
								for _, w.pod = range []Life{Running, Ended} {
									yield(w)
								}
							}
						}
					}
				}
			}
		}
	}
	suspended := func(base world) {
		all := yield
		defer func() { yield = all }()
		yield = func(w world) {
			for i, a := range w.at {
				if w.phase[i] != pNone && w.phase[i] != pHeld || ours(a) != (w.phase[i] == pHeld) {
					return
				}
			}
			for _, w.waits = range []bool{false, true} {
				all(w)
			}
		}
		base.suspended = true
		each(base)
	}
	// Where something of ours is mounted there is a claim, too.
	claimed := func(base world) {
		all := yield
		defer func() { yield = all }()
		yield = func(w world) {
			for i, a := range w.at {
				if ours(a) && w.phase[i] == pNone {
					return
				}
			}
			all(w)
		}
		each(base)
	}
	spots := func(mounted bool, f func([2]at)) {
		for g := range ats {
			for p := range ats {
				if s := [2]at{g, p}; (ours(g) || ours(p)) == mounted {
					f(s)
				}
			}
		}
	}
	// Present, not mounted by us.
	spots(false, func(s [2]at) {
		for t := range truths {
			for rec := RecordUnknown; rec <= Seen; rec++ {
				for dev := Inactive; dev <= Active; dev++ {
					w := world{lv: Present, dev: dev, truth: t, rec: rec, at: s, gone: s[1] == aNone && t == tBlank, small: t == tXfs}
					each(w)
					if rec != Formatting || dev != Active || s != [2]at{} {
						continue
					}
					for _, w.created = range []bool{false, true} {
						for _, w.late = range []bool{false, true} {
							for _, w.recXfs = range []bool{false, true} {
								each(w)
							}
						}
					}
				}
			}
		}
		for _, created := range []bool{false, true} {
			for rec := RecordUnknown; rec <= Seen; rec++ {
				each(world{lv: Present, dev: Active, truth: tBlank, rec: rec, at: s, created: created, short: true})
				each(world{lv: Present, dev: Active, truth: tBlank, rec: rec, at: s, created: true, short: created, stale: true})
			}
			each(world{lv: Present, dev: Active, truth: tExt4, rec: NoRecord, at: s, created: created, short: true})
			each(world{lv: Present, dev: Active, truth: tLeftover, rec: Formatting, at: s, created: created, short: true})
		}
		for _, lv := range []Presence{PresenceUnknown, Absent, Foreign} {
			for dev := ActivityUnknown; dev <= Active; dev++ {
				each(world{lv: lv, dev: dev, truth: tBlank, rec: NoRecord, at: s})
			}
		}
		each(world{lv: Present, dev: ActivityUnknown, truth: tBlank, rec: NoRecord, at: s})
		each(world{lv: Present, lvRO: true, dev: Active, truth: tExt4, rec: NoRecord, at: s})
		each(world{lv: Present, lvRO: true, dev: Active, truth: tBlank, rec: NoRecord, at: s})
		each(world{lv: Present, dev: Active, truth: tExt4, rec: Seen, at: s, elsewhere: true})
		each(world{lv: Present, dev: Active, unlinked: true, truth: tExt4, rec: Seen, at: s})
		for _, t := range []truth{tBlank, tExt4} {
			each(world{lv: Present, dev: Active, unlocked: true, truth: t, rec: NoRecord, at: s, created: true})
			each(world{lv: Present, dev: Inactive, lockLeft: true, truth: t, rec: NoRecord, at: s, created: true})
		}
		if s == [2]at{} {
			for _, t := range []truth{tBlank, tExt4} {
				suspended(world{lv: Present, dev: Active, truth: t, rec: NoRecord, at: s})
			}
		}
		for k := kFree; k < kins; k++ {
			each(world{lv: Present, dev: Active, kin: k, truth: tExt4, rec: Seen, at: s})
		}
		for _, t := range []truth{tBlank, tExt4, tXfs} {
			for use := InUse; use <= Unmounted; use++ {
				each(world{lv: Present, dev: Active, truth: t, rec: NoRecord, at: s, use: use})
			}
			each(world{lv: Present, dev: Active, truth: t, rec: NoRecord, at: s, use: InUse, known: true, unlooked: true})
		}
	})
	// Mounted by us.
	spots(true, func(s [2]at) {
		if s[0] == aRW && (s[1] == aRW || s[1] == aNone) {
			w := world{lv: Present, dev: Active, truth: tExt4, rec: Seen, at: s, published: true}
			suspended(w)
			w.suspect = true
			suspended(w)
			w.suspect, w.grow, w.small = false, true, true
			suspended(w)
		}
		each(world{lv: Present, dev: Active, unlinked: true, truth: tExt4, rec: Seen, at: s, published: true})
		each(world{lv: Present, dev: Active, unlocked: true, truth: tExt4, rec: Seen, at: s, published: true})
		for _, rec := range []Record{NoRecord, Seen} {
			each(world{lv: Present, dev: Active, truth: tExt4, rec: rec, at: s, published: true})
		}
		each(world{lv: Present, dev: Active, truth: tError, rec: Seen, at: s, published: true, known: true})
		each(world{lv: Present, dev: Active, truth: tCut, rec: Seen, at: s, published: true, known: true, sized: true})
		each(world{lv: Present, dev: Active, truth: tCut, rec: Seen, at: s, published: true, short: true, known: true, sized: true})
		each(world{lv: Present, dev: Active, truth: tExt4, rec: Seen, at: s, published: true, short: true, small: true})
		each(world{lv: Present, dev: Active, truth: tExt4, rec: Seen, at: s, published: true, small: true, grow: true})
		each(world{lv: Present, dev: Active, truth: tExt4, rec: Seen, at: s, published: true, elsewhere: true})
		each(world{lv: Absent, dev: Active, truth: tExt4, rec: Seen, at: s, published: true})
		each(world{lv: PresenceUnknown, dev: ActivityUnknown, truth: tExt4, rec: RecordUnknown, at: s, published: true})
		each(world{lv: Present, dev: ActivityUnknown, truth: tExt4, rec: Seen, at: s, published: true, blind: true})
		claimed(world{lv: Present, dev: Active, truth: tExt4, rec: Seen, at: s, published: true, blind: true})
	})
}

// sharing enumerates the worlds of a volume that other nodes see, or have seen, and that is
// mounted nowhere.
func sharing(yield func(world)) {
	for i := range 1 << 5 {
		bit := func(n int) bool { return i>>n&1 == 1 }
		base := world{lv: Present, dev: Active, shared: bit(0), created: bit(1), late: bit(2), recXfs: bit(3)}
		if bit(4) {
			base.dev = Inactive
		}
		for base.truth = range truths {
			for base.rec = RecordUnknown; base.rec <= Seen; base.rec++ {
				for base.tag = range tags {
					for _, o := range []op{oNone, oActivate, oStage, oPublish, oPublishRO, oPublishXfs, oExpand} {
						w := base
						w.calls[0] = o
						yield(w)
					}
				}
			}
		}
	}
}

// A walker follows worlds to where Plan has nothing left to do.
type walker struct {
	t       *testing.T
	visited map[world]uint8 // 1 on the path, 2 done
	later   []world         // where a failed step or a kill leads: not part of the path
	plans   int
	broken  int
}

func (k *walker) broke(w world, v Verdict, format string, a ...any) {
	if k.broken++; k.broken <= 5 {
		var steps []string
		for _, s := range v.Steps {
			steps = append(steps, s.String()+fmt.Sprint(s.Calls))
		}
		k.t.Errorf("%s\n  in   %+v\n  plan %s\n  done %v refused %v", fmt.Sprintf(format, a...), w, strings.Join(steps, " · "), v.Done, v.Refused)
	}
	if os.Getenv(plantedBug) != "" { // it is found
		k.t.Logf("walked %d states", k.plans)
		k.t.FailNow()
	}
}

func (k *walker) walk(w world) {
	switch k.visited[w] {
	case 1:
		k.broke(w, Plan(w.want(), w.have()), "a plan that comes back to where it was")
		return
	case 2:
		return
	}
	k.visited[w] = 1
	defer func() { k.visited[w] = 2 }()
	k.plans++
	v := Plan(w.want(), w.have())

	// The whole plan, as far as it goes, keeps the promises in its order.
	for _, s := range v.Steps {
		for _, id := range s.Calls {
			if w.calls[id[0]-'0'] == oNone || slices.Contains(v.Done, id) {
				k.broke(w, v, "step %v is for a call that does not wait", s)
			}
		}
		if w.waits && (s.Kind.SetsUp() || v.Waiting && s.Kind == Deactivate && len(s.Calls) == 0) {
			k.broke(w, v, "%s while the calls wait", s)
		}
	}
	u := w
	for _, s := range v.Steps {
		var err error
		if u, err = u.do(s); err != nil {
			k.broke(w, v, "%s: %v", s, err)
			return
		}
	}

	next, err := w.answer(v)
	if err != nil {
		k.broke(w, v, "%v", err)
		return
	}
	if len(v.Steps) == 0 {
		switch {
		case next != w:
			k.walk(next) // what is left must be served, or at rest
		case v.Waiting && (w.waits || w.suspended && w.calls == [2]op{}):
			resumed, again := w, w
			resumed.suspended, again.waits = false, false
			k.later = append(k.later, resumed, again)
		case w.calls != [2]op{}:
			k.broke(w, v, "a call is neither answered nor worked for")
		case w.dev == Active && w.lease == 0 && w.phase != [2]ph{} && !w.mounted() && !w.elsewhere:
			k.broke(w, v, "claims without a mount hold the device forever")
		}
		return
	}
	s := v.Steps[0]
	did, err := next.do(s)
	if err != nil {
		k.broke(w, v, "%s: %v", s, err)
		return
	}
	if did == w {
		k.broke(w, v, "%s changes nothing", s)
		return
	}
	k.later = append(k.later, did.killed())
	k.later = append(k.later, did.killed().written()...)
	if s.Kind == Inspect {
		k.later = append(k.later, did.meanwhile()...)
	}
	k.later = append(k.later, next.mustWait(s)...)
	for _, failed := range next.fails(s) {
		k.later = append(k.later, failed.killed())
		k.later = append(k.later, failed.killed().written()...)
		if len(s.Calls) > 0 {
			k.later = append(k.later, failed)
		}
	}
	k.walk(did)
}

func TestPlanSpace(t *testing.T) {
	k := &walker{t: t, visited: map[world]uint8{}}
	n, samples := 0, []int{1} // of so many worlds, one is walked from
	if raceEnabled {          // the race detector finds nothing in a pure function
		samples = []int{16}
	}
	if os.Getenv(plantedBug) != "" {
		samples = []int{101, 13}
	}
	walk := func(w world) {
		n++
		k.walk(w)
		for len(k.later) > 0 {
			last := k.later[len(k.later)-1]
			k.later = k.later[:len(k.later)-1]
			k.walk(last)
		}
	}
	names(walk)
	sharing(walk)
	for _, sample := range samples {
		i := 0
		start(func(w world) {
			if i++; i%sample == 0 {
				walk(w)
			}
		})
	}
	if k.broken > 5 {
		t.Errorf("... and %d more", k.broken-5)
	}
	t.Logf("walked %d states from %d starting worlds", k.plans, n)
}
