package mount

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// zero is the child that zeroes a new volume, or the part that was added to a blank volume, because
// its extents may contain earlier data. It has the device open exclusively meanwhile.
func zero(a zeroArg) (zeroed, error) {
	if a.At != "" {
		return zeroBehind(a)
	}
	if err := Unused(a.Device); err != nil { // a VM opens it plainly
		return zeroed{}, err
	}
	dev, err := openDevice(a.Device, unix.O_RDWR|unix.O_EXCL)
	if err != nil {
		return zeroed{}, err
	}
	defer dev.Close()
	if a.From > 0 && !a.All {
		return zeroed{}, zeroAdded(dev, a)
	}
	s, err := identify(dev)
	if err != nil {
		return zeroed{}, err
	}
	if !s.none() {
		return zeroed{}, &Refusal{What: describe(dev, s) + " on " + a.Device.Path}
	}
	size, err := sizeOf(dev)
	if err != nil {
		return zeroed{}, err
	}
	if a.All {
		return zeroPart(dev, a.From, size, func(int64) error { return nil })
	}
	for _, r := range spans(size) {
		if err := zeroOut(dev, r.from, r.to-r.from); err != nil {
			return zeroed{}, err
		}
	}
	return zeroed{}, fsync(dev)
}

// zeroAdded zeroes the places of the blank proof on a device that was extended, if it is blank up to
// its former size. Some places of the new size lie below the former size.
func zeroAdded(dev *os.File, a zeroArg) error {
	if why := deviceProblem(a.Device); why != "" {
		return &Refusal{What: a.Device.Path + " " + why, Why: volume.Unusable}
	}
	why, _, err := notBlank(dev, a.Device, coverage{size: a.From})
	if err != nil {
		return err
	}
	if why != "" {
		return &Refusal{What: why + " on " + a.Device.Path, Hint: volume.EraseAdvice(handle(a.Device))}
	}
	return zeroData(dev, a.Device, 0, coverage{})
}

// zeroBehind zeroes the part of a device beyond a mounted filesystem. Before each write it verifies
// that the filesystem still ends there, since an operator may extend the filesystem as well.
func zeroBehind(a zeroArg) (zeroed, error) {
	dev, err := openDevice(a.Device, unix.O_RDWR)
	if errors.Is(err, unix.EBUSY) {
		return zeroed{}, fmt.Errorf("zero: this kernel permits no writes to a mounted device (CONFIG_BLK_DEV_WRITE_MOUNTED): %w", err)
	}
	if err != nil {
		return zeroed{}, err
	}
	defer dev.Close()
	if _, err := mountedAt(a.Device, a.At); err != nil {
		return zeroed{}, err
	}
	size, err := sizeOf(dev)
	if err != nil {
		return zeroed{}, err
	}
	end, err := liveSize(dev, a.Type, a.At)
	if err != nil {
		return zeroed{}, err
	}
	from := max(a.From, (end+align-1)/align*align)
	return zeroPart(dev, from, size, func(at int64) error {
		if end, err = liveSize(dev, a.Type, a.At); err == nil && end > at {
			err = fmt.Errorf("%s was extended by something else", a.At)
		}
		return err
	})
}

// A child zeroes a device for partTime, in steps of zeroStep.
const (
	zeroStep = 16 << 20
	partTime = time.Second
)

// zeroPart zeroes a part of a device from an offset on, and calls check before each write.
func zeroPart(dev *os.File, from, size int64, check func(at int64) error) (zeroed, error) {
	yieldIO()
	for end := time.Now().Add(partTime); from < size && time.Now().Before(end); {
		if err := check(from); err != nil {
			return zeroed{}, err
		}
		n := min(zeroStep, size-from)
		if err := zeroOut(dev, from, n); err != nil {
			return zeroed{}, err
		}
		from += n
	}
	return zeroed{To: from, Size: size}, fsync(dev)
}

// yieldIO gives the writes of this process the lowest priority above idle, if the disk's scheduler
// has priorities.
func yieldIO() {
	const whoProcess, bestEffort, lowest = 1, 2, 7
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, bestEffort<<13|lowest)
}

func fsync(dev *os.File) error {
	if err := unix.Fsync(int(dev.Fd())); err != nil {
		return fmt.Errorf("fsync %s: %w", dev.Name(), err)
	}
	return nil
}

// zeroData zeroes the places of the blank proof on a device from an offset on, and writes
// only to places that are not zero.
func zeroData(dev *os.File, d volume.Device, from int64, e coverage) error {
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
	return fsync(dev)
}

// zeroOut zeroes a part of a block device.
func zeroOut(dev *os.File, from, n int64) error {
	span := [2]uint64{uint64(from), uint64(n)}
	if err := ioctl(int(dev.Fd()), unix.BLKZEROOUT, unsafe.Pointer(&span)); err != nil {
		return fmt.Errorf("zero %d bytes at %s of %s: %w", n, at(from), dev.Name(), err)
	}
	return nil
}

// discard discards a device for at most a minute. Not every device supports this, or reads as zeros
// afterwards.
func discard(dev *os.File) {
	const step = 1 << 30 // the kernel does not interrupt one
	size, err := sizeOf(dev)
	if err != nil {
		return
	}
	for from, end := int64(0), time.Now().Add(time.Minute); from < size && time.Now().Before(end); from += step {
		span := [2]uint64{uint64(from), uint64(min(step, size-from))}
		if ioctl(int(dev.Fd()), unix.BLKDISCARD, unsafe.Pointer(&span)) != nil {
			return
		}
	}
}
