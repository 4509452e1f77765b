package procfs

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// BootID names this boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// SinceBoot is the clock by which the kernel notes the start of a process. Neither a
// suspend nor an operator sets it back.
func SinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // the clock is there since Linux 2.6.39
	}
	return time.Duration(t.Nano())
}
