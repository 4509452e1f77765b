// Package devmapper has device-mapper's read-only ioctls: the list of devices, their
// tables, and the state of their targets. No function waits for a device.
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
	Loaded    bool // it has another table, which replaces that one when the device is resumed
	Targets   []Target
	Below     []string // the pool of a thin device whose table does not name it: "major:minor"
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
