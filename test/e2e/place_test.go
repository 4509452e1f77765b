package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flexd/flexd/test/umount"
	"golang.org/x/sys/unix"
)

// shared makes dir a mount point whose mounts propagate.
func (h *host) shared(dir string) {
	h.t.Helper()
	h.must(os.MkdirAll(dir, 0o755))
	h.must(unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	h.must(unix.Mount("", dir, "", unix.MS_SHARED, ""))
}

// A mount in a directory with another driver's name would count as another driver's.
func TestAnotherDriversDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("named", "ext4"), podN(1)
	for verb, dir := range map[string]string{
		"mount":       strings.Replace(h.PodDir(p, v), "flexd~", "acme~", 1),
		"mountdevice": strings.Replace(h.GlobalDir(v), "/flexd/", "/acme/", 1),
	} {
		h.must(os.MkdirAll(dir, 0o750))
		args := map[string][]string{"mount": {dir, v.Blob(&p)}, "mountdevice": {dir, "", v.Blob(nil)}}[verb]
		h.refused(h.call(append([]string{verb}, args...)...), "vg0/named", dir, "of the driver flexd/lvm", "`driver` in flexd's configuration")
		if mounted(dir) {
			t.Errorf("%s: it is mounted", verb)
		}
		h.ok(h.call("un"+verb, dir))
	}
	h.ok(h.up(noAttach, v, p))
	h.ok(h.unmount(v, p))
}

// take unmounts the mounts of a test below its directory, the last first.
func (h *host) take(dirs ...string) {
	h.t.Helper()
	for _, d := range dirs {
		h.must(umount.Plain(d))
	}
}

// Kubelet's root is behind a symlink: kubelet and the configuration may use either path.
func TestRootBehindSymlink(t *testing.T) {
	t.Parallel()
	for _, configured := range []string{"link", "real", "both"} {
		t.Run(configured, func(t *testing.T) {
			h := newHost(t, func(h *host) {
				h.must(os.Rename(h.Root, h.Dir+"/real"))
				h.must(os.Symlink("real", h.Root))
				h.settings.roots = map[string][]string{"link": {h.Root}, "real": {h.Dir + "/real"}, "both": {h.Root, h.Dir + "/real"}}[configured]
			})
			link, real := h.Root, h.Dir+"/real"
			v, p := h.vol("a", "ext4"), podN(1)
			// The player looks for mounts where the mount table shows them.
			through := func(root string) string { h.Root = root; return h.PodDir(p, v) }
			h.must(os.MkdirAll(through(link), 0o750))
			h.ok(h.call("mount", through(link), v.Blob(&p)))
			h.ok(h.call("mount", through(real), v.Blob(&p))) // the same again
			if n := len(mounts(through(real))); n != 1 {
				t.Errorf("mounted %d times", n)
			}
			h.write(v, p, "f", "x")
			if s := h.story("a"); len(s.Claims) != 1 || len(s.Pods) != 1 || s.State != "mounted" {
				t.Errorf("status: %+v", s)
			}
			h.restart()
			h.ok(h.call("unmount", through(link)))
			h.ok(h.call("unmount", through(real)))
			if mounted(through(real)) {
				t.Error("still mounted")
			}
			// And the whole life, staged by one path and released by the other.
			h.Root = real
			h.ok(h.up(byKubelet, v, p))
			h.reads(v, p, "f", "x")
			h.ok(h.call("unmount", through(link)))
			h.Root = link
			h.ok(h.call("unmountdevice", h.GlobalDir(v)))
			h.Root = real
			if m := mounts(h.Dir); len(m) != 0 {
				t.Errorf("mounted: %q", m)
			}
		})
	}
}

// A directory above a mount is renamed. The kernel reports no change of the mount table.
func TestRenamedDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, w, p, q := h.vol("a", "ext4"), h.vol("b", "ext4"), podN(1), podN(2)
	pods := h.Root + "/pods"
	h.ok(h.up(noAttach, v, p))
	h.ok(h.up(noAttach, w, q))

	// The directories are made anew: nothing is mounted there, and the volume is elsewhere.
	h.must(os.Rename(pods, pods+".old"))
	h.must(os.MkdirAll(h.PodDir(p, v), 0o750))
	h.refused(h.call("mount", h.PodDir(p, v), v.Blob(&p)), "it is mounted at "+pods+".old/")
	h.must(os.MkdirAll(h.PodDir(q, w), 0o750))
	h.ok(h.call("unmount", h.PodDir(q, w)))

	// Renamed back: the mounts are there again.
	h.must(os.RemoveAll(pods))
	h.must(os.Rename(pods+".old", pods))
	h.ok(h.call("unmount", h.PodDir(p, v)))
	h.ok(h.call("unmount", h.PodDir(q, w)))
	if m := mounts(h.Dir); len(m) != 0 {
		t.Errorf("mounted: %q", m)
	}
}

