package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// target refuses a directory where nothing can be mounted, before the set-up. It does not touch a mount
// point.
func (n *Node) target(ctx context.Context, c *call) error {
	table, err := n.table(ctx, c.Dir)
	if err != nil {
		return err
	}
	if table.Top(c.Dir) == nil && n.Observer.Gone(c.Dir) {
		return volume.Errorf(volume.NotFound, "the directory %s does not exist: kubelet makes it, and flexd never does", c.Dir)
	}
	return nil
}

// table returns the mount table of this moment for a directory.
func (n *Node) table(ctx context.Context, dir string) (*mounttable.Table, error) {
	table, err := n.Observer.LookAt(ctx, dir)
	switch {
	case err == nil:
		return table, nil
	case errors.Is(err, ErrDeadline):
		return nil, volume.Errorf(volume.Unknown, "timed out reading the mount table, nothing was started: check dmesg, and whether `cat /proc/self/mountinfo` returns")
	}
	return nil, volume.Errorf(volume.Unknown, "the mount table cannot be read: %w", err)
}

// tableAt returns the mount table, with the changes at the call's directory that raise no event: the
// mount that a lookup reaches, and the name of the device of a btrfs, which a mount or a scan by
// another name changes.
func (n *Node) tableAt(ctx context.Context, c *call) (*mounttable.Table, error) {
	table, err := n.table(ctx, c.Dir)
	if err != nil {
		return nil, err
	}
	at, _ := table.At(c.Dir)
	if slices.ContainsFunc(at, func(e *mounttable.Entry) bool { return e.Type == "btrfs" && e.SourceNumber() == "" }) {
		return n.Observer.Read(ctx)
	}
	return table, nil
}

// admit checks a set-up before its volume is looked up: its directory and the configuration.
func (n *Node) admit(c *call) (*config.VolumeGroup, Provider, error) {
	if err := c.asked.Target.Refusal; err != nil {
		return nil, nil, err
	}
	vg, p, err := n.allowed(c)
	if err != nil {
		return nil, nil, err
	}
	if err := n.stillLost(c.ctx, vg.Name); err != nil {
		return nil, nil, err
	}
	c.Call = n.withConfig(c)
	return vg, p, nil
}

// withConfig returns a call with the limits and refusals of the current configuration: a reload may change
// them while the call waits.
func (n *Node) withConfig(c *call) volume.Call {
	v := c.Call
	if c.Verb == volume.Release || c.Verb == volume.Reclaim {
		return v
	}
	vg, _, err := n.allowed(c)
	if err != nil {
		v.Refusal = volume.Refusal{Code: volume.CodeOf(err), Reason: err.Error()}
		return v
	}
	if v.MaxSize = vg.MaxSize; c.Verb == volume.Create {
		v.Refusal = createRefusal(c, vg)
	}
	if v.NoFormat = (volume.Refusal{}); c.Verb == volume.Stage && vg.Restricted() {
		v.NoFormat = volume.Refusal{Code: volume.NotAllowed, Reason: "it has no filesystem; " + unknownNamespace(vg, "make one by hand")}
	}
	return v
}

// setUp finds the volume and makes its lane serve the call.
func (n *Node) setUp(c *call) (device string, err error) {
	_, p, err := n.admit(c)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	c.Interrupt = cancel
	if _, err := n.enter(c); err != nil {
		return "", err
	}
	defer n.requests.Leave(&c.Request)
	l, err := n.find(ctx, c, p)
	if err != nil || l == nil {
		if n.requests.Bound(&c.Request) == "" { // otherwise a committed mount has interrupted find
			n.requests.Abandon(&c.Request, dsw.Answer{Err: err})
		}
		return n.wait(c)
	}
	return n.join(c, l)
}

// find returns the lane of the volume that a call names. It creates a missing volume if that is allowed.
// For a check it creates none, and returns nil.
func (n *Node) find(ctx context.Context, c *call, p Provider) (*lane, error) {
	if c.Mounts() {
		if err := n.target(ctx, c); err != nil {
			return nil, err
		}
	}
	lv, err := n.awaitLookUp(ctx, c, p)
	if err == nil && lv.Presence == volume.Absent {
		if createdLater(c, n.Config.VG(c.Name.VG)) {
			return nil, nil
		}
		if err := n.create(ctx, c); err != nil {
			return nil, err
		}
		if lv, err = n.awaitLookUp(ctx, c, p); err == nil && lv.Presence == volume.Absent {
			err = notFound(c)
		}
	}
	if err != nil {
		return nil, err
	}
	return n.laneByName(ctx, lv.UUID, c.Name, p)
}

