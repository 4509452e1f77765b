package procfs

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/sysfs"
)

// ownUsers returns this process's user namespace, which does not change.
var ownUsers = sync.OnceValues(func() (string, error) { return OwnNamespace("user") })

// Administers returns nil if the process has CAP_SYS_ADMIN in this process's user namespace.
func (p Process) Administers() error {
	// Not from /proc/PID/status, which takes the kernel ten times as long.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3, Pid: int32(p)}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("its capabilities are unknown: %w", err)
	}
	if caps[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return errors.New("it has no CAP_SYS_ADMIN")
	}
	// Capabilities in another user namespace are worth nothing here.
	theirs, err := p.Namespace("user")
	if err != nil {
		return err
	}
	ours, err := ownUsers()
	if err != nil {
		return err
	}
	if ours != theirs {
		return errors.New("it is in another user namespace")
	}
	return nil
}

// Cgroup returns its cgroups, one a line as /proc/PID/cgroup has them.
func (p Process) Cgroup() (string, error) {
	return sysfs.Line(p.Path("cgroup")) // it is one record, and asked for with every call
}

// podCgroup matches kubelet's cgroups of pods for both of its cgroup drivers, also below a
// --cgroup-root: /kubepods/burstable/..., /kubelet.slice/kubelet-kubepods.slice/...
var podCgroup = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)/(kubepods|([^/\n]*-)?kubepods(-[^/\n]*)?\.slice)(/|$)`)
})

// OfPod reports whether a text of Cgroup is a pod's.
func OfPod(cgroup string) bool {
	return strings.Contains(cgroup, "kubepods") && podCgroup().MatchString(cgroup)
}
