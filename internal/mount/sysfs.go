package mount

import (
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// Sysfs reads a file of sysfs that has one line. It asks the kernel directly: an os.File would
// be handed to the runtime's poller first, which costs more than the reading.
func Sysfs(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for err == unix.EINTR {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	b := make([]byte, 4097) // sysfs gives at most a page, in one piece
	n, err := unix.Read(fd, b)
	for err == unix.EINTR {
		n, err = unix.Read(fd, b)
	}
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return strings.TrimSuffix(string(b[:n]), "\n"), nil
}
