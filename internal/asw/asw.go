// Package asw is the actual state of world: the facts from the mount table, the block device
// providers and the format records, which are observed when a caller needs them. Readers get the
// last observation as an immutable snapshot. A fact that could not be read is unknown, never
// absent.
//
// The package never opens a volume's device and never reads below a volume's mount. Children do
// that; their results are parameters.
package asw

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// A Provider observes the volumes of one kind.
type Provider interface {
	// LookUp looks a volume up by name.
	LookUp(ctx context.Context, name volume.Name) (volume.LV, error)
	// Device returns the block device of lv, if it has one.
	Device(ctx context.Context, lv volume.LV) (volume.Device, error)
	// Identify returns the volume of the device with that number.
	Identify(ctx context.Context, number string) (volume.Identity, error)
}

// Unconfigured is the key of the provider for volumes of groups that are not configured:
// mounted volumes are released even if their group was removed from the configuration.
const Unconfigured = ""

// An Observer observes, and keeps the last observation of each volume.
type Observer struct {
	Layouts   []Layout            // of all frontends
	Providers map[string]Provider // by VG
	Records   func(volume.UUID) (volume.RecordFacts, error)

	// FSError returns the error of a mounted filesystem that the kernel reports in sysfs,
	// without access to the filesystem; "" = none.
	FSError func(path, fsType string) string
	// KernelLog has the errors of filesystems that only the kernel's log has.
	KernelLog *KernelLog
	// Gone reports whether a directory does not exist. It is only called for directories
	// that are not mount points.
	Gone func(dir string) bool
	// MountID returns the ID of the mount whose root a directory is; 0 = none.
	MountID func(dir string) (int, error)
	// NoDevice reports whether the kernel has no block device of that number.
	NoDevice func(number string) bool
	// Pods returns the pods that have a process. It is only called for a release that
	// kubelet has not requested; nil = pods cannot be observed.
	Pods func() Pods
	// Subvolumes returns the subvolumes that flexd has noted for its mounts at a directory: ids
	// of btrfs, "" for a mount without a noted one yet. Nil = there are no notes.
	Subvolumes func(dir string) []string

	found  sync.Map // directory → id of the subvolume that was mounted there at the start
	tables looker
	last   sync.Map // volume.UUID → *volume.Have, which never changes
	cached atomic.Pointer[cachedOwners]
}

// New returns an observer of this machine's mount table.
func New(layouts []Layout, providers map[string]Provider, records func(volume.UUID) (volume.RecordFacts, error), mounts MountSource) *Observer {
	o := &Observer{Layouts: layouts, Providers: providers, Records: records, FSError: fsError, Gone: gone, MountID: mountID}
	o.NoDevice = func(number string) bool { return gone("/sys/dev/block/" + number) }
	o.tables.source = mounts
	return o
}

// Last returns the last observation of a volume, or nil. It never changes.
func (o *Observer) Last(uuid volume.UUID) *volume.Have {
	h, _ := o.last.Load(uuid)
	last, _ := h.(*volume.Have)
	return last
}

// All returns all volumes that were ever observed, with their last observation.
func (o *Observer) All() iter.Seq2[volume.UUID, *volume.Have] {
	return func(yield func(volume.UUID, *volume.Have) bool) {
		o.last.Range(func(uuid, h any) bool { return yield(uuid.(volume.UUID), h.(*volume.Have)) })
	}
}

// A Target selects the facts to observe about one volume.
type Target struct {
	UUID  volume.UUID
	Name  volume.Name         // its name when it was set up
	Dirs  []string            // directories of claims and calls, resolved
	Asked map[string][]string // directory → requested superblock options
	FSIDs map[string]string   // directory → the btrfs that flexd has mounted there, as far as it is noted
	FS    volume.FS           // the results of children in this turn
	Lives []string            // of Dirs: the directories whose pods are to be observed
	// LookUp returns the volume's metadata; nil = use its provider, and wait for it.
	LookUp func(ctx context.Context, p Provider, name volume.Name) (volume.LV, error)
}

// Observe returns the facts about a volume, and the mount table that they are from. It fails only
// if the table cannot be read; any other fact that cannot be read is unknown in the result.
func (o *Observer) Observe(ctx context.Context, t Target) (volume.Have, *mounttable.Table, error) {
	table, err := o.LookAt(ctx, t.Dirs...)
	if err != nil {
		return volume.Have{}, nil, err
	}
	h := o.Assemble(ctx, t, table)
	o.Publish(t.UUID, h)
	return h, table, nil
}

