package mount

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// probe is the child that reads a device. It changes nothing.
func probe(a probeArg) (volume.FS, error) {
	dev, err := openDevice(a.Device, 0)
	if err != nil {
		return volume.FS{}, err
	}
	defer dev.Close()
	if a.At != "" {
		return probeMounted(dev, a)
	}
	use, busy, err := useOf(dev, a.Device)
	if err != nil {
		return volume.FS{}, err
	}
	fs, err := content(dev, a)
	if fs.Use = use; busy != nil {
		fs.UsedBy = busy.Error()
	}
	return fs, err
}

// content returns the contents of a device that is not mounted.
func content(dev *os.File, a probeArg) (volume.FS, error) {
	s, found, err := identifySeen(dev, a.Seen)
	if raid := a.Device.Reshaped; err != nil && raid != "" {
		var ok bool
		if s, ok = identifyBefore(dev, a.Seen); ok {
			err = nil
		} else {
			err = volume.Errorf(volume.Busy, "the end of %s cannot be read until a reshape has ended (%w): %s", a.Device.Path, err, volume.Reshaping(raid))
		}
	}
	if err != nil {
		return volume.FS{}, err
	}
	switch {
	case s.none():
		found, _, err := proveBlank(a.Device, coverageOf(a.Created != ""))
		switch {
		case err != nil:
			return volume.FS{}, err
		case found == nil:
			return volume.FS{Content: volume.Blank}, nil
		}
		return foreign(dev, a, s, found.String())
	case s.ours():
		sb, err := readSuperblock(dev, s.Type)
		if err != nil {
			return volume.FS{}, err
		}
		if sb.Unfinished {
			return foreign(dev, a, s, "found an xfs at offset 0 whose mkfs has not ended")
		}
		if err := onOneDevice(sb, a.Device); err != nil {
			return volume.FS{}, err
		}
		if err := embeddedAllowed(sb, a.Device); err != nil {
			return volume.FS{}, err
		}
		if err := sectorsFit(dev, sb.Type, sb.Sector, a.Device); err != nil {
			return volume.FS{}, err
		}
		fs := volume.FS{Content: volume.Filesystem, Type: s.Type, Size: sb.Size, Unclean: sb.Unclean}
		if sb.Failed {
			fs.What = "its superblock notes errors that no fsck has cleared"
		}
		return fs, truncated(dev, &fs)
	}
	if len(found) == 0 {
		found = wipefs(dev)
	}
	return volume.FS{Content: volume.ForeignContent, What: describeFound(s, found)}, nil
}

// foreign describes contents that are not a filesystem. Only on a volume that flexd created does it
// check whether they may be the remains of an interrupted mkfs.
func foreign(dev *os.File, a probeArg, s signature, what string) (volume.FS, error) {
	fs := volume.FS{Content: volume.ForeignContent, What: what}
	if a.Created == "" {
		return fs, nil
	}
	why, err := notLeftoverReason(dev, a.Device, a.Created, s)
	fs.Leftover = why == "" && err == nil
	if why != "" {
		fs.What = why
	}
	return fs, err
}

// probeMounted queries the mounted filesystem.
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
	fs.Size, err = liveSize(dev, e.Type, e.Dir)
	if isFailure(err) {
		fs.Content, fs.What = volume.FilesystemFailed, err.Error()
		return fs, nil
	}
	if err == nil {
		err = truncated(dev, &fs)
	}
	if err == nil {
		err = mountedSectors(dev, a.Device, e.Type, e.Dir)
	}
	if small, ok := errors.AsType[*Refusal](err); ok {
		fs.Small, err = small.Error(), nil
	}
	return fs, err
}

// truncated marks a filesystem that is larger than its device. Its size must have
// been read before: the device may be growing.
func truncated(dev *os.File, fs *volume.FS) error {
	size, err := sizeOf(dev)
	if err == nil && fs.Size > size {
		fs.Content = volume.Truncated
	}
	return err
}

// mountedAt returns the mount of d on top of dir.
func mountedAt(d volume.Device, dir string) (*mounttable.Entry, error) {
	tab, err := mounttable.Own()
	if err != nil {
		return nil, err
	}
	e := tab.Top(dir)
	if e == nil {
		return nil, fmt.Errorf("%w: %s", ErrNone, dir)
	}
	if !tab.IsOf(e, d.Number, d.Path) {
		return nil, fmt.Errorf("%w: %s", ErrForeign, e)
	}
	if e.Type != "btrfs" {
		return e, nil
	}
	// Any scan in a container's /dev changes the name of the device in the table.
	fd, err := unix.Open(e.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: e.Dir, Err: err}
	}
	defer unix.Close(fd)
	return e, btrfsIsOf(fd, d)
}

// inError describes the error of a mounted filesystem; "" = it has none.
func inError(d volume.Device, e *mounttable.Entry) string {
	if o := e.Stopped(); o != "" {
		return "the kernel shut the filesystem down after an error (" + o + ")"
	}
	if e.Type == "ext4" && !d.ReadOnly {
		name := strings.ReplaceAll(strings.TrimPrefix(d.Path, "/dev/"), "/", "!")
		if n, err := sysfs.Line("/sys/fs/ext4/" + name + "/errors_count"); err == nil && n != "0" {
			return "ext4 counted " + n + " errors"
		}
	}
	if e.Type == "btrfs" && e.SuperReadOnly && !d.ReadOnly { // see asw.Observer
		return volume.ForcedReadOnly(e.Dir)
	}
	if err := checkRoot(e.Dir); isFailure(err) {
		return err.Error()
	}
	return ""
}

// checkRoot opens and lists the root of a mount: that fails on a filesystem that was shut
// down or lost its device.
func checkRoot(dir string) error {
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

// isFailure reports whether an error means that the filesystem, or a device below it, has
// failed.
func isFailure(err error) bool {
	failures := []error{unix.EIO, unix.EUCLEAN, unix.EBADMSG, unix.ESHUTDOWN, unix.EROFS, unix.ENXIO}
	return slices.ContainsFunc(failures, func(e error) bool { return errors.Is(err, e) })
}
