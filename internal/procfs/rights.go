package procfs

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Administers returns nil if the process has CAP_SYS_ADMIN in this process's user namespace.
func (p Process) Administers() error {
	status, err := os.ReadFile(p.Path("status"))
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(status), "\nCapEff:\t")
	hex, _, _ := strings.Cut(rest, "\n")
	caps, err := strconv.ParseUint(hex, 16, 64)
	if err != nil {
		return fmt.Errorf("its capabilities are unknown: %w", err)
	}
	if caps&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return errors.New("it has no CAP_SYS_ADMIN")
	}
	// Capabilities in another user namespace are worth nothing here.
	theirs, err := p.Namespace("user")
	if err != nil {
		return err
	}
	ours, err := OwnNamespace("user")
	if err != nil {
		return err
	}
	if ours != theirs {
		return errors.New("it lives in another user namespace")
	}
	return nil
}

// Cgroup returns its cgroups, one a line as /proc/PID/cgroup has them.
func (p Process) Cgroup() (string, error) {
	text, err := os.ReadFile(p.Path("cgroup"))
	return strings.TrimSpace(string(text)), err
}

// podCgroup matches kubelet's cgroups of pods for both of its cgroup drivers, also below a
// --cgroup-root: /kubepods/burstable/..., /kubelet.slice/kubelet-kubepods.slice/...
var podCgroup = regexp.MustCompile(`(?m)/(kubepods|([^/\n]*-)?kubepods(-[^/\n]*)?\.slice)(/|$)`)

// OfPod reports whether a text of Cgroup is a pod's.
func OfPod(cgroup string) bool { return podCgroup.MatchString(cgroup) }
