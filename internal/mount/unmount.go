package mount

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// unmount is the child that takes a mount away. It does so plainly: a lazy or
// forced one only hides what is still in use.
func unmount(a unmountArg) (nothing, error) {
	var err error
	for range 3 { // a mount is busy for an instant when somebody looks at it
		tab, terr := readOwnTable()
		if terr != nil {
			return nothing{}, terr
		}
		e := tab.Top(a.Dir)
		if e == nil {
			return nothing{}, fmt.Errorf("%w: %s", ErrNone, a.Dir)
		}
		if !tab.isOf(e, a.Number, nodeOf(a.Number)) {
			return nothing{}, fmt.Errorf("%w: %s, not %s", ErrForeign, e, a.Number)
		}
		if a.Alone {
			switch holders, herr := elsewhere(tab, e, a.Number); {
			case herr != nil:
				return nothing{}, herr
			case len(holders) > 0:
				return nothing{}, &BusyError{What: a.Dir, Holders: holders}
			}
		}
		err = unix.Unmount(a.Dir, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil:
			return nothing{}, nil
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			continue // it is gone, or another: look again
		case !errors.Is(err, unix.EBUSY):
			return nothing{}, &os.PathError{Op: "umount", Path: a.Dir, Err: err}
		}
		if holders := mountHolders(tab, e); len(holders) > 0 {
			return nothing{}, &BusyError{What: a.Dir, Holders: holders}
		}
		time.Sleep(50 * time.Millisecond)
	}
	if errors.Is(err, unix.EBUSY) {
		return nothing{}, &BusyError{What: a.Dir}
	}
	return nothing{}, &os.PathError{Op: "umount", Path: a.Dir, Err: err}
}

// readOwnTable reads the mount table of this process.
func readOwnTable() (*Table, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadTable(f)
}

// isOf says whether e is a mount of that device.
func (t *Table) isOf(e *Entry, number, path string) bool {
	for _, m := range t.OfDevice(number, path) {
		if m == e {
			return true
		}
	}
	return false
}

func (e *Entry) String() string {
	return fmt.Sprintf("%s (%s) of %s at %s", e.Type, e.Number, e.Source, e.Dir)
}
