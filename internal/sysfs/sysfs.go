// Package sysfs reads devices from sysfs, and formats device numbers as sysfs does.
package sysfs

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Line reads a file of sysfs with one line. It uses system calls: the registration of an os.File
// with the runtime's poller costs more than the read.
func Line(path string) (string, error) { return lineAt(unix.AT_FDCWD, path) }

func lineAt(dir int, path string) (string, error) {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for err == unix.EINTR {
		fd, err = unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	line := ""
	for b := [256]byte{}; ; { // on the stack: few lines are longer
		n, err := unix.Read(fd, b[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return "", &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if line += string(b[:n]); n < len(b) {
			return strings.TrimSuffix(line, "\n"), nil
		}
	}
}

// Uint reads a file of sysfs with one number.
func Uint(path string) (uint64, error) {
	s, err := Line(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// Number formats a device number as sysfs does: "major:minor".
func Number(dev uint64) string {
	return strconv.FormatUint(uint64(unix.Major(dev)), 10) + ":" + strconv.FormatUint(uint64(unix.Minor(dev)), 10)
}

// SplitNumber parses the result of Number.
func SplitNumber(s string) (major, minor uint32, ok bool) {
	a, b, _ := strings.Cut(s, ":")
	x, err1 := strconv.ParseUint(a, 10, 12)
	y, err2 := strconv.ParseUint(b, 10, 20)
	return uint32(x), uint32(y), err1 == nil && err2 == nil
}

// LogicalBlock returns the size of the logical blocks of a device, 0 if it is unknown.
func LogicalBlock(number string) int64 {
	dir := "/sys/dev/block/" + number
	if _, err := Line(dir + "/partition"); err == nil {
		dir += "/.."
	}
	size, _ := Uint(dir + "/queue/logical_block_size")
	return int64(size)
}
