package volume

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// The result is accepted, and one byte more than it is refused or beyond the limit.
func TestLargest(t *testing.T) {
	full := errors.New("full")
	for range 2000 {
		unit, limit, room := rand.Int64N(100)+1, rand.Int64N(2000), rand.Int64N(2000)
		refuse := func(size int64) error {
			if (size+unit-1)/unit*unit > room {
				return full
			}
			return nil
		}
		got, err := Largest(unit, limit, refuse)
		if got > 0 && refuse(got) != nil || got > limit || got < limit && refuse(got+1) == nil || (err != nil) != (got == 0 && limit > 0) {
			t.Fatalf("unit %d, limit %d, room %d: got %d, %v", unit, limit, room, got, err)
		}
	}
}
