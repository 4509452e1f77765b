//go:build !race

// The race detector makes the walk over all interleavings too slow, and finds
// nothing in one goroutine.

package dsw

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// A kind is one of the calls in TestRequests.
type kind struct {
	verb     volume.Verb
	dir, vol string
}

var kinds = []kind{
	{volume.Publish, "/a", "v"}, {volume.Publish, "/a", "w"}, {volume.Release, "/a", ""},
	{volume.Publish, "/b", "v"}, {volume.Release, "/b", ""},
}

// An op is one critical section.
type op struct {
	name     string // enter, bind, abandon, answer, commit, mounted, absent
	call     int
	dir, vol string
}

// A run replays operations on a set and on a model of it: what the model says is
// computed from the calls alone.
type run struct {
	t         *testing.T
	q         *Requests
	calls     []*Request
	entered   [3]bool
	refused   [3]bool
	answered  [3]bool
	held      [3]bool           // only the outcome answers it
	committed map[string]string // by directory
	seen      map[string]bool   // the committed mount was observed
	path      []op
}

func (r *run) errorf(format string, a ...any) {
	r.t.Helper()
	r.t.Fatalf("%v: %s", r.path, fmt.Sprintf(format, a...))
}

func newRun(t *testing.T, of [3]kind) *run {
	r := &run{t: t, q: NewRequests(func(volume.UUID) {}), committed: map[string]string{}, seen: map[string]bool{}}
	for i, k := range of {
		r.calls = append(r.calls, &Request{Call: volume.Call{ID: fmt.Sprint(i), Verb: k.verb, Dir: k.dir},
			Name: volume.Name{LV: k.vol}, Started: time.Duration(1 + i)}) // started in this order, whatever order they arrive in
	}
	return r
}

// newer reports whether a call that started later wants something else there. Of
// mounts the newest counts.
func (r *run) newer(i int) bool {
	unmount, mount := false, volume.Name{}
	a := r.calls[i]
	for j := i + 1; j < len(r.calls); j++ {
		if b := r.calls[j]; r.entered[j] && !r.refused[j] && a.Dir == b.Dir {
			if unmount = unmount || !b.Mounts(); b.Mounts() {
				mount = b.Name
			}
		}
	}
	if !a.Mounts() {
		return mount != volume.Name{}
	}
	return unmount || mount != volume.Name{} && mount != a.Name
}

func (r *run) waits(i int) bool { return r.entered[i] && !r.refused[i] && !r.answered[i] }

// possible lists what can happen next.
func (r *run) possible() (ops []op) {
	for i, c := range r.calls {
		switch {
		case !r.entered[i]:
			ops = append(ops, op{"enter", i, "", ""})
		case r.waits(i):
			ops = append(ops, op{"abandon", i, "", ""})
			if vol := string(r.q.Bound(c)); vol != "" {
				ops = append(ops, op{"answer", i, "", vol})
				if c.Mounts() { // its look-up may end after a commit bound it
					ops = append(ops, op{"commit", i, c.Dir, vol}, op{"bind", i, "", "x"})
				}
			} else if c.Mounts() {
				ops = append(ops, op{"bind", i, "", c.Name.LV})
			} else {
				ops = append(ops, op{"bind", i, "", "v"})
			}
		case c.Mounts() && r.q.Bound(c) != "": // a lane that does not know of its end yet
			ops = append(ops, op{"commit", i, c.Dir, string(r.q.Bound(c))})
		}
	}
	for _, dir := range []string{"/a", "/b"} {
		if vol := r.committed[dir]; vol != "" && !r.seen[dir] {
			ops = append(ops, op{"mounted", 0, dir, vol}, op{"absent", 0, dir, vol})
		}
	}
	return ops
}

