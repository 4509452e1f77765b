package reconcile

import (
	"testing"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/volume"
)

// A lease that ends after a turn has planned, and before the lane is at rest, wakes the
// lane: otherwise the volume stays active forever.
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
