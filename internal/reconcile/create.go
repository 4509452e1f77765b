package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// nameKey replaces the uuid of a volume for which only the name is known. Neither a uuid nor a name has
// a colon.
func nameKey(name volume.Name) volume.UUID {
	return volume.UUID("name:" + name.VG + ":" + name.LV)
}

// create waits in the lane of the name until the volume exists. The lane continues when its
// callers stop waiting.
func (n *Node) create(ctx context.Context, c *call) error {
	return n.await(c.part(ctx, volume.Create), n.lane(nameKey(c.Name), c.Name))
}

// createRefusal returns why the configuration does not allow flexd to create the volume of a call;
// zero = it allows it.
func createRefusal(c *call, vg *config.VolumeGroup) volume.Refusal {
	refuse := func(code volume.Code, f string, a ...any) volume.Refusal {
		return volume.Refusal{Code: code, Reason: fmt.Sprintf(f, a...)}
	}
	size, fsType := c.Size, cmp.Or(c.FSType, volume.DefaultFSType)
	switch {
	case !vg.Create:
		return refuse(volume.NotFound, "it does not exist in volume group %s, whose configuration does not let flexd create it: check the names of the volume group and the volume, create it by hand, or set `create: true`", vg.Name)
	case size == 0:
		return refuse(volume.NotFound, "it does not exist, and option size is not given: flexd creates no volume without a size")
	case size < mount.MinSize(fsType) && !slices.ContainsFunc(c.asked.Options.MkfsOptions, func(o string) bool { return strings.Contains(o, "mixed-bg") }):
		return refuse(volume.NoSpace, "it does not exist, and option size (%s) is too small for %s, which needs at least %s: give it more, or another fsType", volume.Bytes(size), fsType, volume.Bytes(mount.MinSize(fsType)))
	case vg.MaxSize > 0 && size > vg.MaxSize:
		return refuse(volume.NoSpace, "option size wants %s, more than maxSize of volume group %s (%s): ask for less, or raise it in flexd's configuration", volume.Bytes(size), vg.Name, volume.Bytes(vg.MaxSize))
	case c.asked.Verb != volume.Publish && vg.Restricted():
		return refuse(volume.NotAllowed, "it does not exist; %s", unknownNamespace(vg, "create it by hand"))
	case c.asked.Options.Pod.Namespace == "" && vg.PerNamespace != config.Limit{}:
		return refuse(volume.NotAllowed, "it does not exist; perNamespace limits the volumes of each namespace in volume group %s, and kubelet passes the namespace only at mount: create it by hand, or use the driver without attach", vg.Name)
	}
	return volume.Refusal{}
}

// observeName looks up the volume of a lane's name.
func (l *lane) observeName(ctx context.Context) volume.Have {
	name := l.nameNow()
	lv, err := lookUpForSetUp(ctx, l.n.Providers[name.VG], name)
	if l.blocked = waitingFor(err); l.blocked != nil {
		lv, err = volume.LV{Pending: true, Reason: err.Error()}, nil
	}
	h := l.n.stateOfName(name, lv, err)
	if h.LV.Presence == volume.Present {
		l.n.moveHistory(name, lv.UUID)
	}
	l.n.Observer.Publish(l.uuid, h)
	return h
}

// stateOfName returns the state of a name from the result of its look-up and its record.
func (n *Node) stateOfName(name volume.Name, lv volume.LV, err error) volume.Have {
	h := volume.Have{LV: lv, Record: volume.NoRecord}
	h.LV.Name = name
	switch {
	case err != nil:
		h.LV = volume.LV{Name: name, Reason: err.Error()}
	case lv.Presence == volume.Foreign:
		h.LV.Reason = n.beforeUse(lv) + lv.Reason
	case lv.Presence == volume.Absent:
		uuid, facts, err := n.Records.Named(name)
		switch h.LV.UUID, h.RecordName, h.RecordFile = uuid, facts.Name, facts.File; {
		case err != nil:
			h.Record, h.RecordReason = volume.RecordUnknown, err.Error()
		case uuid != "" && uuid == lv.UUID:
			h.LV = volume.LV{Name: name, Presence: volume.Foreign, Reason: "flexd has seen a filesystem on it, but " + lv.Reason}
		case uuid != "":
			h.Record = volume.Seen
		}
		// Read the names of devices after the records: a volume in use may be renamed before its record is.
		if now, uuid := n.renamed(name); uuid != "" {
			h.LV = volume.LV{Name: name, Reason: fmt.Sprintf("the volume in use that had this name (uuid %s) is now named %s", uuid, now)}
		}
	}
	return h
}

