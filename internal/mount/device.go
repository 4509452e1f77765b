package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// openDevice opens d and verifies that it is the observed device, not another one with the same
// name or number. While the file is open, the device keeps its identity.
func openDevice(d volume.Device, flags int) (*os.File, error) {
	fd, err := unix.Open(d.Path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|flags, 0)
	switch {
	case errors.Is(err, unix.EBUSY) && flags&unix.O_EXCL != 0:
		return nil, &BusyError{What: d.Path, Holders: DeviceHolders(d)}
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("%w: %s is gone (%v)", ErrChanged, d.Path, err)
	case err != nil:
		return nil, &os.PathError{Op: "open", Path: d.Path, Err: err}
	}
	f := os.NewFile(uintptr(fd), d.Path)
	if err := verify(f, d); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func verify(f *os.File, d volume.Device) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: d.Path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return fmt.Errorf("%w: %s is not a block device", ErrChanged, d.Path)
	}
	if n := sysfs.Number(st.Rdev); n != d.Number {
		return fmt.Errorf("%w: %s is %s, not %s", ErrChanged, d.Path, n, d.Number)
	}
	if d.Seq == 0 {
		return nil
	}
	seq, err := sysfs.Uint("/sys/dev/block/" + d.Number + "/diskseq")
	if err != nil {
		return fmt.Errorf("%w: %s: %v", ErrChanged, d.Path, err)
	}
	if seq != d.Seq {
		return fmt.Errorf("%w: %s has diskseq %d, not %d", ErrChanged, d.Path, seq, d.Seq)
	}
	return nil
}

// sizeOf returns the size of an open block device.
func sizeOf(f *os.File) (int64, error) { return f.Seek(0, io.SeekEnd) }

// nodeOf returns the kernel's own node of a device number, or "".
func nodeOf(number string) string {
	to, err := os.Readlink("/sys/dev/block/" + number)
	if err != nil {
		return ""
	}
	return "/dev/" + strings.ReplaceAll(filepath.Base(to), "!", "/")
}

// withPartitions returns a block device and its partitions, whose users are users of the device, and words
// for each, by number. A partition on a device with a filesystem is made by hand: flexd asks for no scan.
func withPartitions(d volume.Device) (devices []volume.Device, names map[string]string) {
	devices, names = []volume.Device{d}, map[string]string{d.Number: "it"}
	dir := "/sys/dev/block/" + d.Number
	to, _ := os.Readlink(dir)
	parts, _ := filepath.Glob(dir + "/" + filepath.Base(to) + "*/partition") // an error is one of the pattern
	for _, part := range parts {
		if number, err := sysfs.Line(filepath.Dir(part) + "/dev"); err == nil { // otherwise it was deleted meanwhile
			p := volume.Device{Number: number, Path: nodeOf(number)}
			devices, names[number] = append(devices, p), "the partition "+p.Path
		}
	}
	return devices, names
}

// handle returns the handle of the volume of a device.
func handle(d volume.Device) volume.Handle {
	if file, err := backingFile(d.Number); err == nil {
		return volume.Handle{File: file}
	}
	if vg, lv, ok := strings.Cut(strings.TrimPrefix(d.Link, "/dev/"), "/"); ok && strings.HasPrefix(d.Link, "/dev/") && !strings.Contains(lv, "/") {
		return volume.Handle{Name: volume.Name{VG: vg, LV: lv}}
	}
	return volume.Handle{Path: d.Path}
}
