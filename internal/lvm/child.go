package lvm

import (
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Child runs an operation of this package in a child process: it prints one JSON line, and returns
// the exit status. ok is false if op is not an operation of this package.
func Child(op string, arg []byte) (code int, ok bool) {
	switch op {
	case "lvm-holders":
		run.BeChild()
		return mount.Do(arg, holders), true
	case "lvm-superblocks":
		run.BeChild()
		return mount.Do(arg, superblocks), true
	case "lvm-snapshot-valid":
		run.BeChild()
		return mount.Do(arg, readValid), true
	}
	return 0, false
}

func holders(a holdersArg) ([]mount.Holder, error) {
	return mount.DeviceHolders(volume.Device{Number: a.Number, Path: a.Path}), nil
}
