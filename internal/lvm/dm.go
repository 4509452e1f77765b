package lvm

import "github.com/flexd/flexd/internal/devmapper"

// A DM is the kernel's device-mapper. No method waits for a device.
type DM interface {
	// List returns every device, with its name, uuid and number only.
	List() ([]devmapper.Mapped, error)
	// Device returns one device with its table. The key has a uuid or a number. It fails
	// with devmapper.ErrNoDevice if there is none.
	Device(key devmapper.Key) (devmapper.Mapped, error)
	// Status returns the device with the state of its targets.
	Status(key devmapper.Key) (devmapper.Mapped, error)
}

// idle reports whether the device has no live table and no user: an activation was
// interrupted, or is running. No read or write reaches a disk.
func idle(m devmapper.Mapped) bool { return !m.Live && m.Open == 0 }
