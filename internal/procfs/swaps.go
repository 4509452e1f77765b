package procfs

import (
	"os"
	"strings"
)

var unescaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// Swaps returns the paths of the files and devices in use for swap.
func Swaps() []string {
	b, _ := os.ReadFile("/proc/swaps")
	var paths []string
	for line := range strings.Lines(string(b)) {
		// /path  file  1020  0  -2, after a line of titles
		if f := strings.Fields(line); len(f) >= 5 && strings.HasPrefix(f[0], "/") {
			paths = append(paths, unescaped.Replace(f[0]))
		}
	}
	return paths
}
