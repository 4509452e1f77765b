package flexserve

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/reconcile"
)

// caller returns the caller of a request; leave is called at the end of the call.
func (f *Frontend) caller(q flexvolume.Request, pid int) (c reconcile.Caller, leave func()) {
	// A call that was sent again has waited before: its deadline counts from flexdriver's start.
	if c.Started = time.Duration(q.Started); c.Started <= 0 || c.Started > f.Boot() {
		c.Started = f.Boot()
	}
	// In another time namespace the time since boot may be smaller.
	if pid != 0 && f.Boot()-c.Started > time.Minute {
		if started, err := procfs.Process(pid).Started(); err == nil {
			c.Started = max(c.Started, started)
		}
	}
	parent := parentOf(pid, q.Parent)
	c.Alive = func() bool { return parent.alive(pid) }
	if pid != 0 && f.Self.mnt != "" {
		c.Mounts = namespace{pid, f.Self}
	}
	return c, parent.close
}

// Namespaces has flexd's mount namespace, and the mount of its root there.
type Namespaces struct {
	mnt  string // "mnt:[4026531841]", "" = unknown
	root uint64 // the mount's id; 0 = unknown
}

// OwnNamespaces returns those of this process.
func OwnNamespaces() (Namespaces, error) {
	mnt, err := procfs.OwnNamespace("mnt")
	return Namespaces{mnt, rootMount("/")}, err
}

// rootMount returns the id of the mount of a root directory; 0 if it is unknown.
func rootMount(root string) uint64 {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, root, 0, unix.STATX_MNT_ID, &st); err != nil || st.Mask&unix.STATX_MNT_ID == 0 {
		return 0
	}
	return st.Mnt_id
}

// A namespace is the mount namespace of a process.
type namespace struct {
	pid int
	own Namespaces // flexd's
}

// Other implements reconcile.MountNamespace. A chroot in flexd's namespace counts as another one: its
// paths are other directories.
func (n namespace) Other() (bool, error) {
	theirs, err := procfs.Process(n.pid).Namespace("mnt")
	if err != nil {
		return false, fmt.Errorf("the caller's mount namespace: %w", err)
	}
	if theirs != n.own.mnt {
		return true, nil
	}
	root := rootMount(procfs.Process(n.pid).Path("root"))
	return root != 0 && n.own.root != 0 && root != n.own.root, nil
}

// Table implements reconcile.MountNamespace.
func (n namespace) Table() (*mounttable.Table, error) {
	return mounttable.ReadFile(procfs.Process(n.pid).Path("mountinfo"))
}
