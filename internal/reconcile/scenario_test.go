package reconcile_test

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/test/host"
)

// A scenario is a sequence of actions of kubelet and pods on a node. It runs on the simulated machine, on the
// real one, and with every possible fault.
type scenario struct {
	name   string
	attach bool
	// prepare is done before anything can go wrong.
	prepare func(e *hosttest.Env)
	play    func(e *hosttest.Env, k *hosttest.Kubelet) error
	needs   string // a program, where there is not only a simulation of it
	// realFaults says that the real machine plays it with every fault, too.
	realFaults bool
}

func pod(uid string) hosttest.Pod {
	return hosttest.Pod{UID: uid, Volume: "pv1", LV: "data", Size: "64m"}
}

func xfs(p hosttest.Pod) hosttest.Pod      { p.FSType, p.Size = "xfs", "320m"; return p }
func btrfs(p hosttest.Pod) hosttest.Pod    { p.FSType, p.Size = "btrfs", "300m"; return p }
func readOnly(p hosttest.Pod) hosttest.Pod { p.RO = true; return p }

// all runs steps one after the other.
func all(steps ...func() error) error {
	for _, s := range steps {
		if err := s(); err != nil {
			return err
		}
	}
	return nil
}

func start(k *hosttest.Kubelet, p hosttest.Pod) func() error {
	return func() error { return k.Start(p) }
}
func stop(k *hosttest.Kubelet, p hosttest.Pod) func() error {
	return func() error { return k.Finish(p) }
}
func write(e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) func() error {
	return func() error { return e.M.Write(k.Dir(p)) }
}

func scenarios() []scenario {
	var list []scenario
	for _, attach := range []bool{true, false} {
		mode := " (attach:false)"
		if attach {
			mode = " (attach:true)"
		}
		add := func(s scenario) {
			s.name, s.attach = s.name+mode, attach
			list = append(list, s)
		}
		add(scenario{name: "a pod starts on a new volume, writes and stops", realFaults: true, play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a := pod("a")
			return all(start(k, a), write(e, k, a), stop(k, a))
		}})
		add(scenario{name: "two pods share a volume", play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a, b := pod("a"), pod("b")
			return all(start(k, a), start(k, b), write(e, k, a), stop(k, a), write(e, k, b), stop(k, b))
		}})
		add(scenario{name: "a read-only pod starts first and a read-write one second", play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a, b := readOnly(pod("a")), pod("b")
			return all(start(k, a), start(k, b), write(e, k, b), stop(k, a), write(e, k, b), stop(k, b))
		}})
		add(scenario{name: "a read-write pod starts first and a read-only one second", play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a, b := pod("a"), readOnly(pod("b"))
			return all(start(k, a), start(k, b), write(e, k, a), stop(k, a), stop(k, b))
		}})
		add(scenario{name: "a pod stops and another takes the volume over", play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a, b := pod("a"), pod("b")
			return all(start(k, a), write(e, k, a), stop(k, a), start(k, b), write(e, k, b), stop(k, b))
		}})
		add(scenario{name: "a volume of xfs", play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a := xfs(pod("a"))
			return all(start(k, a), write(e, k, a), stop(k, a))
		}})
		add(scenario{name: "a volume of btrfs", needs: "mkfs.btrfs", play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a, b := btrfs(pod("a")), readOnly(btrfs(pod("b")))
			return all(start(k, a), write(e, k, a), start(k, b), stop(k, a), stop(k, b))
		}})
		add(scenario{name: "a volume is expanded under a running pod", play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a := pod("a")
			if !host.GrowsExt4() { // then this machine can show it with xfs only
				a = xfs(a)
			}
			return all(start(k, a), write(e, k, a), func() error { return k.Expand(a, 400<<20) }, write(e, k, a), stop(k, a))
		}})
		add(scenario{name: "an unformatted volume that an administrator created", prepare: blankVolume, play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a := pod("a")
			return all(start(k, a), write(e, k, a), stop(k, a), start(k, a), stop(k, a))
		}})
		add(scenario{name: "every verb comes twice", play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a := pod("a")
			return all(func() error { return everyVerbTwice(e, k, a) }, stop(k, a))
		}})
		add(scenario{name: "kubelet dies after the start and another stops the pod", play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a := pod("a")
			if err := k.Start(a); err != nil {
				return err
			}
			k = k.Kill()
			return all(start(k, a), write(e, k, a), stop(k, a))
		}})
		add(scenario{name: "another frontend publishes a pod's volume beside it", prepare: hosttest.AddShelf, play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a, shelf := pod("a"), hosttest.Shelf{E: e}
			publish := func(name string) func() error { return func() error { return shelf.Publish(name, a.LV, 64<<20) } }
			withdraw := func(name string) func() error { return func() error { return shelf.Withdraw(name) } }
			use := func(name string) func() error { return func() error { return e.M.Write(shelf.Dir(name)) } }
			return all(publish("first"), start(k, a), publish("second"), write(e, k, a), use("first"), withdraw("first"),
				stop(k, a), use("second"), withdraw("second"), withdraw("second"))
		}})
		add(scenario{name: "verbs come late, early and for what was never there", play: func(e *hosttest.Env, k *hosttest.Kubelet) error {
			a := pod("a")
			return all(late(e, k, a), start(k, a), write(e, k, a), stop(k, a), late(e, k, a))
		}})
	}
	return list
}

