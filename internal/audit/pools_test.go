package audit

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// fakePools is a provider with one thin pool, which counts the queries.
type fakePools struct {
	mu    sync.Mutex // timers that fire know nothing of what the test wrote before
	state lvm.Pool
	asked int
}

func (f *fakePools) PoolStates(vg string, names []string) ([]lvm.Pool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	var all []lvm.Pool
	for _, n := range names {
		if n == f.state.Name.LV {
			all = append(all, f.state)
		}
	}
	return all, nil
}

func (f *fakePools) change(change func(p *lvm.Pool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.state)
}

// since says how often it was asked since the last time.
func (f *fakePools) since() int {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = 0
	return asked
}

// A thin pool is watched while a volume in it is claimed.
func TestPoolsWatchedWhileClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakePools{state: lvm.Pool{Name: volume.Name{VG: "vg0", LV: "pool"}, Active: true, Mode: "rw", Data: lvm.Usage{Used: 50, Total: 100}, Metadata: lvm.Usage{Used: 1, Total: 100}}}
		var log bytes.Buffer
		l := logrus.New()
		l.SetOutput(&log)
		logged := func(word string) int { return strings.Count(log.String(), word) }
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		a := New(ctx, Parts{Config: config.NewLive(&config.Config{VolumeGroups: []config.VolumeGroup{{Name: "vg0", ThinPoolWarning: 80}}}), Log: logrus.NewEntry(l), Record: func(status.Event) {}, Pools: map[string]PoolSource{"vg0": f}})
		g := join.Group{Name: "vg0", Survey: join.Survey{Volumes: []join.Volume{{Name: "thin", UUID: "u1", Pool: "pool"}, {Name: "thick", UUID: "u2"}}}}
		claim := func(uuids ...volume.UUID) {
			g.Claims = nil
			for _, u := range uuids {
				g.Claims = append(g.Claims, join.Claim{UUID: u})
			}
			a.usePools(g)
		}
		claim("u2")
		time.Sleep(time.Hour)
		if asked := f.since(); asked > 1 || len(a.PoolStates()) > 0 {
			t.Fatalf("asked %d times for no pool: %+v", asked, a.PoolStates())
		}
		claim("u1", "u2")
		if p := a.PoolStates(); len(p) != 1 || p[0].DataUsed != 50 || p[0].Warning+p[0].Problem != "" {
			t.Errorf("at once: %+v", p)
		}
		time.Sleep(10*time.Minute + time.Second)
		if asked := f.since(); asked != 21 {
			t.Errorf("asked %d times in ten minutes", asked)
		}
		f.change(func(p *lvm.Pool) { p.Data.Used = 85 })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if p := a.PoolStates(); len(p) != 1 || !strings.Contains(p[0].Warning, "lvextend") || logged("85.0 % of the pool's data") != 1 || p[0].Problem != "" {
			t.Errorf("beyond the threshold: %+v\n%s", p, log.String())
		}
		f.change(func(p *lvm.Pool) { p.Mode, p.Data.Used = "out_of_data_space", 100 })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if p := a.PoolStates(); len(p) != 1 || !strings.HasPrefix(p[0].Problem, "the pool is full") || logged("the pool is full") != 1 {
			t.Errorf("full: %+v\n%s", p, log.String())
		}
		f.change(func(p *lvm.Pool) { p.Mode, p.Data.Total = "rw", 1000 })
		time.Sleep(time.Minute)
		synctest.Wait()
		if p := a.PoolStates(); len(p) != 1 || p[0].Problem != "" || logged("has recovered") != 1 {
			t.Errorf("extended: %+v\n%s", p, log.String())
		}
		g.Metadata = "unread" // whose pools these are is not forgotten
		claim()
		if len(a.PoolStates()) != 1 {
			t.Error("forgotten while the metadata cannot be read")
		}
		g.Metadata = ""
		claim()
		f.since()
		time.Sleep(time.Hour)
		if asked := f.since(); asked > 0 || len(a.PoolStates()) > 0 {
			t.Errorf("unclaimed, and asked %d times: %+v", asked, a.PoolStates())
		}
	})
}
