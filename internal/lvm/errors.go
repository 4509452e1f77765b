package lvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// The kinds of errors of groups and commands, for errors.Is.
var (
	ErrNoVG          = volume.WithCode(volume.NotFound, errors.New("the volume group does not exist"))
	ErrNoLV          = volume.WithCode(volume.NotFound, errors.New("the volume does not exist"))
	ErrForeignSystem = volume.WithCode(volume.Unusable, errors.New("the volume group belongs to another machine"))
	ErrShared        = volume.WithCode(volume.Unusable, errors.New("the volume group is shared, and its locks cannot be taken"))
	ErrGroupLocked   = volume.WithCode(volume.Busy, errors.New("the volume group is locked by another machine"))
	ErrStarting      = volume.WithCode(volume.InProgress, errors.New("the locks of the volume group are being started"))
	ErrExported      = volume.WithCode(volume.Unusable, errors.New("the volume group is exported"))
	ErrTwoVGs        = volume.WithCode(volume.Unusable, errors.New("there are two volume groups of that name"))
	ErrDuplicate     = volume.WithCode(volume.Unusable, errors.New("a disk of the volume group is visible twice"))
	ErrLocked        = volume.WithCode(volume.Busy, errors.New("the volume group is locked by another command"))
	ErrElsewhere     = volume.WithCode(volume.Busy, errors.New("the volume is active on another machine"))
	ErrNoSpace       = volume.WithCode(volume.NoSpace, errors.New("no space"))
	ErrFailed        = errors.New("LVM failed")
)

// An Error is the failure of an LVM command. Its kind is one of the errors above. An unknown message
// is ErrFailed: it does not mean that something is absent.
type Error struct {
	VG   string
	Kind error
	Text string // the message
	Err  error  // the command's own error
}

func (e *Error) Error() string { return "volume group " + e.VG + ": " + e.Text }

func (e *Error) Unwrap() []error { return []error{e.Kind, e.Err} }

// ofGroup reports whether any other volume of the group would get the same error.
func (e *Error) ofGroup() bool {
	switch e.Kind {
	case ErrNoVG, ErrForeignSystem, ErrShared, ErrGroupLocked, ErrStarting, ErrExported, ErrTwoVGs, ErrDuplicate, ErrLocked:
		return true
	}
	return false
}

const (
	lockdHint     = "it is shared between machines, and lvmlockd does not run here: systemctl start lvmlockd"
	lockspaceHint = "it is shared between machines, and its locks are not started here: vgchange --lockstart"
	groupLockHint = "another machine holds its lock"
)

const duplicateHint = "one of its disks is visible twice (a copy, a snapshot, or a path of a multipath device): detach one of the two, or exclude it (filter, devices file); only copies of all disks of the group can become another group (vgimportclone with all of them)"

const transactionHint = "LVM's metadata is older or newer than the thin pool, as after a restore: vgcfgrestore --list, then vgcfgrestore --force with the newest file in which the pool has the first transaction_id of the following message"