// A file is in the place of a pod's directory, whose volume was unmounted from outside: nothing can be mounted there, so
// the unmount succeeds.
func TestFileForPod(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p, q := h.vol("a", "ext4"), podN(1), podN(2)
	h.ok(h.up(noAttach, v, p))
	dir := h.PodDir(p, v)
	h.must(umount.Plain(dir))
	pod := filepath.Dir(filepath.Dir(filepath.Dir(dir)))
	h.must(os.RemoveAll(pod))
	h.must(os.WriteFile(pod, nil, 0o600))
	h.refused(h.call("mount", dir, v.Blob(&p)), "vg0/a", dir+" does not exist")
	h.ok(h.call("unmount", dir))
	h.ok(h.up(noAttach, v, q))
	h.end(noAttach, v, q)
	h.quiet()
}

// Kubelet's root is moved while pods run, and its path becomes a link: their claims are not missing. If pods/
// is the link, no pod gets a volume, and the refusal names the link.
func TestRootMoved(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	root := h.Root
	v, w, p, q := h.vol("a", "ext4"), h.vol("b", "ext4"), podN(1), podN(2)
	h.ok(h.up(noAttach, v, p))
	h.ok(h.up(noAttach, w, q))
	h.must(os.Rename(root, h.Dir+"/real"))
	h.must(os.Symlink("real", root))
	agree := func() {
		t.Helper()
		h.eventually("check agrees", func() string {
			if out, code := h.check(); code != 0 {
				return out
			}
			return ""
		})
	}
	agree()
	h.ok(h.call("unmount", h.PodDir(p, v)))
	agree()
	h.Root = h.Dir + "/real"
	h.restart()
	agree()
	h.ok(h.call("unmount", strings.Replace(h.PodDir(q, w), h.Root, root, 1)))

	h.must(os.Rename(h.Root+"/pods", h.Root+"/pods.disk"))
	h.must(os.Symlink("pods.disk", h.Root+"/pods"))
	h.must(os.MkdirAll(h.PodDir(p, v), 0o750))
	h.refused(h.call("mount", h.PodDir(p, v), v.Blob(&p)), "vg0/a", h.Root+"/pods is a symbolic link", "mount --bind")
}

// Kubelet's directory is bind-mounted elsewhere: with shared propagation each mount of flexd appears at two
// paths, and counts once.
func TestRootUnderTwoPaths(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprintf("both configured %v", both), func(t *testing.T) {
			h := newHost(t, func(h *host) {
				h.shared(h.Root)
				h.must(os.MkdirAll(h.Dir+"/alias", 0o755))
				h.must(unix.Mount(h.Root, h.Dir+"/alias", "", unix.MS_BIND, ""))
				if both {
					h.settings.roots = []string{h.Root, h.Dir + "/alias"}
				}
			})
			v, p, q := h.vol("a", "ext4"), podN(1), podN(2)
			for _, m := range modes {
				h.ok(h.up(m, v, p))
				h.write(v, p, "f", string(m))
				if alias := strings.Replace(h.PodDir(p, v), h.Root, h.Dir+"/alias", 1); !mounted(alias) {
					t.Errorf("%s: not seen at %s", m, alias)
				}
				h.ok(h.up(m, v, q))
				h.reads(v, q, "f", string(m))
				want := 2
				if m != noAttach {
					want = 3
				}
				if s := h.settled("a"); len(s.Claims) != want || len(s.Pods) != 2 || s.State != "mounted" {
					t.Errorf("%s: %d claims, want %d; status: %+v", m, len(s.Claims), want, s)
				}
				h.restart()
				if s := h.settled("a"); len(s.Claims) != want || len(s.Pods) != 2 || s.State != "mounted" {
					t.Errorf("%s: after a restart: %d claims, want %d; status: %+v", m, len(s.Claims), want, s)
				}
				h.end(m, v, p, q)
			}
			h.eventually("the leases end", func() string { return strings.Join(append(h.Active(), h.Notes()...), "; ") })
			h.take(h.Dir+"/alias", h.Root)
		})
	}
}

