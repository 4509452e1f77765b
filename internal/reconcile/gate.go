package reconcile

import (
	"context"
	"errors"
	"sync"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// commitMount is the last check before a mount appears: a request waits for it and is
// not superseded, the directory is not a mount point, nothing else has mounted the volume, the
// caller will see the mount, and the locks of its group are not lost. Once it returns nil,
// the outcome of the mount is the only answer to the requests for it.
func (l *lane) commitMount(ctx context.Context, s volume.Step, d volume.Device) error {
	c := l.waitingCall(s)
	if c == nil {
		return dsw.ErrNotWanted
	}
	table, err := l.n.tableFor(ctx, c.asked.Caller, s.Dir)
	if err != nil {
		return err
	}
	if e := table.Top(s.Dir); e != nil {
		return volume.Errorf(volume.Busy, "%s became a mount point (%s from %s) meanwhile", s.Dir, e.Type, e.Source)
	}
	var dirs []string
	for _, c := range l.n.Store.Claims(l.uuid) {
		dirs = append(dirs, c.Dir)
	}
	if dir := l.n.Observer.Foreign(d.Number, d.Path, dirs, table); dir != "" {
		return volume.Errorf(volume.Busy, "it was mounted at %s by something else meanwhile: findmnt %s", dir, dir)
	}
	if err := c.asked.wouldSee(table); err != nil {
		return err
	}
	c.visible = true
	if why := l.n.lostReason(l.group()); why != "" {
		return volume.WithCode(volume.Unusable, errors.New(why))
	}
	return l.n.requests.Commit(l.uuid, l.nameNow(), s.Dir)
}

// tableFor returns the mount table for a check whether a caller would see a mount at dir. For callers in
// other namespaces it is read again, since changes of mount propagation raise no event.
func (n *Node) tableFor(ctx context.Context, c Caller, dir string) (*mounttable.Table, error) {
	if other, err := c.other(); err != nil {
		return nil, err
	} else if other {
		return n.Observer.Read(ctx)
	}
	return n.Observer.LookAt(ctx, dir)
}

// other reports whether the caller uses its mounts in another mount namespace than flexd's.
func (c Caller) other() (bool, error) {
	if c.Mounts == nil {
		return false, nil
	}
	return c.Mounts.Other()
}

// wouldSee refuses a mount that a caller in another mount namespace would not see: no mount
// of its own receives a mount at the target.
func (r Request) wouldSee(table *mounttable.Table) error {
	dir := r.Target.Dir
	if other, err := r.Caller.other(); err != nil || !other {
		return err
	}
	on := table.Containing(dir)
	if on == nil {
		return volume.Errorf(volume.NotVisible, "the caller is in another mount namespace or chroot, and %s is on no mount that flexd sees: run flexd in kubelet's namespace", dir)
	}
	if on.Peer == 0 {
		return volume.Errorf(volume.NotVisible, "the caller is in another mount namespace or chroot and would not see a mount at %s, because %s, on which it lies, is not shared: run flexd in kubelet's namespace; or mount --make-shared %[2]s, and then start the container of kubelet or of flexd again, whichever has a copy of that mount", dir, on.Dir)
	}
	theirs, err := r.Caller.table()
	if err != nil {
		return err
	}
	if table.Appears(dir, theirs, r.Target.Name, sync.OnceValue(mounttable.AllGroups)) {
		return nil
	}
	return volume.Errorf(volume.NotVisible, "the caller is in another mount namespace or chroot, and mounts on %s (on which %s lies) do not appear there: run flexd in kubelet's namespace; or give kubelet's container that mount with shared or slave propagation, and start it again", on.Dir, dir)
}

// sees refuses an existing mount that a caller in another mount namespace does not see.
func (r Request) sees(table *mounttable.Table) error {
	if other, err := r.Caller.other(); err != nil || !other {
		return err
	}
	theirs, err := r.Caller.table()
	if err != nil || table.Shows(r.Target.Dir, theirs, r.Target.Name) {
		return err
	}
	return volume.Errorf(volume.NotVisible, "it is mounted at %s, but the caller is in another mount namespace or chroot and does not see that mount: its container was started without the mount, or it was unmounted there. Start kubelet's container again, with its directory bound recursively and with shared or slave propagation (rshared, rslave)", r.Target.Dir)
}

// stillMounted refuses the end of an unmount if a caller in another mount namespace still has a mount at
// the directory: the unmount was not propagated there, and kubelet cannot remove the directory.
func (n *Node) stillMounted(ctx context.Context, r Request) error {
	if other, err := r.Caller.other(); err != nil || !other {
		return nil // flexd's own table is enough for an unmount
	}
	theirs, err := r.Caller.table()
	if err != nil || theirs.Top(r.Target.Name) == nil {
		return nil
	}
	if table, err := n.Observer.Read(ctx); err != nil || table.Top(r.Target.Dir) != nil { // a newer call's
		return nil
	}
	return volume.Errorf(volume.Busy, "nothing is mounted at %s any more, but the caller is in another mount namespace or chroot, and has a mount there that the unmount did not reach: nsenter -t PID -m umount %[1]s, with kubelet's pid. Run flexd in kubelet's namespace, or make the mount on which that directory lies shared with it", r.Target.Name)
}

// table reads the mount table of a caller in another namespace.
func (c Caller) table() (*mounttable.Table, error) {
	theirs, err := c.Mounts.Table()
	if err != nil {
		return nil, volume.Errorf(volume.Unknown, "the caller's mount table: %w", err)
	}
	return theirs, nil
}