// phrases maps LVM's messages to errors. The exit status is 5 for all failures. Each phrase
// appears in a transcript in testdata.
var phrases = []struct {
	text string
	kind error
	hint string
}{
	{"Multiple VGs found with the same name", ErrTwoVGs, "there are two volume groups of that name: vgrename one of them by its uuid"},
	{"on duplicate devices", ErrDuplicate, duplicateHint},
	{"with duplicate PV", ErrDuplicate, duplicateHint},
	{"with system ID", ErrForeignSystem, "it belongs to another machine (system ID): vgchange --systemid there, or vgexport and vgimport"},
	{"requires lvmlockd", ErrShared, "it is shared between machines, and LVM does not use lvmlockd here: set use_lvmlockd=1 in the section global of /etc/lvm/lvm.conf, then systemctl enable --now lvmlockd"},
	{"due to unknown lock_type", ErrShared, "its lock type is not known here"},
	{"lvmlockd process is not running", ErrShared, lockdHint},
	{"lvmlockd connect failed", ErrShared, lockdHint},
	{"lock start in progress", ErrStarting, "its locks are being started"},
	{"lock skipped: held by other host", ErrGroupLocked, groupLockHint},
	{"lock failed: held by other host", ErrGroupLocked, groupLockHint},
	{"for sanlock leases", ErrShared, "the leases of its locks cannot be written: look at the disk of its volume lvmlock, at sanlock client status and at dmesg"},
	{"error -221; Failed to lock logical volume", ErrFailed, "sanlock cannot take its lock: it still has that lock for an earlier lvmlockd (ORPHAN, flexd doctor names it), or the lease on the disk is damaged (journalctl -u sanlock; docs/shared.md, Recovery)"},
	{"error -221", ErrShared, "sanlock does not answer: systemctl status sanlock"},
	{"LV locked by other host", ErrElsewhere, "it is active on another machine"},
	{"already locked with incompatible mode", ErrFailed, "it is active on this node for reading only (lvchange -asy): deactivate it first"},
	{"Shared activation not compatible", ErrFailed, "LVM does not activate such a volume on several nodes at once"},
	{"lockspace is inactive", ErrShared, lockspaceHint},
	{"due to failed lock", ErrShared, lockspaceHint},
	{"without a lock", ErrShared, lockspaceHint},
	{"can be resized only while inactive", ErrFailed, "it has snapshots: remove them (lvremove), or extend it while no pod uses it; if one is being merged into it (lvs -a), wait until that has ended"},
	{"Refusing to activate merging volume", ErrFailed, "a snapshot that is to be merged into it (lvconvert --merge) is active: delete the pods that use the snapshot, then ask again"},
	{"failed: Device or resource busy; Failed to activate new LV", ErrFailed, "device-mapper has another device with its name (dmsetup info): if nothing needs that device, remove it (dmsetup remove), then ask again"},
	{"transaction_id is", ErrFailed, transactionHint},
	{"unexpected transaction id", ErrFailed, transactionHint}, // the pool is active
	{"is exported", ErrExported, "it is exported: vgimport"},
	{"nsufficient free space", ErrNoSpace, "no space"},
	{"nsufficient suitable allocatable extents", ErrNoSpace, "no space for the configured layout"},
	{"No specified PVs have space available", ErrNoSpace, "no space on the disks that the layout allows (pvTag)"},
	{"Failed to find logical volume", ErrNoLV, "no such volume"},
	{"Can't get lock for", ErrLocked, "it is locked"},
}

// classify returns the error of a command with its kind, by the command's output on stderr.
func classify(vg string, err error, stderr []byte) error {
	if err == nil {
		return nil
	}
	if exit, ok := errors.AsType[*run.ExitError](err); !ok || exit.Err != nil || exit.Signal != "" {
		return &Error{VG: vg, Kind: ErrFailed, Text: err.Error(), Err: err}
	}
	e := &Error{VG: vg, Kind: ErrFailed, Err: err}
	said := oneLine(stderr)
	for _, p := range phrases {
		if strings.Contains(said, p.text) {
			e.Kind, e.Text = p.kind, p.hint+": "+said
			return e
		}
	}
	if strings.Contains(said, fmt.Sprintf("Volume group %q not found", vg)) {
		e.Kind, e.Text = ErrNoVG, "LVM does not find it (its disks may be missing, unreadable, or excluded by the filter or the devices file: pvs -a, lvmdevices; a disk that is itself a logical volume does not count): "+said
	} else {
		e.Text = "LVM failed: " + cmp.Or(said, err.Error())
	}
	return e
}

// oneLine returns the output of a command as one line, without repetitions and without the warnings
// that flexd's --config causes.
func oneLine(stderr []byte) string {
	var lines []string
	for line := range strings.Lines(string(stderr)) {
		line = strings.TrimSpace(line)
		own := strings.HasPrefix(line, "WARNING: Activation disabled") || strings.HasPrefix(line, "Please remove the lvm.conf filter")
		if line == "" || own || len(lines) > 0 && lines[len(lines)-1] == line {
			continue
		}
		lines = append(lines, line)
	}
	return strings.ToValidUTF8(strings.Join(lines, "; "), "?")
}

