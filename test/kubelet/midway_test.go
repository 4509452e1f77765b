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
	"time"

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
	n.claim("growing", 304*mib, "fsType", "xfs", "size", "304Mi")
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

// settled waits until kubelet has had time for its own work: some rounds of its loops after
// it knows everything.
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
	n.eventually("kubelet releases them", func() string { return strings.Join(n.volumes(), " ") })
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
			if strings.HasPrefix(p+" ", n.Driver+" "+verb+" ") { // it overwrites its other arguments
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
