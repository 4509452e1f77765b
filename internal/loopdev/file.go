package loopdev

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// unit is the size to which sizes are rounded up, so that no filesystem's last block is
// truncated.
const unit = 4096

func roundUp(size int64) int64 { return (size + unit - 1) / unit * unit }

// create is the child that creates a volume's file: completely under another name, then
// renamed.
func create(a createArg) (err error) {
	defer func() { err = advised(err, filepath.Dir(a.File)) }()
	dir, err := os.Open(filepath.Dir(a.File))
	if err != nil {
		return err
	}
	defer dir.Close()
	if _, err := os.Lstat(a.File); err == nil {
		return &os.PathError{Op: "create", Path: a.File, Err: unix.EEXIST}
	}
	size := roundUp(a.Size)
	if err := checkSpace(dir, a.File, size); err != nil {
		return err
	}
	tmp := temporary(a.File)
	// The remains of an interrupted creation: the lane's lock shows that it has ended.
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := fill(tmp, size, a.Namespace); err != nil {
		os.Remove(tmp)
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, a.File, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) { // not every filesystem supports it
		if err = os.Link(tmp, a.File); err == nil {
			err = os.Remove(tmp)
		}
	}
	if err != nil {
		os.Remove(tmp)
		return &os.PathError{Op: "create", Path: a.File, Err: err}
	}
	return dir.Sync()
}

func fill(path string, size int64, namespace string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	by := "flexd"
	if namespace != "" {
		by = createdFor + namespace
	}
	for attr, value := range map[string]string{uuidAttr: newUUID(), createdAttr: by} {
		if err := unix.Fsetxattr(int(f.Fd()), attr, []byte(value), 0); err != nil {
			return fmt.Errorf("%s: attribute %s: %w", filepath.Dir(path), attr, err)
		}
	}
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Sync()
}

// checkSpace refuses a size that the filesystem of the directory cannot hold now.
// Files are sparse, so this reserves nothing, but a volume that can never be filled
// would fail later, with data in it.
func checkSpace(dir *os.File, file string, more int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("statfs %s: %w", dir.Name(), err)
	}
	if more > int64(st.Bavail)*int64(st.Bsize) { // the free space would make each retry's message different
		return fmt.Errorf("%s: %w: %s wanted, more than is free", file, unix.ENOSPC, volume.Bytes(more))
	}
	return nil
}

// advised adds a remedy to an error of the filesystem of a directory.
func advised(err error, dir string) error {
	switch {
	case errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w; raise the quota of %s (btrfs qgroup show, repquota -P), or free space there", err, dir)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w; free space on the filesystem of %s (see df and df -i), or use a smaller size", err, dir)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w; see dmesg for errors of the filesystem of %s; if there are any: umount, fsck, mount; otherwise mount it read-write", err, dir)
	case errors.Is(err, unix.EIO):
		return fmt.Errorf("%w; see dmesg for errors of the filesystem of %s and of its disk; once no pod uses its volumes: umount, fsck, mount", err, dir)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w; is it immutable or append-only? lsattr -d %s %[2]s/*; chattr -i -a FILE", err, volume.Quote(dir))
	}
	return err
}

// openFile opens a volume's file and verifies that it is that volume.
func openFile(path string, uuid volume.UUID, readOnly bool) (*os.File, error) {
	how := os.O_RDWR
	if readOnly {
		how = os.O_RDONLY
	}
	f, err := openRegular(path, how)
	if err != nil {
		return nil, err
	}
	got, err := uuidOf(f)
	if err == nil && got != uuid {
		err = fmt.Errorf("%s is now the volume %q, not %s", path, got, uuid)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// extend is the child that extends a file, and then the device on it.
func extend(a extendArg) (err error) {
	defer func() { err = advised(err, filepath.Dir(a.File)) }()
	f, err := openFile(a.File, a.UUID, false)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	size := roundUp(a.Size)
	if fi.Size() < size {
		dir, err := os.Open(filepath.Dir(a.File))
		if err != nil {
			return err
		}
		err = checkSpace(dir, a.File, size-fi.Size())
		dir.Close()
		if err != nil {
			return err
		}
		if err := f.Truncate(size); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if a.Device.Activity != volume.Active {
		return nil
	}
	return fitDevice(a, f, max(size, fi.Size()))
}

func fitDevice(a extendArg, f *os.File, size int64) error {
	dev, err := openOurs(a.Device, a.UUID, 0, false)
	if err != nil {
		return err
	}
	defer dev.Close()
	name := filepath.Base(a.Device.Path)
	at, err := inodeOfFile(f)
	if err != nil {
		return err
	}
	id, _, err := ask(dev, name)
	if err != nil {
		return err
	}
	l, err := kernel{}.Loop(name)
	if err != nil {
		return err
	}
	if id.Inode != at {
		return fmt.Errorf("%s is attached to %s, not to %s", a.Device.Path, l.BackingFile, a.File)
	}
	if l.Size >= size/512*512 {
		return nil
	}
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("LOOP_SET_CAPACITY of %s: %w", a.Device.Path, err)
	}
	if l, err = (kernel{}).Loop(name); err != nil {
		return err
	}
	if l.Size < size/512*512 {
		return fmt.Errorf("%s has %s, not %s", a.Device.Path, volume.Bytes(l.Size), volume.Bytes(size))
	}
	return nil
}

// newUUID returns a random UUID (version 4).
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
