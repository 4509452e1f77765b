package simulation

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
)

// A schedule holds what has stopped.
type schedule struct {
	mu      sync.Mutex
	stopped []*point
	open    bool // nothing stops any more
	arrival int
}

// A point is a goroutine that has stopped.
type point struct {
	name    string
	arrival int
	verdict chan verdict
}

// A verdict says how a goroutine goes on.
type verdict bool

const (
	lives verdict = true
	dies  verdict = false // a command is killed where it stands
)

// stop waits for the schedule's word. over ends the waiting of who is dead
// anyway; nil = never.
func (s *schedule) stop(name string, over <-chan struct{}) verdict {
	s.mu.Lock()
	if s.open {
		s.mu.Unlock()
		return lives
	}
	s.arrival++
	p := &point{name, s.arrival, make(chan verdict, 1)}
	s.stopped = append(s.stopped, p)
	s.mu.Unlock()
	select {
	case v := <-p.verdict:
		return v
	case <-over:
		s.remove(p)
		return dies
	}
}

func (s *schedule) remove(p *point) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = slices.DeleteFunc(s.stopped, func(o *point) bool { return o == p })
}

// names lists who has stopped, in an order that does not depend on the machine.
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

// let ends the stop of one, and says whether there was such a one.
func (s *schedule) let(name string, v verdict) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.stopped {
		if p.name == name {
			s.stopped = slices.Delete(s.stopped, i, i+1)
			p.verdict <- v
			return true
		}
	}
	return false
}

// opened lets all go on, now and from now on.
func (s *schedule) opened() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = true
	for _, p := range s.stopped {
		p.verdict <- lives
	}
	s.stopped = nil
}

func (s *schedule) String() string { return fmt.Sprint(s.names()) }
