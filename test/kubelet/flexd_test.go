package kubelet

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flexd/flexd/test/host"
)

// The accidents of flexd while kubelet waits for an answer. After each a flexd runs.
var accidents = []struct {
	name   string
	midway bool // flexd is at work, and stopped; else it has not read the call yet
	do     func(n *node, child int)
}{
	{"kill -9 before it begins", false, func(n *node, _ int) {
		n.endFlexd(syscall.SIGKILL)
		n.startFlexd()
	}},
	{"kill -9 at work", true, func(n *node, child int) {
		if child != 0 { // the call comes again before it has ended
			host.Stop(child)
			defer syscall.Kill(child, syscall.SIGCONT)
		}
		n.endFlexd(syscall.SIGKILL)
		n.startFlexd()
		time.Sleep(300 * time.Millisecond)
	}},
	{"restart of two seconds", true, func(n *node, _ int) {
		n.thaw()
		n.endFlexd(syscall.SIGTERM)
		time.Sleep(2 * time.Second)
		n.startFlexd()
	}},
	{"upgrade", false, func(n *node, _ int) {
		n.must(host.Install(built+"/flexd", n.Flexd()))
		n.thaw()
		n.endFlexd(syscall.SIGTERM)
		n.startFlexd()
	}},
}

// Kubelet does not notice: no call fails and no pod gets a warning (node.expected).
func TestFlexdEndsInEachVerb(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.props()
		written := map[string]string{}
		worst := map[string]time.Duration{}
		for i, verb := range n.mode.verbs() {
			for j, accident := range accidents {
				about := accident.name + " at " + verb
				hit, slow := false, 0
				for try := 0; !hit && try < 5; try++ {
					s := n.scene(verb, fmt.Sprintf("web-%d-%d-%d", i, j, try))
					if s.runs {
						n.run(s.pod)
						n.passes(s.pod, written)
					}
					child, begin := 0, time.Now()
					if accident.midway {
						child, hit = n.midway(verb, "", s.cause)
					} else {
						n.caught(verb, s.cause)
						hit = true
					}
					if hit {
						accident.do(n, child)
					}
					s.passed()
					took := time.Since(begin)
					if mounted(n.podDir(s.pod, 0)) {
						n.passes(s.pod, written)
					}
					n.end(s.pod)
					if !s.runs {
						worst[accident.name] = max(worst[accident.name], took.Round(time.Millisecond))
						if took > 5*time.Second { // is it the machine?
							n.quiet()
							begin := time.Now()
							n.run(s.pod)
							if usual := time.Since(begin); took > 5*time.Second+2*usual {
								if slow++; slow == 2 {
									t.Errorf("%s: the pod started after %v, and without that after %v", about, took, usual)
								} else {
									hit = false // the machine may have been busy just then: once more
								}
							}
							n.end(s.pod)
						}
					}
					n.quiet()
					n.detached() // the next pod's life begins with the first verb
					if w := n.warnings(); len(w) > 0 {
						t.Fatalf("%s: %q", about, w)
					}
				}
				if !hit && !instant(verb) {
					t.Errorf("%s: flexd was always too quick", about)
				} else if !hit {
					t.Logf("%s: flexd was always too quick", about)
				}
			}
		}
		t.Logf("the slowest starts of pods: %v", worst)
	})
}

// flexd is killed at any moment of pods that come and go.
func TestFlexdKilledAnywhere(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		r := seeded(t)
		n.claim("a", 16*mib)
		n.claim("b", 16*mib)
		stop := make(chan struct{})
		var killer sync.WaitGroup
		killer.Go(func() {
			// It lives longer each time, so that a slow machine comes to an end, too.
			for most := 300 * time.Millisecond; ; most += 50 * time.Millisecond {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(r.Int64N(int64(most)))):
				}
				n.endFlexd(syscall.SIGKILL)
				n.startFlexd()
			}
		})
		t.Cleanup(func() { close(stop); killer.Wait() })
		for round := range times(5) {
			p, q := pod(fmt.Sprint("p-", round), "a", "b"), pod(fmt.Sprint("q-", round), "b")
			n.run(p, q)
			n.write(p, 1, p.Name)
			n.read(q, 0, p.Name)
			n.end(p, q)
		}
	})
}

func TestFlexdDownWhenKubeletStarts(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.claim("a", 16*mib)
		n.claim("b", 16*mib)
		n.claim("c", 16*mib)
		stays, gone, fresh := pod("stays", "a"), pod("gone", "b"), pod("fresh", "c")
		n.run(stays, gone)
		n.write(stays, 0, "mine")
		n.killKubelet()
		n.endFlexd(syscall.SIGTERM)
		n.forget(gone)
		n.startKubelet()
		n.want(fresh)
		time.Sleep(3 * time.Second) // kubelet finds its volumes, and calls
		n.read(stays, 0, "mine")
		n.startFlexd()
		n.started(stays, fresh)
		n.ended(gone)
		n.read(stays, 0, "mine")
		n.end(stays, fresh)
	})
}
