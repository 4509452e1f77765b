package procfs

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockHolder returns the process that holds a lock on a file: 0 if it has no pid in this
// namespace. It returns false if none was found.
func LockHolder(dev, inode uint64) (Process, bool) {
	b, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, false
	}
	// 1: FLOCK  ADVISORY  WRITE 1234 00:19:5678 0 EOF
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(dev), unix.Minor(dev), inode)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 6 && f[1] != "->" && f[5] == file {
			pid, _ := strconv.Atoi(f[4])
			return Process(pid), true
		}
	}
	return 0, false
}
