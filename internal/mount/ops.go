package mount

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Deadlines of the children. A probe and an extension are short; mkfs and fsck of a large
// volume are not, and a mount may replay a journal.
const (
	probeDeadline   = 2 * time.Minute
	formatDeadline  = time.Hour + 10*time.Minute
	mkfsDeadline    = time.Hour // of mkfs alone: the child then erases its writes
	checkDeadline   = 6 * time.Hour
	mountDeadline   = 10 * time.Minute
	unmountDeadline = time.Minute // then it is reported, never killed
	growDeadline    = 10 * time.Minute
	zeroDeadline    = 10 * time.Minute
)

// Ops runs the operations on filesystems, each in a child that holds the lane's lock file,
// and returns their results.
type Ops struct {
	Runner run.Runner
	Memory int64 // bytes that an fsck or mkfs may use; 0 = no limit
}

type probeArg struct {
	Device  volume.Device `json:"device"`
	At      string        `json:"at,omitempty"`
	Created volume.UUID   `json:"created,omitempty"`
	Seen    string        `json:"seen,omitempty"`
}

// Probe returns the contents of a device. mountedAt is a directory where the device is mounted, or "":
// Probe queries a mounted filesystem, and reads an unmounted device. created is the uuid of a volume that flexd
// created, otherwise ""; Probe reads more of other volumes. seen is the filesystem that flexd has seen on the device
// before: its files may contain other signatures.
func (o Ops) Probe(ctx context.Context, lock string, d volume.Device, mountedAt string, created volume.UUID, seen string) (volume.FS, error) {
	var fs volume.FS
	err := Ask(ctx, o.Runner, run.Cmd{
		Step:     "probe",
		Argv:     run.Self("probe", probeArg{Device: d, At: mountedAt, Created: created, Seen: seen}),
		Lock:     lock,
		Deadline: probeDeadline,
	}, &fs)
	if err != nil {
		return volume.FS{}, err
	}
	return fs, nil
}

// A Formatting is a filesystem to be made.
type Formatting struct {
	Device  volume.Device `json:"device"`
	Type    string        `json:"type"`
	Opts    []string      `json:"opts,omitempty"`
	Repeat  bool          `json:"repeat,omitempty"`  // over the remains of an mkfs of Type that was interrupted by a crash
	Created volume.UUID   `json:"created,omitempty"` // the uuid of a volume that flexd created
	Record  string        `json:"record,omitempty"`  // the path of the format record
	Memory  int64         `json:"memory,omitempty"`  // set by Format
}

// Format makes a filesystem on a device that the child itself proves blank first. Then it
// asks gate, which makes the format record durable; mkfs starts if gate returns nil. If
// mkfs does not start, or fails by itself, its writes are erased and the record is removed,
// also if flexd has died meanwhile. With Repeat the device may contain the remains of an
// interrupted mkfs, and nothing else. A refusal is a *Refusal.
func (o Ops) Format(ctx context.Context, lock string, f Formatting, gate func() error) error {
	f.Memory = o.Memory
	return Ask(ctx, o.Runner, run.Cmd{
		Step:     "mkfs",
		Argv:     run.Self("format", f),
		Lock:     lock,
		Deadline: formatDeadline,
		Mutates:  true,
		Gate:     gate,
	}, nil)
}

type zeroArg struct {
	Device volume.Device `json:"device"`
	From   int64         `json:"from,omitempty"`
	All    bool          `json:"all,omitempty"` // zero everything, not only the places of the blank proof
	Type   string        `json:"type,omitempty"`
	At     string        `json:"at,omitempty"` // the mount point of a filesystem of Type whose end is the start of the zeroed part
}

// zeroed is the answer of a child that zeroes a part of a device.
type zeroed struct {
	To   int64 `json:"to"` // everything before this offset is zeroed
	Size int64 `json:"size"`
}

// Zero zeroes the places of the blank proof on the device of a volume that is being
// created. It refuses to zero a signature that libblkid knows, with a *Refusal.
func (o Ops) Zero(ctx context.Context, lock string, d volume.Device) error {
	return o.zero(ctx, lock, zeroArg{Device: d})
}

// ZeroFrom is Zero for a volume that was blank before it was extended from that size. If it is not blank
// up to that size, the error is a *Refusal. It may be repeated.
func (o Ops) ZeroFrom(ctx context.Context, lock string, d volume.Device, from int64) error {
	if from <= 0 { // that would be Zero
		return errors.New("zero: the size before is not known")
	}
	return o.zero(ctx, lock, zeroArg{Device: d, From: from})
}

// ZeroAll zeroes the whole device of a volume that is being created, and reports its progress. It
// starts a child for each part, so that the work ends soon after flexd does.
func (o Ops) ZeroAll(ctx context.Context, lock string, d volume.Device) error {
	return o.zero(ctx, lock, zeroArg{Device: d, All: true})
}

// ZeroBehind is ZeroAll for the part of a device beyond a mounted filesystem that is to be
// extended.
func (o Ops) ZeroBehind(ctx context.Context, lock string, d volume.Device, fsType, mountedAt string) error {
	return o.zero(ctx, lock, zeroArg{Device: d, All: true, Type: fsType, At: mountedAt})
}

