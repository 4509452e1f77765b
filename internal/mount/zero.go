package mount

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// zero is the child that makes a new volume blank: its extents were somebody
// else's before. While it does so nobody else has the device.
func zero(a zeroArg) (nothing, error) {
	dev, err := openDevice(a.Device, unix.O_RDWR|unix.O_EXCL)
	if err != nil {
		return nothing{}, err
	}
	defer dev.Close()
	s, err := identify(dev)
	if err != nil {
		return nothing{}, err
	}
	if !s.none() {
		return nothing{}, &Refusal{What: describe(dev, s) + " on " + a.Device.Path}
	}
	size, err := sizeOf(dev)
	if err != nil {
		return nothing{}, err
	}
	for _, r := range spans(size) {
		span := [2]uint64{uint64(r.from), uint64(r.to - r.from)}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dev.Fd(), unix.BLKZEROOUT, uintptr(unsafe.Pointer(&span))); errno != 0 {
			return nothing{}, fmt.Errorf("zero %d bytes at %s of %s: %w", span[1], at(r.from), a.Device.Path, errno)
		}
	}
	if err := unix.Fsync(int(dev.Fd())); err != nil {
		return nothing{}, fmt.Errorf("fsync %s: %w", a.Device.Path, err)
	}
	return nothing{}, nil
}
