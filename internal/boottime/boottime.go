// Package boottime reads the clock that counts from boot. It is the same for every process
// of the machine, neither a suspend nor an operator changes it, and the kernel records the
// start time of processes by it.
package boottime

import (
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
