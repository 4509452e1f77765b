package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/lockspace"
	"github.com/flexd/flexd/internal/lvm"
	children "github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// locks are those of the shared volume groups.
type locks struct {
	*lockspace.Manager
	removeUnused func(ctx context.Context, vg string) ([]volume.Used, error)
	dropping     chan struct{} // has an element while locks are dropped
}

func newLocks(live *config.Live, runner children.Runner, lockDir string) locks {
	removeUnused := func(ctx context.Context, vg string) ([]volume.Used, error) {
		return lvm.RemoveUnused(ctx, runner, devmapper.New(), vg)
	}
	return locks{removeUnused: removeUnused, dropping: make(chan struct{}, 1), Manager: lockspace.New(lockspace.Options{
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
	select {
	case l.dropping <- struct{}{}:
		defer func() { <-l.dropping }()
	case <-ctx.Done():
		return fmt.Errorf("the lost locks of volume group %s are being dropped: %w", vg, context.Cause(ctx))
	}
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
func (l locks) LostReason(vg string) (string, time.Time) { return l.reason(vg, lockspace.Lost) }

// Unavailable is for the reconciler.
func (l locks) Unavailable(vg string) (string, time.Time) { return l.reason(vg, lockspace.Unavailable) }

func (l locks) reason(vg string, in lockspace.State) (string, time.Time) {
	if st := l.Status(vg); st.State == in {
		return st.Reason, st.Since
	}
	return "", time.Time{}
}

// State is for the reconciler.
func (l locks) State(vg string) status.Locks {
	st := l.Status(vg)
	return status.Locks{
		Type: st.LockType, State: cmp.Or(string(st.State), "unknown"), Since: st.Since, Reason: st.Reason, HostID: st.HostID, HostName: st.HostName,
		IOTimeout: st.IOTimeout.Seconds(), Renewed: st.Renewed, Watchdog: st.Watchdog, ObservedAt: st.Looked,
	}
}