// awaitLookUp looks the volume up. While that must wait, the call waits in the lane of the
// name.
func (n *Node) awaitLookUp(ctx context.Context, c *call, p Provider) (volume.LV, error) {
	for {
		lv, err := n.lookUp(ctx, c, p)
		if waitingFor(err) == nil {
			return lv, err
		}
		if err := n.await(c.part(ctx, volume.Find), n.lane(nameKey(c.Name), c.Name)); err != nil {
			return lv, err
		}
	}
}

// lookUpForSetUp looks a volume up for a call that sets it up.
func lookUpForSetUp(ctx context.Context, p Provider, name volume.Name) (volume.LV, error) {
	if err := p.Refresh(ctx, name.VG); err != nil {
		return volume.LV{}, err
	}
	return p.LookUp(ctx, name)
}

// createdLater reports whether a call only checks a volume that Activate creates.
func createdLater(c *call, vg *config.VolumeGroup) bool {
	return c.Verb == volume.Check && vg.Create && c.Size > 0
}

func notFound(c *call) error {
	return volume.Errorf(volume.NotFound, "it does not exist in volume group %s", c.Name.VG)
}

// lookUp looks up the volume that a call names: one that may be used, or an absent one that
// may be created.
func (n *Node) lookUp(ctx context.Context, c *call, p Provider) (volume.LV, error) {
	name := c.Name
	lv, err := lookUpForSetUp(ctx, p, name)
	if err != nil || lv.Presence == volume.Absent { // else no search through all volumes is needed
		n.lookForDeleted(name)
		now, uuid := n.renamed(name)
		switch {
		case uuid != "" && err == nil:
			return lv, volume.Errorf(volume.NotFound, "it does not exist: the volume in use that had this name (uuid %s) is now named %s; rename it back, or ask for it by that name", uuid, now)
		case uuid != "" && now.VG != name.VG:
			back := "vgrename " + now.VG + " " + name.VG
			if n.isFile(now) {
				back = "move its file back"
			}
			return lv, volume.Errorf(volume.NotFound, "the volume in use that had this name (uuid %s) is now named %s: %s, or ask for it in that group: %w", uuid, now, back, err)
		}
	}
	switch {
	case errors.Is(err, ErrDeadline):
		return lv, metadataTimeout(name.VG)
	case err != nil:
		return lv, volume.Errorf(volume.CodeOr(err, volume.Unknown), "it could not be looked up: %w", err)
	case lv.Presence == volume.Absent && c.Verb == volume.Expand:
		return lv, notFound(c)
	case lv.Presence == volume.Absent:
		return lv, nil
	case lv.Presence != volume.Present:
		return lv, volume.Errorf(volume.Unusable, "not usable: %s", n.beforeUse(lv)+lv.Reason)
	}
	if err := n.nameInUse(ctx, name, lv.UUID); err != nil {
		return lv, err
	}
	if why := n.replacedReason(ctx, c, lv.UUID, p); why != "" {
		return lv, volume.WithCode(volume.Conflict, errors.New(why))
	}
	return lv, nil
}

// nameInUse returns why no call may use a volume: another one was mounted under its name, and is mounted still. The mount
// table shows that also while the other one's device cannot be observed.
func (n *Node) nameInUse(ctx context.Context, name volume.Name, uuid volume.UUID) error {
	claims := n.Store.Of(name)
	slices.SortFunc(claims, func(a, b dsw.Claim) int { return strings.Compare(b.Dir, a.Dir) }) // pods first
	for _, c := range claims {
		if c.UUID == uuid || c.UUID == uuid.Earlier() {
			continue
		}
		table, err := n.table(ctx, c.Dir)
		if err != nil {
			return err
		}
		if table.Top(c.Dir) == nil {
			continue
		}
		other, ask := "the volume", "rename it back"
		if now, renamed := n.renamed(name); renamed == c.UUID {
			other, ask = now.String(), "rename that one back, or ask for it by its present name"
		}
		return volume.Errorf(volume.Conflict, "%s (uuid %s) has the name that %s (uuid %s) had when it was mounted at %s, for %s: %s; to use the new volume, delete the pods that use the other one", name, uuid, other, c.UUID, c.Dir, c.User(), ask)
	}
	return nil
}

