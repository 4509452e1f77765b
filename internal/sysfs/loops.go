package sysfs

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Loop is a loop device with a backing file, as sysfs names both: a deleted file ends in
// " (deleted)".
type Loop struct{ Name, File string }

// LongPath is the File of a loop device whose file has a path that the kernel cannot show.
const LongPath = "(a path of 4096 bytes or more)"

// Loops lists the loop devices that have a backing file. Devices without one are many on
// some nodes, and cost one failing open each.
func Loops() ([]Loop, error) { return loops("/sys") }

func loops(root string) ([]Loop, error) {
	d, err := os.Open(root + "/devices/virtual/block")
	if errors.Is(err, fs.ErrNotExist) { // until the kernel has a virtual device, unless it is hidden
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
			continue // it has none, or was detached or removed meanwhile
		}
		if errors.Is(err, unix.ENAMETOOLONG) { // of any loop device: a user can move its file so deep
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
