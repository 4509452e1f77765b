package simulation

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestCluster takes FLEXD_STEPS decisions (20,000) for two nodes with a shared volume group, in
// runs of 400, each with its own seed, from FLEXD_SEED on.
func TestCluster(t *testing.T) {
	first := number("FLEXD_SEED", uint64(time.Now().UnixNano()))
	limit := int(number("FLEXD_STEPS", 20_000))
	fmt.Printf("FLEXD_SEED=%d\n", first) // also if the test binary crashes
	taken, done := 0, map[action]int{}
	for seed := first; taken < limit; seed++ {
		o := playCluster(t, mode(seed), newClusterRandom(seed).decision)
		for _, d := range o.sequence {
			done[d.what]++
		}
		if taken += len(o.sequence); len(o.wrong) > 0 {
			t.Fatalf("FLEXD_SEED=%d, after %d decisions in all:\n%s\nFLEXD_SEED=%d", seed, taken, reportCluster(t, seed, o), seed)
		}
	}
	t.Logf("%d decisions: %v", taken, done)
}

func reportCluster(t *testing.T, seed uint64, o outcome) string {
	last := o
	fails := func(s scenario) bool {
		o := playCluster(t, mode(seed), func(*cluster) (decision, bool) {
			if len(s) == 0 {
				return decision{}, false
			}
			d := s[0]
			s = s[1:]
			return d, true
		})
		if len(o.wrong) == 0 {
			return false
		}
		last = o
		return true
	}
	if !fails(o.sequence) {
		return fmt.Sprintf("%s\nthe sequence, which did not fail when it was repeated:\n%s", strings.Join(o.wrong, "\n"), o.sequence)
	}
	if os.Getenv("FLEXD_UNCUT") == "" {
		shorter(o.sequence, 400, fails)
	}
	return fmt.Sprintf("%s\nthe sequence:\n%s", strings.Join(last.wrong, "\n"), last.sequence)
}
