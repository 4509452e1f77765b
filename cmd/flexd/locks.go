package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/lockspace"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/reconcile"
	children "github.com/flexd/flexd/internal/run"
)

// locks are those of the shared volume groups.
type locks struct {
	*lockspace.Manager
	removeUnused func(ctx context.Context, vg string) ([]lvm.Used, error)
	dropping     *sync.Mutex
}

func newLocks(live *config.Live, runner children.Runner, lockDir string) locks {
	removeUnused := func(ctx context.Context, vg string) ([]lvm.Used, error) {
		return lvm.RemoveUnused(ctx, runner, devmapper.New(), vg)
	}
	return locks{removeUnused: removeUnused, dropping: &sync.Mutex{}, Manager: lockspace.New(lockspace.Options{
		Runner: runner, LockDir: lockDir,
		NoWatchdog: func(name string) bool {
			vg := live.VG(name)
			return vg != nil && vg.WatchdogNone
		},
	})}
}

// Ready also drops the locks that sanlock has given up, if no volume is active, so that the
// lockspace is started again.
func (l locks) Ready(ctx context.Context, vg string) error {
	if err := l.Manager.Ready(ctx, vg); !errors.Is(err, lockspace.ErrStale) {
		return err
	}
	l.dropping.Lock()
	defer l.dropping.Unlock()
	err := l.Manager.Ready(ctx, vg)
	if !errors.Is(err, lockspace.ErrStale) {
		return err // another call has dropped them
	}
	left, rerr := l.removeUnused(ctx, vg)
	switch {
	case rerr != nil:
		return fmt.Errorf("%w; whether volumes are active is unknown: %w", err, rerr)
	case len(left) > 0:
		return fmt.Errorf("%w; %s is open %d times", err, left[0].Name, left[0].Open)
	}
	if derr := l.Drop(ctx, vg); derr != nil {
		return fmt.Errorf("%w; %w", err, derr)
	}
	return l.Manager.Ready(ctx, vg)
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
