// Package boottime reads the clock that counts from boot. It is the same for every process
// of the machine, neither a suspend nor an operator changes it, and the kernel records the
// start time of processes by it.
package boottime

import (
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// Now returns the time since boot. It uses package syscall, because flexdriver links
// nothing else.
func Now() time.Duration {
	const clock = 7 // CLOCK_BOOTTIME, there since Linux 2.6.39
	var t syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		panic(errno)
	}
	return time.Duration(t.Nano())
}

// tick is the unit of the start times in /proc: USER_HZ is 100 on all processors that Go supports.
const tick = 10 * time.Millisecond

// Started returns when this process was started, rounded up to a tick, but not later than Now. If /proc does not
// tell, it returns Now.
func Started() time.Duration {
	now := Now()
	fd, err := syscall.Open("/proc/self/stat", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return now
	}
	defer syscall.Close(fd)
	var b [1024]byte
	n, err := syscall.Read(fd, b[:])
	if err != nil || n <= 0 {
		return now
	}
	return min(now, parse(string(b[:n]), now))
}

// parse returns the end of the tick of the start time in a stat file, or otherwise if it has none.
func parse(stat string, otherwise time.Duration) time.Duration {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const starttime = 22 - 3 // the first field after the name is the third
	if len(fields) <= starttime {
		return otherwise
	}
	ticks, err := strconv.ParseInt(fields[starttime], 10, 64)
	if err != nil || ticks <= 0 {
		return otherwise
	}
	return time.Duration(ticks)*tick + tick
}
