package volume

import "fmt"

// Bytes formats a number of bytes in the largest binary unit that is exact, so that different numbers
// have different texts: "50 GiB", "1.5 MiB", "50.0 GiB (53687091201 bytes)".
func Bytes(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	units, unit := "KMGTPE", 0
	for unit < 5 && n>>(10*(unit+2)) > 0 {
		unit++
	}
	about := fmt.Sprintf("%.1f %ciB (%d bytes)", float64(n)/float64(int64(1)<<(10*(unit+1))), units[unit], n)
	for ; unit >= 0; unit-- {
		switch size := int64(1) << (10 * (unit + 1)); {
		case n/size >= 100_000:
			return about // more than five digits
		case n%size == 0:
			return fmt.Sprintf("%d %ciB", n/size, units[unit])
		case n%size == size/2:
			return fmt.Sprintf("%d.5 %ciB", n/size, units[unit])
		}
	}
	return about
}
