package loopdev

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// Marked returns the uuid of the volume in a file; "" = it is not a volume of flexd.
func Marked(path string) (volume.UUID, error) {
	f, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return uuidOf(f)
}

// Mark gives a file a new uuid: a file that another program created, or a copy that has the uuid of
// its original. A file that a loop device uses is refused.
func Mark(path string) (old, now volume.UUID, err error) {
	f, err := openRegular(path, os.O_RDWR)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	if old, err = uuidOf(f); err != nil {
		return "", "", err
	}
	if err := notAttached(f, 0, nil); err != nil {
		return "", "", fmt.Errorf("%w: its uuid must stay while it is used", err)
	}
	now = volume.UUID(newUUID())
	if err := unix.Fsetxattr(int(f.Fd()), uuidAttr, []byte(now), 0); err != nil {
		return "", "", &os.PathError{Op: "setxattr", Path: path, Err: err}
	}
	if err := notAttached(f, 0, nil); err != nil && old != "" { // just now
		err = fmt.Errorf("%w: its uuid must stay while it is used", err)
		return "", "", errors.Join(err, unix.Fsetxattr(int(f.Fd()), uuidAttr, []byte(old), 0))
	}
	// flexd created the original, at most: an mkfs of a copy is never repeated.
	if err := unix.Fremovexattr(int(f.Fd()), createdAttr); err != nil && !errors.Is(err, unix.ENODATA) {
		return "", "", &os.PathError{Op: "removexattr", Path: path, Err: err}
	}
	return old, now, f.Sync()
}

func openRegular(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", path))
	}
	return f, nil
}

func uuidOf(f *os.File) (volume.UUID, error) {
	uuid, err := attribute(func(b []byte) (int, error) { return unix.Fgetxattr(int(f.Fd()), uuidAttr, b) })
	if err != nil {
		return "", &os.PathError{Op: "getxattr", Path: f.Name(), Err: err}
	}
	return volume.UUID(uuid), nil
}
