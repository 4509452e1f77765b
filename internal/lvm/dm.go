package lvm

import "github.com/flexd/flexd/internal/devmapper"

// A DM is the kernel's device-mapper. Nothing of it waits for a device.
type DM interface {
	// List returns every device there is, with no more than its name, uuid and
	// number.
	List() ([]devmapper.Mapped, error)
	// Device returns what is known of one device, with its table. The key has
	// a uuid or a number. It fails with devmapper.ErrNoDevice if there is none.
	Device(key devmapper.Key) (devmapper.Mapped, error)
	// Status returns the device with what its targets say of their state.
	Status(key devmapper.Key) (devmapper.Mapped, error)
}

// idle reports whether the device has no live table and no user: an activation
// was cut before its end, or is under way. No read or write reaches a disk.
func idle(m devmapper.Mapped) bool { return !m.Live && m.Open == 0 }
