package flexserve

import (
	"fmt"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/reconcile"
)

// caller is what a request says of flexdriver, and what is to be done at the end of the
// call.
func (f *Frontend) caller(q flexvolume.Request, pid int) (c reconcile.Caller, leave func()) {
	// A call that is sent again has waited before: flexdriver counts from its start.
	if c.Started = time.Duration(q.Started); c.Started <= 0 || c.Started > f.Boot() {
		c.Started = f.Boot()
	}
	parent := parentOf(pid, q.Parent)
	c.Alive = func() bool { return parent.alive(pid) }
	if pid != 0 && f.Self.mnt != "" {
		c.Mounts = namespace{pid, f.Self.mnt}
	}
	return c, parent.close
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

// A namespace is the mount namespace of a process.
type namespace struct {
	pid int
	own string // flexd's
}

// Other implements reconcile.MountNamespace.
func (n namespace) Other() (bool, error) {
	theirs, err := procfs.Process(n.pid).Namespace("mnt")
	if err != nil {
		return false, fmt.Errorf("the caller's mount namespace: %w", err)
	}
	return theirs != n.own, nil
}

// Table implements reconcile.MountNamespace.
func (n namespace) Table() (*mounttable.Table, error) {
	return mounttable.ReadFile(procfs.Process(n.pid).Path("mountinfo"))
}
