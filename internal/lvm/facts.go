package lvm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// Tags of volumes that flexd created. A volume has the first only during its creation; a
// volume that still has it has no user yet, and its creation is completed or repeated.
const (
	tagCreating = "flexd.creating"
	tagCreated  = "flexd"

	// Followed by the size, in bytes, up to which a volume was blank when flexd extended it. The added
	// space may contain other data, and is not zeroed yet.
	tagBlank = "flexd.blank="

	tagNamespace = "flexd.namespace=" // followed by the namespace of the pod for which the volume was created
)

// Facts has the metadata of one volume group at one instant.
type Facts struct {
	Name       string
	UUID       string
	ExtentSize int64
	Size       int64
	Free       int64
	LockType   string // "sanlock" or "dlm" of a shared one
	Exported   bool
	unfit      string // why the configuration does not allow its use
	unlocked   error  // a shared group was read without its lock: the facts do not suffice for a set-up
	duplicate  error  // LVM sees a disk twice, and so changes and activates nothing
	Missing    int    // the number of missing physical volumes
	maxLVs     int64  // the greatest number of volumes that are not hidden; 0 = no limit
	visible    int64  // the number of these volumes
	PVs        []PV
	LVs        map[string]Logical // by name, hidden ones included
	names      map[volume.UUID]string
	read       time.Time                // when its report began
	host       string                   // the name of this node, see recordTag
	usage      volume.Usage             // of the volumes that flexd created
	inPool     map[string]volume.Amount // by thin pool: its volumes

	free   []span                // of disks by their paths
	used   []span                // likewise, owned by volumes or parts of volumes
	legs   map[string]int        // by the name of a RAID: its copies or stripes
	cached map[string]string     // by the name of a cache: the volume that has it
	thin   map[volume.UUID]int64 // the ids of thin volumes in their pools
	onMove map[string][]string   // by mirror of pvmove: the volumes, and the parts of volumes, on it

	onMissing map[volume.UUID]bool // the volumes and parts of volumes with extents on missing disks

	// As of when this was read:
	lost map[string]loss // by the name of a volume or pool, see recordLosses

	unknownPartLost bool // a part of an unknown volume is on a missing or short disk

	place       *placement         // nil = unknown, see unplaced
	unplaced    error              // why the placement is unknown: a disk has disappeared
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
	Cache    string   // the name of the volume's cache; "" = it has none
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

// blank returns the tag of a volume that is extended while it is blank, and its former size; 0 = it
// is not extended.
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

// lv returns the volume, or part of a volume, with a uuid; without a name if there is none.
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
		return volume.LV{Presence: volume.Absent, Name: name, UUID: l.UUID, Reason: fmt.Sprintf("it has the tag %s of an interrupted creation. If older metadata was restored, use it as it is: lvchange --deltag %[1]s %s", tagCreating, name)}
	}
	lv := volume.LV{
		Presence: volume.Present, Name: name, UUID: l.UUID, Size: l.Size, ReadOnly: l.ReadOnly, External: slices.Contains(l.Role, "extthinorigin"),
		Created: slices.Contains(l.Tags, tagCreated), Tagged: f.recordTag(l),
	}
	if lv.Created {
		_, lv.Unzeroed = l.blank()
	}
	if l.thickSnapshot() { // LVM reports the size of its store
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
		return fmt.Sprintf("%s/%s is being merged into %[1]s/%[3]s (lvconvert --merge): at the next activation its contents are merged into the origin, and then the snapshot is removed; use %[1]s/%[3]s", f.Name, l.Name, l.Origin)
	case l.Hidden || slices.Contains(l.Role, "private"):
		return fmt.Sprintf("%s/%s is an internal volume of LVM (%s)", f.Name, l.Name, strings.Join(l.Role, ", "))
	case f.hasLostData(l):
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
			all = append(all, fmt.Sprintf("PV %s, which is back as %s after the metadata was changed without it: vgextend --restoremissing %s %[2]s", pv.UUID, pv.Path, f.Name))
		case pv.Missing:
			all = append(all, "PV "+pv.UUID)
		}
	}
	return strings.Join(all, ", ")
}

// lacking returns why the metadata of the group must not be changed now. LVM itself refuses
// to create and to extend. LVM makes other changes, but records in the metadata that the disk is
// missing: when the disk is back, no node can activate its volumes before vgextend --restoremissing.
func (f *Facts) lacking() error {
	if f.Missing == 0 {
		return nil
	}
	return volume.Errorf(volume.Unusable, "volume group %s lacks %d of its disks (%s), and its metadata is not changed until they are back (pvs, dmesg), or LVM sees them again (filter, devices file). Only if they are lost: repair the volumes that have all their data on other disks (docs/operations.md, A dead disk), then vgreduce --removemissing %[1]s; with --force it removes every volume that lvs -o+lv_health_status shows as partial, including those that could be repaired", f.Name, f.Missing, f.missing())
}

// notAllocatable returns the disks with free space that are not allocatable, and that space.
func (f *Facts) notAllocatable() (paths []string, free int64) {
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
	paths, held := f.notAllocatable()
	return &SpaceError{What: "volume group " + f.Name, Wanted: wanted, Free: f.Free - held, Note: note, NotAllocatable: held, Disks: paths}
}

// extents rounds bytes up to the group's extents.
func (f *Facts) extents(size int64) int64 {
	n := size / f.ExtentSize
	if size%f.ExtentSize != 0 {
		n++
	}
	return n
}
