package lvm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// Tags of volumes that flexd created. A volume has the first only during its creation; a
// volume that still has it has no user yet, and its creation is completed or repeated.
const (
	tagCreating = "flexd.creating"
	tagCreated  = "flexd"

	// With the size, in bytes, up to which a volume was blank when flexd extended it. What was added
	// contained other data before, and is not zeroed yet.
	tagBlank = "flexd.blank="

	tagNamespace = "flexd.namespace=" // followed by the namespace of the pod for which the volume was created
)

// Facts are the metadata of one volume group at one instant.
type Facts struct {
	Name       string
	UUID       string
	ExtentSize int64
	Size       int64
	Free       int64
	LockType   string // "sanlock" or "dlm" of a shared one
	Exported   bool
	unfit      string // why the configuration does not allow its use
	unlocked   error  // a shared group was read without its lock: good for looking, not for a set-up
	Missing    int    // missing physical volumes
	PVs        []PV
	LVs        map[string]Logical // by name, hidden ones included
	names      map[volume.UUID]string
	host       string                   // the name of this node, see recordTag
	usage      volume.Usage             // of the volumes that flexd created
	inPool     map[string]volume.Amount // by thin pool: its volumes

	free   []span                // of disks by their paths
	used   []span                // likewise, with the volume or the part of one
	legs   map[string]int        // by the name of a RAID: its copies or stripes
	cached map[string]string     // by the name of a cache: the volume that has it
	thin   map[volume.UUID]int64 // the ids of thin volumes in their pools
	lost   map[string]loss       // by the name of a partial volume or pool

	adrift bool // a part of an unknown volume is on a missing disk

	// As of when this was read:
	place       *placement         // nil if there is none:
	unplaced    error              // a disk has gone
	unknown     []devmapper.Mapped // see unknownDevices
	taken       spans              // by the devices of known volumes, with their uuids
	contradicts error              // a device contradicts this metadata
}

// A PV is a disk of a volume group.
type PV struct {
	Path    string
	UUID    string
	Missing bool

	Allocatable bool // pvchange -x
	Size        int64
	Free        int64
	Tags        []string
}

// A Logical is the metadata of one logical volume.
type Logical struct {
	Name     string
	UUID     volume.UUID
	Size     int64
	ReadOnly bool
	Hidden   bool
	Tags     []string
	Layout   []string // "linear", "striped", "thin", "pool", "raid", "raid1", ...
	Role     []string // "public", "private", "snapshot", "origin", ...
	Health   string   // "", "partial", ...
	Pool     string   // of a thin volume
	Cache    string   // of a volume that has one: the name of that
	Zeroes   bool     // a thin pool that zeroes new blocks
	Origin   string
	Locked   bool   // by pvmove, running or interrupted
	LockArgs string // where its lock is, in a shared group; "" = it has none of its own
}

// creating reports whether the creation of a volume runs, or was interrupted.
func (l Logical) creating() bool { return slices.Contains(l.Tags, tagCreating) }

// created reports whether flexd created a volume, or is creating it.
func (l Logical) created() bool { return slices.Contains(l.Tags, tagCreated) || l.creating() }

// namespace returns the namespace of the pod for which flexd created a volume; "" = not known.
func (l Logical) namespace() string {
	for _, tag := range l.Tags {
		if ns, ok := strings.CutPrefix(tag, tagNamespace); ok {
			return ns
		}
	}
	return ""
}

// blank returns the tag of a volume that is extended while it is blank, and its size before; 0 = it
// is not.
func (l Logical) blank() (tag string, size int64) {
	for _, tag := range l.Tags {
		if text, ok := strings.CutPrefix(tag, tagBlank); ok {
			if size, err := strconv.ParseInt(text, 10, 64); err == nil && size > 0 {
				return tag, size
			}
		}
	}
	return "", 0
}

// lv returns the volume, or the part of one, with a uuid; without a name if there is none.
func (f *Facts) lv(id volume.UUID) Logical {
	if f == nil {
		return Logical{}
	}
	return f.LVs[f.names[id]]
}

// Shared reports whether lvmlockd manages the group.
func (f *Facts) Shared() bool { return f.LockType != "" && f.LockType != "none" }

