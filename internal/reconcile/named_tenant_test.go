package reconcile_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/hosttest"
)

// A device node and a setuid file in a volume have no effect with the group's mountFlags, for any options of
// the pod.
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

// Where the namespace decides, only mount, which has a namespace, creates, formats or applies options of the
// filesystem, and only for volumes of its namespace.
func TestNamespacesOfVolumes(t *testing.T) {
	onSim(t, "volumes", func(t *testing.T, e *hosttest.Env) {
		e.Config.VolumeGroups[0].Volumes = []string{"{namespace}-*", "shared"}
		p := pod("a") // of the namespace ns
		of := func(lv string) hosttest.Pod { p := p; p.LV = lv; return p }
		k := hosttest.NewKubelet(e, false)
		for _, other := range []string{"other-data", "ns-b-data", "data"} {
			fails(t, k.Up(of(other)), "does not allow volume")
			if e.Sim.FileAt(e.File(other)) != nil {
				t.Errorf("%s was created", other)
			}
		}
		for _, own := range []string{"ns-data", "shared"} {
			works(t, k.Up(of(own)))
			works(t, k.Finish(of(own)))
		}
		e.Empty()
	})
	for _, restrict := range []func(*hosttest.Env){
		func(e *hosttest.Env) { e.Config.VolumeGroups[0].Namespaces = []string{"ns"} },
		func(e *hosttest.Env) { e.Config.VolumeGroups[0].Volumes = []string{"data", "{namespace}.*"} },
	} {
		onSim(t, "attach", func(t *testing.T, e *hosttest.Env) {
			restrict(e)
			k := hosttest.NewKubelet(e, true)
			fails(t, k.Up(pod("a")), "create it by hand")
			blankVolume(e)
			fails(t, k.Up(pod("a")), "make one by hand")
			if got := e.Steps(); strings.Contains(got, "mkfs") {
				t.Errorf("mountdevice formats: %s", got)
			}
			works(t, hosttest.NewKubelet(e, false).Up(pod("a")))
			works(t, hosttest.NewKubelet(e, false).Finish(pod("a")))
			e.Settle(time.Hour)
			p := pod("b")
			p.Mount = "noatime,data=journal"
			fails(t, k.Up(p), "data=journal")
			p.Mount = "noatime"
			works(t, k.Up(p))
			works(t, k.Finish(p))
			e.Empty()
		})
	}
}
