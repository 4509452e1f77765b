package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// transient is how long flexd waits for an opener before it counts: udev, blkid and flexd's
// other children open a device briefly.
const transient = time.Second

// useOf checks whether anything else uses a device that flexd has not mounted, and names
// the user. dev is this process's only descriptor of it, and another one afterwards.
func useOf(dev *os.File, d volume.Device) (volume.Use, *BusyError, error) {
	for end := time.Now().Add(transient); ; time.Sleep(50 * time.Millisecond) {
		used, err := inUse(dev, d)
		switch {
		case err != nil:
			return volume.UseUnknown, nil, err
		case !used:
			return volume.Unused, nil, nil
		case time.Now().After(end):
			busy := &BusyError{What: describeDevice(d), Holders: DeviceHolders(d)}
			if len(busy.Holders) == 0 {
				busy.Holders = deviceMappers(d)
			}
			for _, h := range busy.Holders {
				if h.Unmounted {
					return volume.Unmounted, busy, nil
				}
			}
			return volume.InUse, busy, nil
		}
	}
}

// Unused fails unless nothing else uses a device. It opens the device.
func Unused(d volume.Device) error {
	dev, err := openDevice(d, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	return unused(dev, d)
}

// unused fails unless this process is the only user of the device. Children call it before
// they write to the device.
func unused(dev *os.File, d volume.Device) error {
	_, busy, err := useOf(dev, d)
	if busy != nil {
		return busy
	}
	return err
}

// inUse searches for a mount or another exclusive opener of the device, then for plain
// openers: device-mapper counts them, see opened for other devices.
func inUse(dev *os.File, d volume.Device) (bool, error) {
	same := fmt.Sprintf("/proc/self/fd/%d", dev.Fd())
	alone, err := unix.Open(same, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_EXCL, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return true, nil
	case err != nil:
		return false, &os.PathError{Op: "open", Path: d.Path, Err: err}
	}
	unix.Close(alone)
	if n, ok, err := mappedOpen(d.Number); ok || err != nil {
		return n > 1, err
	}
	if on, err := loopsOn(dev, d); len(on) > 0 || err != nil {
		return len(on) > 0, err
	}
	return opened(dev, d)
}

// opened reports whether any other process has a device open. The kernel has no count of openers,
// and a search of /proc misses a mapping without a descriptor, a descriptor that is being sent
// through a socket, and other pid namespaces. But at the last close the kernel drops the device's
// page cache: opened closes dev, opens it again, and checks that the pages it had read are gone.
// This does not affect other openers.
//
// A direct write drops the pages that it overwrites. So opened reads pages at several places: a
// program has the device open if one of them is cached after the reopen, or is not cached
// immediately after it was read.
func opened(dev *os.File, d volume.Device) (bool, error) {
	size, err := sizeOf(dev)
	if err != nil {
		return false, err
	}
	buf := make([]byte, os.Getpagesize())
	for range 2 { // memory may be reclaimed meanwhile
		var places []int64
		for _, at := range cachePlaces(size) {
			if n, err := dev.ReadAt(buf, at); n > 0 {
				places = append(places, at)
			} else if at == 0 {
				return false, fmt.Errorf("check for other openers of %s: %w", d.Path, err)
			}
		}
		if n, err := cached(dev, places); n < len(places) || err != nil {
			return true, err
		}
		if err := reopen(dev, d); err != nil {
			return false, err
		}
		if n, err := cached(dev, places); n > 0 || err != nil {
			return n > 0, err
		}
	}
	return false, nil
}

// cachePlaces are some pages that are evenly distributed on a device.
func cachePlaces(size int64) []int64 {
	const most = 8
	page := int64(os.Getpagesize())
	step := max(size/page/most, 1) * page
	places := []int64{0}
	for at := step; at+page <= size && len(places) < most; at += step {
		places = append(places, at)
	}
	return places
}

// cached counts which of these pages of the device are cached.
func cached(dev *os.File, places []int64) (pages int, err error) {
	for _, at := range places {
		m, err := unix.Mmap(int(dev.Fd()), at, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return 0, os.NewSyscallError("mmap", err)
		}
		var in [1]byte
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&in[0])))
		_ = unix.Munmap(m)
		if errno != 0 {
			return 0, os.NewSyscallError("mincore", errno)
		}
		pages += int(in[0] & 1)
	}
	return pages, nil
}

// reopen closes a device and opens it again with the same number.
func reopen(dev *os.File, d volume.Device) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	if err := unix.Dup3(int(null.Fd()), int(dev.Fd()), unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("dup3", err)
	}
	again, err := openDevice(d, 0)
	if err != nil {
		return err
	}
	defer again.Close()
	return os.NewSyscallError("dup3", unix.Dup3(int(again.Fd()), int(dev.Fd()), unix.O_CLOEXEC))
}

var mapper = devmapper.New()

// mappedOpen returns device-mapper's open count of a device, including mounts and devices
// on it. ok is false for a device that is not device-mapper's.
func mappedOpen(number string) (n int, ok bool, err error) {
	if _, err := os.Stat("/sys/dev/block/" + number + "/dm"); err != nil {
		return 0, false, nil
	}
	if n, err = mapper.Open(number); err != nil {
		return 0, true, fmt.Errorf("open count of %s: %w", number, err)
	}
	return n, true, nil
}

// liveSuperblock returns the type of the filesystem that the kernel has active on
// a device, or "".
func liveSuperblock(number string) string {
	to, err := os.Readlink("/sys/dev/block/" + number)
	if err != nil {
		return ""
	}
	name := filepath.Base(to)
	for _, fsType := range []string{"ext4", "xfs"} {
		if _, err := os.Stat("/sys/fs/" + fsType + "/" + name); err == nil {
			return fsType
		}
	}
	if found, _ := filepath.Glob("/sys/fs/btrfs/*/devices/" + name); len(found) > 0 {
		return "btrfs"
	}
	return ""
}

// unmountedSuperblock explains a filesystem that is active without a mount. name has the words for its device.
func unmountedSuperblock(fsType string, d volume.Device, name string) Holder {
	how := "the " + fsType + " on " + name + " is active in the kernel, but not mounted in the namespace of any process: "
	if on := filesOn(d); len(on) > 0 {
		how += fmt.Sprintf("%s is attached to a file in it (losetup -d %s)", strings.Join(on, ", "), strings.Join(on, " "))
		return Holder{Unmounted: true, How: how}
	}
	return Holder{Unmounted: true, How: how + fmt.Sprintf("for example after an unmount while it was frozen (fsfreeze -f by a backup): "+
		"thaw it (mount %s /mnt; fsfreeze -u /mnt; umount /mnt); if it is not frozen, unmount mount namespaces without a process (findmnt -t nsfs) and the overlays whose layers are in it, "+
		"and end the processes that have kept its files open since a umount -l", d.Path)}
}
