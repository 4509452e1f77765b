package kubelet

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// Pods come and go, at the same time: each sees its own volume's data and no
// other's, and in the end nothing is left (node.close). In a round a pod of each
// volume comes and goes, in every third two. A hundred rounds take two cores six
// minutes, which only make soak has (FLEXD_SOAK=1); here they are sixteen.
func TestChurn(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		r := seeded(t)
		const volumes = 8
		rounds := max(2, times(16))
		if os.Getenv("FLEXD_SOAK") != "" {
			rounds = 100
		}
		var all sync.WaitGroup
		begin := time.Now()
		for i := range volumes {
			lv := fmt.Sprint("lv-", i)
			n.claim(lv, 16*mib)
			pauses := make([]time.Duration, rounds)
			for j := range pauses {
				pauses[j] = time.Duration(r.Int64N(int64(200 * time.Millisecond)))
			}
			all.Go(func() {
				count := 0
				for round := range rounds {
					p := pod(fmt.Sprintf("web-%d-%d", i, round), lv)
					n.run(p)
					file := n.podDir(p, 0) + "/count"
					if text, err := os.ReadFile(file); count > 0 && string(text) != fmt.Sprint(lv, " ", count) {
						t.Errorf("%s reads %q (%v), want %d pods before it", p.Name, text, err, count)
					}
					count++
					n.must(os.WriteFile(file, fmt.Append(nil, lv, " ", count), 0o644))
					if round%3 == 1 { // another one on the same volume
						q := pod(fmt.Sprintf("also-%d-%d", i, round), lv)
						n.run(q)
						n.end(p, q)
					} else {
						n.end(p)
					}
					time.Sleep(pauses[round])
				}
			})
		}
		all.Wait()
		t.Logf("%d pods on %d volumes in %v", len(n.trace().of("mount")), volumes, time.Since(begin).Round(time.Millisecond))
	})
}
