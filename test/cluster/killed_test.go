package cluster

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flexd/flexd/test/host"
)

// The controllers, a kubelet or a flexd is killed, and started again, in each phase of a volume's life.
// Without help pods start, keep their data and end, and nothing remains.
func TestKilled(t *testing.T) {
	each(t, func(t *testing.T, c *cluster) {
		r := host.Random(t)
		for _, victim := range []struct {
			name        string
			kill, start func(*cluster, *node)
		}{
			{"controllers", func(c *cluster, _ *node) { c.killControllers() }, func(c *cluster, _ *node) { c.startControllers() }},
			{"kubelet", func(_ *cluster, n *node) { n.killKubelet() }, func(_ *cluster, n *node) { n.startKubelet() }},
			{"flexd", func(_ *cluster, n *node) { n.killFlexd() }, func(_ *cluster, n *node) { n.startFlexd() }},
		} {
			random := rand.New(rand.NewPCG(r.Uint64(), 0))
			c.parallel(victim.name, func(c *cluster) {
				n := c.newNode(victim.name)
				c.registered(n.name)
				kill, start := func() { victim.kill(c, n) }, func() { victim.start(c, n) }
				// Sooner or later in what a pod's start or end does.
				moment := func() { time.Sleep(time.Duration(random.Int64N(int64(1500 * time.Millisecond)))) }
				claim := "data-" + n.name
				pod := func(name string) string { return name + "-" + n.name }
				c.claim(claim, []string{n.name})

				kill() // it does not run when the pod is made
				c.run(pod("first"), claim)
				moment()
				start()
				p := c.started(pod("first"))
				c.write(p, claim, n.name)

				c.run(pod("second"), claim) // it starts
				moment()
				kill()
				start()
				q := c.started(pod("second"))

				kill() // both run
				c.read(p, claim, n.name)
				start()
				moment()
				c.read(q, claim, n.name)

				c.delete(pod("first")) // it ends
				moment()
				kill()
				start()
				c.ended(pod("first"))
				c.read(q, claim, n.name)

				kill() // it does not run when the last one is deleted
				c.delete(pod("second"))
				moment()
				start()
				c.ended(pod("second"))

				// A kubelet that was killed between unmount and unmountdevice has forgotten the
				// volume. The next pod with it, and its end, clean up.
				p = c.again(pod("third"), claim)
				c.read(p, claim, n.name)
				c.end(pod("third"))
				c.quiet(n)
			})
		}
	})
}
