// Package devmapper is device-mapper's ioctls, as far as they only look: which devices there
// are, their tables, and what their targets say. Nothing here waits for a device.
package devmapper

import "errors"

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

// Size returns how large the device is.
func (m Mapped) Size() int64 {
	var n int64
	for _, t := range m.Targets {
		n += t.Length
	}
	return n
}
