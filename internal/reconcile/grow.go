package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// calledTimeout is how long the extension of a filesystem for a call waits for the metadata.
const calledTimeout = 10 * time.Second

func (l *lane) growFS(ctx context.Context, s volume.Step, h *volume.Have) error {
	timeout := groupTimeout // no unmount waits longer for it
	if len(s.Calls) > 0 {
		timeout = calledTimeout
	}
	if err := l.verifySize(ctx, timeout, h); err != nil {
		return err
	}
	m, err := mountToGrow(h)
	if err != nil {
		return err
	}
	if h.LV.Zero {
		if err := l.n.Ops.ZeroBehind(ctx, l.lock, h.Device, m.Type, m.Dir); err != nil {
			return err
		}
		if err := l.verifySize(ctx, timeout, h); err != nil { // that may have taken long
			return err
		}
	}
	if err := l.n.Ops.Grow(ctx, l.lock, h.Device, m.Type, m.Dir); err != nil {
		return err
	}
	l.facts.Grown, l.facts.Size = true, 0
	l.mu.Lock()
	l.grow = false
	l.mu.Unlock()
	return nil
}

// mountToGrow returns the mount through which a filesystem is extended.
func mountToGrow(h *volume.Have) (volume.Mount, error) {
	for _, m := range h.Mounts {
		if m.Owner != volume.Elsewhere {
			return m, nil
		}
	}
	return volume.Mount{}, errors.New("it is not mounted")
}

// verifySize reads the size of a volume again before its filesystem is extended: lvreduce -r reduces the filesystem
// first, and changes the metadata and the device afterwards, while it has LVM's lock. It does not exclude an lvreduce that
// begins later, which finds the filesystem mounted.
func (l *lane) verifySize(ctx context.Context, timeout time.Duration, h *volume.Have) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errGroupTimeout)
	defer cancel()
	name := cmp.Or(currentName(*h), h.LV.Name)
	vg, p := l.n.Config.VG(name.VG), l.n.Providers[name.VG]
	switch {
	case vg == nil:
		return nil // it was removed from the configuration
	case vg.ZeroAll && h.LV.Presence != volume.Present:
		return fmt.Errorf("its volume group cannot be read now, and with `zero: all` flexd extends no filesystem over space that may contain other data: %s", h.LV.Reason)
	case p == nil:
		return nil // its group is new in the configuration, and is used after a restart
	}
	if err := p.Reread(ctx, name.VG); err != nil {
		return fmt.Errorf("its filesystem is not extended while its size cannot be read: %w", err)
	}
	lv, err := p.LookUp(ctx, name)
	switch {
	case err != nil:
		return fmt.Errorf("its filesystem is not extended while its size cannot be read: %w", err)
	case lv.Presence != volume.Present || lv.UUID != l.uuid:
		return volume.Errorf(volume.Conflict, "its filesystem is not extended while it is not found as %s", name)
	case lv.Size < h.Device.Size:
		return volume.Errorf(volume.Conflict, "its filesystem is not extended: its device had %s, and the volume has only %s now, for example because lvreduce -r is running", volume.Bytes(h.Device.Size), volume.Bytes(lv.Size))
	}
	return nil
}
