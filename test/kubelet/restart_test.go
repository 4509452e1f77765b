package kubelet

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/flexd/flexd/test/host"
)

// The calls of a pod's life that ask flexd, in each mode.
func (m mode) verbs() []string {
	return map[mode][]string{
		noAttach:     {"mount", "expandfs", "unmount"},
		byKubelet:    {"attach", "waitforattach", "mountdevice", "mount", "expandfs", "unmount", "unmountdevice", "detach"},
		byController: {"waitforattach", "mountdevice", "mount", "expandfs", "unmount", "unmountdevice"},
	}[m]
}

// A scene makes kubelet call a verb for a pod.
type scene struct {
	pod    *v1.Pod
	runs   bool   // the pod has to run before
	cause  func() // makes kubelet call
	passed func() // waits until kubelet has what it called for
}

// scene is a verb's, with a pod of that name. The volumes are prepared by props.
func (n *node) scene(verb, name string) scene {
	p := pod(name, "a")
	switch verb {
	case "unmount", "unmountdevice", "detach":
		return scene{p, true, func() { n.forget(p) }, func() { n.ended(p) }}
	case "expandfs":
		p = pod(name, "growing")
		var before, size int64
		cause := func() {
			before, size = n.space(p, 0), n.capacity("growing")+20*mib
			n.grow("growing", size)
			go n.ask("Start", p.UID, nil) // a pod worker's sync, which compares the sizes
		}
		return scene{p, true, cause, func() {
			n.eventually("the volume grows", func() string {
				n.started(p)
				if space, claimed := n.space(p, 0), n.claimed("growing"); space < before+10*mib || claimed != size {
					return fmt.Sprintf("%d MiB and before %d, the claim says %d of %d", space/mib, before/mib, claimed/mib, size/mib)
				}
				return ""
			})
		}}
	}
	return scene{p, false, func() { n.want(p) }, func() { n.started(p) }}
}

// props makes what scenes need. xfs: see TestExpansion.
func (n *node) props() {
	n.t.Helper()
	n.claim("a", 16*mib)
	n.claim("growing", 300*mib, "fsType", "xfs", "size", "300Mi")
}

// passes lets a pod see what the pod before it wrote to its volume, and write.
func (n *node) passes(p *v1.Pod, written map[string]string) {
	n.t.Helper()
	volume := volumeName(p, 0)
	if written[volume] != "" {
		n.read(p, 0, written[volume])
	}
	written[volume] = p.Name
	n.write(p, 0, p.Name)
}

