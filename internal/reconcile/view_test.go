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

// Lanes that end steps and looks for orphans do not wait for one another, and a look sees a consistent state
// of a lane.
func TestLooksBesideLanes(t *testing.T) {
	store, err := dsw.Open(t.TempDir(), "boot")
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetLevel(logrus.PanicLevel)
	n := New(Parts{Store: store, Config: config.NewLive(&config.Config{}), Log: logrus.NewEntry(log), Observer: asw.New(nil, nil, nil, nil),
		Boot: func() time.Duration { return time.Hour }})
	defer n.stop(ErrStopping)
	const lanes = 20
	for i := range lanes {
		n.lane(volume.UUID(fmt.Sprint("u", i)), volume.Name{VG: "vg0", LV: fmt.Sprint(i)})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var all sync.WaitGroup
		for _, l := range n.allLanes() {
			all.Go(func() {
				c := dsw.Claim{Dir: "/pods/" + string(l.uuid), UUID: l.uuid, VG: "vg0", Kind: volume.Published}
				for i := range 100 {
					c.Phase = []volume.Phase{volume.Held, volume.Releasing}[i%2]
					if err := store.Put(c); err != nil {
						t.Error(err)
					}
					l.end(volume.Step{Kind: volume.Unmount}, time.Now(), nil)
				}
			})
		}
		all.Go(func() {
			for range 500 {
				n.auditor.LookForOrphans()
				for _, v := range n.views() {
					if v.Acted.IsZero() || len(v.Claims) != 1 || v.Claims[0].Phase != v.Want.Claims[0].Phase {
						t.Errorf("%+v", v)
						return
					}
				}
			}
		})
		all.Wait()
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Minute):
		t.Fatal("they wait for one another")
	}
}
