package kubelet

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

func TestKubeletRestartsWhilePodsRun(t *testing.T) {
	always(t, func(t *testing.T, n *node) {
		p := n.web()
		n.write(p, 0, "before")
		open, err := os.OpenFile(n.podDir(p, 0)+"/data", os.O_WRONLY|os.O_APPEND, 0) // the container's
		n.must(err)
		calls := n.since(func() {
			n.killKubelet()
			n.startKubelet()
			n.started(p)
			n.settled()
		})
		if c := calls.of("mount", "mountdevice", "unmount", "unmountdevice"); len(c) > 0 {
			t.Errorf("a mount of a running pod was touched:\n%s", c)
		}
		_, err = open.WriteString(" and after")
		n.must(err)
		n.must(open.Close())
		n.read(p, 0, "before and after")
		n.end(p)
		n.quiet()
		n.golden("restart")
	})
}

// Kubelet is killed during each verb, before or while flexd works on it. The driver survives, or dies with
// kubelet; flexd completes the call before or after kubelet's retry.
func TestKubeletKilledInEachVerb(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.failures = true // a call whose kubelet is gone may fail without an effect
		n.props()
		written := map[string]string{}
		for i, verb := range n.mode.verbs() {
			for j, both := range []bool{false, true, false} {
				s := n.scene(verb, fmt.Sprintf("web-%d-%d", i, j))
				if s.runs {
					n.run(s.pod)
					n.passes(s.pod, written)
				} else {
					n.afresh()
				}
				if works := j == 2; works {
					n.midway(verb, "", s.cause)
				} else {
					n.caught(verb, s.cause)
				}
				n.killKubelet()
				if both {
					for pid, p := range n.Processes() {
						if strings.HasPrefix(p, n.Driver+" ") {
							syscall.Kill(pid, syscall.SIGKILL)
						}
					}
				}
				early := (i+j)%2 == 0
				if early { // flexd detects that no caller waits
					n.thaw()
				}
				n.startKubelet()
				n.thaw()
				s.passed()
				if mounted(n.podDir(s.pod, 0)) {
					n.passes(s.pod, written)
				}
				n.end(s.pod)
			}
		}
		// The last kubelet may have forgotten a global mount: TestGlobalMountLeftBehind.
		p := pod("last", "a", "growing")
		n.run(p)
		n.read(p, 0, written["pv-a"])
		n.end(p)
		n.noWarnings()
	})
}

// noWarnings fails the test if a pod got one.
func (n *node) noWarnings() {
	n.t.Helper()
	if w := n.warnings(); len(w) > 0 {
		n.t.Errorf("warnings: %q", w)
	}
}

// Kubelet is killed at any moment while pods come and go.
func TestKubeletKilledAnywhere(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.failures = true // as above
		r := seeded(t)
		n.claim("a", 16*mib)
		n.claim("b", 16*mib)
		again := func() {
			time.Sleep(time.Duration(r.Int64N(int64(800 * time.Millisecond))))
			n.killKubelet()
			if r.IntN(2) == 0 {
				time.Sleep(time.Duration(r.Int64N(int64(300 * time.Millisecond))))
			}
			n.startKubelet()
		}
		for round := range times(6) {
			p, q := pod(fmt.Sprint("p-", round), "a", "b"), pod(fmt.Sprint("q-", round), "b")
			n.want(p, q)
			again()
			n.started(p, q)
			n.write(p, 1, p.Name)
			n.read(q, 0, p.Name)
			n.forget(p, q)
			again()
			n.ended(p, q)
		}
		p := pod("last", "a", "b") // gets what a kubelet has forgotten
		n.run(p)
		n.end(p)
		n.noWarnings()
	})
}

func TestPodDeletedWhileKubeletIsDown(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.claim("a", 16*mib)
		n.claim("b", 16*mib)
		gone, stays := pod("gone", "a"), pod("stays", "b")
		n.run(gone, stays)
		n.write(stays, 0, "mine")
		n.killKubelet()
		n.forget(gone)
		n.startKubelet()
		n.ended(gone)
		n.started(stays)
		n.read(stays, 0, "mine")
		n.eventually("the volume of the pod that is gone is released", func() string {
			for _, dir := range n.volumes() {
				if strings.HasSuffix(dir, "/pv-a") {
					return dir
				}
			}
			return ""
		})
	})
}

