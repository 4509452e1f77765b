package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// A backing is the backing store of a loop device: a file or a block device.
type backing struct{ dev, ino, rdev uint64 }

// loopsOn returns the loop devices with the bytes of a device: those attached to it or to a partition of
// it and, if it is a loop device itself, those attached to its backing file.
func loopsOn(dev *os.File, d volume.Device) ([]string, error) {
	number := d.Number
	_, names := withPartitions(d)
	var own backing
	file, err := backingFile(number)
	isLoop := !errors.Is(err, os.ErrNotExist)
	if isLoop {
		if err == nil {
			own, err = backingOf(dev)
		}
		if err != nil {
			return nil, err
		}
	}
	var on []string
	err = askLoops(d, func(to string, f backing) bool {
		return f.rdev != 0 || isLoop && f == own || filepath.Base(to) == filepath.Base(file)
	}, func(name, to string, its backing) {
		switch {
		case its.rdev != 0 && names[sysfs.Number(its.rdev)] != "":
			on = append(on, "/dev/"+name+" is a loop device on "+names[sysfs.Number(its.rdev)])
		case isLoop && its == own:
			on = append(on, "/dev/"+name+" is attached to the same file, "+to)
		}
	})
	return on, err
}

// filesOn returns the loop devices with a backing file in the filesystem of a device, as far as
// they can be asked.
func filesOn(d volume.Device) (on []string) {
	number := d.Number
	d.Checked = 0 // the last look has compared the files, not their filesystems
	_ = askLoops(d, func(to string, f backing) bool {
		return sysfs.Number(f.dev) == number
	}, func(name, to string, its backing) {
		if sysfs.Number(its.dev) == number {
			on = append(on, "/dev/"+name)
		}
	})
	return on
}

// askLoops reads the backing stores of all loop devices except d. It opens only possible matches,
// because each open is briefly a use, too.
func askLoops(d volume.Device, may func(to string, f backing) bool, show func(name, to string, its backing)) error {
	number := d.Number
	all, err := sysfs.Loops()
	if err != nil {
		return err
	}
	var tab *mounttable.Table // read only if needed: a node may have 10,000 mounts
	for _, loop := range all {
		name, to := loop.Name, loop.File
		f, known := cachedFile(to)
		if !known {
			if checkedBefore(name, d.Checked) {
				continue
			}
			if tab == nil {
				if tab, err = mounttable.Own(); err != nil {
					return err
				}
			}
			known = hasServer(tab, to) // the zero f is the file of no device
		}
		if known && !may(to, f) {
			continue
		}
		if n, err := sysfs.Line("/sys/block/" + name + "/dev"); err != nil || n == number {
			continue
		}
		l, err := OpenLoop(name)
		if Detached(err) {
			continue
		}
		if err != nil {
			return err
		}
		its, err := backingOf(l)
		l.Close()
		if err == nil { // otherwise it was detached, or the filesystem of its file is shut down, and that of the device's own file is not
			show(name, to, its)
		}
	}
	return nil
}

// checkedBefore reports whether a loop device was attached before flexd's last look. flexd has then compared
// its file or waited for it; a child must not wait for it, since it could not stop waiting for a filesystem
// that hangs. For logical volumes flexd compares no files.
func checkedBefore(name string, checked uint64) bool {
	seq, err := sysfs.Uint("/sys/block/" + name + "/diskseq")
	return err == nil && seq <= checked
}

// resolveCached is RESOLVE_CACHED: a lookup that would wait for a filesystem fails.
const resolveCached = 0x20

// cachedFile returns the file at the path of a loop device's backing file, if the kernel has it cached:
// its filesystem may hang. An attached file is cached, unless a server can change it; the absence of a file
// nearly never is. The file may differ from the attached one: a filesystem was mounted over it, or the path
// is of another mount namespace.
func cachedFile(path string) (f backing, known bool) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolveCached})
	if err != nil {
		return backing{}, false
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_INO, &st)
	if kind := st.Mode & unix.S_IFMT; err != nil || kind != unix.S_IFREG && kind != unix.S_IFBLK {
		return backing{}, false
	}
	return backing{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, unix.Mkdev(st.Rdev_major, st.Rdev_minor)}, true
}

// hasServer reports whether a path is on a filesystem that may wait for a server. LOOP_GET_STATUS64
// reads the attributes of the backing file, so it waits as well.
func hasServer(tab *mounttable.Table, path string) bool {
	for dir := path; ; dir = filepath.Dir(dir) {
		if e := tab.Top(dir); e != nil || dir == filepath.Dir(dir) {
			return e != nil && !slices.Contains(localTypes, e.Type)
		}
	}
}

// localTypes are the filesystems that do not wait for a server.
var localTypes = []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "vfat", "squashfs", "erofs",
	"tmpfs", "ramfs", "rootfs", "devtmpfs", "overlay"}

// OpenLoop opens a loop device by its name in sysfs. In a container, the node of that name in /dev
// may be missing or be another device.
func OpenLoop(name string) (*os.File, error) {
	number, err := sysfs.Line("/sys/block/" + name + "/dev")
	if err != nil {
		return nil, err
	}
	path := "/dev/" + name
	if IsNode(path, number) {
		return os.Open(path)
	}
	major, minor, ok := sysfs.SplitNumber(number)
	if !ok {
		return nil, fmt.Errorf("the number of %s is %q", name, number)
	}
	dir, err := ownNode(name, unix.Mkdev(major, minor))
	if err != nil {
		return nil, fmt.Errorf("%s is not the device %s, and its node cannot be created: %v", path, number, err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// IsNode reports whether a path is a node of the block device with a number.
func IsNode(path, number string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && sysfs.Number(st.Rdev) == number
}

// ownNode creates the node of a block device in a filesystem that is mounted nowhere and exists
// only while dir is open: a child that is killed leaves no node.
func ownNode(name string, dev uint64) (dir int, err error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return 0, os.NewSyscallError("fsconfig", err)
	}
	if dir, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0); err != nil {
		return 0, os.NewSyscallError("fsmount", err)
	}
	if err := unix.Mknodat(dir, name, unix.S_IFBLK|0o600, int(dev)); err != nil {
		unix.Close(dir)
		return 0, os.NewSyscallError("mknodat", err)
	}
	return dir, nil
}

// Detached reports whether an error means that a loop device has no file any more, or is
// gone.
func Detached(err error) bool {
	return errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || errors.Is(err, os.ErrNotExist)
}

// backingFile returns the path of a loop device's backing file, as the kernel shows it.
func backingFile(number string) (string, error) {
	return sysfs.Line("/sys/dev/block/" + number + "/loop/backing_file")
}

// backingOf returns the backing store of an open loop device.
func backingOf(dev *os.File) (backing, error) {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil {
		return backing{}, &os.PathError{Op: "LOOP_GET_STATUS64", Path: dev.Name(), Err: err}
	}
	return backing{info.Device, info.Inode, info.Rdevice}, nil
}