// Kubelet is started with another path of its directory while a pod runs: the mount is at both, and the call's
// path counts.
func TestRootAtAnotherPath(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprintf("both configured %v", both), func(t *testing.T) {
			h := newHost(t, func(h *host) { h.shared(h.Root) })
			root, alias := h.Root, h.Dir+"/alias"
			h.must(os.MkdirAll(alias, 0o755))
			h.must(unix.Mount(root, alias, "", unix.MS_BIND, ""))
			v, p, q := h.vol("a", "ext4"), podN(1), podN(2)
			h.ok(h.up(noAttach, v, p))
			h.write(v, p, "f", "x")
			h.kill()
			h.settings.roots = []string{alias}
			if both {
				h.settings.roots = []string{root, alias}
			}
			h.configure()
			h.start()
			h.Root = alias
			for range 2 {
				h.ok(h.call("mount", h.PodDir(p, v), v.Blob(&p)))
				h.reads(v, p, "f", "x")
				s := h.settled("a")
				if len(s.Claims) != 1 || s.Claims[0].Dir != h.PodDir(p, v) {
					t.Errorf("claims: %+v", s.Claims)
				}
				if text, code := h.check(); code != 0 {
					t.Errorf("check: %s", text)
				}
				h.restart()
			}
			h.ok(h.up(noAttach, v, q))
			h.reads(v, q, "f", "x")
			h.end(noAttach, v, p, q)
			if text, code := h.check(); code != 0 {
				t.Errorf("check: %s", text)
			}
			h.eventually("the leases end", func() string { return strings.Join(append(h.Active(), h.Notes()...), "; ") })
			h.Root = root
			h.take(alias, root)
		})
	}
}

// Kubelet's directory is bind-mounted elsewhere as a slave, and this mount again: each mount of flexd appears
// at three paths, and counts once.
func TestRootUnderSlavePaths(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(h *host) {
		h.shared(h.Root)
		h.must(os.MkdirAll(h.Dir+"/first", 0o755))
		h.must(os.MkdirAll(h.Dir+"/second", 0o755))
		h.must(unix.Mount(h.Root, h.Dir+"/first", "", unix.MS_BIND, ""))
		h.must(unix.Mount("", h.Dir+"/first", "", unix.MS_SLAVE, ""))
		h.must(unix.Mount("", h.Dir+"/first", "", unix.MS_SHARED, ""))
		h.must(unix.Mount(h.Dir+"/first", h.Dir+"/second", "", unix.MS_BIND, ""))
		h.must(unix.Mount("", h.Dir+"/second", "", unix.MS_SLAVE, ""))
	})
	v, p, q := h.vol("a", "ext4"), podN(1), podN(2)
	for _, m := range modes {
		h.ok(h.up(m, v, p))
		h.write(v, p, "f", string(m))
		if second := strings.Replace(h.PodDir(p, v), h.Root, h.Dir+"/second", 1); !mounted(second) {
			t.Errorf("%s: not seen at %s", m, second)
		}
		h.ok(h.up(m, v, q))
		h.reads(v, q, "f", string(m))
		h.restart()
		h.settled("a")
		if text, code := h.check(); code != 0 {
			t.Errorf("%s: check: %s", m, text)
		}
		h.end(m, v, p, q)
	}
	h.eventually("the leases end", func() string { return strings.Join(append(h.Active(), h.Notes()...), "; ") })
	h.take(h.Dir+"/second", h.Dir+"/first", h.Root)
}

