package mount

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
)

// unmount is the child that unmounts, plainly: a lazy or forced unmount only hides a mount
// that is still in use.
func unmount(a unmountArg) (nothing, error) {
	var err error
	for range 3 { // a mount is busy briefly while a process looks at it, such as our own child for its usage
		if a.Alone || !shows(a.Dir, a.Number) {
			if err := a.check(); err != nil {
				return nothing{}, err
			}
		}
		err = unix.Unmount(a.Dir, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil:
			return nothing{}, nil
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			continue // it is gone, or another one: check again
		case !errors.Is(err, unix.EBUSY):
			return nothing{}, &os.PathError{Op: "umount", Path: a.Dir, Err: err}
		}
		time.Sleep(50 * time.Millisecond)
	}
	if errors.Is(err, unix.EBUSY) {
		busy := &BusyError{What: a.Dir}
		if tab, terr := mounttable.Own(); terr == nil && tab.Top(a.Dir) != nil {
			busy.Holders = mountHolders(tab, tab.Top(a.Dir))
		}
		return nothing{}, busy
	}
	return nothing{}, &os.PathError{Op: "umount", Path: a.Dir, Err: err}
}

// shows reports whether a lookup of dir reaches the root of a mount of the device with that
// number. It takes one system call, while the mount table's cost grows with the mounts of
// the node. It is false for a btrfs, whose files have another number.
func shows(dir, number string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	return err == nil && st.Attributes_mask&st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 &&
		fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor) == number
}

// check returns an error if the mount table shows that the mount at the directory must not
// be unmounted.
func (a unmountArg) check() error {
	tab, err := mounttable.Own()
	if err != nil {
		return err
	}
	e := tab.Top(a.Dir)
	if e == nil {
		return fmt.Errorf("%w: %s", ErrNone, a.Dir)
	}
	if !tab.IsOf(e, a.Number, nodeOf(a.Number)) {
		return fmt.Errorf("%w: %s, not %s", ErrForeign, e, a.Number)
	}
	if !a.Alone {
		return nil
	}
	holders, err := elsewhere(tab, e, a.Number)
	if err == nil && len(holders) > 0 {
		err = &BusyError{What: a.Dir, Holders: holders}
	}
	return err
}