func TestKubeletRestartsWhilePodsRun(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.claim("a", 16*mib)
		p := pod("web", "a")
		n.run(p)
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

// settled waits until kubelet has had time for whatever it does by itself: some
// rounds of its loops after it knows everything.
func (n *node) settled() {
	n.t.Helper()
	n.eventually("kubelet knows its volumes", func() string {
		var r Status
		if err := n.ask("Report", struct{}{}, &r); err != nil {
			return err.Error()
		}
		if !r.Known {
			return "not yet"
		}
		return ""
	})
	time.Sleep(400 * time.Millisecond)
}

// afresh gives the node a kubelet that has no volume, and so begins with the first
// verb: an old one may still have it attached.
func (n *node) afresh() {
	n.t.Helper()
	n.eventually("kubelet lets go", func() string { return strings.Join(n.volumes(), " ") })
	n.killKubelet()
	n.startKubelet()
}

// caught starts something, with flexd stopped just before the verb, and returns
// when the driver waits for it: kubelet is in the middle of the call.
func (n *node) caught(verb string, start func()) {
	n.t.Helper()
	n.must(n.ask("StopAt", StopAt{verb, n.Pid()}, nil))
	start()
	n.eventually("kubelet calls "+verb, func() string {
		for _, p := range n.Processes() {
			if strings.HasPrefix(p, n.Driver+" "+verb+" ") {
				return ""
			}
		}
		return fmt.Sprint(n.Processes())
	})
	time.Sleep(50 * time.Millisecond)
}

func (n *node) thaw() { syscall.Kill(n.Pid(), syscall.SIGCONT) }

// midway starts something, and stops flexd in the middle of the verb: it has read
// the call, a child of it is at work whose command line has that word, and nothing is
// answered. It returns the child. Until then flexd runs for an instant at a time, so that it
// does not notice the end of a child. False: it was too quick all the same, and runs.
func (n *node) midway(verb, word string, start func()) (int, bool) {
	n.t.Helper()
	n.caught(verb, start)
	flexd := n.Pid()
	log, err := os.Open(n.Log)
	n.must(err)
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	n.must(err)
	called, answered := regexp.MustCompile(`  called  .* verb=`+verb+"\n"), regexp.MustCompile(`  answered  .* verb=`+verb+"\n")
	for end := time.Now().Add(soon); time.Now().Before(end); {
		n.thaw()
		time.Sleep(200 * time.Microsecond)
		host.Stop(flexd)
		text, err := io.ReadAll(io.NewSectionReader(log, from, math.MaxInt32))
		n.must(err)
		if answered.Match(text) {
			n.thaw()
			return 0, false
		}
		if !called.Match(text) {
			continue
		}
		if instant(verb) {
			return 0, true
		}
		for _, child := range children(flexd) {
			if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child)); strings.Contains(string(line), word) {
				return child, true
			}
		}
	}
	n.t.Fatalf("flexd neither works on %s nor answers", verb)
	return 0, false
}

// instant verbs take flexd no child: to catch it between call and answer is luck.
func instant(verb string) bool { return verb == "attach" || verb == "detach" }

// children lists those of a process, the ones included whose end it has not noticed.
func children(pid int) []int {
	var all []int
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		for _, s := range strings.Fields(string(text)) {
			child, _ := strconv.Atoi(s)
			all = append(all, child)
		}
	}
	return all
}

// Kubelet is killed in the middle of each verb: flexd has not begun, or works. The
// driver lives on, or dies with kubelet; flexd does what it was asked before or after the
// next kubelet asks.
func TestKubeletKilledInEachVerb(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.failures = true // a call whose kubelet is gone may fail: nobody hears it
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
				if early { // flexd finds out that nobody waits
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

// Kubelet is killed at any moment of pods that come and go.
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

// A kubelet that starts without the driver never unmounts what a pod left that was
// deleted meanwhile, and flexd says so. The next kubelet does.
func TestDriverMissing(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.claim("a", 16*mib)
		p := pod("web", "a")
		n.run(p)
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

// processesOf says whether a pod's control group has processes, as version 2 does.
func (n *node) processesOf(p *v1.Pod, populated int) {
	n.t.Helper()
	dir := n.Dir + "/cgroup/kubepods/besteffort/pod" + string(p.UID)
	n.must(os.MkdirAll(dir, 0o755))
	n.must(os.WriteFile(dir+"/cpu.stat", []byte("usage_usec 1000\n"), 0o644))
	n.must(os.WriteFile(dir+"/cgroup.events", []byte(fmt.Sprintf("populated %d\nfrozen 0\n", populated)), 0o644))
}

// A kubelet that dies between unmount and unmountdevice leaves a global mount
// that no kubelet ever looks at again (it scans the pods' directories only). The
// next pod of the volume gets it, and the mount ends with that pod.
func TestGlobalMountLeftBehind(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{byKubelet, byController} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, m)
			n.failures = true // the unmountdevice that nobody hears
			n.claim("a", 16*mib)
			p := pod("web", "a")
			n.run(p)
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
	each(t, func(t *testing.T, n *node) {
		n.claim("a", 16*mib)
		p := pod("web", "a")
		n.run(p)
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
		n.claim("a", 16*mib)
		p := pod("web", "a")
		n.run(p)
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
