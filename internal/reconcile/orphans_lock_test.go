package reconcile

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/volume"
)

// The search for orphans and the lanes do not block each other.
// Ensure that lanes which end steps and looks for orphans do not wait for one
// another forever: each takes the other's lock.
func TestOrphansLockOrder(t *testing.T) {
	store, err := dsw.Open(t.TempDir(), "boot")
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetLevel(logrus.PanicLevel)
	n := New(Parts{Store: store, Config: &config.Config{}, Log: logrus.NewEntry(log), Observer: asw.New(nil, nil, nil, nil)})
	defer n.stop(ErrStopping)
	// There is no provider: the survey that is due after a second does nothing.
	n.audits = map[string]*groupAudit{"vg0": {n: n, vg: "vg0", timer: time.AfterFunc(time.Hour, func() {})}}
	dir := func(i int) string { return fmt.Sprintf("/pods/%d", i) }
	const lanes = 20
	for i := range lanes {
		uuid := volume.UUID(fmt.Sprint("u", i))
		if err := store.Put(dsw.Claim{Dir: dir(i), UUID: uuid, VG: "vg0", LV: fmt.Sprint(i), Phase: volume.Releasing, Kind: volume.Published}); err != nil {
			t.Fatal(err)
		}
		n.lane(uuid, volume.Name{VG: "vg0", LV: fmt.Sprint(i)}).awake = true
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var all sync.WaitGroup
		for _, l := range n.allLanes() {
			all.Go(func() {
				for range 200 {
					l.end(volume.Step{Kind: volume.Unmount}, time.Now(), nil)
				}
			})
		}
		all.Go(func() {
			for range 500 {
				n.orphans.mu.Lock()
				for i := range lanes { // as seen before their release began
					n.orphans.seen[dir(i)] = &orphanCandidate{Orphan: volume.Orphan{Dir: dir(i)}, uuid: volume.UUID(fmt.Sprint("u", i))}
				}
				n.orphans.mu.Unlock()
				n.orphans.look()
			}
		})
		all.Wait()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("they wait for one another")
	}
}
