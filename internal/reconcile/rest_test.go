package reconcile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// locking is a creator whose Create leaves a lock file, as a child does.
type locking struct {
	*creator
}

func (p locking) Create(ctx context.Context, lock string, name volume.Name, size int64, namespace string) error {
	if err := os.MkdirAll(filepath.Dir(lock), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		return err
	}
	return p.creator.Create(ctx, lock, name, size, namespace)
}

func locks(t *testing.T, n *Node) int {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(n.Config.Get().RunDir, "lanes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return len(files)
}

// heap returns the bytes in use after a garbage collection.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// 10,000 refused creations, each of another volume for another directory, do not increase memory or files,
// whether the configuration or a child refuses them.
func TestRefusedCreationsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newCreating(t, &creator{create: func() error { return errors.New("no space") }})
		k.n.Providers["vg0"] = locking{k.creator}
		defer k.n.stop(ErrStopping)
		refuse := func(i int) {
			name := volume.Name{VG: "vg0", LV: fmt.Sprint("vol", i)}
			c := &call{Request: dsw.Request{Call: volume.Call{ID: fmt.Sprint(i), Verb: volume.Publish, Dir: fmt.Sprint("/pods/", i)}, Name: name, Started: time.Hour}, asked: Request{Verb: volume.Publish}}
			if i%2 == 0 {
				c.Size = 1 << 30
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, ErrDeadline)
			defer cancel()
			c.ctx = ctx
			if err := k.n.create(ctx, c); err == nil {
				t.Fatal("it is not refused")
			}
			synctest.Wait()
			if n := locks(t, k.n); n != 0 {
				t.Fatalf("%d lock files after call %d", n, i)
			}
		}
		refuse(0)
		before := heap()
		for i := 1; i <= 10_000; i++ {
			refuse(i)
		}
		if n := len(k.n.lanes); n > maxResting {
			t.Errorf("%d lanes", n)
		}
		if d, ok := k.n.VolumeDetail("vg0", "vol10000"); !ok || d.State != status.Failed {
			t.Errorf("the last failure is not shown: %v, %+v", ok, d)
		}
		if more := heap() - before; more > 2<<20 {
			t.Errorf("%d bytes more after 10,000 refused creations", more)
		}
		time.Sleep(failedAge + time.Second)
		synctest.Wait()
		observed := 0
		for range k.n.Observer.All() {
			observed++
		}
		if len(k.n.lanes) != 0 || k.n.resting.Len() != 0 || len(k.n.resting.elements) != 0 || k.n.resting.timer != nil || observed != 0 {
			t.Errorf("after %v: %d lanes, %d of them rest, %d observations, timer %v", failedAge, len(k.n.lanes), k.n.resting.Len(), observed, k.n.resting.timer)
		}
		if more := heap() - before; more > 512<<10 {
			t.Errorf("%d bytes more after that", more)
		}
	})
}

// A volume that flexd creates keeps its lane only while it has a lease. The lane of its name is dropped at
// once.
func TestCreatedVolumeLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &creator{ours: true}
		p.create = func() error { p.there.Store(true); return nil }
		k := newCreating(t, p)
		k.n.Providers["vg0"] = locking{p}
		defer k.n.stop(ErrStopping)
		if err := k.call(t.Context(), "1"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(k.n.lanes) != 1 || k.n.lanes["u"] == nil || locks(t, k.n) != 0 {
			t.Errorf("lanes %v, %d lock files", k.n.lanes, locks(t, k.n))
		}
		l := k.n.lanes["u"]
		p.gone.Store(true) // an operator has deactivated it
		if err := k.store.DropLease("u"); err != nil {
			t.Fatal(err)
		}
		l.wake()
		synctest.Wait()
		if k.status(t).State != status.Idle {
			t.Errorf("what flexd did is not shown: %+v", k.status(t))
		}
		time.Sleep(failedAge + time.Second)
		synctest.Wait()
		if len(k.n.lanes) != 0 || !l.dropped {
			t.Errorf("it is kept: %v", k.n.lanes)
		}

		// What has the dropped lane wakes the next one.
		if err := k.store.PutLease(dsw.Lease{VG: "vg0", LV: "a", UUID: "u", Until: 2 * time.Hour}); err != nil {
			t.Fatal(err)
		}
		l.wake()
		synctest.Wait()
		if now := k.n.lanes["u"]; now == nil || now == l || now.nameNow() != created || k.n.Observer.Last("u") == nil {
			t.Errorf("lanes %v", k.n.lanes)
		}
	})
}

// At its start flexd removes the lock files of an earlier flexd, except those of volumes with a claim or a
// lease, and those that a child holds.
func TestLocksOfEarlierLife(t *testing.T) {
	k := newCreating(t, &creator{})
	defer k.n.stop(ErrStopping)
	for _, id := range []string{"name:vg0:a", "old", "u"} {
		if err := (locking{&creator{create: func() error { return nil }}}).Create(t.Context(), k.n.lockFile(id), created, 1, ""); err != nil {
			t.Fatal(err)
		}
	}
	k.n.lane("u", created)
	k.n.removeLocks()
	if left, _ := filepath.Glob(k.n.lockFile("*")); len(left) != 1 || filepath.Base(left[0]) != "u" {
		t.Errorf("left: %q", left)
	}
}
