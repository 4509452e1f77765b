//go:build vm

package node

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// plugin is where kubelet finds the driver.
const plugin = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexd~lvm/lvm"

// cut is set when the node shall boot again.
var cut bool

// TestNode runs all flows in the first boot of a node. Each flow also runs alone.
func TestNode(t *testing.T) {
	n := &node{attaches: "true"}
	must := newFlow(t, n).must
	must(bootUp())
	must(together(
		func() error { return n.startContainerd("pod.tar") },
		func() error { return command("vgcreate", "-q", vg, "/dev/vdb") },
		// It finds that this kubelet attaches by itself, so attach:true is for it.
		func() error { return install("first") },
	))
	must(n.startFlexd())
	must(n.startKubelet())
	for _, flow := range []struct {
		name    string
		run     func(*flow)
		leftOut bool // of make test, which has the same on loop devices, or a slow flow
	}{
		{"attach:true", (*flow).attachTrue, true}, // test/cluster
		{"start and end", (*flow).startAndEnd, false},
		{"two pods on one volume", (*flow).twoPods, true}, // test/kubelet
		{"kubelet killed", (*flow).kubeletKilled, false},
		{"flexd killed and upgraded", (*flow).flexdKilledAndUpgraded, false},
		{"pages", (*flow).pages, true},
		{"reboot", (*flow).beforeReboot, false},
	} {
		if flow.leftOut && testing.Short() {
			continue
		}
		if !t.Run(flow.name, func(t *testing.T) { flow.run(newFlow(t, n)) }) {
			break // it has left something, and the next would fail of that
		}
	}
}

// A pod lives with the global mount; then another one, whose kubelet is killed.
func (f *flow) attachTrue() {
	f.attach("true")
	f.want("web", "web")
	f.runs("web", "web starts")
	f.mountedAt(global, podDir("web"))
	f.forget("web")
	f.ended("web")
	f.over()
	life := "attach waitforattach mountdevice mount unmount unmountdevice detach"
	f.called(life)

	f.want("next", "web")
	f.runs("next", "web starts", "web ends", "next starts")
	f.kill(f.kubelet)
	f.must(f.startKubelet())
	f.restart("next")
	f.runs("next", "web starts", "web ends", "next starts", "next starts")
	f.mountedAt(global, podDir("next"))
	f.forget("next")
	f.ended("next")
	f.over()
	// A kubelet that did not attach it itself does not detach it.
	f.called(life, "attach waitforattach mountdevice mount", "waitforattach unmount unmountdevice")
}

// A pod lives, with one restart of its container; then the pod that replaces it at once.
func (f *flow) startAndEnd() {
	f.attach("false")
	f.want("job", "job")
	f.runs("job", "job starts")
	f.restart("job")
	f.runs("job", "job starts", "job starts")
	f.mounted("job")
	f.examined()
	f.forget("job")
	f.ended("job")
	f.want("heir", "job")
	f.runs("heir", "job starts", "job starts", "job ends", "heir starts")
	f.mounted("heir")
	f.forget("heir")
	f.ended("heir")
	f.over()
	f.called("mount unmount", "mount unmount")
}

// The second pod starts while the first runs, and ends after it.
func (f *flow) twoPods() {
	f.attach("false")
	f.want("one", "shared")
	f.runs("one", "one starts")
	f.want("two", "shared")
	f.runs("two", "one starts", "two starts")
	f.mounted("one", "two")
	f.forget("one")
	f.ended("one")
	f.mounted("two")
	f.writes("two")
	f.holds("two", "one starts", "two starts", "one ends")
	f.forget("two")
	f.ended("two")
	f.over()
	f.called("mount mount unmount unmount")
}

// Kubelet is killed while one pod runs and another's volume is created; then a pod is deleted while kubelet
// is down.
func (f *flow) kubeletKilled() {
	f.attach("false")
	f.want("stays", "stays")
	f.runs("stays", "stays starts")
	f.want("late", "late")
	f.during("record format", func() { f.kill(f.kubelet) })
	f.writes("stays")
	f.must(f.startKubelet())
	f.runs("late", "late starts")
	f.writes("stays")
	f.holds("stays", "stays starts")
	f.mounted("late", "stays")

	f.kill(f.kubelet)
	f.forget("late")
	f.must(f.startKubelet())
	f.ended("late")
	f.mounted("stays")
	f.writes("stays")
	f.holds("stays", "stays starts")
	f.forget("stays")
	f.ended("stays")
	f.over()
	f.called("mount mount", "mount", "unmount", "unmount")
}

// flexd is killed while one pod runs and another's volume is created, and replaced by another version while a
// third pod is wanted.
func (f *flow) flexdKilledAndUpgraded() {
	f.attach("false")
	f.want("steady", "steady")
	f.runs("steady", "steady starts")
	f.want("slow", "slow")
	f.during("record format", func() { f.kill(f.flexd) })
	f.must(f.startFlexd())
	f.runs("slow", "slow starts")
	f.mounted("slow", "steady")

	f.must(install("next"))
	f.must(f.flexd.end(syscall.SIGTERM))
	f.want("third", "third")
	f.forget("slow")
	time.Sleep(2 * time.Second)
	f.must(f.startFlexd())
	if version, err := ask("/version"); err != nil || !strings.Contains(version, `"next"`) {
		f.Errorf("upgraded, and the version is %s (%v)", version, err)
	}
	f.must(command("cmp", built("next")+"/flexdriver", plugin))
	f.runs("third", "third starts")
	f.ended("slow")
	f.mounted("steady", "third")
	f.writes("steady")
	f.holds("steady", "steady starts")
	f.forget("steady")
	f.forget("third")
	f.ended("steady", "third")
	f.over()
}
