package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A creation is the lane of a name that means no volume yet.
type creation struct {
	done chan struct{}
	err  error
}

// create makes a volume that is missing, where the configuration allows it.
// Callers that arrive meanwhile join; it goes on when they leave.
func (n *Node) create(ctx context.Context, c *call, vg *config.VolumeGroup, name volume.Name, p Provider) error {
	size, fsType := c.Size, cmp.Or(c.FSType, volume.DefaultFSType)
	switch {
	case !vg.Create:
		return fmt.Errorf("it does not exist in volume group %s, whose configuration does not let flexd create it: check volumegroup and volumeID, create it by hand, or set `create: true`", name.VG)
	case size == 0:
		return fmt.Errorf("it does not exist, and option size is not given: flexd creates only what it knows the size of")
	case size < mount.MinSize(fsType) && !slices.ContainsFunc(c.asked.Options.MkfsOptions, func(o string) bool { return strings.Contains(o, "mixed-bg") }):
		return fmt.Errorf("it does not exist, and option size (%s) is too small for %s, which needs at least %s: give it more, or another fsType", status.Size(size), fsType, status.Size(mount.MinSize(fsType)))
	case vg.MaxSize > 0 && size > vg.MaxSize:
		return fmt.Errorf("option size: %d bytes are wanted, and maxSize of volume group %s is %d", size, name.VG, vg.MaxSize)
	case c.Verb != volume.Publish && !slices.Contains(vg.Namespaces, "*"):
		return fmt.Errorf("it does not exist, and volume group %s is only for some namespaces (%q), which kubelet names at mount only: create it by hand, or attach with attach:false", name.VG, vg.Namespaces)
	}
	uuid, file, err := n.Records.Named(name)
	if err != nil {
		return fmt.Errorf("it does not exist, and flexd cannot know whether a volume of that name has had data: %w; remove that file if the volume it is about (its name is the uuid) is not missing", err)
	}
	if uuid != "" {
		return fmt.Errorf("it does not exist, but flexd has seen a filesystem on a volume of that name (uuid %s): an empty one in its place would hide that its data is missing. Is the disk of volume group %s there? If the data is not needed, remove %s", uuid, name.VG, file)
	}
	if !c.callerAlive() {
		return dsw.ErrNotWanted
	}
	n.mu.Lock()
	made := n.creating[name]
	if made == nil {
		made = &creation{done: make(chan struct{})}
		n.creating[name] = made
		go func() {
			log := n.Log.WithField("volume", name.String()).WithField("call", c.ID).WithField("step", "create")
			made.err = p.Create(n.ctx, n.lockFile("name-"+name.VG+"-"+name.LV), name, size)
			ours := made.err == nil
			if !ours { // it may exist by now: created from outside, or by flexd's command although it failed
				if lv, err := p.LookUp(n.ctx, name); err == nil && lv.Presence == volume.Present {
					log.WithError(made.err).Warn("failed, but the volume is there")
					made.err, ours = nil, lv.Created
				}
			} else {
				log.WithField("bytes", size).Info("done")
			}
			if ours {
				made.err = n.grantLease(p, name, kubeName(c))
			}
			if made.err != nil {
				log.WithError(made.err).Warn("failed")
			}
			n.mu.Lock()
			delete(n.creating, name)
			n.mu.Unlock()
			close(made.done)
		}()
	}
	n.mu.Unlock()
	select {
	case <-made.done:
		return n.withAdvice(made.err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// grantLease gives a lease to a volume that was just created and is active therefore:
// its caller may be gone.
func (n *Node) grantLease(p Provider, name volume.Name, kubeName string) error {
	lv, err := p.LookUp(n.ctx, name)
	if err != nil || lv.Presence != volume.Present {
		return err
	}
	d, err := p.Device(n.ctx, lv)
	if err != nil || d.Activity != volume.Active {
		return err
	}
	l := n.lane(lv.UUID, name)
	defer l.wake()
	return n.Store.PutLease(l.lease(name, kubeName))
}