// beforeUse returns what to consider before a file without a uuid is made a volume, if flexd has seen another one with its name.
func (n *Node) beforeUse(lv volume.LV) string {
	uuid := n.Records.Holder(lv.Name)
	if uuid == "" || !lv.File.Unmarked {
		return ""
	}
	return fmt.Sprintf("flexd has seen a filesystem on the volume of that name with the uuid %s. If the file is that volume without its attributes: setfattr -n trusted.flexd.uuid -v %[1]s %[2]s (package attr). If it is a copy of it, look where the newest data is: was the original moved, or is a device with it in flexd check? Otherwise: ", uuid, volume.Quote(lv.File.Path))
}

// moveHistory moves the history of a name's lane to the lane of its volume.
func (n *Node) moveHistory(name volume.Name, uuid volume.UUID) {
	from, to := n.laneOf(nameKey(name)), n.laneOf(uuid)
	if from == nil || to == nil {
		return
	}
	from.mu.Lock()
	done := from.history
	from.history, from.lastErr = nil, nil
	from.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	to.remember(done...)
}

// A vacancy is a provider whose devices may have the data of a volume that is missing.
type vacancy interface {
	CheckVacant(ctx context.Context, name volume.Name) error
}

// create creates the volume. If that fails and the volume exists, flexd uses it: another program or
// flexd's command has created it.
func (l *lane) create(ctx context.Context, p Provider, s volume.Step) error {
	name := l.nameNow()
	if _, noted := l.n.Store.Lease(l.uuid); !noted { // the uuid is not known yet
		lease := l.lease(name, "")
		lease.Until = l.n.Boot() // without a call the lease ends at once, because another node may wait
		if err := l.n.Store.PutLease(lease); err != nil {
			return err
		}
	}
	var err error
	if v, ok := p.(vacancy); ok {
		err = v.CheckVacant(ctx, name)
	}
	c := l.waitingCall(s) // all of this took time
	switch {
	case err != nil:
	case c == nil:
		err = dsw.ErrNotWanted
	default:
		err = p.Create(ctx, l.lock, name, s.Size, c.asked.Options.Pod.Namespace)
	}
	lv, lookErr := p.LookUp(ctx, name)
	there := lookErr == nil && lv.Presence == volume.Present
	if there && err != nil {
		l.stepLog(s).WithError(err).Warn("failed, but the volume exists")
	}
	if there && (err == nil || lv.Created) {
		return l.leaseCreated(ctx, p, lv, kubeName(c))
	}
	none := lookErr == nil && lv.UUID == "" && !unfinished(err) && !l.n.shared(name.VG)
	if there || none { // otherwise endCreation drops it
		l.warn(volume.Step{Kind: volume.DropLease}, l.n.Store.DropLease(l.uuid))
	}
	if there {
		return nil
	}
	return cmp.Or(err, lookErr)
}

// leaseCreated replaces the lease of a name by a lease of the volume that was created: the volume
// is active, and its caller may be gone.
func (l *lane) leaseCreated(ctx context.Context, p Provider, lv volume.LV, kubeName string) error {
	d, err := p.Device(ctx, lv)
	if err != nil {
		return err
	}
	if d.Activity == volume.Active {
		k := l.n.lane(lv.UUID, lv.Name)
		defer k.wake()
		if err := l.n.Store.PutLease(k.lease(lv.Name, kubeName)); err != nil {
			return err
		}
	}
	l.warn(volume.Step{Kind: volume.DropLease}, l.n.Store.DropLease(l.uuid))
	return nil
}

// endCreation ends a creation that has failed or was interrupted, and that no call waits for any more: another
// node that shares the group may complete it, a volume that was created needs a lease, and a device that the
// command of a failed creation has left is deactivated.
func (l *lane) endCreation(ctx context.Context) error {
	name := l.nameNow()
	p := l.n.Providers[name.VG]
	if p == nil {
		return l.n.Store.DropLease(l.uuid)
	}
	if k, ok := p.(locker); ok {
		if err := k.EndCreation(ctx, l.lock, name); err != nil {
			return err
		}
	}
	lv, err := p.LookUp(ctx, name)
	if err != nil {
		return err
	}
	if lv.Presence == volume.Present && lv.Created {
		return l.leaseCreated(ctx, p, lv, "")
	}
	return l.n.Store.DropLease(l.uuid)
}

// shown reports whether status lists the lane. The lane of a name is listed while it works,
// and for a while after a failure.
func (l *lane) shown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.byName || l.working != "" || l.parked != nil || len(l.n.requests.Of(l.uuid)) > 0 || l.lastErr != nil && time.Since(l.lastErr.at) < failedAge
}
