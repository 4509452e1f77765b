//go:build vm

package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
)

// soon is how long this slow machine may take for what is quick.
const soon = 4 * time.Minute

// A flow is a sequence of events on the node in one test. At its end nothing is mounted, and no call has
// failed.
type flow struct {
	*testing.T
	*node
	said map[string]int64 // how long each log was when it began
}

func newFlow(t *testing.T, n *node) *flow {
	f := &flow{T: t, node: n, said: map[string]int64{}}
	for _, log := range []string{flexdLog, kubeletLog} {
		if st, err := os.Stat(log); err == nil {
			f.said[log] = st.Size()
		}
	}
	t.Cleanup(func() {
		if t.Failed() && !n.reported { // a flow's failure is one of TestNode, too
			n.reported = true
			f.show()
		}
	})
	return f
}

// show prints the state of the node, for a failed test.
func (f *flow) show() {
	list, err := exec.Command("flexd", "status").CombinedOutput()
	f.Logf("flexd status: %v\n%s", err, list)
	f.Logf("mounts:\n%s", strings.Join(f.mounts(), "\n"))
	f.Logf("what kubelet asked and flexd did:\n%s", f.since(flexdLog))
	logs, _ := filepath.Glob("/var/log/pods/*/*/*.log")
	for _, log := range logs { // of pods that have not ended
		f.Logf("%s:\n%s", log, tail(log, 5, nil))
	}
	f.Logf("kubelet about it:\n%s", tail(kubeletLog, 30, ours.MatchString))
	f.Logf("the end of kubelet's log:\n%s", tail(kubeletLog, 30, nil))
}

// ours matches lines of kubelet's log about flexVolumes.
var ours = regexp.MustCompile(`(?i)flexvolume|flexd|volume|default/|pod=`)

// attach installs the driver in that mode. All volumes must be unmounted before it can change.
func (f *flow) attach(mode string) {
	f.Helper()
	if f.attaches != mode {
		f.must(install("first", "--attach="+mode))
		f.attaches = mode
	}
}

// want makes kubelet run a pod with the volume.
func (f *flow) want(pod, lv string) {
	f.Helper()
	text, err := os.ReadFile("testdata/pod.yaml")
	f.must(err)
	manifest := strings.NewReplacer("NAME", pod, "VOLUME", lv).Replace(string(text))
	f.must(os.WriteFile(manifests+"/."+pod, []byte(manifest), 0o644)) // kubelet does not see it yet
	f.must(os.Rename(manifests+"/."+pod, manifests+"/"+pod+".yaml"))
}

// forget makes kubelet end a pod.
func (f *flow) forget(pod string) {
	f.Helper()
	f.must(os.Remove(manifests + "/" + pod + ".yaml"))
}

// podDir returns kubelet's directory for a pod's volume.
func podDir(pod string) string { return kubelet + "/pods/uid-" + pod + "/volumes/flexd~lvm/data" }

// global is kubelet's directory for every volume with attach:true, since these pods' volumes all have one
// name.
const global = kubelet + "/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/data"

// writes waits until a pod writes to its volume, from now on.
func (f *flow) writes(pod string) {
	f.Helper()
	before := read(podDir(pod) + "/" + pod + ".beat")
	f.await(pod+" writes", func() bool { return read(podDir(pod)+"/"+pod+".beat") != before })
}

// runs waits until a pod's volume has the expected content, and the pod writes to it.
func (f *flow) runs(pod string, log ...string) {
	f.Helper()
	for end := time.Now().Add(soon); time.Now().Before(end) && !slices.Equal(diary(pod), log); {
		time.Sleep(20 * time.Millisecond)
	}
	f.holds(pod, log...)
	f.writes(pod)
}

// restart has a pod's container end by itself. Kubelet starts the next one when it
// knows the pod and has seen to its volume.
func (f *flow) restart(pod string) {
	f.Helper()
	f.must(os.WriteFile(podDir(pod)+"/"+pod+".exit", nil, 0o644))
}

// holds checks that a pod's volume has exactly these entries, in this order.
func (f *flow) holds(pod string, log ...string) {
	f.Helper()
	if got := diary(pod); !slices.Equal(got, log) {
		f.Fatalf("the volume of %s holds %q, not %q", pod, got, log)
	}
}

// diary returns the text that pods have written to a pod's volume.
func diary(pod string) []string {
	return strings.Split(strings.TrimSuffix(read(podDir(pod)+"/log"), "\n"), "\n")
}

// ended waits until kubelet has removed a pod completely.
func (f *flow) ended(pods ...string) {
	f.Helper()
	for _, pod := range pods {
		f.await("the end of "+pod, func() bool {
			_, err := os.Stat(kubelet + "/pods/uid-" + pod)
			return os.IsNotExist(err)
		})
	}
}

