//go:build !race

package simulation

import (
	"slices"
	"testing"
	"time"
)

const steps = 100_000

// TestTheSameSeedTellsTheSameStory: a failure can be had again. What goroutines
// do between two decisions is the scheduler's choice; it shows in one life of a
// hundred, whose story is told as it was.
func TestTheSameSeedTellsTheSameStory(t *testing.T) {
	const lives = 20
	differ := 0
	same := func(a, b outcome) bool {
		return slices.Equal(a.story, b.story) && slices.Equal(a.commands, b.commands) && slices.Equal(a.wrong, b.wrong)
	}
	for i := range uint64(lives) {
		seed := uint64(time.Now().UnixNano()) + i
		a, b := live(t, mode(seed), newRandom(seed).next), live(t, mode(seed), newRandom(seed).next)
		if !same(a, b) {
			differ++
			i := 0
			for i < min(len(a.story), len(b.story)) && a.story[i] == b.story[i] {
				i++
			}
			t.Logf("FLEXD_SEED=%d: two stories, of %d decisions and %d commands, and %d and %d; from %d on:\n%s\n---\n%s\n%v %v", seed,
				len(a.story), len(a.commands), len(b.story), len(b.commands), i,
				a.story[max(i-6, 0):min(i+3, len(a.story))], b.story[max(i-6, 0):min(i+3, len(b.story))],
				a.wrong, b.wrong)
		}
	}
	if differ > lives/10 {
		t.Errorf("%d of %d lives were not the same when they were lived again", differ, lives)
	}
}
