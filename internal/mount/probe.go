package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// probe is the child that looks at a device. It changes nothing.
func probe(a probeArg) (volume.FS, error) {
	dev, err := openDevice(a.Device, 0)
	if err != nil {
		return volume.FS{}, err
	}
	defer dev.Close()
	if a.At != "" {
		return probeMounted(dev, a)
	}
	s, err := identify(dev)
	if err != nil {
		return volume.FS{}, err
	}
	switch {
	case s.none():
		found, err := proveBlank(a.Device)
		if err != nil {
			return volume.FS{}, err
		}
		if found != nil {
			return volume.FS{Content: volume.ForeignContent, What: found.String()}, nil
		}
		return volume.FS{Content: volume.Blank}, nil
	case s.ours():
		sb, err := readSuperblock(dev, s.Type)
		if err != nil {
			return volume.FS{}, err
		}
		fs := volume.FS{Content: volume.Filesystem, Type: s.Type, Size: sb.Size}
		if sb.Failed {
			fs.What = "its superblock notes errors that no fsck has cleared"
		}
		return fs, nil
	}
	return volume.FS{Content: volume.ForeignContent, What: describe(dev, s)}, nil
}

// probeMounted asks the mounted filesystem itself.
func probeMounted(dev *os.File, a probeArg) (volume.FS, error) {
	e, err := mountedAt(a.Device, a.At)
	if err != nil {
		return volume.FS{}, err
	}
	fs := volume.FS{Content: volume.Filesystem, Type: e.Type}
	if what := inError(a.Device, e); what != "" {
		fs.Content, fs.What = volume.FilesystemFailed, what
		return fs, nil
	}
	fs.Size, err = liveSize(dev, e)
	if isFailure(err) {
		fs.Content, fs.What = volume.FilesystemFailed, err.Error()
		return fs, nil
	}
	return fs, err
}

// mountedAt returns the mount of d on top of dir.
func mountedAt(d volume.Device, dir string) (*Entry, error) {
	tab, err := readOwnTable()
	if err != nil {
		return nil, err
	}
	e := tab.Top(dir)
	if e == nil {
		return nil, fmt.Errorf("%w: %s", ErrNone, dir)
	}
	if !tab.isOf(e, d.Number, d.Path) {
		return nil, fmt.Errorf("%w: %s", ErrForeign, e)
	}
	return e, nil
}

// inError says what is wrong with a mounted filesystem, or "".
func inError(d volume.Device, e *Entry) string {
	for _, o := range e.Super {
		switch o {
		case "emergency_ro", "shutdown":
			return "the kernel shut the filesystem down after an error (" + o + ")"
		}
	}
	if e.Type == "ext4" {
		name := strings.ReplaceAll(strings.TrimPrefix(d.Path, "/dev/"), "/", "!")
		if b, err := os.ReadFile("/sys/fs/ext4/" + name + "/errors_count"); err == nil {
			if n := strings.TrimSpace(string(b)); n != "0" {
				return "ext4 counted " + n + " errors"
			}
		}
	}
	if e.SuperReadOnly && !d.ReadOnly {
		return "the filesystem is read-only on a writable device, as the kernel makes it after an error"
	}
	if err := lookInside(e.Dir, e.Number); isFailure(err) {
		return err.Error()
	}
	return ""
}

// lookInside opens and lists the root of a mount: a filesystem that was shut
// down, or lost its device, fails at that.
func lookInside(dir, number string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return list(fd, dir)
}

func list(fd int, name string) error {
	var buf [4096]byte
	for {
		_, err := unix.Getdents(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "read", Path: name, Err: err}
		}
		return nil
	}
}

// isFailure says whether an error is a filesystem's way of saying that it, or
// what is below it, is broken.
func isFailure(err error) bool {
	for _, e := range []error{unix.EIO, unix.EUCLEAN, unix.EBADMSG, unix.ESHUTDOWN, unix.EROFS, unix.ENXIO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