// Publish replaces the last observation of a volume.
func (o *Observer) Publish(uuid volume.UUID, h volume.Have) { o.last.Store(uuid, &h) }

// Forget removes the last observation of a volume.
func (o *Observer) Forget(uuid volume.UUID) { o.last.Delete(uuid) }

// Assemble joins the facts of a mount table with those of the provider.
func (o *Observer) Assemble(ctx context.Context, t Target, table *mounttable.Table) volume.Have {
	h := volume.Have{FS: t.FS, Targets: make(map[string]volume.TargetState, len(t.Dirs))}
	h.LV = volume.LV{Name: t.Name, UUID: t.UUID}
	o.metadata(ctx, t, &h)
	if rec, err := o.Records(t.UUID); err != nil {
		h.Record, h.RecordReason = volume.RecordUnknown, err.Error()
	} else {
		rec = rec.With(h.LV.Tagged, time.Now())
		h.Record, h.RecordType, h.RecordLate, h.RecordName, h.RecordFile = rec.State, rec.Type, rec.Late, rec.Name, rec.File
		h.RecordTags = rec.Tags
		// The volume may have another file than the one in its record: a copy that has its name now.
		h.RecordPartial = rec.Partial || h.LV.File.Birth != 0 && h.LV.File.Birth != rec.Birth
	}
	for _, dir := range t.Dirs {
		s := o.targetState(ctx, t, h.Device, table, dir)
		if slices.Contains(t.Lives, dir) {
			s.PodUID = o.Place(dir).Pod
			s.Pod, s.PodReason = o.life(s.PodUID)
		}
		h.Targets[dir] = s
	}
	o.mounts(t, &h, table)
	return h
}

// metadata sets the LV and its device. It never uses a name that now belongs to another
// volume.
func (o *Observer) metadata(ctx context.Context, t Target, h *volume.Have) {
	var (
		p   = o.Providers[t.Name.VG]
		lv  volume.LV
		err error
	)
	switch {
	case t.Name.LV == "":
		err = errors.New("its name is unknown: the path of its file (losetup -l) is in no group's directory, and flexd has no record of it")
	case p != nil && t.LookUp != nil:
		lv, err = t.LookUp(ctx, p, t.Name)
	case p != nil:
		lv, err = p.LookUp(ctx, t.Name)
	default:
		err = fmt.Errorf("volume group %q is not configured", t.Name.VG)
		if p = o.Providers[Unconfigured]; p == nil {
			h.LV.Reason, h.Device.Reason = err.Error(), err.Error()
			return
		}
	}
	switch {
	case err != nil:
		h.LV.Reason = err.Error()
	case lv.Presence == volume.Present && lv.UUID != t.UUID:
		h.LV.Presence = volume.Absent
		h.LV.Reason = fmt.Sprintf("%s is another volume by now (uuid %s; this one was %s)", t.Name, lv.UUID, t.UUID)
	case lv.Presence == volume.Absent:
		h.LV.Presence, h.LV.Reason = volume.Absent, lv.Reason
	default:
		h.LV = lv
		h.LV.UUID = t.UUID
	}
	d, err := p.Device(ctx, h.LV)
	if err != nil {
		d = volume.Device{Reason: err.Error()}
	}
	// A volume that another node has made read-only, or that is being activated, may still
	// have a writable device.
	d.ReadOnly = d.ReadOnly || d.Activity == volume.Active && h.LV.ReadOnly
	h.Device = d
	if h.LV.Now = renamed(ctx, p, h); h.LV.Now != (volume.Name{}) {
		h.LV.Reason = strings.TrimPrefix(fmt.Sprintf("%s; it is now named %s", h.LV.Reason, h.LV.Now), "; ")
	}
}

// renamed returns the new name of a volume that is missing under its old name, or in a
// group that cannot be read, if its device still exists and shows another name. It starts
// no process.
func renamed(ctx context.Context, p Provider, h *volume.Have) volume.Name {
	if h.LV.Presence != volume.Absent && h.LV.Presence != volume.PresenceUnknown || h.Device.Activity != volume.Active {
		return volume.Name{}
	}
	id, err := p.Identify(ctx, h.Device.Number)
	if err != nil || id.UUID != h.LV.UUID || id.Name.LV == "" || id.Name == h.LV.Name ||
		h.LV.Presence == volume.PresenceUnknown && id.Name.VG == h.LV.Name.VG {
		return volume.Name{}
	}
	return id.Name
}

