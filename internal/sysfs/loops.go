package sysfs

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Loop is a loop device with its backing file, as in sysfs: a deleted file ends in
// " (deleted)".
type Loop struct{ Name, File string }

// LongPath is the File of a loop device if the kernel cannot show the path.
const LongPath = "(a path of 4096 bytes or more)"

// Loops lists the loop devices with a backing file. Each device without one, of which some nodes have
// many, costs a failing open.
func Loops() ([]Loop, error) { return loops("/sys") }

func loops(root string) ([]Loop, error) {
	d, err := os.Open(root + "/devices/virtual/block")
	if errors.Is(err, fs.ErrNotExist) { // the kernel has no virtual device yet, or sysfs is hidden
		all, berr := os.ReadDir(root + "/block")
		if berr == nil && !slices.ContainsFunc(all, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), "loop") }) {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var loops []Loop
	for _, name := range names {
		if !strings.HasPrefix(name, "loop") {
			continue
		}
		file, err := lineAt(int(d.Fd()), name+"/loop/backing_file")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
			continue // no backing file, or the device was detached or removed meanwhile
		}
		if errors.Is(err, unix.ENAMETOOLONG) { // a user can move the file of any loop device into a deep directory
			file, err = LongPath, nil
		}
		if err != nil {
			return nil, err
		}
		if file != "" {
			loops = append(loops, Loop{Name: name, File: file})
		}
	}
	return loops, nil
}
