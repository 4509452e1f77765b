package kubelet

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/flexd/flexd/test/umount"
	"golang.org/x/sys/unix"
)

// Kubelet's directory may be a link to a larger disk.
func TestRootBehindALink(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		for _, configured := range []string{"link", "target"} {
			t.Run(string(m)+" "+configured, func(t *testing.T) {
				t.Parallel()
				n := newNode(t, m, func(n *node) {
					n.must(os.Mkdir(n.Dir+"/disk", 0o755))
					n.must(os.Remove(n.Root))
					n.must(os.Symlink(n.Dir+"/disk", n.Root))
					if configured == "target" {
						n.settings.Roots = []string{n.Dir + "/disk"}
					}
				})
				n.linked()
			})
		}
	}
}

// Where the link's own mount is not shared, each kubelet that starts mounts its directory
// over itself (MakeRShared asks about the path as written, so it never finds the mount that
// the one before it made), and hides all that is mounted below. A running pod gets no event
// that its volume is there.
func TestRootBehindALinkOnAPrivateMount(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.failures = true
		n.claim("a", 16*mib)
		p := pod("web", "a")
		n.want(p)
		n.eventually("web starts", func() string {
			if err := n.ask("Start", p.UID, nil); err != nil {
				return err.Error()
			}
			return ""
		})
		n.noWarnings()
		n.killKubelet()
		n.startKubelet()
		if got := len(mounts(n.Dir+"/disk")) - len(n.volumes()); got != 2 {
			t.Fatalf("kubelet's directory is mounted %d times, want twice: if that is good news, rewrite this test", got)
		}
		n.warned(p, "vg0/a", "over all of "+n.Dir+"/disk")
		n.must(umount.Plain(n.Dir + "/disk")) // as the operator may
		n.eventually("web is found again", func() string {
			if err := n.ask("Start", p.UID, nil); err != nil {
				return err.Error()
			}
			return ""
		})
	}, func(n *node) {
		n.must(unix.Mount("", n.Dir, "", unix.MS_PRIVATE, ""))
		n.must(os.Mkdir(n.Dir+"/disk", 0o755))
		n.must(os.Remove(n.Root))
		n.must(os.Symlink(n.Dir+"/disk", n.Root))
	})
}

// linked lets a pod live whose mount the table shows under another path.
func (n *node) linked() {
	n.t.Helper()
	n.claim("a", 16*mib)
	p := pod("web", "a")
	n.want(p)
	n.eventually("web starts", func() string {
		if err := n.ask("Start", p.UID, nil); err != nil {
			return err.Error()
		}
		return ""
	})
	n.write(p, 0, "there")
	n.killKubelet()
	n.startKubelet()
	n.eventually("web is found again", func() string {
		if err := n.ask("Start", p.UID, nil); err != nil {
			return err.Error()
		}
		return ""
	})
	n.settled()
	n.read(p, 0, "there")
	n.end(p)
	n.quiet()
}

// Kubelet's directory may be mounted from another disk, also a part of one.
func TestRootBindMounted(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.linked()
	}, func(n *node) {
		disk := n.Dir + "/disk"
		n.must(os.Mkdir(disk, 0o755))
		n.must(unix.Mount("disk", disk, "tmpfs", 0, ""))
		n.must(os.Mkdir(disk+"/kubelet", 0o755))
		n.must(unix.Mount(disk+"/kubelet", n.Root, "", unix.MS_BIND, ""))
	})
}

// Kubelet's root is bound on itself below a shared mount, as for a kubelet in a
// container: each mount has a copy that no lookup reaches.
func TestRootBoundOnItself(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.linked()
	}, func(n *node) {
		n.must(unix.Mount(n.Root, n.Root, "", unix.MS_BIND, ""))
		n.must(unix.Mount("", n.Root, "", unix.MS_SHARED, ""))
		n.must(unix.Mount(n.Root, n.Root, "", unix.MS_BIND, ""))
	})
}

// A kubelet in a container has a mount namespace of its own, into which and from
// which mounts below its root are propagated.
func TestKubeletInAnotherNamespace(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		elsewhere := func(c *exec.Cmd, _ *Setup) {
			c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: syscall.CLONE_NEWNS}
		}
		n.claim("a", 16*mib)
		n.killKubelet()
		n.startKubelet(elsewhere)
		p := pod("web", "a")
		n.run(p)
		n.write(p, 0, "seen by both")
		inside := fmt.Sprintf("/proc/%d/root%s/data", n.kubelet.cmd.Process.Pid, n.podDir(p, 0))
		text, err := os.ReadFile(inside)
		if string(text) != "seen by both" {
			t.Errorf("kubelet's namespace has %q, %v", text, err)
		}
		n.end(p)
		n.quiet()
	})
}

// Without propagation the pod would write to the disk below the mount: refused.
func TestKubeletWithoutPropagation(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, m)
			n.failures = true
			n.claim("a", 16*mib)
			n.killKubelet()
			n.startKubelet(func(c *exec.Cmd, s *Setup) {
				c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: syscall.CLONE_NEWNS}
				// No more than its own: private copies of other nodes' mounts would keep their devices busy.
				s.Private = n.Dir
			})
			p := pod("web", "a")
			n.want(p)
			n.warned(p, "namespace")
			if v := n.volumes(); len(v) > 0 {
				t.Errorf("mounted where the pod does not see it: %v", v)
			}
			n.end(p)
		})
	}
}
