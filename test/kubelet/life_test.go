package kubelet

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

func TestPodStartsAndEnds(t *testing.T) {
	always(t, func(t *testing.T, n *node) {
		p := n.web()
		n.write(p, 0, "kept")
		n.end(p)
		n.quiet()
		n.golden("life")
		n.run(p)
		n.read(p, 0, "kept")
	})
}

// A kubelet that attaches by itself asks a driver with attach:false for mounts only.
func TestAttachFalseWhereKubeletAttaches(t *testing.T) {
	t.Parallel()
	n := newNode(t, noAttach)
	n.killKubelet()
	n.startKubelet(func(_ *exec.Cmd, s *Setup) { s.ControllerAttach = false })
	p, q := inline(pod("one"), "data", flex("a")), inline(pod("two"), "data", flex("b"))
	n.run(p, q)
	n.write(p, 0, "first")
	n.write(q, 0, "second")
	n.read(p, 0, "first")
	n.end(p, q)
	if c := n.trace().of("attach", "waitforattach", "mountdevice", "unmountdevice", "detach"); len(c) > 0 {
		t.Errorf("kubelet calls:\n%s", c)
	}
}

func TestTwoPodsOnOneVolume(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.claim("a", 16*mib)
		one, two := pod("one", "a"), pod("two", "a")
		n.run(one)
		n.write(one, 0, "shared")
		n.run(two)
		n.read(two, 0, "shared")
		n.end(one)
		n.write(two, 0, "still here")
		n.run(one)
		n.read(one, 0, "still here")
		calls := n.trace()
		if got := len(calls.of("mount")); got != 3 {
			t.Errorf("%d calls of mount, want 3", got)
		}
		if got, want := len(calls.of("mountdevice")), map[mode]int{noAttach: 0, byKubelet: 1, byController: 1}[n.mode]; got != want {
			t.Errorf("%d calls of mountdevice, want %d", got, want)
		}
		n.end(one, two)
	})
}

// The new pod of a Deployment starts before the old one has ended.
func TestPodRecreatedAtOnce(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.claim("a", 16*mib)
		old := pod("web-0", "a")
		n.run(old)
		n.write(old, 0, "first")
		for _, name := range []string{"web-1", "web-2", "web-3"} {
			fresh := pod(name, "a")
			n.want(fresh)
			n.forget(old)
			n.started(fresh)
			n.read(fresh, 0, "first")
			n.ended(old)
			n.read(fresh, 0, "first")
			old = fresh
		}
		n.end(old)
	})
}

// A pod may read another pod's data, in either order of their starts.
func TestReadOnlyBesideReadWrite(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.claim("a", 16*mib)
		writer, reader := pod("writer", "a"), readOnly(pod("reader", "a"))
		for _, order := range [][2]*v1.Pod{{writer, reader}, {reader, writer}} {
			n.run(order[0])
			n.run(order[1])
			n.write(writer, 0, "seen")
			n.read(reader, 0, "seen")
			if err := os.WriteFile(n.podDir(reader, 0)+"/data", nil, 0o644); err == nil || !strings.Contains(err.Error(), "read-only") {
				t.Errorf("the reader writes: %v", err)
			}
			n.end(writer, reader)
			n.quiet()
		}
	})
}

func TestFSGroup(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		p := n.web()
		n.write(p, 0, "root's")
		n.end(p)
		group := int64(2000)
		q := pod("grouped", "a")
		q.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
		n.run(q)
		for _, f := range []string{"", "/data"} {
			st, err := os.Stat(n.podDir(q, 0) + f)
			n.must(err)
			if gid := st.Sys().(*syscall.Stat_t).Gid; gid != 2000 {
				t.Errorf("%q has group %d", f, gid)
			}
		}
		mounts := n.trace().of("mount")
		if last := mounts[len(mounts)-1]; !strings.Contains(last.Argv[2], `"kubernetes.io/mounterArgs.FsGroup":"2000"`) {
			t.Errorf("flexdriver got no answer: %s", last)
		}
	})
}

// Kubelet reports the disk usage of a pod's volume.
func TestMetrics(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.claim("a", 64*mib, "size", "64Mi")
		p := pod("web", "a")
		n.run(p)
		n.must(os.WriteFile(n.podDir(p, 0)+"/big", make([]byte, 20*mib), 0o644))
		unix.Sync()
		var m struct{ Capacity, Used int64 }
		n.must(n.ask("Metrics", VolumeOf{UID: p.UID, Volume: "a"}, &m))
		if m.Capacity < 50*mib || m.Capacity > 64*mib {
			t.Errorf("capacity %d MiB, of 64", m.Capacity/mib)
		}
		if m.Used < 20*mib || m.Used > 30*mib {
			t.Errorf("used %d MiB, 20 were written", m.Used/mib)
		}
	})
}

// A container may get a directory of a volume: kubelet bind-mounts it below its own directories, and unmounts
// it before unmount.
func TestSubpath(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		p := n.web()
		var path string
		n.must(n.ask("Subpath", VolumeOf{p.UID, "a", "sub/dir"}, &path))
		if !mounted(path) {
			t.Fatalf("%s is no mount point", path)
		}
		n.must(os.WriteFile(path+"/file", []byte("through the subpath"), 0o644))
		text, err := os.ReadFile(n.podDir(p, 0) + "/sub/dir/file")
		if string(text) != "through the subpath" {
			t.Errorf("%q, %v", text, err)
		}
		n.end(p)
		n.quiet()
	})
}
