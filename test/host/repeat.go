package host

import (
	"math/rand/v2"
	"os"
	"strconv"
	"time"
)

// Times scales how often something is repeated: FLEXD_REPEAT=0.1 for a tenth.
func Times(n int) int {
	f, err := strconv.ParseFloat(os.Getenv("FLEXD_REPEAT"), 64)
	if err != nil || f <= 0 {
		f = 1
	}
	return max(1, int(float64(n)*f))
}

// Random returns a random source; FLEXD_SEED=N repeats it.
func Random(t interface{ Logf(string, ...any) }) *rand.Rand {
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// Seed returns FLEXD_SEED, or a new one, and prints it.
func Seed(t interface{ Logf(string, ...any) }) uint64 {
	seed, err := strconv.ParseUint(os.Getenv("FLEXD_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("FLEXD_SEED=%d", seed)
	return seed
}
