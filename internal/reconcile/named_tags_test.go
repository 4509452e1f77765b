package reconcile_test

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/volume"
)

// A sharedGroup is a group on several nodes, with the format records of its volumes.
type sharedGroup struct {
	reconcile.Provider
	e *hosttest.Env

	mu    sync.Mutex
	tag   volume.RecordTag // guarded by mu, as what follows: that of the one volume
	fails map[volume.Record]error
	set   []volume.Record
}

// tagShared makes the group of the present flexd shared, with the records of an earlier flexd.
func tagShared(e *hosttest.Env, before *sharedGroup) *sharedGroup {
	n := e.Node()
	g := &sharedGroup{Provider: n.Providers[hosttest.VG], e: e, tag: volume.RecordTag{State: volume.NoRecord}, fails: map[volume.Record]error{}}
	if before != nil {
		g.tag = before.tag
	}
	n.Providers[hosttest.VG], n.Observer.Providers[hosttest.VG] = g, g
	return g
}

func (g *sharedGroup) LookUp(ctx context.Context, name volume.Name) (volume.LV, error) {
	lv, err := g.Provider.LookUp(ctx, name)
	g.mu.Lock()
	defer g.mu.Unlock()
	lv.Tagged = g.tag
	lv.Tagged.Shared = true
	return lv, err
}

func (g *sharedGroup) SetRecord(_ context.Context, _ volume.LV, state volume.Record, fsType string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.e.Dead() {
		return errSimulated
	}
	g.set = append(g.set, state)
	if err := g.fails[state]; err != nil {
		return err
	}
	f := g.e.Sim.FileAt(g.e.File("data"))
	switch {
	case state == volume.Formatting && f.State == hosttest.Whole:
		g.e.T.Error("mkfs began before its tag")
	case state == volume.Seen && len(g.e.Mounts()) > 0:
		g.e.T.Error("it was mounted before its tag")
	}
	g.tag = volume.RecordTag{State: state, Type: fsType, Tags: []string{"t"}, Here: true, At: time.Now()}
	return nil
}

func (g *sharedGroup) state() volume.Record {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.tag.State
}

func records(e *hosttest.Env) []string {
	all, _ := filepath.Glob(filepath.Join(e.Records(), "*.json"))
	return all
}