func (o Ops) zero(ctx context.Context, lock string, a zeroArg) error {
	for {
		var done zeroed
		err := Ask(ctx, o.Runner, run.Cmd{
			Step:     "zero",
			Argv:     run.Self("zero", a),
			Lock:     lock,
			Deadline: zeroDeadline,
			Mutates:  true,
		}, &done)
		if err != nil || done.To >= done.Size {
			return err
		}
		run.Progress(ctx, fmt.Sprintf("zeroing %d %%", done.To*100/done.Size))
		a.From = done.To
	}
}

type checkArg struct {
	Device volume.Device `json:"device"`
	Memory int64         `json:"memory,omitempty"`
}

// Check repairs errors that need no decision, on a device that is not mounted. It starts no
// process for filesystems that repair themselves when they are mounted, or for read-only
// devices.
func (o Ops) Check(ctx context.Context, lock string, d volume.Device, fsType string) error {
	if fsType != "ext4" || d.ReadOnly {
		return nil
	}
	return Ask(ctx, o.Runner, run.Cmd{
		Step:     "fsck",
		Argv:     run.Self("check", checkArg{Device: d, Memory: o.Memory}),
		Lock:     lock,
		Deadline: checkDeadline,
		Mutates:  true,
	}, nil)
}

// A MountSpec is a mount to be made.
type MountSpec struct {
	Device   volume.Device `json:"device"`
	FSType   string        `json:"fsType"`
	Dir      string        `json:"dir"`
	First    bool          `json:"first,omitempty"`    // the volume is not mounted yet: nothing else may use its device
	ReadOnly bool          `json:"readOnly,omitempty"` // of the mount; the superblock is read-only only if the device is
	Attrs    []string      `json:"attrs,omitempty"`    // further mount attributes: nosuid, nodev, noexec, noatime, ...
	Super    []string      `json:"super,omitempty"`    // superblock options: "key" or "key=value"
	Root     string        `json:"root,omitempty"`     // Dir must be below it, without a symlink in between; "" = no symlink at all

	onlyJournal bool // for the replay of its journal: a check follows
}

// Mount builds the mount detached, calls gate when it is complete, and moves it to l.Dir in
// one instant if gate returns nil. Otherwise nothing was mounted.
func (o Ops) Mount(ctx context.Context, lock string, l MountSpec, gate func() error) error {
	return Ask(ctx, o.Runner, run.Cmd{
		Step:     "mount",
		Argv:     run.Self("mount", l),
		Lock:     lock,
		Deadline: mountDeadline,
		Mutates:  true,
		Gate:     gate,
	}, nil)
}

type unmountArg struct {
	Dir    string `json:"dir"`
	Number string `json:"number"`
	Alone  bool   `json:"alone,omitempty"`
	Last   bool   `json:"last,omitempty"`
}

// Unmount unmounts the top mount at dir, plainly, if it is a mount of the device with that number;
// otherwise it fails with ErrForeign or ErrNone. If the mount is in use, the error is a *BusyError
// that names the holders. The child is never killed. last = it is the last mount of its filesystem:
// if the kernel could not write all data, the error is ErrUnwritten.
func (o Ops) Unmount(ctx context.Context, lock string, dir, number string, last bool) error {
	return o.unmount(ctx, lock, unmountArg{Dir: dir, Number: number, Last: last})
}

// UnmountAlone is Unmount if no other mount namespace has the device mounted. Otherwise it returns
// a *BusyError that names a process there. It fails if the mounts of another namespace are unknown.
func (o Ops) UnmountAlone(ctx context.Context, lock string, dir, number string, last bool) error {
	return o.unmount(ctx, lock, unmountArg{Dir: dir, Number: number, Alone: true, Last: last})
}

func (o Ops) unmount(ctx context.Context, lock string, arg unmountArg) error {
	return Ask(ctx, o.Runner, run.Cmd{
		Step:     "umount",
		Argv:     run.Self("umount", arg),
		Lock:     lock,
		Deadline: unmountDeadline,
		NoKill:   true,
		Mutates:  true,
	}, nil)
}

type growArg struct {
	Device volume.Device `json:"device"`
	Type   string        `json:"type"`
	At     string        `json:"at"`
}

// Grow extends a mounted filesystem to the size of its device, if the filesystem is smaller. The
// mount at mountedAt may be read-only.
func (o Ops) Grow(ctx context.Context, lock string, d volume.Device, fsType, mountedAt string) error {
	return Ask(ctx, o.Runner, run.Cmd{
		Step:     "grow filesystem",
		Argv:     run.Self("grow", growArg{Device: d, Type: fsType, At: mountedAt}),
		Lock:     lock,
		Deadline: growDeadline,
		Mutates:  true,
	}, nil)
}

type canGrowArg struct {
	growArg
	Size int64 `json:"size"`
}

// CanGrow returns the error of Grow, if it is known before the device is extended to that size.
func (o Ops) CanGrow(ctx context.Context, lock string, d volume.Device, fsType, mountedAt string, size int64) error {
	return Ask(ctx, o.Runner, run.Cmd{
		Step:     "check growth",
		Argv:     run.Self("can-grow", canGrowArg{growArg{Device: d, Type: fsType, At: mountedAt}, size}),
		Lock:     lock,
		Deadline: growDeadline,
	}, nil)
}
