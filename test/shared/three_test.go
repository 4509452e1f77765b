//go:build vm

package shared

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/shared/nodes"
)

// TestThree has three nodes, of which two are lost at the same time.
func TestThree(t *testing.T) {
	three := start(t, nodes.Settings{Nodes: 3})
	nodes.Together(three, func(n *nodes.Node) {
		n.Install("metricsAddress: 127.0.0.1:9809\n")
		n.Serve()
	})
	for _, test := range []struct {
		name string
		run  func(t *testing.T, a, b, c *nodes.Node)
	}{
		{"one for three", oneForThree},
		{"fifty", fifty},
		{"lost", lost}, // two of them are off after it
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, three[0].For(t), three[1].For(t), three[2].For(t)) }) {
			break // it may have left a volume, or a node that is off
		}
	}
}

// oneForThree is a volume that all nodes want at once: one gets it, and the others wait and say for
// whom, until they get it one after the other.
func oneForThree(t *testing.T, a, b, c *nodes.Node) {
	v := nodes.Volume("three", "32m")
	all := []*nodes.Node{a, b, c}
	got := make(chan *nodes.Node)
	for _, n := range all {
		go func() {
			n.SetUp(web, v)
			got <- n
		}()
	}
	waiting := map[string]*nodes.Node{"node-1": a, "node-2": b, "node-3": c}
	for range all {
		has := <-got
		delete(waiting, has.Name)
		for _, n := range waiting {
			eventually(t, n.Name+"'s status names "+has.Name, func() bool {
				return strings.Contains(status(n, "svg/three"), has.Name)
			})
			if active := n.Active(); len(active) != 0 {
				t.Errorf("%s and %s have %v", has.Name, n.Name, active)
			}
		}
		has.TearDown(web, v)
	}
}

// status is what flexd status prints.
func status(n *nodes.Node, args string) string {
	out, err := n.Try(n.At.Flexd() + " status --socket " + n.At.StatusSocket() + " " + args)
	if err != nil {
		return err.Error() // nothing has asked for the volume yet
	}
	return out
}

// fifty are volumes that move from A to B at once.
func fifty(t *testing.T, a, b, _ *nodes.Node) {
	const number = 50
	a.Sh(fmt.Sprintf(`for n in $(seq %d); do echo "lvcreate -q -y -an -Zn -Wn -L 8m -n fifty$n svg"; done | lvm >/dev/null 2>&1`, number))
	each := func(do func(p host.Pod, v host.Volume)) {
		var wg sync.WaitGroup
		for i := 1; i <= number; i++ {
			p := host.Pod{Namespace: "default", Name: fmt.Sprintf("web-%d", i), UID: fmt.Sprintf("uid-%d", i)}
			wg.Go(func() { do(p, nodes.Volume(fmt.Sprintf("fifty%d", i), "")) })
		}
		wg.Wait()
	}
	each(func(p host.Pod, v host.Volume) { a.SetUp(p, v) })
	before := map[*nodes.Node]int{a: commands(a), b: commands(b)}
	moved := make(chan struct{})
	go func() {
		each(func(p host.Pod, v host.Volume) {
			if failures := b.SetUp(p, v); len(failures) != 0 {
				t.Errorf("%s: %q", v.Name, failures)
			}
		})
		close(moved)
	}()
	eventually(t, "B waits for all of them", func() bool {
		return strings.Count(status(b, ""), "waiting") >= number
	})
	waiting := commands(b)
	each(func(p host.Pod, v host.Volume) { a.TearDown(p, v) })
	<-moved
	if got := a.Active(); len(got) != 0 {
		t.Errorf("A still has %v", got)
	}
	for n, was := range before {
		t.Logf("%s: %d of LVM's commands", n.Name, commands(n)-was)
	}
	t.Logf("%s: %d of them while it waited", b.Name, waiting-before[b])
	each(func(p host.Pod, v host.Volume) { b.TearDown(p, v) })
}

var counted = regexp.MustCompile(`(?m)^flexd_lvm_command_duration_seconds_count\{.*\} (\d+)$`)

// commands is how many of LVM's commands a node's flexd has run.
func commands(n *nodes.Node) (sum int) {
	n.T.Helper()
	text := n.Sh(`exec 3<>/dev/tcp/127.0.0.1/9809; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3`)
	for _, m := range counted.FindAllStringSubmatch(text, -1) {
		number, _ := strconv.Atoi(m[1])
		sum += number
	}
	if sum == 0 {
		n.T.Errorf("no LVM commands: %s", text)
	}
	return sum
}

// lost are two nodes at the same time, whose volumes the third gets: one loses its power, one the
// disk, and its watchdog resets it.
func lost(t *testing.T, cut, b, diskless *nodes.Node) {
	volumes := map[*nodes.Node]host.Volume{cut: nodes.Volume("cut", "32m"), diskless: nodes.Volume("diskless", "32m")}
	for n, v := range volumes {
		n.SetUp(web, v)
		n.Sh("cp /etc/services " + n.At.PodDir(web, v) + "/kept && sync")
	}
	cut.Kill()
	diskless.Lose()
	var wg sync.WaitGroup
	for n, v := range volumes {
		wg.Go(func() {
			t.Logf("%s: %q", n.Name, b.SetUp(web, v))
			b.Sh("cmp /etc/services " + b.At.PodDir(web, v) + "/kept")
		})
	}
	wg.Wait()
	if !diskless.Off() {
		t.Errorf("%s runs on without its disk: %v", diskless.Name, diskless.Active())
	}
	for n, v := range volumes {
		b.TearDown(web, v)
		if n.Up() {
			n.Join()
		}
	}
}