// targetState returns the state of a directory.
func (o *Observer) targetState(ctx context.Context, t Target, d volume.Device, table *mounttable.Table, dir string) volume.TargetState {
	var s volume.TargetState
	at, hidden := table.At(dir)
	below := 0
	for i, e := range at {
		mine, err := o.is(ctx, t, d, table, e)
		s.Moved = s.Moved || !mine && moved(t, d, e)
		switch {
		case err != nil:
			return volume.TargetState{Unknown: err.Error()}
		case i < len(at)-1 && mine:
			s.Under = true
			below++
		case i < len(at)-1:
		case mine:
			return volume.TargetState{This: true, Below: below} // hidden mounts are unmounted with it, or are not relevant
		default:
			s.Other = o.describe(ctx, t, d, e)
		}
	}
	for _, e := range hidden {
		mine, err := o.is(ctx, t, d, table, e)
		if err != nil {
			return volume.TargetState{Unknown: err.Error()}
		}
		s.Moved = s.Moved || !mine && moved(t, d, e)
		over := table.Over(e)
		if mine && over != nil && !s.Under {
			s.Under, s.Other = true, cmp.Or(s.Other, o.describe(ctx, t, d, over)+" (over all of "+over.Dir+")")
		}
	}
	if len(at) == 0 && !s.Under {
		s.Gone = o.Gone(dir)
		// Kubelet's root was moved, and its path is a link now: the mount has another claim.
		if e := table.Top(Resolved(dir)); !s.Gone && e != nil {
			s.Gone, _ = o.is(ctx, t, d, table, e)
		}
	}
	return s
}

// Resolved returns a directory without links in its parents.
func Resolved(dir string) string {
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return dir
	}
	return filepath.Join(parent, filepath.Base(dir))
}

// is reports whether a mount shows the whole volume. It compares the volume's device or, if that is
// not known, the identity of the mount's device.
func (o *Observer) is(ctx context.Context, t Target, d volume.Device, table *mounttable.Table, e *mounttable.Entry) (bool, error) {
	switch {
	case !o.whole(e, t.Dirs):
		return false, nil
	case d.Number != "" && e.Number == d.Number,
		d.Number != "" && e.Type == "btrfs" && slices.Contains(table.OfDevice(d.Number, d.Path), e):
		return true, nil
	}
	id, err := o.Identify(ctx, e)
	return id.UUID != "" && id.UUID == t.UUID, err
}

// Identify returns the volume of a mount; an error means that it is unknown.
func (o *Observer) Identify(ctx context.Context, e *mounttable.Entry) (volume.Identity, error) {
	number := e.Number
	if strings.HasPrefix(number, "0:") {
		number = e.SourceNumber()
	}
	return o.identify(ctx, e, number)
}

// identify is Identify of a mount whose device has that number, "" if it is unknown.
func (o *Observer) identify(ctx context.Context, e *mounttable.Entry, number string) (volume.Identity, error) {
	if strings.HasPrefix(e.Number, "0:") {
		if e.Type != "btrfs" {
			return volume.Identity{}, nil
		}
		if number == "" {
			return volume.Identity{}, fmt.Errorf("the device of the btrfs at %s is unknown: the kernel calls it %q, as it does after a mount or a scan by that name, for example in a container with its own /dev; `btrfs device scan` on this node gives it its name back, then ask again", e.Dir, e.Source)
		}
	}
	for _, p := range o.distinct() {
		id, err := p.Identify(ctx, number)
		if err == nil && id.UUID != "" && id.Name.LV == "" { // its file is in no group's directory
			if seen, err := o.Records(id.UUID); err == nil {
				id.Name = seen.Name
			}
		}
		if err != nil || id.UUID != "" {
			return id, err
		}
	}
	return volume.Identity{}, nil
}

