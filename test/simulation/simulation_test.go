package simulation

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// One processor: then what follows from a decision follows in one order.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

// number reads a number from the environment.
func number(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// again plays a story; what is not possible in it any more is left out.
func again(s story) func(w *world) (decision, bool) {
	return func(*world) (decision, bool) {
		if len(s) == 0 {
			return decision{}, false
		}
		d := s[0]
		s = s[1:]
		return d, true
	}
}

func mode(seed uint64) bool { return seed%2 == 0 }

// TestSimulation plays FLEXD_STEPS decisions (300,000, and 10,000 under the race detector) in lives of 400, each
// with a seed of its own, from FLEXD_SEED on.
func TestSimulation(t *testing.T) {
	first := number("FLEXD_SEED", uint64(time.Now().UnixNano()))
	limit := int(number("FLEXD_STEPS", steps))
	t.Logf("FLEXD_SEED=%d", first)
	taken := 0
	for seed := first; taken < limit; seed++ {
		o := live(t, mode(seed), chanceOf(seed).next)
		if taken += len(o.story); len(o.wrong) > 0 {
			t.Fatalf("FLEXD_SEED=%d, after %d decisions in all:\n%s", seed, taken, told(t, seed, o))
		}
	}
}

// told is what a failed life comes down to.
func told(t *testing.T, seed uint64, o outcome) string {
	last := o
	fails := func(s story) bool {
		o := live(t, mode(seed), again(s))
		if len(o.wrong) == 0 {
			return false
		}
		last = o
		return true
	}
	if !fails(o.story) {
		return fmt.Sprintf("%s\nits story, which did not fail when it was played again:\n%s", strings.Join(o.wrong, "\n"), o.story)
	}
	if os.Getenv("FLEXD_UNCUT") == "" {
		shorter(o.story, 400, fails)
	}
	return fmt.Sprintf("%s\nthe story:\n%s", strings.Join(last.wrong, "\n"), last.story)
}
