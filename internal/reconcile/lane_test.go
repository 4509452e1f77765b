package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// A lease that ends after a lane has planned, and before it is at rest, wakes the lane: otherwise the volume
// stays active.
func TestLeaseEndDuringTurnWakesLane(t *testing.T) {
	store, err := dsw.Open(t.TempDir(), "boot")
	if err != nil {
		t.Fatal(err)
	}
	n := New(Parts{Config: config.NewLive(&config.Config{}), Store: store, Boot: func() time.Duration { return time.Hour }})
	n.stop(ErrStopping) // what is woken does not run
	for _, until := range []time.Duration{time.Hour - time.Second, time.Hour, time.Hour + 20*time.Millisecond} {
		if err := store.PutLease(dsw.Lease{UUID: "u", Until: until}); err != nil {
			t.Fatal(err)
		}
		l := n.lane("u", volume.Name{VG: "vg", LV: "a"})
		l.dirty = false
		l.endTurn(volume.Want{Lease: volume.Lease{Noted: true, Live: true}}, volume.Have{Device: volume.Device{Activity: volume.Active}})
		woken := func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.dirty
		}
		for range 1000 {
			if woken() {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if !woken() {
			t.Errorf("a lease until %v, seen live at %v: the lane sleeps on", until, time.Hour)
		}
	}
}

// With `zero: all` a filesystem is not extended while flexd does not know whether the added space must be
// zeroed.
func TestNoGrowthOfUnknown(t *testing.T) {
	for _, p := range []volume.Presence{volume.Presence(0), volume.Absent} {
		c := &config.Config{VolumeGroups: []config.VolumeGroup{{Name: "vg", Provider: "lvm", ZeroAll: true}}}
		n := New(Parts{Config: config.NewLive(c), Ops: mount.Ops{Runner: noRunner{t}}, Boot: func() time.Duration { return time.Hour }})
		l := n.lane("u", volume.Name{VG: "vg", LV: "a"})
		err := l.growFS(t.Context(), &volume.Have{LV: volume.LV{Name: volume.Name{VG: "vg", LV: "a"}, Presence: p}, Mounts: []volume.Mount{{Dir: "/a", Type: "ext4"}}})
		if err == nil || !strings.Contains(err.Error(), "zero: all") {
			t.Errorf("presence %v: %v", p, err)
		}
	}
}

// A noRunner fails the test if a command is started.
type noRunner struct{ t *testing.T }

func (r noRunner) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	r.t.Errorf("%q is started", c.Argv)
	return run.Result{}, errors.New("no runner")
}
