package mount

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// zero is the child that zeroes a new volume, or the part that was added to a blank one:
// its extents contained other data before. It holds the device exclusively meanwhile.
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
	if a.From > 0 {
		return nothing{}, zeroData(dev, a.Device, a.From, extent{})
	}
	size, err := sizeOf(dev)
	if err != nil {
		return nothing{}, err
	}
	for _, r := range spans(size) {
		if err := zeroOut(dev, r.from, r.to-r.from); err != nil {
			return nothing{}, err
		}
	}
	if err := unix.Fsync(int(dev.Fd())); err != nil {
		return nothing{}, fmt.Errorf("fsync %s: %w", a.Device.Path, err)
	}
	return nothing{}, nil
}

// zeroData zeroes the places of the blank proof on a device from an offset on, and writes
// only to places that are not zero.
func zeroData(dev *os.File, d volume.Device, from int64, e extent) error {
	_, err := walk(d, e, func(b []byte, off int64) error {
		for i := 0; i < len(b); i += align {
			part, at := b[i:min(i+align, len(b))], off+int64(i)
			if at+int64(len(part)) <= from || firstNonZero(part) < 0 {
				continue
			}
			start := max(at, from)
			if err := zeroOut(dev, start, at+int64(len(part))-start); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := unix.Fsync(int(dev.Fd())); err != nil {
		return fmt.Errorf("fsync %s: %w", d.Path, err)
	}
	return nil
}

// zeroOut zeroes a part of a block device.
func zeroOut(dev *os.File, from, n int64) error {
	span := [2]uint64{uint64(from), uint64(n)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dev.Fd(), unix.BLKZEROOUT, uintptr(unsafe.Pointer(&span))); errno != 0 {
		return fmt.Errorf("zero %d bytes at %s of %s: %w", n, at(from), dev.Name(), errno)
	}
	return nil
}