// distinct returns each provider once.
func (o *Observer) distinct() []Provider {
	var all []Provider
	for _, vg := range slices.Sorted(maps.Keys(o.Providers)) {
		if p := o.Providers[vg]; !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// describe describes a mount where the volume of that uuid was expected.
func (o *Observer) describe(ctx context.Context, t Target, d volume.Device, e *mounttable.Entry) string {
	if moved(t, d, e) {
		return fmt.Sprintf("its filesystem, which is on %s now, as after btrfs replace,", e.Source)
	}
	id, err := o.Identify(ctx, e)
	got, name, ok := id.UUID, id.Name, id.UUID != ""
	switch {
	case err != nil:
		return fmt.Sprintf("%s from %s (its volume is unknown: %v)", e.Type, e.Source, err)
	case ok && name.LV == "":
		return "another volume (uuid " + string(got) + ")"
	case ok && got != t.UUID:
		// Both may have the same name: one was deleted and created again.
		return fmt.Sprintf("volume %s (uuid %s, not %s)", name, got, t.UUID)
	case ok && !o.whole(e, t.Dirs):
		return fmt.Sprintf("%s of volume %s (uuid %s)", e.Root, name, got)
	case ok:
		return fmt.Sprintf("volume %s (uuid %s)", name, got)
	}
	return fmt.Sprintf("%s from %s", e.Type, e.Source)
}

// moved reports whether a mount shows the btrfs that flexd has mounted there, and which is not on the volume's device now.
func moved(t Target, d volume.Device, e *mounttable.Entry) bool {
	if t.FSIDs[e.Dir] == "" {
		return false
	}
	_, b := e.Btrfs()
	return b != nil && b.FSID == t.FSIDs[e.Dir] && !slices.ContainsFunc(b.Devices, func(on mounttable.BtrfsDevice) bool { return on.Number == d.Number })
}

// mounts sets every mount of the volume's device.
func (o *Observer) mounts(t Target, h *volume.Have, table *mounttable.Table) {
	if h.Device.Activity != volume.Active {
		return
	}
	fault, fsid, devices := "", "", table.Devices()
	if b := devices.Btrfs(h.Device.Number); b != nil {
		fsid = b.FSID
	}
	for i, e := range o.owned(h.Device.Number, h.Device.Path, t.Dirs, devices) {
		asked, known := t.Asked[e.Dir]
		subvolume, _ := e.Subvolume()
		h.Mounts = append(h.Mounts, volume.Mount{
			Dir: e.Dir, ReadOnly: e.ReadOnly, SuperReadOnly: e.SuperReadOnly, Type: e.Type, Super: e.Super, Subvolume: subvolume, FSID: fsid,
			Asked: asked, AskedKnown: known, Owner: e.owner, Kind: e.place.Kind, Pod: e.place.Pod, OtherDriver: e.otherDriver, BindLeft: e.bindLeft, OtherRoot: e.otherRoot,
		})
		if i == 0 { // all mounts of a device share one superblock
			fault = o.liveError(h.Device, e.Entry)
		}
		what := fault
		// ext4 counts its errors, and an xfs shuts down: these may be read-only because their volume was.
		if what == "" && e.owner == volume.Ours && e.Type == "btrfs" && e.SuperReadOnly && !h.Device.ReadOnly && h.LV.Presence != volume.PresenceUnknown {
			what = volume.ForcedReadOnly(e.Dir)
		}
		if what != "" {
			h.FS.Content, h.FS.Type, h.FS.What = volume.FilesystemFailed, e.Type, what
		}
	}
}

func (o *Observer) liveError(d volume.Device, e *mounttable.Entry) string {
	if bad := e.Stopped(); bad != "" {
		return e.Type + " says " + bad
	}
	if d.ReadOnly { // fsck cannot reset the count in the superblock of a read-only device; the first mount had the same count
		return ""
	}
	return o.FSError(d.Path, e.Type)
}

// fsError reads the error count of ext4. Other filesystems show errors in their mount options, or
// only when a child accesses them.
func fsError(path, fsType string) string {
	if fsType != "ext4" {
		return ""
	}
	count, err := sysfs.Line(filepath.Join("/sys/fs/ext4", filepath.Base(path), "errors_count"))
	if err == nil && count != "0" {
		return "ext4 counts " + count + " errors"
	}
	return ""
}

func gone(path string) bool {
	_, err := os.Lstat(path)
	return os.IsNotExist(err) || errors.Is(err, unix.ENOTDIR) // something else is in the place of a directory above it
}

// OurMounts returns the mounts in kubelet's directories of this driver, one for each directory: the
// mount that a lookup reaches, if any.
func (o *Observer) OurMounts(table *mounttable.Table) []*mounttable.Entry {
	var (
		rule   = o.classifierFor(table)
		all    []*mounttable.Entry
		hidden = map[string]bool{}
	)
	for _, e := range table.All() {
		if owner, _ := rule.owner(e, !directory(e)); owner != volume.Ours {
			continue
		}
		switch top := table.Top(e.Dir); {
		case top == e:
			all = append(all, e)
		case top == nil && !hidden[e.Dir]:
			hidden[e.Dir] = true
			all = append(all, e)
		}
	}
	return all
}
