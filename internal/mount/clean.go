package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// cleanTimeout is how long clean waits for another program, such as udev after mkfs, to close
// the device. It is shorter in tests.
var cleanTimeout = 30 * time.Second

// clean erases the writes of a failed mkfs, unless another program uses the device or has written
// to it since. It is not called after an mkfs that wrote nothing, because it refused its options or
// could not open the device: any contents are data then.
func clean(dev *os.File, f Formatting, blank coverage) error {
	before, err := written(dev, f.Device)
	if err != nil {
		return err
	}
	for end := time.Now().Add(cleanTimeout); ; time.Sleep(100 * time.Millisecond) {
		err = unused(dev, f.Device)
		if _, busy := errors.AsType[*BusyError](err); !busy || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		return err
	}
	alone, err := openDevice(f.Device, unix.O_RDWR|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer alone.Close()
	if now, err := written(alone, f.Device); err != nil {
		return err
	} else if now != before {
		return fmt.Errorf("another program has written to %s since mkfs ended", f.Device.Path)
	}
	s, err := identify(alone)
	if err != nil {
		return err
	}
	if !s.none() && !s.made(f.Type) {
		return &Refusal{What: describe(alone, s)}
	}
	return erase(alone, f, blank)
}

// eraseRemains erases the remains of an interrupted mkfs, so that the volume is blank if the next
// mkfs refuses its options. It erases the beginning last: only the superblock of an xfs that is
// marked as in progress identifies the rest as remains.
func eraseRemains(dev *os.File, f Formatting) error {
	alone, err := openDevice(f.Device, unix.O_RDWR|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer alone.Close()
	blank, err := mayFormat(dev, f) // nothing has been written since the proof
	if err != nil {
		return err
	}
	if err := zeroData(alone, f.Device, endSize, blank); err != nil {
		return err
	}
	return erase(alone, f, blank)
}

// erase discards the contents of a device, zeroes the places of the proof, and proves them blank.
// mkfs itself discards the whole device first, by default. Afterwards devices that zero what they
// discard, such as loop devices and thin volumes, are blank and use no space.
func erase(alone *os.File, f Formatting, blank coverage) error {
	discard(alone)
	if err := zeroData(alone, f.Device, 0, blank); err != nil {
		return err
	}
	found, _, err := notBlank(alone, f.Device, blank)
	if err == nil && found != "" {
		err = errors.New(found)
	}
	return err
}

// written returns the number of sectors written to a device, as the kernel counts them. It also checks that
// its own read is counted: queue/iostats can turn the counters off. The setting itself is not reliable: for
// device-mapper, Linux 6.1 shows 0 and counts.
func written(dev *os.File, d volume.Device) (string, error) {
	_ = fsync(dev) // so that the kernel writes nothing later; the error may be that of mkfs
	before, _, err := counts(d)
	if err != nil {
		return "", err
	}
	if _, err := walk(d, coverage{size: align}, func([]byte, int64) error { return nil }); err != nil {
		return "", err
	}
	reads, sectors, err := counts(d)
	if err == nil && reads == before {
		err = fmt.Errorf("the kernel counts no writes to %s (its queue/iostats is 0)", d.Path)
	}
	return sectors, err
}

// counts returns the kernel's counters of a device: its reads, and the sectors written to it.
func counts(d volume.Device) (reads, sectors string, err error) {
	stat, err := sysfs.Line("/sys/dev/block/" + d.Number + "/stat")
	if n := strings.Fields(stat); len(n) >= 7 {
		return n[0], n[6], nil
	}
	return "", "", err
}

// withoutRecord removes the format record, durably, and returns the error.
func withoutRecord(f Formatting, err error) error {
	if f.Record == "" {
		return err
	}
	left := os.Remove(f.Record)
	if left == nil {
		var dir *os.File
		if dir, left = os.Open(filepath.Dir(f.Record)); left == nil {
			left = dir.Sync()
			dir.Close()
		}
	}
	if left != nil && !errors.Is(left, fs.ErrNotExist) {
		return fmt.Errorf("%v; remove the format record: %w", err, left)
	}
	return err
}