// A kubelet that starts without the driver never unmounts the volumes of pods that were deleted meanwhile,
// and flexd reports that. The next kubelet unmounts them.
func TestDriverMissing(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		p := n.web()
		n.processesOf(p, 1)
		dir := n.podDir(p, 0)
		n.killKubelet()
		n.must(os.Rename(n.plugins+"/flexd~lvm", n.Dir+"/moved"))
		n.forget(p)
		n.processesOf(p, 0)
		n.startKubelet()
		n.settled()
		n.must(os.Rename(n.Dir+"/moved", n.plugins+"/flexd~lvm"))
		n.eventually("flexd reports the mount", func() string {
			check, err := n.Get("/v1/check")
			n.must(err)
			for _, want := range []string{`"orphaned-pod"`, dir, "kubelet has not asked for the unmount", `"hint": "restart kubelet`, "flexd release " + dir} {
				if !strings.Contains(check, want) {
					return want + " is not in " + check
				}
			}
			story, err := n.Get("/v1/volumes/vg0/a")
			n.must(err)
			if !strings.Contains(story, `"state": "orphaned"`) {
				return story
			}
			return ""
		})
		if !mounted(dir) {
			t.Fatal("kubelet unmounts what it is said to forget: good news, rewrite this test")
		}
		n.killKubelet()
		n.startKubelet()
		n.ended(p)
	}, func(n *node) {
		n.settings.Lines += "cgroupDir: " + n.Dir + "/cgroup\n"
		n.must(os.MkdirAll(n.Dir+"/cgroup/kubepods", 0o755))
		n.must(os.WriteFile(n.Dir+"/cgroup/cgroup.procs", nil, 0o644))
	})
}

// processesOf reports whether a pod's control group has processes, as version 2 does.
func (n *node) processesOf(p *v1.Pod, populated int) {
	n.t.Helper()
	dir := n.Dir + "/cgroup/kubepods/besteffort/pod" + string(p.UID)
	n.must(os.MkdirAll(dir, 0o755))
	n.must(os.WriteFile(dir+"/cpu.stat", []byte("usage_usec 1000\n"), 0o644))
	n.must(os.WriteFile(dir+"/cgroup.events", []byte(fmt.Sprintf("populated %d\nfrozen 0\n", populated)), 0o644))
}

// A kubelet that dies between unmount and unmountdevice leaves a global mount that no kubelet cleans up (it
// scans the pods' directories only). The next pod of the volume gets it, and the mount ends with that pod.
func TestGlobalMountLeftBehind(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{byKubelet, byController} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, m)
			n.failures = true // the unmountdevice without a caller
			p := n.web()
			n.write(p, 0, "kept")
			n.caught("unmountdevice", func() { n.forget(p) })
			n.killKubelet()
			for pid := range n.Processes() {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			n.endFlexd(syscall.SIGKILL) // it has not read the call
			n.startFlexd()
			n.startKubelet()
			n.ended(p)
			n.settled()
			global := n.globalDir("pv-a")
			if !mounted(global) {
				t.Fatal("kubelet unmounts what it is said to forget: good news, rewrite this test")
			}
			story, err := n.Get("/v1/volumes/vg0/a")
			n.must(err)
			if !strings.Contains(story, global) {
				t.Errorf("flexd does not show the mount that is left: %s", story)
			}
			n.run(p)
			n.read(p, 0, "kept")
			n.end(p)
			n.eventually("the mount is gone", func() string {
				if mounted(global) {
					return global
				}
				return ""
			})
			n.noWarnings()
		})
	}
}

func TestRebootWithThePodStillWanted(t *testing.T) {
	always(t, func(t *testing.T, n *node) {
		p := n.web()
		n.write(p, 0, "survives")
		unix.Sync()
		n.reboot()
		n.startFlexd()
		n.startKubelet()
		n.started(p)
		n.read(p, 0, "survives")
		n.end(p)
		n.quiet()
		n.golden("reboot")
	})
}

func TestRebootWithThePodGone(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		p := n.web()
		n.reboot()
		n.forget(p)
		n.startFlexd()
		n.startKubelet()
		calls := n.since(func() {
			n.ended(p)
			n.quiet()
		})
		if c := calls.of("mount", "mountdevice", "waitforattach"); len(c) > 0 {
			t.Errorf("set up for a pod that is gone:\n%s", c)
		}
	})
}
