// Package boottime is the clock that counts from the boot. Every process of the machine
// reads the same, neither a suspend nor an operator sets it back, and the kernel notes the
// start of a process by it.
package boottime

import (
	"syscall"
	"time"
	"unsafe"
)

// Now is the time since the boot. It asks through syscall: flexdriver links nothing else.
func Now() time.Duration {
	const clock = 7 // CLOCK_BOOTTIME, there since Linux 2.6.39
	var t syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		panic(errno)
	}
	return time.Duration(t.Nano())
}
