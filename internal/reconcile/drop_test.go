package reconcile

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// lostForGood has locks that stay lost until they are dropped.
type lostForGood struct {
	Locks
	drops atomic.Int32
}

func (l *lostForGood) Lost(context.Context, string, string) error      { return nil }
func (l *lostForGood) LostReason(string) (string, time.Time)           { return "lost", time.Now() }
func (l *lostForGood) Drop(context.Context, string) error              { l.drops.Add(1); return nil }
func (l *lostForGood) Unavailable(vg string) (why string, _ time.Time) { return "", time.Time{} }

// losingNode has a group that loses its locks. remove is RemoveUnused.
func losingNode(t *testing.T, remove func(ctx context.Context, n *Node) []volume.Used) (*Node, *lostForGood) {
	locks := &lostForGood{}
	n := newCreating(t, &creator{}).n
	n.Locks = locks
	n.Config.VG("vg0").Shared = true
	n.RemoveUnused = func(ctx context.Context, _ string) ([]volume.Used, error) {
		left := remove(ctx, n)
		return left, context.Cause(ctx)
	}
	return n, locks
}

// The last volume becomes inactive after it was counted: its locks are still dropped, and the watchdog does
// not reset the node.
func TestInactiveWhileCounted(t *testing.T) {
	for name, at := range map[string]int32{"first": 1, "later": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var counts atomic.Int32
				n, locks := losingNode(t, func(_ context.Context, n *Node) []volume.Used {
					count := counts.Add(1)
					if count > at {
						return nil
					}
					if count == at {
						n.dropLost("vg0")
					}
					return []volume.Used{{Name: volume.Name{VG: "vg0", LV: "a"}, Open: 1}}
				})
				defer n.stop(ErrStopping)
				if err := n.Lose(t.Context(), "vg0"); err == nil {
					t.Fatal("no volume is active")
				}
				if at > 1 {
					n.dropLost("vg0") // another volume became inactive
				}
				synctest.Wait()
				if drops := locks.drops.Load(); drops != 1 || counts.Load() != at+1 {
					t.Errorf("%d drops after %d counts", drops, counts.Load())
				}
			})
		})
	}
}

// Locks are lost while flexd cannot read the mount table: devices that are not open are deactivated within
// sanlock's time limit.
func TestLostBeforeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := losingNode(t, func(ctx context.Context, _ *Node) []volume.Used {
			if end, _ := ctx.Deadline(); time.Until(end) < 2*time.Second {
				t.Errorf("%v are left", time.Until(end))
			}
			return nil
		})
		defer n.stop(ErrStopping)
		n.ready = make(chan struct{})
		if err := n.Lose(t.Context(), "vg0"); err != nil {
			t.Error(err)
		}
	})
}
