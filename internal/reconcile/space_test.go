//go:build !vm

package reconcile_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A gauge reports one usage for all mounts.
type gauge struct {
	mu      sync.Mutex
	filling volume.Filling
	takes   time.Duration
	asked   int
}

func (g *gauge) Read(_ context.Context, ids []int) (map[int]volume.Filling, error) {
	time.Sleep(g.takes)
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[int]volume.Filling{}
	for _, id := range ids {
		all[id] = g.filling
		g.asked++
	}
	return all, nil
}

// A filesystem is reported as full while it is. Its usage is read only for status, which does not wait for
// one that hangs.
func TestFullFilesystem(t *testing.T) {
	onSim(t, "full", func(t *testing.T, e *hosttest.Env) {
		g := &gauge{filling: volume.Filling{Size: 1 << 30, Used: 1 << 29, Free: 1 << 29}}
		e.Gauge = g // of the next life
		e.Crash()
		e.Eventually("flexd is there again", func() bool { return !e.Dead() })
		k, a := hosttest.NewKubelet(e, true), pod("a")
		e.Node().List() // nothing is mounted yet
		time.Sleep(2 * time.Second)
		works(t, k.Start(a))
		want := func(what string, state status.State, asked int) status.Volume {
			t.Helper()
			began := time.Now()
			v := e.Node().List().Volumes[0]
			if took := time.Since(began); v.State != state || took > 500*time.Millisecond {
				t.Errorf("%s: %s after %v, want %s", what, v.State, took, state)
			}
			if d, ok := e.Node().VolumeDetail(hosttest.VG, "data"); !ok || d.State != state {
				t.Errorf("%s: %+v", what, d)
			}
			time.Sleep(time.Second)
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.asked != asked {
				t.Errorf("%s: asked %d times, want %d", what, g.asked, asked)
			}
			return v
		}
		if v := want("well", status.Mounted, 1); v.FilesystemSize != 1<<30 || v.FilesystemUsed != 1<<29 || v.FilesystemFree != 1<<29 || v.FilesystemObservedAt.IsZero() {
			t.Errorf("got %+v", v)
		}
		g.filling.Free = 1000
		want("asked again at once", status.Mounted, 1)
		time.Sleep(time.Hour)
		if v := e.Node().Known().Volumes[0]; v.State != status.Mounted { // systemd's watchdog asks for it
			t.Errorf("known: %+v", v)
		}
		time.Sleep(time.Minute)
		want("full", status.Full, 2)
		g.filling = volume.Filling{Size: 1 << 30, Free: 1 << 29, Inodes: 10, InodesUsed: 10}
		time.Sleep(time.Minute)
		want("no inode", status.Full, 3)
		g.filling.InodesUsed = 9
		time.Sleep(time.Minute)
		want("no more", status.Mounted, 4)
		g.filling, g.takes = volume.Filling{Unknown: "it hangs"}, 30*time.Second
		time.Sleep(time.Minute)
		began := time.Now()
		if v := e.Node().List().Volumes[0]; v.State != status.Mounted || time.Since(began) > 500*time.Millisecond {
			t.Errorf("%+v after %v", v, time.Since(began))
		}
		began = time.Now()
		if v := e.Node().List().Volumes[0]; v.State != status.Mounted || time.Since(began) > 0 {
			t.Errorf("%+v: waited again, %v", v, time.Since(began))
		}
		time.Sleep(time.Minute)
		if v := want("unknown", status.Mounted, 5); v.FilesystemSize != 0 || !v.FilesystemObservedAt.IsZero() {
			t.Errorf("got %+v", v)
		}
		time.Sleep(time.Minute) // it ends
	})
}