// mounts lists where flexVolumes are mounted.
func (f *flow) mounts() []string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	f.must(err)
	var dirs []string
	for line := range strings.Lines(string(text)) {
		if dir := strings.Fields(line)[4]; strings.Contains(dir, "/flexd~lvm/") || strings.Contains(dir, "/flexvolume/") {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// mounted checks that exactly these pods' volumes are mounted, each once.
func (f *flow) mounted(pods ...string) {
	f.Helper()
	var dirs []string
	for _, pod := range pods {
		dirs = append(dirs, podDir(pod))
	}
	f.mountedAt(dirs...)
}

func (f *flow) mountedAt(want ...string) {
	f.Helper()
	slices.Sort(want)
	if got := f.mounts(); !slices.Equal(got, want) {
		f.Errorf("mounted at %v, not at %v", got, want)
	}
}

// active lists the volumes that have a device.
func (f *flow) active() []string {
	all, err := devmapper.New().List()
	f.must(err)
	var lvs []string
	for _, d := range all {
		lvs = append(lvs, strings.TrimPrefix(d.Name, vg+"-"))
	}
	slices.Sort(lvs)
	return lvs
}

// over waits until nothing is mounted and no volume active, and verifies that no
// call failed.
func (f *flow) over() {
	f.Helper()
	f.await("an end without mounts and devices", func() bool { return len(f.mounts()) == 0 && len(f.active()) == 0 })
	f.well()
}

// complaints match the messages of kubelet and flexd about a failed call.
var complaints = map[string]*regexp.Regexp{
	kubeletLog: regexp.MustCompile(`^[EWF].*(?i)(nestedpendingoperations|driver-call|flexvolume|flexd|volume|orphaned)`),
	flexdLog:   regexp.MustCompile(`^\S+ (WARN .*  (failure|refused)  |ERROR|FATAL|PANIC)`),
}

// daemonSetPod matches messages about the DaemonSet's pod, which refuses, and whose probe may be canceled.
var daemonSetPod = regexp.MustCompile(`flexd/flexd-node-1|"ExecSync cmd from runtime service failed"`)

// unmountedTwice matches a second unmount, which kubelet starts from an old list of mounts: it finds no
// directory, and makes no call.
var unmountedTwice = regexp.MustCompile(`Unmount skipped because path does not exist`)

// callID is that of a call without a waiting caller: what becomes of it, no pod sees.
var (
	callID = regexp.MustCompile(` call=(\w+)`)
	hungUp = regexp.MustCompile(` call=(\w+)  not answered, the caller hung up`)
)

// well checks that no call failed since the flow began, and that there are no disagreements.
func (f *flow) well() {
	f.Helper()
	unseen := map[string]bool{}
	for _, m := range hungUp.FindAllStringSubmatch(f.since(flexdLog), -1) {
		unseen[m[1]] = true
	}
	for log, complaint := range complaints {
		for line := range strings.Lines(f.since(log)) {
			if m := callID.FindStringSubmatch(line); m != nil && unseen[m[1]] {
				continue
			}
			if complaint.MatchString(line) && !daemonSetPod.MatchString(line) && !unmountedTwice.MatchString(line) {
				f.Errorf("%s: %s", filepath.Base(log), line)
			}
		}
	}
	if out, err := exec.Command("flexd", "check").CombinedOutput(); err != nil {
		f.Errorf("flexd check: %v\n%s", err, out)
	}
}

// examined checks that flexd doctor finds this kubelet and its driver, and no error.
func (f *flow) examined() {
	f.Helper()
	out, err := exec.Command("flexd", "doctor", "--all").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ok      kubelet/process") || !strings.Contains(string(out), "ok      driver/attach-mode") {
		f.Errorf("flexd doctor: %v\n%s", err, out)
	}
}

// since returns the lines of a log since the flow began.
func (f *flow) since(log string) string {
	text := read(log)
	return text[min(f.said[log], int64(len(text))):]
}

var call = regexp.MustCompile(`(?m)^.*  call  .*verb=(\w+)`)

// called checks that kubelet has called these verbs since the flow began, in this order.
func (f *flow) called(verbs ...string) {
	f.Helper()
	var got []string
	for _, m := range call.FindAllStringSubmatch(f.since(flexdLog), -1) {
		got = append(got, m[1])
	}
	if got, want := strings.Join(got, " "), strings.Join(verbs, " "); got != want {
		f.Errorf("kubelet called %s, not %s", got, want)
	}
}

// during calls do after flexd has taken a step for the mount of a new volume, and before the call is
// answered.
func (f *flow) during(step string, do func()) {
	f.Helper()
	taken := regexp.MustCompile(`step="?` + step + `"?  done`)
	before := f.count(taken)
	f.await(step, func() bool { return f.count(taken) > before })
	answered := f.count(success)
	do()
	if f.count(success) > answered {
		f.Fatalf("%s: the call was answered too early for this test", step)
	}
}

var success = regexp.MustCompile(`  success  .*verb=mount`)

func (f *flow) count(what *regexp.Regexp) int { return len(what.FindAllString(f.since(flexdLog), -1)) }

// kill ends a daemon as the kernel does, when memory is short.
func (f *flow) kill(d *daemon) {
	f.Helper()
	f.must(d.end(syscall.SIGKILL))
}

func (f *flow) await(what string, holds func() bool) {
	f.Helper()
	for end := time.Now().Add(soon); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			f.Fatalf("not within %v: %s", soon, what)
		}
	}
}

func (f *flow) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// read returns a file's text, or "" if it is missing.
func read(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}