// The other nodes of a shared group see a format record before mkfs begins and before the mount appears.
func TestSharedRecords(t *testing.T) {
	run := func(name string, test func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet)) {
		onSim(t, name, func(t *testing.T, e *hosttest.Env) {
			test(t, e, tagShared(e, nil), hosttest.NewKubelet(e, false))
		})
	}
	used := func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet, mkfs int) {
		t.Helper()
		works(t, k.Up(pod("a")))
		if g.state() != volume.Seen || len(records(e)) != 1 {
			t.Errorf("tag %+v, records %q", g.tag, records(e))
		}
		works(t, e.M.Write(k.Dir(pod("a"))))
		works(t, k.Finish(pod("a")))
		if n := e.Sim.FileAt(e.File("data")).Mkfs; n != mkfs {
			t.Errorf("mkfs ran %d times", n)
		}
		e.Empty()
	}
	run("both", func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet) {
		used(t, e, g, k, 1)
		if len(g.set) != 2 {
			t.Errorf("tags were written: %v", g.set)
		}
		used(t, e, g, k, 1)
		if len(g.set) != 2 {
			t.Errorf("tags were written again: %v", g.set)
		}
	})
	run("formatting cannot be written", func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet) {
		g.fails[volume.Formatting] = errSimulated
		fails(t, k.Up(pod("a")), "mkfs: simulated failure")
		if n := e.Sim.FileAt(e.File("data")).Mkfs; n != 0 || len(records(e)) != 0 {
			t.Errorf("mkfs ran %d times, records %q", n, records(e))
		}
		delete(g.fails, volume.Formatting)
		used(t, e, g, k, 1)
	})
	run("seen cannot be written", func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet) {
		g.fails[volume.Seen] = errSimulated
		fails(t, k.Up(pod("a")), "record filesystem seen: simulated failure")
		mountsAre(t, e)
		fails(t, k.Up(pod("a")), "record filesystem seen: simulated failure") // this node has seen it by now
		delete(g.fails, volume.Seen)
		used(t, e, g, k, 1)
	})
	run("the record of a group that was not shared", func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet) {
		used(t, e, g, k, 1)
		g.tag = volume.RecordTag{State: volume.NoRecord}
		used(t, e, g, k, 1)
	})
	run("mkfs fails", func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet) {
		var broken atomic.Bool
		e.Sim.Pace = func(p hosttest.Point) hosttest.Fate {
			if p.Op == "format" && p.Where == "within" && !broken.Swap(true) {
				return hosttest.Fails
			}
			return hosttest.Lives
		}
		fails(t, k.Up(pod("a")), "exit status 1")
		if len(g.set) != 2 || g.state() != volume.NoRecord || len(records(e)) != 0 {
			t.Errorf("tag %+v, records %q", g.tag, records(e))
		}
		used(t, e, g, k, 2)
	})
	run("another node has seen it", func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet) {
		works(t, e.Storage.Make("data", 64<<20))
		g.tag = volume.RecordTag{State: volume.Seen, Type: "ext4", Tags: []string{"flexd.fs=ext4"}}
		fails(t, k.Up(pod("a")), "and lvchange --deltag flexd.fs=ext4 vg0/data")
		if n := e.Sim.FileAt(e.File("data")).Mkfs; n != 0 || len(records(e)) != 1 {
			t.Errorf("mkfs ran %d times, records %q", n, records(e))
		}
		e.Empty()
	})
	half := func(e *hosttest.Env, g *sharedGroup, created bool, age time.Duration) {
		works(t, e.Storage.Make("data", 64<<20))
		e.Sim.Change(e.File("data"), func(f *hosttest.File) {
			f.State, f.Type, f.FileInfo.Created = hosttest.HalfMade, "ext4", created
		})
		g.tag = volume.RecordTag{State: volume.Formatting, Type: "ext4", Tags: []string{"t"}, At: time.Now().Add(-age)}
	}
	run("another node died in its mkfs", func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet) {
		half(e, g, true, 10*time.Minute)
		used(t, e, g, k, 1)
	})
	run("another node died in its mkfs of a volume that flexd did not create", func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet) {
		half(e, g, false, 10*time.Minute)
		fails(t, k.Up(pod("a")), "flexd did not create this volume")
		e.Empty()
	})
	run("another node died in its mkfs long ago", func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet) {
		half(e, g, true, volume.RepeatWithin)
		fails(t, k.Up(pod("a")), "is repeated within 1h0m0s only")
		e.Empty()
	})
	run("this node died in its mkfs", func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet) {
		e.Patient = true
		e.Sim.DieHalfway("format-half")
		e.ArmStep(hosttest.CrashAfter, 1, "mkfs")
		join := behind(func() error { return k.Up(pod("a")) })
		e.Eventually("flexd is dead", e.Dead)
		k.Kill()
		_ = join()
		e.Sim.Reboot()
		e.Start()
		used(t, e, tagShared(e, g), hosttest.NewKubelet(e, false), 2)
	})
	run("this node's mkfs ended, and its tag remains", func(t *testing.T, e *hosttest.Env, g *sharedGroup, k *hosttest.Kubelet) {
		half(e, g, true, time.Minute)
		g.tag.Here = true
		fails(t, k.Up(pod("a")), "it is not blank")
		e.Empty()
		if g.state() != volume.NoRecord {
			t.Errorf("it was deactivated with the tag %+v", g.tag)
		}
		e.Sim.Change(e.File("data"), func(f *hosttest.File) { f.State, f.Type = hosttest.Blank, "" })
		used(t, e, g, k, 1)
	})
}
