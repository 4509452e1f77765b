package reconcile

import (
	"context"
	"fmt"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/volume"
)

// commitMount is the last check before a mount appears: a request waits for it and is
// not superseded, the directory is no mount point, nothing else has mounted the volume,
// and the caller will see the mount. Once it returns nil, the outcome of the mount is
// the only answer to the requests for it.
func (l *lane) commitMount(ctx context.Context, s volume.Step, d volume.Device) error {
	c := l.waitingCall(s)
	if c == nil {
		return dsw.ErrNotWanted
	}
	table, err := l.n.tableFor(ctx, c.pid)
	if err != nil {
		return err
	}
	if e := table.Top(s.Dir); e != nil {
		return fmt.Errorf("%s became a mount point (%s from %s) meanwhile", s.Dir, e.Type, e.Source)
	}
	var dirs []string
	for _, c := range l.n.Store.Claims(l.uuid) {
		dirs = append(dirs, c.Dir)
	}
	if dir := l.n.Observer.Foreign(d.Number, d.Path, dirs, table); dir != "" {
		return fmt.Errorf("it was mounted at %s by something else meanwhile: umount it there first", dir)
	}
	if err := l.n.Self.visible(table, s.Dir, c.pid); err != nil {
		return err
	}
	l.mu.Lock()
	name := l.name
	l.mu.Unlock()
	return l.n.requests.Commit(l.uuid, name, s.Dir)
}

// Namespaces knows in which mount namespace flexd lives.
type Namespaces struct {
	mnt string // "mnt:[4026531841]", "" = not looked at
}

// OwnNamespaces returns flexd's own.
func OwnNamespaces() (Namespaces, error) {
	mnt, err := procfs.OwnNamespace("mnt")
	return Namespaces{mnt}, err
}

// tableFor returns the mount table that says what a caller would see. How mounts
// propagate changes without an event, and matters to callers of other namespaces.
func (n *Node) tableFor(ctx context.Context, pid int) (*mounttable.Table, error) {
	if other, err := n.Self.other(pid); err != nil {
		return nil, err
	} else if other {
		return n.Observer.Read(ctx)
	}
	return n.Observer.Look(ctx, n.Observer.Now())
}

// other says whether a process lives in another mount namespace than flexd.
func (n Namespaces) other(pid int) (bool, error) {
	if pid == 0 || n.mnt == "" {
		return false, nil
	}
	theirs, err := procfs.Process(pid).Namespace("mnt")
	if err != nil {
		return false, fmt.Errorf("the caller's mount namespace: %w", err)
	}
	return theirs != n.mnt, nil
}

// visible says whether a process would see what is mounted at dir: it lives in
// flexd's mount namespace, or a mount of its own receives what is mounted there.
func (n Namespaces) visible(table *mounttable.Table, dir string, pid int) error {
	if other, err := n.other(pid); err != nil || !other {
		return err
	}
	on := table.Containing(dir)
	if on == nil {
		return fmt.Errorf("the caller lives in another mount namespace, and %s is on no mount that flexd sees: run flexd in kubelet's namespace", dir)
	}
	if on.Peer == 0 {
		return fmt.Errorf("the caller lives in another mount namespace and would not see a mount at %s, because %s, on which it lies, is not shared: run flexd in kubelet's namespace; or mount --make-shared %[2]s, and then start the container of kubelet or of flexd again, whichever has a copy of that mount", dir, on.Dir)
	}
	theirs, err := mounttable.ReadFile(procfs.Process(pid).Path("mountinfo"))
	if err != nil {
		return fmt.Errorf("the caller's mount table: %w", err)
	}
	if table.Appears(dir, theirs) {
		return nil
	}
	return fmt.Errorf("the caller lives in another mount namespace, and what is mounted on %s (on which %s lies) does not appear there: run flexd in kubelet's namespace; or give kubelet's container that mount with shared or slave propagation, and start it again", on.Dir, dir)
}
