package procfs

import (
	"os"
	"strings"
)

// BootID returns the id of this boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