// duplicate returns the error of a group with disks that LVM sees twice, see twice; nil = there are none, or
// the host's LVM ignores them.
func (g *group) duplicate(ctx context.Context, twice []string) error {
	if len(twice) == 0 {
		return nil
	}
	text, _, _ := lvmconfig(ctx, g.p.Runner, "--typeconfig", "full", "devices/allow_changes_with_duplicate_pvs")
	if strings.HasSuffix(strings.TrimSpace(text), "=1") {
		return nil
	}
	return &Error{VG: g.name, Kind: ErrDuplicate, Text: duplicateHint + ": " + strings.Join(twice, ", ")}
}

// hangs reports whether an error says that a command still runs.
func hangs(err error) bool { return errors.As(err, new(*run.StuckError)) }

// A BlockedError reports that an LVM command hangs, so that no other can be started in its
// volume group. It is not a *run.StuckError: the caller's volume is not the one that hangs.
type BlockedError struct {
	VG string
	Block
}

// Code implements volume.CodeOf.
func (e *BlockedError) Code() volume.Code { return volume.InProgress }

func (e *BlockedError) Error() string {
	return "volume group " + e.VG + " is blocked: " + e.Block.String()
}

// A Block is a command that hangs.
type Block struct {
	Step      string
	Pids      []int
	Since     time.Time // zero = not known
	Wchan     string
	For       string          // what the command waits for, if not for a disk
	Disks     []string        // those of any group that do not respond
	Suspended []string        // of these, the suspended ones, by their names in device-mapper
	Volumes   []string        // the volumes on the command line, for a command of an earlier flexd
	Done      <-chan struct{} // closed when the command has ended
}

func (b Block) String() string {
	s := b.Step
	if len(b.Pids) > 0 {
		s += " (pid " + strings.Trim(fmt.Sprint(b.Pids), "[]")
		if where := cmp.Or(b.Wchan, procfs.Wchan(b.Pids[0])); where != "" { // it may have started to wait after b was made
			s += ", waits in " + where
		}
		if b.For != "" {
			s += ", for " + b.For
		}
		s += ")"
	}
	if b.Since.IsZero() {
		s += " has not ended"
	} else {
		s += " has been running since " + b.Since.Format(time.TimeOnly)
	}
	if len(b.Disks) == 0 {
		return s + "; look at the disks of the group and at dmesg"
	}
	s += "; these disks do not respond or are suspended: " + strings.Join(b.Disks, ", ") + "; look at them and at dmesg"
	if len(b.Suspended) > 0 {
		s += "; if no running command has suspended them (ps ax): dmsetup resume " + strings.Join(b.Suspended, " && dmsetup resume ")
	}
	return s
}

// A SpaceError has the requested and the free space.
type SpaceError struct {
	What           string // "volume group vg0", "thin pool vg0/pool"
	Wanted         int64  // bytes, in whole extents
	Free           int64
	Note           string
	NotAllocatable int64    // bytes that are free on Disks
	Disks          []string // not allocatable
}

func (e *SpaceError) Error() string {
	s := fmt.Sprintf("no space in %s: %s wanted, %s free", e.What, volume.Bytes(e.Wanted), volume.Bytes(e.Free))
	if e.Note != "" {
		s += " (" + e.Note + ")"
	}
	if pool, ok := strings.CutPrefix(e.What, "thin pool "); ok {
		return s + "; free space in it, or lvextend -L +SIZE " + pool
	}
	if len(e.Disks) > 0 {
		s += fmt.Sprintf("; %s more are free on disks that are not allocatable: pvchange -xy %s", volume.Bytes(e.NotAllocatable), strings.Join(e.Disks, " "))
	}
	return s + "; remove volumes that are not needed, or add a disk (vgextend)"
}

func (e *SpaceError) Unwrap() error { return ErrNoSpace }
