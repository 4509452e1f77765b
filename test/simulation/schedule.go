package simulation

import (
	"cmp"
	"slices"
	"sync"

	"github.com/flexd/flexd/internal/hosttest"
)

// A schedule holds the goroutines that have stopped.
type schedule struct {
	mu      sync.Mutex
	stopped []*point
	open    bool // no goroutine stops any more
	arrival int
}

// A point is a goroutine that has stopped.
type point struct {
	name    string
	arrival int
	fate    chan hosttest.Fate
}

// stop waits for a decision. over ends the wait when the process is dead; nil =
// never.
func (s *schedule) stop(name string, over <-chan struct{}) hosttest.Fate {
	s.mu.Lock()
	if s.open {
		s.mu.Unlock()
		return hosttest.Lives
	}
	s.arrival++
	p := &point{name, s.arrival, make(chan hosttest.Fate, 1)}
	s.stopped = append(s.stopped, p)
	s.mu.Unlock()
	select {
	case f := <-p.fate:
		return f
	case <-over:
		s.remove(p)
		return hosttest.Dies
	}
}

func (s *schedule) remove(p *point) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = slices.DeleteFunc(s.stopped, func(o *point) bool { return o == p })
}

// names lists the points of the stopped goroutines, in an order that does not depend on the machine.
func (s *schedule) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.stopped, func(a, b *point) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.arrival, b.arrival))
	})
	var all []string
	for _, p := range s.stopped {
		all = append(all, p.name)
	}
	return all
}

// let ends the stop of a goroutine at a point, and reports whether there was one.
func (s *schedule) let(name string, f hosttest.Fate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.stopped {
		if p.name == name {
			s.stopped = slices.Delete(s.stopped, i, i+1)
			p.fate <- f
			return true
		}
	}
	return false
}

// opened lets all goroutines continue, and stops none any more.
func (s *schedule) opened() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = true
	for _, p := range s.stopped {
		p.fate <- hosttest.Lives
	}
	s.stopped = nil
}
