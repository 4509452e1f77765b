package main

import (
	"context"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/lockspace"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/reconcile"
	children "github.com/flexd/flexd/internal/run"
)

// locks are those of the shared volume groups.
type locks struct{ *lockspace.Manager }

func newLocks(live *config.Live, runner children.Runner, lockDir string) locks {
	return locks{lockspace.New(lockspace.Options{
		Runner: runner, LockDir: lockDir,
		NoWatchdog: func(name string) bool {
			vg := live.VG(name)
			return vg != nil && vg.WatchdogNone
		},
	})}
}

// LostReason is for the reconciler.
func (l locks) LostReason(vg string) (string, time.Time) {
	if st := l.Status(vg); st.State == lockspace.Lost {
		return st.Reason, st.Since
	}
	return "", time.Time{}
}

// removeUnused translates lvm's answer for the reconciler.
func removeUnused(p *lvm.Provider) func(ctx context.Context, vg string) ([]reconcile.Active, error) {
	return func(ctx context.Context, vg string) (all []reconcile.Active, err error) {
		used, err := p.RemoveUnused(ctx, vg)
		for _, u := range used {
			all = append(all, reconcile.Active(u))
		}
		return all, err
	}
}
