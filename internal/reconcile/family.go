package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/flexd/flexd/internal/volume"
)

// withNotes returns relatives with their claims and leases.
func (n *Node) withNotes(relatives []volume.Relative) []volume.Relative {
	all := make([]volume.Relative, len(relatives))
	for i, r := range relatives {
		r.Claimed = len(n.Store.Claims(r.UUID)) > 0
		if lease, ok := n.Store.Lease(r.UUID); ok {
			r.Lease = volume.Lease{Noted: true, Live: n.Boot() < lease.Until}
		}
		all[i] = r
	}
	return all
}

// activate activates a volume. Volumes that become active with it get a lease first, which marks
// them as activated by flexd.
func (l *lane) activate(ctx context.Context, p Provider, lv volume.LV) error {
	l.adoptRecord(lv)
	var leased []*lane
	for _, r := range lv.Family {
		d, err := p.Device(ctx, r)
		if err != nil {
			return fmt.Errorf("it is activated only together with %s: %w", r.Name, err)
		}
		if d.Activity != volume.Inactive {
			continue
		}
		k := l.n.lane(r.UUID, r.Name)
		lease := k.lease(r.Name, "")
		lease.Until += l.n.Config.Get().CallDeadline // its lane must not observe it inactive before the command has ended
		if err := l.n.Store.PutLease(lease); err != nil {
			return err
		}
		k.wake() // its next view has the lease
		leased = append(leased, k)
	}
	err := p.Activate(ctx, l.lock, lv)
	for _, k := range leased {
		err = errors.Join(err, l.n.Store.PutLease(k.lease(k.nameNow(), "")))
		k.wake()
	}
	return err
}

// deactivate deactivates a volume and its relatives, unless one of them has become needed
// since the observation.
func (l *lane) deactivate(ctx context.Context, p Provider, h *volume.Have) error {
	relatives := l.n.withNotes(h.Device.Relatives)
	if why := volume.Kept(relatives); why != "" {
		return errors.New(why)
	}
	l.resolveOldTag(ctx, h)
	err := p.Deactivate(ctx, l.lock, h.LV, h.Device)
	if err == nil {
		l.n.dropLost(h.LV.Name.VG)
	}
	for _, r := range relatives {
		l.n.lane(r.UUID, r.Name).wake()
	}
	return err
}
