package lvm

import (
	"encoding/json"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Child is the child's side of the provider: it does op, prints one JSON line,
// and returns the exit status. ok is false if op is none of this room's.
func Child(op string, arg []byte) (code int, ok bool) {
	run.BeChild()
	switch op {
	case "lvm-holders":
		return child(arg, holders), true
	case "lvm-zero":
		return child(arg, zero), true
	}
	return 0, false
}

func child[Arg, Value any](text []byte, do func(Arg) (Value, error)) int {
	var arg Arg
	if err := json.Unmarshal(text, &arg); err != nil {
		return mount.Answer(nil, fmt.Errorf("argument: %w", err))
	}
	return mount.Answer(do(arg))
}

// nothing is the value of a child that only succeeds or fails.
type nothing struct{}

func holders(a holdersArg) ([]mount.Holder, error) {
	return mount.DeviceHolders(a.Number, a.Path), nil
}

type zeroArg struct {
	Device volume.Device `json:"device"`
	Ranges [][2]int64    `json:"ranges"`
}

// zero writes zeros to places of a device that nobody uses.
func zero(a zeroArg) (nothing, error) {
	fd, err := unix.Open(a.Device.Path, unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0) // exclusively: not while it is mounted
	if err != nil {
		return nothing{}, &os.PathError{Op: "open", Path: a.Device.Path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nothing{}, &os.PathError{Op: "stat", Path: a.Device.Path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || number(uint64(st.Rdev)) != a.Device.Number || diskSeq(a.Device.Number) != a.Device.Seq {
		return nothing{}, fmt.Errorf("%s is not the device %s any more", a.Device.Path, a.Device.Number)
	}
	for _, r := range a.Ranges {
		span := [2]uint64{uint64(r[0]), uint64(r[1] - r[0])}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKZEROOUT, uintptr(unsafe.Pointer(&span))); errno != 0 {
			return nothing{}, fmt.Errorf("zero %d bytes at %d of %s: %w", span[1], span[0], a.Device.Path, errno)
		}
	}
	if err := unix.Fsync(fd); err != nil {
		return nothing{}, &os.PathError{Op: "fsync", Path: a.Device.Path, Err: err}
	}
	return nothing{}, nil
}

// endSize is what filesystems keep at either end of a device.
const endSize = 4 << 20

func bothEnds(size int64) [][2]int64 {
	if size <= 2*endSize {
		return [][2]int64{{0, size}}
	}
	return [][2]int64{{0, endSize}, {size - endSize, size}}
}