func blankVolume(e *hosttest.Env) {
	if err := e.Storage.Make("data", 64<<20); err != nil {
		e.T.Fatal(err)
	}
}

// everyVerbTwice makes each call of a pod's life twice, as kubelet may after a restart or a lost answer.
func everyVerbTwice(e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) error {
	twice := func(verb string, args ...string) func() error {
		return func() error {
			for range 2 {
				if err := k.Insist(verb, args...); err != nil {
					return err
				}
			}
			return nil
		}
	}
	node, global, dir := e.Config.NodeName, k.Global(p.Volume), k.Dir(p)
	mkdir := func(dir string) func() error { return func() error { return e.M.Mkdir(dir) } }
	steps := []func() error{twice(flexvolume.Attach, k.Blob(p, false), node), twice(flexvolume.WaitForAttach, "", k.Blob(p, false)), twice(flexvolume.IsAttached, k.Blob(p, false), node)}
	if k.Attach {
		steps = append(steps, mkdir(global), twice(flexvolume.MountDevice, global, "", k.Blob(p, false)))
	}
	steps = append(steps, mkdir(dir), twice(flexvolume.Mount, dir, k.Blob(p, true)), write(e, k, p), twice(flexvolume.Unmount, dir))
	if k.Attach {
		steps = append(steps, twice(flexvolume.UnmountDevice, global))
	}
	return all(append(steps, twice(flexvolume.Detach, p.Volume, node))...)
}

// late makes calls that must succeed although there is nothing to do.
func late(e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) func() error {
	return func() error {
		return all(
			func() error { return k.Insist(flexvolume.Unmount, k.Dir(p)) },
			func() error { return k.Insist(flexvolume.UnmountDevice, k.Global(p.Volume)) },
			func() error { return k.Insist(flexvolume.Detach, p.Volume, e.Config.NodeName) },
			func() error { return k.Insist(flexvolume.Detach, "unknown", "another-node") },
		)
	}
}

// play runs a scenario to its end and checks the node after it.
func play(t *testing.T, e *hosttest.Env, s scenario) {
	t.Helper()
	k := hosttest.NewKubelet(e, s.attach)
	if err := s.play(e, k); err != nil {
		t.Errorf("%s: %v\n%s", s.name, err, e.Describe())
	}
	e.Empty()
}

// halves divides the scenarios into two lists. Each has every row once, alternating between the attach modes.
func halves() [][]scenario {
	list := scenarios()
	n := len(list) / 2
	two := make([][]scenario, 2)
	for i := range n {
		two[i%2] = append(two[i%2], list[i])
		two[1-i%2] = append(two[1-i%2], list[n+i])
	}
	return two
}

func TestScenarios(t *testing.T) {
	for _, s := range slices.Concat(some(t, halves())...) {
		onBoth(t, s.name, func(t *testing.T, e *hosttest.Env) {
			if _, err := exec.LookPath(s.needs); s.needs != "" && e.Sim == nil && err != nil && os.Getenv("CI") != "true" {
				t.Skip(err)
			}
			if s.prepare != nil {
				s.prepare(e)
			}
			play(t, e, s)
			t.Logf("%d commands: %s", e.Commands(), e.Steps())
		})
	}
}
