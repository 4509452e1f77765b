package lockspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// askAgain is the minimum time between two queries for the location of a group's leases while its
// lockspace is not started.
const askAgain = 30 * time.Second

// Taken reads the locks of volumes that are active on this node, and returns those that another host
// has taken, with their present holder (zero = none). sanlock does not read them: it renews its lease,
// and relies on the watchdog, which stops together with a virtual machine. The error concerns locks
// that could not be read, or that no host has taken since this node released them.
func (m *Manager) Taken(ctx context.Context, vg string, lvs []LV) (map[volume.UUID]volume.Holder, error) {
	own, err := m.own(ctx, vg)
	if err != nil {
		return nil, err
	}
	arg := leasesArg{Path: own.Path, Lockspace: "lvm_" + vg, SectorSize: own.SectorSize, MaxHost: own.HostID}
	names := map[string]volume.UUID{}
	for _, lv := range lvs {
		l, err := lv.lease()
		if err != nil {
			return nil, err
		}
		names[l.Name] = lv.UUID
		arg.Leases = append(arg.Leases, l)
	}
	taken := map[volume.UUID]volume.Holder{}
	var failed error
	err = m.askLeases(ctx, arg, m.lock(vg, "own-leases"), func(got leasesAnswer) {
		for name, owners := range got.Owners {
			last, free := got.Last[name]
			switch {
			case free && (last == own.HostID || last == 0): // released by this node, or made anew
				failed = errors.Join(failed, fmt.Errorf("%s: neither this node nor another one holds its lock", name))
			case free:
				taken[names[name]] = volume.Holder{}
			case !slices.ContainsFunc(owners, func(o owner) bool { return o.ID == own.HostID }):
				taken[names[name]] = volume.Holder{HostID: owners[0].ID, Host: got.Hosts[owners[0].ID].Name, Shared: owners[0].Shared}
			}
		}
		for name, text := range got.Errors {
			if text == errRemoved.Error() || strings.HasPrefix(text, otherLease) { // the volume was removed
				taken[names[name]] = volume.Holder{}
				continue
			}
			failed = errors.Join(failed, fmt.Errorf("%s: %s", name, text))
		}
	})
	return taken, cmp.Or(err, failed)
}

// own returns the last known lease of this node in a lockspace. It does not change while volumes are
// active.
func (m *Manager) own(ctx context.Context, vg string) (Leases, error) {
	m.mu.Lock()
	own, known := m.leases["lvm_"+vg]
	recent := m.last != nil && m.now().Sub(m.last.at) < askAgain
	m.mu.Unlock()
	if !known && !recent {
		if _, err := m.look(ctx); err != nil {
			return Leases{}, err
		}
		m.mu.Lock()
		own, known = m.leases["lvm_"+vg]
		m.mu.Unlock()
	}
	if !known {
		return Leases{}, fmt.Errorf("the lockspace of volume group %s is not started", vg)
	}
	return own, nil
}
