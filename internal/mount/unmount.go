package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// unmount is the child that unmounts, plainly: a lazy or forced unmount only hides a mount
// that is still in use.
func unmount(a unmountArg) error {
	var err error
	device := a.Number
	for range 3 { // a mount is busy briefly while a process reads it, such as flexd's own child for its usage
		if a.Alone || !shows(a.Dir, a.Number) {
			if device, err = a.check(); err != nil {
				return err
			}
		}
		var last *mountCopy
		if a.Last {
			last = copyOf(a.Dir)
		}
		if err = unix.Unmount(a.Dir, unix.UMOUNT_NOFOLLOW); err == nil {
			err = last.written(device)
			if err != nil { // for the next flexd, if this one has ended: standard input is the lane's lock file
				_ = unix.Ftruncate(0, 0)
				_, _ = unix.Pwrite(0, []byte(err.Error()), 0)
			}
			return err
		}
		last.close()
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			continue // it is gone, or another one: check again
		case !errors.Is(err, unix.EBUSY):
			return &os.PathError{Op: "umount", Path: a.Dir, Err: err}
		}
		time.Sleep(50 * time.Millisecond)
	}
	if errors.Is(err, unix.EBUSY) {
		busy := &BusyError{What: a.Dir}
		if tab, terr := mounttable.Own(); terr == nil && tab.Top(a.Dir) != nil {
			busy.Holders = mountHolders(tab, tab.Top(a.Dir))
		}
		return busy
	}
	return &os.PathError{Op: "umount", Path: a.Dir, Err: err}
}

// A mountCopy is a detached copy of a mount, which keeps its filesystem after the unmount; nil if
// the result of the last writes is not needed.
type mountCopy struct {
	tree int
	err  error // why there is no copy
}

func copyOf(dir string) *mountCopy {
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_SYMLINK_NOFOLLOW
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, flags)
	if errors.Is(err, unix.EINVAL) && unix.Mount("", dir, "", unix.MS_PRIVATE, "") == nil { // it was unbindable
		tree, err = unix.OpenTree(unix.AT_FDCWD, dir, flags)
	}
	return &mountCopy{tree, os.NewSyscallError("open_tree", err)}
}

func (c *mountCopy) close() {
	if c != nil && c.err == nil {
		unix.Close(c.tree)
	}
}

// written writes the data of the filesystem on a device, and ends the copy. umount(2) reports no failed write;
// syncfs(2) reports also those that failed before.
func (c *mountCopy) written(device string) error {
	if c == nil {
		return nil
	}
	defer c.close()
	err := c.err
	if err == nil {
		var fd int
		if fd, err = unix.Openat(c.tree, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			defer unix.Close(fd)
			if err = unix.Syncfs(fd); err == nil {
				return maybeCut(device)
			}
			return fmt.Errorf("%w: writes to it have failed since it was mounted (%v); %s", ErrUnwritten, err, lookAtWrites)
		}
		err = &os.PathError{Op: "open", Path: "its root", Err: err} // for example of an xfs that has shut down
	}
	return fmt.Errorf("%w: whether all data was written is unknown (%v); %s", ErrUnwritten, err, lookAtWrites)
}

// maybeCut returns an error if writes may be lost although the kernel has reported none: the loop driver of recent kernels
// (Linux 6.18) reports a write as done of which only a part fits in the filesystem below.
func maybeCut(device string) error {
	below := writableBelow(volume.Device{Number: device})
	if below == nil {
		return nil
	}
	if ro, err := sysfs.Uint("/sys/dev/block/" + device + "/ro"); err == nil && ro != 0 {
		return nil
	}
	if !errors.Is(below, unix.ENOSPC) {
		return fmt.Errorf("%w: whether all data was written is unknown (%v); %s", ErrUnwritten, below, lookAtWrites)
	}
	return fmt.Errorf("%w: %v; recent kernels (Linux 6.18) do not report every lost write; %s", ErrUnwritten, below, lookAtWrites)
}

// Unreported returns the ErrUnwritten that an unmount has written to its lock file, once.
func Unreported(lock string) error {
	f, err := os.OpenFile(lock, os.O_RDONLY|unix.O_NONBLOCK, 0) // another program may have put a FIFO there
	if err != nil {
		return nil
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 {
		return nil
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil
	}
	_ = os.Truncate(lock, 0)
	return &kindError{text: string(text), kind: ErrUnwritten}
}

// LostWrite returns the ErrUnwritten of a filesystem for which the kernel has logged a lost write.
func LostWrite(logged string) error {
	return fmt.Errorf("%w: the kernel logged %q; %s", ErrUnwritten, logged, lookAtWrites)
}

const lookAtWrites = "look at dmesg: was the disk, the thin pool or the filesystem below it full, or did it fail? Check the files that were written last"

// shows reports whether a lookup of dir reaches the root of a mount of the device with that number.
// It needs one system call, while the cost of the mount table grows with the mounts of the node. It
// returns false for a btrfs, whose files have another number.
func shows(dir, number string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	return err == nil && st.Attributes_mask&st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 &&
		fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor) == number
}

// check returns the number of the mount's device, or an error if the mount table shows that the mount at the directory
// must not be unmounted.
func (a unmountArg) check() (device string, err error) {
	tab, err := mounttable.Own()
	if err != nil {
		return "", err
	}
	e := tab.Top(a.Dir)
	if e == nil {
		return "", fmt.Errorf("%w: %s", ErrNone, a.Dir)
	}
	if !tab.IsOf(e, a.Number, nodeOf(a.Number)) {
		return "", fmt.Errorf("%w: %s, not %s", ErrForeign, e, a.Number)
	}
	if device = e.Number; e.Type == "btrfs" {
		device = e.SourceNumber()
	}
	if !a.Alone {
		return device, nil
	}
	holders, err := elsewhere(tab, e, a.Number)
	if err == nil && len(holders) > 0 {
		err = &BusyError{What: a.Dir, Holders: holders}
	}
	return device, err
}
