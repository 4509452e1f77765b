package volume

import (
	"math"
	"testing"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		-1: "-1 bytes", 0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 1025: "1.0 KiB (1025 bytes)", 1536: "1.5 KiB", 4096: "4 KiB",
		64 << 20: "64 MiB", 1096 << 20: "1096 MiB", 50 << 30: "50 GiB", 1536 << 20: "1.5 GiB", 50<<30 + 1: "50.0 GiB (53687091201 bytes)",
		50<<30 + 4<<20: "51204 MiB", 50<<30 + 4<<10: "50.0 GiB (53687095296 bytes)", 1 << 62: "4 EiB", 200<<40 + 1<<30: "200.0 TiB (219903399297024 bytes)",
		math.MaxInt64: "8.0 EiB (9223372036854775807 bytes)",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