// Kubelet's root is bound on itself below a shared mount, as for a kubelet in a
// container: each mount has a copy below it, which no lookup reaches.
func TestRootBoundOnItself(t *testing.T) {
	t.Parallel()
	bind := func(h *host) { h.must(unix.Mount(h.Root, h.Root, "", unix.MS_BIND, "")) }
	for _, layers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d times", layers), func(t *testing.T) {
			h := newHost(t, func(h *host) {
				h.shared(h.Dir)
				h.must(os.MkdirAll(h.Root, 0o755))
				for range layers {
					bind(h)
				}
			})
			v, p, q := h.vol("a", "ext4"), podN(1), podN(2)
			for _, m := range modes {
				h.ok(h.up(m, v, p))
				h.ok(h.call("mount", h.PodDir(p, v), v.Blob(&p)))
				if n := strings.Count(strings.Join(mounts(h.Root), "\n")+"\n", h.PodDir(p, v)+"\n"); n != 1<<layers { // each bind is copied, too
					t.Errorf("%s: the mount stands %d times", m, n)
				}
				h.write(v, p, "f", string(m))
				h.ok(h.up(m, v, q))
				h.reads(v, q, "f", string(m))
				h.restart()
				h.settled("a")
				if text, code := h.check(); code != 0 {
					t.Errorf("check: %s", text)
				}
				h.end(m, v, p, q)
			}
			h.eventually("the leases end", func() string { return strings.Join(append(h.Active(), h.Notes()...), "; ") })
			h.stop()
			for mounted(h.Root) {
				h.take(h.Root)
			}
			h.take(h.Dir)
		})
	}

	// Bound while mounts stand: these are out of reach until it is unmounted.
	t.Run("later", func(t *testing.T) {
		h := newHost(t, func(h *host) { h.shared(h.Dir) })
		old, fresh, p := h.vol("old", "ext4"), h.vol("fresh", "ext4"), podN(1)
		for _, m := range modes {
			h.ok(h.up(m, old, p))
			h.write(old, p, "f", "x")
			bind(h)
			h.ok(h.up(m, fresh, p))
			h.end(m, fresh, p)
			h.refused(h.call("unmount", h.PodDir(p, old)), "vg0/old", "over all of "+h.Root, "unmount that first")
			h.refused(h.call("mount", h.PodDir(p, old), old.Blob(&p)), "over all of "+h.Root)
			if text, code := h.check(); code == 0 || !strings.Contains(text, "covered") || !strings.Contains(text, h.PodDir(p, old)) {
				t.Errorf("check: %d, %s", code, text)
			}
			h.take(h.Root)
			h.reads(old, p, "f", "x")
			h.end(m, old, p)
		}
		h.eventually("the leases end", func() string { return strings.Join(append(h.Active(), h.Notes()...), "; ") })
		h.stop()
		h.take(h.Dir)
	})
}

// The propagation of kubelet's directory is changed without an event: a caller in another namespace would not
// see its mount.
func TestPropagationChanges(t *testing.T) {
	need(t, "unshare")
	h := newHost(t, func(h *host) { h.shared(h.Root) })
	v, p := h.vol("a", "ext4"), podN(1)
	dir := h.PodDir(p, v)
	h.must(os.MkdirAll(dir, 0o750))
	for range 3 {
		h.ok(h.inNamespace("slave", "mount", dir, v.Blob(&p)))
		h.ok(h.inNamespace("slave", "unmount", dir))
		h.must(unix.Mount("", h.Root, "", unix.MS_PRIVATE, ""))
		h.refused(h.inNamespace("slave", "mount", dir, v.Blob(&p)), "another mount namespace", "mount --make-shared "+h.Root+",")
		if mounted(dir) {
			t.Fatal("mounted")
		}
		h.must(unix.Mount("", h.Root, "", unix.MS_SHARED, "")) // as it says
	}
	h.eventually("the leases end", func() string { return strings.Join(append(h.Active(), h.Notes()...), "; ") })
	h.take(h.Root)
}