// judge returns the presence of a volume.
func (f *Facts) judge(name volume.Name) volume.LV {
	l, ok := f.LVs[name.LV]
	switch {
	case !ok && f.Missing > 0:
		return volume.LV{Presence: volume.Absent, Name: name, Reason: fmt.Sprintf("volume group %s lacks %d of its disks, but its metadata is whole and has no such volume", f.Name, f.Missing)}
	case !ok:
		return volume.LV{Presence: volume.Absent, Name: name}
	case l.creating():
		return volume.LV{Presence: volume.Absent, Name: name, Reason: "its creation was interrupted (tag " + tagCreating + "); the next request for it completes it"}
	}
	lv := volume.LV{
		Presence: volume.Present, Name: name, UUID: l.UUID, Size: l.Size, ReadOnly: l.ReadOnly,
		Created: slices.Contains(l.Tags, tagCreated), Tagged: f.recordTag(l),
	}
	if lv.Created {
		_, lv.Unzeroed = l.blank()
	}
	if l.thickSnapshot() { // the size of a snapshot is that of its store
		lv.Size = f.LVs[l.Origin].Size
	}
	if lv.Reason = f.refusal(l); lv.Reason != "" {
		lv.Presence = volume.Foreign
	}
	lv.Family = f.family(l)
	return lv
}

// refusal returns why a volume must not be used; "" = it may be used.
func (f *Facts) refusal(l Logical) string {
	switch {
	case f.unfit != "":
		return f.unfit
	case f.Exported:
		return fmt.Sprintf("volume group %s is exported: vgimport %[1]s", f.Name)
	case slices.Contains(l.Layout, "pool"):
		return fmt.Sprintf("%s/%s is a pool (%s), not a volume", f.Name, l.Name, strings.Join(l.Layout, ", "))
	case l.merging():
		return fmt.Sprintf("%s/%s is being merged into %[1]s/%[3]s (lvconvert --merge), which gets its contents when it is activated next, and the snapshot is removed then: use %[1]s/%[3]s", f.Name, l.Name, l.Origin)
	case l.Hidden || slices.Contains(l.Role, "private"):
		return fmt.Sprintf("%s/%s is LVM's own (%s)", f.Name, l.Name, strings.Join(l.Role, ", "))
	case f.loses(l):
		return f.partial(l, false)
	}
	return ""
}

// missing returns the names of the missing disks.
func (f *Facts) missing() string {
	var all []string
	for _, pv := range f.PVs {
		switch {
		case pv.Missing && strings.HasPrefix(pv.Path, "/"):
			all = append(all, fmt.Sprintf("PV %s, which is back as %s, but the metadata was changed without it: vgextend --restoremissing %s %[2]s", pv.UUID, pv.Path, f.Name))
		case pv.Missing:
			all = append(all, "PV "+pv.UUID)
		}
	}
	return strings.Join(all, ", ")
}

// lacking returns why the metadata of the group must not be changed now. LVM itself refuses
// to create and to extend. Other changes it makes, and notes in the metadata that the disk is
// missing: when it is back, no node can activate its volumes before vgextend --restoremissing.
func (f *Facts) lacking() error {
	if f.Missing == 0 {
		return nil
	}
	return volume.Errorf(volume.Unusable, "volume group %s lacks %d of its disks (%s), and its metadata is not changed until they are back (pvs, dmesg). Only if they are lost: repair what has all its data on other disks (docs/operations.md, A dead disk), then vgreduce --removemissing %[1]s; with --force it removes every volume that lvs -o+lv_health_status shows as partial, including those that could be repaired", f.Name, f.Missing, f.missing())
}

// fenced returns the disks with free space on which LVM must not allocate, and that space.
func (f *Facts) fenced() (paths []string, free int64) {
	for _, pv := range f.PVs {
		if !pv.Allocatable && !pv.Missing && pv.Free > 0 {
			paths = append(paths, pv.Path)
			free += pv.Free
		}
	}
	return paths, free
}

// spaceError is the error of a group without the requested space.
func (f *Facts) spaceError(wanted int64, note string) *SpaceError {
	paths, fenced := f.fenced()
	return &SpaceError{What: "volume group " + f.Name, Wanted: wanted, Free: f.Free - fenced, Note: note, Fenced: fenced, Disks: paths}
}

// extents rounds bytes up to the group's extents.
func (f *Facts) extents(size int64) int64 {
	n := size / f.ExtentSize
	if size%f.ExtentSize != 0 {
		n++
	}
	return n
}
