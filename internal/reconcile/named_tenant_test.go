package reconcile_test

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/hosttest"
)

// A device node and a setuid file in a volume have no effect with the group's mountFlags,
// whatever the pod asks for.
func TestMountFlags(t *testing.T) {
	onLoops(t, "flags", func(t *testing.T, e *hosttest.Env) {
		e.Config.VolumeGroups[0].MountFlags = []string{"nodev", "nosuid", "noexec"}
		k := hosttest.NewKubelet(e, false)
		p := pod("a")
		p.Mount = "noatime,nodev"
		works(t, k.Up(p))
		dir := k.Dir(p)
		node := filepath.Join(dir, "null")
		works(t, unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		if fd, err := unix.Open(node, unix.O_RDWR, 0); !errors.Is(err, unix.EACCES) {
			unix.Close(fd)
			t.Errorf("the device node opens: %v", err)
		}
		var st unix.Statfs_t
		works(t, unix.Statfs(dir, &st))
		const all = unix.ST_NODEV | unix.ST_NOSUID | unix.ST_NOEXEC | unix.ST_NOATIME
		if st.Flags&all != all {
			t.Errorf("the mount has the flags %#x", st.Flags)
		}
		works(t, k.Finish(p))
	})
}
