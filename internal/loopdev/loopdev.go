// Package loopdev is the embedded block device provider, for a machine without
// LVM: a volume group is a directory, a logical volume a sparse file, and
// activation a loop device.
//
// A file is a volume of flexd if it carries a uuid in an extended attribute,
// and a loop device is flexd's if its kernel-side file name says so. Neither
// the loop number nor the file's name identifies anything. The package is not
// for what is on the devices.
package loopdev

import (
	"context"
	"errors"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

var errTodo = errors.New("not built yet")

// A Provider looks after the volumes of some directories.
type Provider struct {
	dirs    map[string]string // VG → directory
	linkDir string
	runner  run.Runner
	kernel  Kernel
}

// New returns a provider for the volume groups vgs (name → directory), whose
// stable device links stand in linkDir. It reads the kernel through k.
func New(vgs map[string]string, linkDir string, r run.Runner, k Kernel) *Provider {
	return &Provider{dirs: vgs, linkDir: linkDir, runner: r, kernel: k}
}

// LookUp says whether there is a volume of that name.
func (p *Provider) LookUp(ctx context.Context, name volume.Name) (volume.LV, error) {
	return volume.LV{}, errTodo
}

// Device says which block device lv has, if any.
func (p *Provider) Device(ctx context.Context, lv volume.LV) (volume.Device, error) {
	return volume.Device{}, errTodo
}

// Identify says which volume the device of that number is, for a mount table
// entry. The name is empty if it is no longer known. It is false if the device
// is none of flexd's.
func (p *Provider) Identify(ctx context.Context, number string) (volume.UUID, volume.Name, bool, error) {
	return "", volume.Name{}, false, errTodo
}

// Create makes a volume of size bytes, blank. It never replaces anything.
func (p *Provider) Create(ctx context.Context, lock string, name volume.Name, size int64) error {
	return errTodo
}

// Activate gives lv a block device and returns it.
func (p *Provider) Activate(ctx context.Context, lock string, lv volume.LV) (volume.Device, error) {
	return volume.Device{}, errTodo
}

// Deactivate takes lv's block device d away. A device that is in use gives a
// *mount.BusyError.
func (p *Provider) Deactivate(ctx context.Context, lock string, lv volume.LV, d volume.Device) error {
	return errTodo
}

// Extend makes lv and its device d at least size bytes large. d may be
// inactive.
func (p *Provider) Extend(ctx context.Context, lock string, lv volume.LV, d volume.Device, size int64) error {
	return errTodo
}