// do replays one operation and compares.
func (r *run) do(o op) {
	r.path = append(r.path, o)
	switch o.name {
	case "enter":
		c := r.calls[o.call]
		late := r.newer(o.call)
		committed, err := r.q.Enter(c, time.Duration(10))
		if r.entered[o.call], r.refused[o.call] = true, err != nil; (err != nil) != late {
			r.errorf("refused: %v", err)
		}
		if err == nil && string(committed) != r.committed[c.Dir] {
			r.errorf("committed is %q, not %q", committed, r.committed[c.Dir])
		}
	case "bind":
		r.q.Bind(r.calls[o.call], volume.UUID(o.vol))
	case "abandon":
		r.q.Abandon(r.calls[o.call], Answer{})
		r.answered[o.call] = !r.held[o.call]
	case "answer":
		r.q.Answer(volume.UUID(o.vol), r.calls[o.call].ID, Answer{})
		r.answered[o.call] = true
	case "commit":
		wanted, other := false, r.committed[o.dir]
		for i, c := range r.calls {
			wanted = wanted || r.waits(i) && c.Mounts() && c.Dir == o.dir && string(r.q.Bound(c)) == o.vol && !r.newer(i)
		}
		err := r.q.Commit(volume.UUID(o.vol), volume.Name{LV: o.vol}, o.dir)
		if (err == nil) != (wanted && (other == "" || other == o.vol)) {
			r.errorf("committed: %v", err)
		}
		if err == nil {
			r.committed[o.dir], r.seen[o.dir] = o.vol, false
		}
	case "mounted", "absent":
		r.q.Observed(volume.UUID(o.vol), o.dir, o.name == "mounted")
		if r.seen[o.dir] = o.name == "mounted"; !r.seen[o.dir] {
			delete(r.committed, o.dir)
		}
	}
	r.follow()
	r.compare()
}

// follow works out what the operation means for the other calls.
func (r *run) follow() {
	needed := map[string]bool{}
	for i, c := range r.calls {
		vol := r.committed[c.Dir]
		r.held[i] = r.waits(i) && c.Mounts() && vol != "" && c.Name.LV == vol
		r.answered[i] = r.answered[i] || r.waits(i) && r.newer(i) && !r.held[i]
		needed[c.Dir] = needed[c.Dir] || r.held[i]
	}
	for dir := range r.seen {
		if r.seen[dir] && !needed[dir] {
			delete(r.committed, dir)
			delete(r.seen, dir)
		}
	}
}

func (r *run) compare() {
	for i, c := range r.calls {
		if !r.entered[i] || r.refused[i] {
			continue
		}
		if got := len(c.Answered()) == 1; got != r.answered[i] {
			r.errorf("call %d is answered: %v", i, got)
		}
		bound := r.q.Bound(c)
		if r.held[i] && string(bound) != r.committed[c.Dir] {
			r.errorf("call %d waits for %q, not for the committed mount", i, bound)
		}
		if got := slices.Contains(r.q.Of(bound), c); got != (r.waits(i) && bound != "") {
			r.errorf("call %d is among those of %q: %v", i, bound, got)
		}
		if got := slices.Contains(r.q.Free(bound), c); got != (r.waits(i) && bound != "" && !r.held[i]) {
			r.errorf("call %d is free: %v", i, got)
		}
	}
}

func (r *run) key() string {
	return fmt.Sprint(r.entered, r.refused, r.answered, r.held, r.committed, r.seen,
		r.q.Bound(r.calls[0]), r.q.Bound(r.calls[1]), r.q.Bound(r.calls[2]))
}

// Three calls at two targets, in every order of their arrival, of their look-ups,
// of the commits and outcomes of their mounts, of their answers and their ends.
func TestRequests(t *testing.T) {
	states := 0
	for _, a := range kinds[:3] { // the first at /b says nothing new
		for _, b := range kinds {
			for _, c := range kinds {
				known := map[string]bool{}
				for paths := [][]op{nil}; len(paths) > 0; paths = paths[1:] {
					r := newRun(t, [3]kind{a, b, c})
					for _, o := range paths[0] {
						r.do(o)
					}
					if known[r.key()] {
						continue
					}
					known[r.key()] = true
					next := r.possible()
					for _, o := range next {
						paths = append(paths, append(slices.Clone(paths[0]), o))
					}
					if len(next) == 0 && len(r.q.volumes) > 0 {
						r.errorf("left behind: %v", r.q.volumes)
					}
				}
				states += len(known)
			}
		}
	}
	t.Logf("%d states", states)
}

// A target is forgotten when no call can refer to it any more.
func TestRequestsForget(t *testing.T) {
	q := NewRequests(func(volume.UUID) {})
	enter := func(dir string, started, now time.Duration) *Request {
		r := &Request{Call: volume.Call{ID: dir, Verb: volume.Release, Dir: dir}, Started: started}
		if _, err := q.Enter(r, now); err != nil {
			t.Fatal(err)
		}
		return r
	}
	q.Leave(enter("/left", 1, 1))
	waits := enter("/waits", 1, 1)
	last := enter("/last", targetMemory, targetMemory+2)
	if len(q.targets) != 2 || q.targets["/waits"] == nil || q.targets["/last"] == nil {
		t.Errorf("kept: %v", q.targets)
	}
	q.Leave(waits)
	q.Leave(waits) // again
	q.Leave(last)
}