// flexd lives in another mount namespace than its caller.
//
// It is not parallel, and its namespaces let go of the mounts of other tests at
// once: a copy of a mount keeps its volume in use.
func TestOtherNamespace(t *testing.T) {
	need(t, "unshare")
	v, p, q := vol{}, podN(1), podN(2)

	// Private: the pod would never see the mount.
	h := newHost(t, func(h *host) { h.Enter = h.unshared("private", "true") })
	v = h.vol("a", "ext4")
	h.refused(h.up(noAttach, v, p), "vg0/a: mount", "another mount namespace", "would not see a mount", "mount --make-shared", "kubelet's namespace")
	h.refused(h.up(byKubelet, v, p), "vg0/a: mountdevice", "another mount namespace")
	h.state("a", "failed")
	if s := h.settled("a"); len(s.Claims) != 0 || !strings.Contains(s.Error.Message, "another mount namespace") { // the claim goes after the answer
		t.Errorf("status: %+v", s)
	}

	// Shared above kubelet's directory only, and not with the caller.
	h = newHost(t, func(h *host) {
		h.Enter = h.unshared("private", `mount --bind "$0/kubelet" "$0/kubelet" && mount --make-shared "$0/kubelet"`)
	})
	h.refused(h.up(noAttach, v, p), "vg0/a: mount", "another mount namespace", h.Root, "do not appear there")

	// Shared with the caller, as in a pod with Bidirectional propagation.
	h = newHost(t, func(h *host) {
		h.shared(h.Root)
		h.Enter = h.unshared("unchanged", "true")
	})
	for _, m := range modes {
		h.ok(h.up(m, v, p))
		h.write(v, p, "f", string(m))
		h.ok(h.up(m, readOnly(v), q))
		h.reads(v, q, "f", string(m))
		h.end(m, v, p, q)
	}
	h.eventually("the leases end", func() string { return strings.Join(append(h.Active(), h.Notes()...), "; ") })
	h.stop()
	h.take(h.Root)

	// The caller's mount is a slave of flexd's: it sees it.
	h = newHost(t, func(h *host) { h.shared(h.Root) })
	dir := h.PodDir(p, v)
	h.must(os.MkdirAll(dir, 0o750))
	h.ok(h.inNamespace("slave", "mount", dir, v.Blob(&p)))
	h.ok(h.call("unmount", dir))
	// The other way round it does not.
	h.refused(h.inNamespace("private", "mount", dir, v.Blob(&p)), "another mount namespace")
	// A mount that is there is no Success for a caller that does not have it.
	h.ok(h.call("mount", dir, v.Blob(&p)))
	h.refused(h.prepared("private", "umount "+dir, "mount", dir, v.Blob(&p)), "another mount namespace", "does not see that mount")
	h.ok(h.inNamespace("slave", "mount", dir, v.Blob(&p)))
	if !mounted(dir) {
		t.Error("not mounted any more")
	}
	// The caller's namespace is a slave of one that is a slave of flexd's.
	h.ok(h.call("unmount", dir))
	below := func(propagation string) []string {
		between := append(h.unshared("slave", "mount --make-rshared /"), "sh", "-c", `"$@"; exit $?`, "sh") // it stays there
		return append(between, h.unshared(propagation, "true")...)
	}
	h.ok(h.entered(below("slave"), "mount", dir, v.Blob(&p)))
	h.ok(h.entered(below("slave"), "unmount", dir))
	h.refused(h.entered(below("private"), "mount", dir, v.Blob(&p)), "do not appear there")
	h.ok(h.call("mount", dir, v.Blob(&p)))
	// An unmount does not reach this caller.
	h.refused(h.inNamespace("private", "unmount", dir), "another mount namespace", "has a mount there", "umount "+dir)
	if mounted(dir) {
		t.Error("still mounted")
	}
	h.eventually("the leases end", func() string { return strings.Join(append(h.Active(), h.Notes()...), "; ") })
	h.take(h.Root)
}

// inNamespace makes a call from a new mount namespace.
func (h *host) inNamespace(propagation string, args ...string) answer {
	h.t.Helper()
	return h.prepared(propagation, "true", args...)
}

// prepared is inNamespace after a preparation there.
func (h *host) prepared(propagation, prepare string, args ...string) answer {
	h.t.Helper()
	return h.entered(h.unshared(propagation, prepare), args...)
}

// entered makes a call by a command that runs it in other namespaces.
func (h *host) entered(enter []string, args ...string) answer {
	h.t.Helper()
	driver := h.Driver
	defer func() { h.Driver = driver }()
	enter = append(enter, driver)
	h.Driver = enter[0]
	a := h.callWith(nil, append(enter[1:], args...)...)
	a.about = args[0]
	return a
}

// unshared returns a command that runs its arguments in a new mount namespace without mounts of other tests,
// after a preparation that finds the host's directory in $0.
func (h *host) unshared(propagation, prepare string) []string {
	return []string{"unshare", "-m", "--propagation", propagation, "sh", "-c", `
		awk -v own="$0/" -v tmp="${0%/*}/" 'index($5, tmp) == 1 && index($5, own) != 1 { print $5 }' /proc/self/mountinfo | tac |
		while read -r m; do mount --make-private "$m" 2>/dev/null && umount -l "$m"; done
		` + prepare + ` && exec "$@"`, h.Dir}
}