// replacedReason returns why a Stage, or an Activate before it, must not use a volume: an earlier
// Activate has activated another volume of that name, which is active and has a lease.
func (n *Node) replacedReason(ctx context.Context, c *call, uuid volume.UUID, p Provider) string {
	if c.Verb != volume.Activate && c.Verb != volume.Stage || c.asked.Options.Alias == "" {
		return ""
	}
	_, leases := n.Store.Named(c.asked.Options.Alias)
	for _, lease := range leases {
		name := volume.Name{VG: lease.VG, LV: lease.LV}
		if lease.UUID == uuid || name != c.Name || n.Boot() >= lease.Until {
			continue
		}
		d, err := p.Device(ctx, volume.LV{Name: name, UUID: lease.UUID})
		if err == nil && d.Activity != volume.Active {
			continue
		}
		called := ""
		if id, err := p.Identify(ctx, d.Number); err == nil && id.UUID == lease.UUID && id.Name.LV != "" && id.Name != name {
			called = fmt.Sprintf(", now named %s", id.Name)
		}
		return fmt.Sprintf("%s (uuid %s) is not the volume that was activated last (uuid %s%s): rename that volume back, or ask for it by its new name; to use the new volume, delete the pod until the lease of the other has ended", name, uuid, lease.UUID, called)
	}
	return ""
}

// renamed returns the new name of a volume in use that was set up under that name.
func (n *Node) renamed(name volume.Name) (volume.Name, volume.UUID) {
	for uuid, h := range n.Observer.All() {
		if h.LV.Name == name && h.LV.Now != (volume.Name{}) {
			return h.LV.Now, uuid
		}
	}
	for _, c := range n.Store.Of(name) { // a call for its present name has noted it
		if h := n.Observer.Last(c.UUID); h != nil && h.LV.Presence == volume.Present && h.LV.Name != name {
			return h.LV.Name, c.UUID
		}
	}
	return volume.Name{}, ""
}

// lookForDeleted wakes the lanes of the volumes that were last observed with a name that no volume
// has now: no event reports the deletion of an unused volume.
func (n *Node) lookForDeleted(name volume.Name) {
	for uuid, h := range n.Observer.All() {
		if h.LV.Name == name && h.LV.Presence == volume.Present {
			n.wakeLane(uuid)
		}
	}
}

// unknownNamespace returns why a call must not change a volume: kubelet passes the namespace only
// to mount. advice is the remedy beside using the driver without attach.
func unknownNamespace(vg *config.VolumeGroup, advice string) string {
	return fmt.Sprintf("volume group %s is restricted by namespace (namespaces: %q, volumes: %q), and kubelet passes the namespace only at mount: %s, or use the driver without attach", vg.Name, vg.Namespaces, vg.Volumes, advice)
}

// allowed checks that the configuration lets this call use this volume.
func (n *Node) allowed(c *call) (*config.VolumeGroup, Provider, error) {
	name, verb := c.Name, c.asked.Verb
	vg, p := n.Config.VG(name.VG), n.Providers[name.VG]
	switch {
	case vg == nil || p == nil:
		return nil, nil, volume.Errorf(volume.NotAllowed, "volume group %q is not configured on node %s: check its name, or add it to volumeGroups in flexd's configuration; a group that was added needs a restart of flexd", name.VG, n.Config.Get().NodeName)
	case verb == volume.Publish && !vg.AllowsNamespace(c.asked.Options.Pod.Namespace):
		return nil, nil, volume.Errorf(volume.NotAllowed, "the configuration of volume group %s does not allow pods of namespace %q (namespaces: %q)", name.VG, c.asked.Options.Pod.Namespace, vg.Namespaces)
	case verb == volume.Publish && vg.AllowsVolume(name.LV) && !vg.AllowsVolumeFor(c.asked.Options.Pod.Namespace, name.LV):
		return nil, nil, volume.Errorf(volume.NotAllowed, "the configuration of volume group %s does not allow volume %q for pods of namespace %q (volumes: %q)", name.VG, name.LV, c.asked.Options.Pod.Namespace, vg.Volumes)
	case !vg.AllowsVolume(name.LV):
		return nil, nil, volume.Errorf(volume.NotAllowed, "the configuration of volume group %s does not allow volume %q (volumes: %q)", name.VG, name.LV, vg.Volumes)
	case verb == volume.Stage && vg.Restricted() && len(c.Super) > 0:
		return nil, nil, volume.Errorf(volume.NotAllowed, "the filesystem cannot be mounted with %s: %s", strings.Join(c.Super, ","), unknownNamespace(vg, "remove the options of the whole filesystem"))
	}
	return vg, p, nil
}
