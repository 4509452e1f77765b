// Package devmapper has device-mapper's read-only ioctls: the list of devices, their
// tables, and the state of their targets. No function waits for a device.
package devmapper

import "errors"

var ErrNoDevice = errors.New("device-mapper has no such device")

// A Key names a device: by UUID or, if that is empty, by "major:minor".
type Key struct{ UUID, Number string }

// A Mapped is a device of device-mapper.
type Mapped struct {
	Name      string
	UUID      string
	Number    string // "major:minor"
	Open      int    // how often it is open, mounts included
	Suspended bool
	ReadOnly  bool
	Live      bool // it has a live table
	Loaded    bool // it has a loaded table, which replaces the live one at a resume
	Targets   []Target
	Below     []string // for a thin device whose table does not name its pool: the pool's "major:minor"
}

// A Target is a segment of a device.
type Target struct {
	Type   string // "linear", "thin", "error", ...
	Start  int64  // bytes
	Length int64  // bytes
	Params string // its table, or its status
}

// Size returns the size of the device.
func (m Mapped) Size() int64 {
	var n int64
	for _, t := range m.Targets {
		n += t.Length
	}
	return n
}
