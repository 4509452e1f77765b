package mount

import (
	"context"
	"errors"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

var errTodo = errors.New("not built yet")

// Ops does what is done to filesystems, each by a child under the lane's lock
// file, and says what came of it.
type Ops struct {
	Runner run.Runner
}

// Probe looks at what is on a device. mountedAt is a directory where the device
// is mounted, or "": a mounted filesystem is asked itself, an unmounted device
// is read.
func (o Ops) Probe(ctx context.Context, lock string, d volume.Device, mountedAt string) (volume.FS, error) {
	return volume.FS{}, errTodo
}

// Format makes a filesystem on a device that the child itself proves blank
// first. repeat says that a mkfs of fsType was begun here before and may be
// repeated: then what that mkfs left is no reason to refuse, anything else is.
// A refusal is a *Refusal.
func (o Ops) Format(ctx context.Context, lock string, d volume.Device, fsType string, opts []string, repeat bool) error {
	return errTodo
}

// Check repairs what can be repaired without a decision. It is only for a
// device that is not mounted.
func (o Ops) Check(ctx context.Context, lock string, d volume.Device, fsType string) error {
	return errTodo
}

// A Landing is a mount to be made.
type Landing struct {
	Device   volume.Device `json:"device"`
	FSType   string        `json:"fsType"`
	Dir      string        `json:"dir"`
	ReadOnly bool          `json:"readOnly,omitempty"` // of the mount; the superblock is read-only only if the device is
	Attrs    []string      `json:"attrs,omitempty"`    // further mount attributes: nosuid, nodev, noexec, noatime, ...
	Super    []string      `json:"super,omitempty"`    // superblock options: "key" or "key=value"
	Root     string        `json:"root,omitempty"`     // Dir must lie below, without a symlink on the way; "" = not checked
}

// Land builds the mount detached, asks gate when it is complete, and lets it
// appear at l.Dir in one instant if gate returns nil. Whatever else happens,
// nothing was mounted.
func (o Ops) Land(ctx context.Context, lock string, l Landing, gate func() error) error {
	return errTodo
}

// Unmount takes the top mount at dir away, plainly, if it is of the device of
// that number. A mount in use gives a *BusyError that names the holders.
func (o Ops) Unmount(ctx context.Context, lock string, dir, number string) error {
	return errTodo
}

// Grow grows a mounted filesystem to its device's size. Nothing to do is
// success.
func (o Ops) Grow(ctx context.Context, lock string, d volume.Device, fsType, mountedAt string) error {
	return errTodo
}
