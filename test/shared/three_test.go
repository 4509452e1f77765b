//go:build vm

package shared

import (
	"sync"
	"testing"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/shared/nodes"
)

// TestThree has three nodes, of which two are lost at the same time.
func TestThree(t *testing.T) {
	three := start(t, nodes.Settings{Nodes: 3})
	nodes.Together(three, func(n *nodes.Node) {
		n.Install("")
		n.Serve()
	})
	for _, test := range []struct {
		name string
		run  func(t *testing.T, a, b, c *nodes.Node)
	}{
		{"lost", lost}, // two of them are off after it
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, three[0].For(t), three[1].For(t), three[2].For(t)) }) {
			break // it may have left a volume, or a node that is off
		}
	}
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
