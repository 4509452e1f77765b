package reconcile

import (
	"fmt"
	"slices"

	"github.com/flexd/flexd/internal/volume"
)

// release unmounts each mount of flexd's at the directory, even if the configuration no
// longer allows its volume.
func (n *Node) release(c *call) error {
	if err := c.asked.Target.Refusal; err != nil && !n.mountedAt(c.Dir) {
		return err
	}
	// From here on no older mount is committed, and the table shows every mount except a
	// committed one that is not observed yet.
	committed, err := n.enter(c)
	if err != nil {
		return err
	}
	defer n.requests.Leave(&c.Request)
	table, err := n.tableAt(c.ctx, c)
	if err != nil {
		return err
	}
	var found []*lane // the lanes of the mounts there, from the top down, and of the claims
	add := func(uuid volume.UUID, name volume.Name) {
		if l := n.lane(uuid, name); !slices.Contains(found, l) {
			found = append(found, l)
		}
	}
	if committed != "" {
		add(committed, volume.Name{})
	}
	foreign := ""
	at, hidden := table.At(c.Dir)
	for _, e := range slices.Backward(slices.Concat(hidden, at)) {
		id, err := n.Observer.Identify(c.ctx, e)
		switch {
		case err != nil && len(n.Store.At(c.Dir)) == 0:
			return volume.Errorf(volume.Unknown, "the volume mounted at %s is unknown: %w", c.Dir, err)
		case id.UUID != "":
			add(id.UUID, id.Name)
		case foreign == "" && slices.Contains(at, e):
			foreign = fmt.Sprintf("%s from %s", e.Type, e.Source)
		}
	}
	for _, cl := range n.Store.At(c.Dir) {
		add(cl.UUID, volume.Name{VG: cl.VG, LV: cl.LV})
	}
	if len(found) == 0 && foreign != "" {
		return volume.Errorf(volume.Busy, "%s is mounted at %s, which flexd did not mount: unmount it by hand if it is not needed", foreign, c.Dir)
	}
	for _, l := range found {
		c.title, c.lane = l.title(), l
		part := c.part(c.ctx, c.Verb)
		part.title = c.title
		if err := n.await(part, l); err != nil {
			return err
		}
	}
	if err := n.Store.TornDown(c.Dir, c.Started, n.Boot()); err != nil {
		n.Log.WithField("dir", c.Dir).WithError(err).Warn("unmount: continues without the note: after a restart a late mount call would be accepted")
	}
	return n.stillMounted(c.ctx, c.asked)
}

// mountedAt reports whether flexd has a claim at a directory, or had a claim that an unmount call
// ended recently: kubelet may repeat that call.
func (n *Node) mountedAt(dir string) bool {
	_, torn := n.Store.Teardowns(n.Boot())[dir]
	return torn || len(n.Store.At(dir)) > 0
}

// endLease ends the leases of the volume with kubelet's name. It is a hint: a claimed
// volume stays active.
func (n *Node) endLease(name string) {
	if name == "" {
		return
	}
	claims, leases := n.Store.Named(name)
	for _, lease := range leases {
		if err := n.Store.MoveLease(lease.UUID, lease.Name, min(lease.Until, n.Boot())); err != nil {
			n.Log.WithError(err).Warn("end of lease: continues without the note")
		}
		n.lane(lease.UUID, volume.Name{VG: lease.VG, LV: lease.LV}).wake()
	}
	for _, c := range claims { // kubelet may have removed the directory of a mount that was unmounted from outside
		n.lane(c.UUID, volume.Name{VG: c.VG, LV: c.LV}).wake()
	}
}
