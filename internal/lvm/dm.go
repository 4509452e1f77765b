package lvm

import (
	"errors"
)

// A DM is the kernel's device-mapper. Nothing here waits for a device.
type DM interface {
	// List returns every device there is, with no more than its name, uuid and
	// number.
	List() ([]Mapped, error)
	// Device returns what is known of one device, with its table. The key has
	// a uuid or a number. It fails with ErrNoDevice if there is none.
	Device(key Key) (Mapped, error)
	// Status returns the device with what its targets say of their state.
	Status(key Key) (Mapped, error)
}

// ErrNoDevice says that device-mapper has no such device.
var ErrNoDevice = errors.New("device-mapper has no such device")

// A Key names one device: by uuid, or by "major:minor" if that is empty.
type Key struct{ UUID, Number string }

// A Mapped is a device of device-mapper.
type Mapped struct {
	Name      string
	UUID      string
	Number    string // "major:minor"
	Open      int    // how often it is open, mounts included
	Suspended bool
	ReadOnly  bool
	Live      bool // it has a table
	Targets   []Target
}

// A Target is a piece of a device.
type Target struct {
	Type   string // "linear", "thin", "error", ...
	Start  int64  // bytes
	Length int64  // bytes
	Params string // its table, or its status
}

// idle reports whether the device has no live table and no user: an activation
// was cut before its end, or is under way. No read or write reaches a disk.
func (m Mapped) idle() bool { return !m.Live && m.Open == 0 }

// Size returns how large the device is.
func (m Mapped) Size() int64 {
	var n int64
	for _, t := range m.Targets {
		n += t.Length
	}
	return n
}
