package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A new pod may have the volume while an old one's unmount failed as busy.
func TestBusyThenWantedAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, old, fresh := h.vol("again", "ext4"), podN(1), podN(2)
	h.ok(h.up(byKubelet, v, old))
	c := h.holder(h.podDir(v, old))
	h.refused(h.unmount(v, old), "busy")
	h.ok(h.up(byKubelet, v, fresh))
	h.write(v, fresh, "f", "mine")
	c.Process.Kill()
	c.Wait()
	h.ok(h.unmount(v, old))
	h.reads(v, fresh, "f", "mine")
	h.end(byKubelet, v, fresh)
}

// Somebody mounts over a directory of kubelet's in which our mounts are: they stand
// in the mount table as before, and no path leads to them.
func TestMountedOverKubeletsDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p, q := h.vol("a", "ext4"), podN(1), podN(2)
	h.ok(h.up(byKubelet, v, p))
	h.write(v, p, "f", "x")
	for _, below := range []string{"pods", "plugins"} {
		dir, again, release := h.podDir(v, p), func() answer { return h.call("mount", h.podDir(v, p), v.blob(&p)) }, func() answer { return h.call("unmount", h.podDir(v, p)) }
		if below == "plugins" {
			dir, again, release = h.globalDir(v), func() answer { return h.call("mountdevice", h.globalDir(v), "", v.blob(nil)) }, func() answer { return h.call("unmountdevice", h.globalDir(v)) }
		}
		over := h.root + "/" + below
		h.must(unix.Mount("foreign-source", over, "tmpfs", 0, "size=64k"))
		h.must(os.MkdirAll(dir, 0o750))
		h.refused(again(), "vg0/a", dir, "tmpfs", "foreign-source", over)
		h.refused(release(), "vg0/a", "tmpfs", over, "unmount that first")
		if below == "plugins" {
			h.must(os.MkdirAll(h.podDir(v, q), 0o750))
			h.refused(h.call("mount", h.podDir(v, q), v.blob(&q)), "global mount", "covered", over)
		}
		h.eventually("status tells", func() string {
			s := h.story("a")
			for _, c := range s.Claims {
				if c.Dir == dir && strings.Contains(c.Note, "covered") && strings.Contains(c.Note, over) {
					return ""
				}
			}
			return fmt.Sprintf("%+v", s)
		})
		h.must(unix.Unmount(over, 0))
		h.ok(again())
		h.reads(v, p, "f", "x")
	}
	h.end(byKubelet, v, p)
}

func TestForeignMounts(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	tmpfs := func(dir string) {
		t.Helper()
		h.must(unix.Mount("foreign-source", dir, "tmpfs", 0, "size=64k"))
	}
	for _, m := range []mode{noAttach, byKubelet} {
		v, p, q := h.vol(fmt.Sprintf("foreign-%d", len(m)), "ext4"), podN(1), podN(2)
		h.ok(h.up(m, v, q))
		h.write(v, q, "f", "data")

		// Under: where a mount is to be made there is one.
		dir, set, release := h.podDir(v, p), func() answer { return h.call("mount", h.podDir(v, p), v.blob(&p)) }, func() answer { return h.call("unmount", h.podDir(v, p)) }
		if m != noAttach {
			h.ok(h.unmount(v, q))
			h.ok(h.down(m, v))
			dir = h.globalDir(v)
			set, release = func() answer { return h.call("mountdevice", dir, "", v.blob(nil)) }, func() answer { return h.call("unmountdevice", dir) }
		}
		h.sh("mkdir", "-p", dir)
		tmpfs(dir)
		h.refused(set(), "vg0/"+v.opts["volumeID"], dir, "tmpfs", "foreign-source")
		h.refused(release(), dir, "tmpfs", "foreign-source", "unmount it by hand")
		if n := len(mounts(dir)); n != 1 {
			t.Errorf("%d mounts at %s", n, dir)
		}
		h.must(unix.Unmount(dir, 0))

		// Over: ours is covered.
		h.ok(set())
		tmpfs(dir)
		h.refused(release(), "vg0/"+v.opts["volumeID"], dir, "tmpfs", "foreign-source", "unmount that first")
		h.refused(set(), dir, "tmpfs")
		if n := len(mounts(dir)); n != 2 {
			t.Errorf("%d mounts at %s", n, dir)
		}
		h.eventually("status tells", func() string {
			s := h.story(v.opts["volumeID"])
			for _, c := range s.Claims {
				if c.Dir == dir && strings.Contains(c.Note, "covered") && strings.Contains(c.Note, "tmpfs") {
					return ""
				}
			}
			return fmt.Sprintf("%+v", s)
		})
		h.must(unix.Unmount(dir, 0))
		h.ok(release())
		if m == noAttach {
			h.reads(v, q, "f", "data")
		}
		h.end(m, v, p, q)
	}
}

// leak runs a program in a mount namespace of its own, which has a copy of all that
// is mounted, until it is killed; first it runs a command there.
func (h *host) leak(first ...string) *exec.Cmd {
	h.t.Helper()
	c := exec.Command("unshare", append([]string{"-m", "--propagation", "private", "sh", "-c", `"$@" && echo && exec sleep 1000`, "sh"}, first...)...)
	out, err := c.StdoutPipe()
	h.must(err)
	h.must(c.Start())
	h.t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	out.Read(make([]byte, 1)) // the copy is made
	return c
}

// namespace is the mount namespace of a process, as lsns(8) numbers it.
func namespace(t *testing.T, pid int) string {
	t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// Another mount namespace has a copy of the mount, as a container runtime may
// leave one: whoever needs the device alone is told whose it is.
func TestHeldInOtherNamespace(t *testing.T) {
	t.Parallel()
	need(t, "unshare")
	h := newHost(t)
	v, p := h.vol("held", "ext4"), podN(1)
	h.ok(h.up(noAttach, v, p))
	c := h.leak("true")
	// Kubelet's rmdir of the directory would take the copy away with it.
	mount := func(p pod) answer {
		h.must(os.MkdirAll(h.podDir(v, p), 0o750))
		return h.call("mount", h.podDir(v, p), v.blob(&p))
	}
	h.ok(h.call("unmount", h.podDir(v, p)))
	words := []string{fmt.Sprintf("is busy: pid %d (", c.Process.Pid), "mounted in its mount namespace " + namespace(t, c.Process.Pid) + " at " + h.podDir(v, p)}
	h.refused(mount(p), append(words, "vg0/held: mount: fsck")...)
	h.eventually("status tells why it stays active", func() string {
		if s := h.story("held"); s.State == "failed" && s.Error.Step == "deactivate" && strings.Contains(s.Error.Message, words[0]) && strings.Contains(s.Error.Message, words[1]) {
			return ""
		} else {
			return fmt.Sprintf("%+v %+v", s, s.Error)
		}
	})
	// Several who wait for one step are told the same.
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			a := mount(podN(i))
			h.refused(a, words...)
			if strings.Count(a.Message, "fsck") != 1 {
				t.Errorf("it stutters: %s", a)
			}
		})
	}
	all.Wait()
	c.Process.Kill()
	c.Wait()
	h.ok(h.up(noAttach, v, p))
	h.end(noAttach, v, p)
}
