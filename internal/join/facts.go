package join

import (
	"github.com/flexd/flexd/internal/volume"
)

// A Class is the kind of a disagreement.
type Class string

// The classes.
const (
	LVOnly          Class = "lv-only"          // needed and in the metadata, but no device
	DMOnly          Class = "dm-only"          // a device of a volume that the metadata does not know
	MountedUnknown  Class = "mounted-unknown"  // mounted where no claim is
	ActiveUnclaimed Class = "active-unclaimed" // an active device that no call asked for
	ClaimedMissing  Class = "claimed-missing"  // a held claim without its mount
	StillActive     Class = "still-active"     // not needed any more, and its deactivation fails again and again
	StaleMapping    Class = "stale-mapping"    // the device is not what the metadata says
	Covered         Class = "covered"          // a held claim whose mount a lookup of its directory does not reach
	Degraded        Class = "degraded"         // in use, and a disk or a copy of it is missing, or copies differ
	Faulty          Class = "faulty"           // in use, and its filesystem, cache or thin pool has failed
	MergePending    Class = "merge-pending"    // in use, and its contents are replaced at its next activation
	NestedMount     Class = "nested-mount"     // something is mounted below a mount of ours
	ReadOnly        Class = "read-only"        // the volume is read-only, and mounted read-write; or a mount is, and was asked read-write
	MountFlags      Class = "mount-flags"      // a mount lacks a flag that the configuration gives every mount
)

// Classes has all of them.
var Classes = []Class{LVOnly, DMOnly, MountedUnknown, ActiveUnclaimed, StillActive, ClaimedMissing, StaleMapping, Covered, Degraded, Faulty, MergePending, NestedMount, ReadOnly, MountFlags}

// Informational reports whether a class is worth knowing but nothing is wrong.
func (c Class) Informational() bool { return c == ActiveUnclaimed }

// A Finding is one disagreement between the sources.
type Finding struct {
	Class Class
	LV    string // as the metadata calls it, or else the claim or the kernel
	UUID  volume.UUID
	Dir   string // the mount point, or the copied file, that it is about, or ""
	Text  string // what is seen
	Hint  string // what an operator can do
}

// Same reports whether two disagreements are one, seen twice.
func (d Finding) Same(o Finding) bool {
	return d.Class == o.Class && d.UUID == o.UUID && d.Dir == o.Dir
}

// A Survey is what a provider reports about one volume group.
type Survey struct {
	Kind     string   // "lvm" or "loopdev"
	Volumes  []Volume // what the metadata has, without what belongs to the provider itself
	Metadata string   // why the metadata could not be read as a whole; Volumes means nothing then
	Gone     bool     // that is because the group does not exist
	Devices  []Device // the kernel's devices of this group, likewise
	Kernel   string   // why they could not all be seen; that one is missing means nothing then

	Directory string                 // of the files of a loopdev group
	Refused   map[volume.UUID]string // why a file with that uuid there is no volume
	Unread    map[string]string      // why a file could not be read, by name: its volume is unknown
	Short     string                 // how a disk ends before its physical volume, and the remedy, "" = none does
}

// A Volume is a logical volume in the metadata.
type Volume struct {
	Name   string
	UUID   volume.UUID
	Size   int64  // bytes of its device; LVM: 0 = not to be compared
	Pool   string // the thin pool that it is in, or ""
	Making bool   // flexd is making it

	Merging  string // the snapshot that is to be merged into it, "" = none
	Into     string // the origin that it is to be merged into, "" = none
	Missing  string // the disks with a part of it that are missing, "" = none
	Partly   bool   // with data that is on no other disk
	Lost     string // that part, if all data is on other disks
	Remedy   string // for that: commands
	Stays    bool   // LVM would not activate it again without these disks
	CutOff   string // how a disk ends before a part of it, and the remedy, "" = none does
	RAID     bool
	ReadOnly bool
}

// A Device is a block device of the group.
type Device struct {
	UUID           volume.UUID
	Name           string // the volume's name as the kernel's name for the device has it; "" = none of the group's form
	Kernel         string // the kernel's name, such as "vg0-data"
	Path           string
	Number         string // "major:minor"
	Size           int64  // bytes
	Open           int    // how often it is open; -1 = not known
	Suspended      bool
	Loaded         bool    // it has a table that replaces the present one when it is resumed
	SuspendedBelow string  // that device, if it is one below it
	Unknown        string  // why nothing else is known of it but its name and number; "" = it was looked at
	Broken         string  // why nothing can be read from it, or from a part of it
	Part           bool    // it was made to show only a part of its file
	Merges         bool    // the kernel merges a snapshot into it
	Placed         bool    // its whole table was compared with the metadata; else Misplaced may lack something
	Misplaced      string  // how it lies elsewhere, or is another type of device, than the metadata says
	Namesake       bool    // it is of another group with this one's name, such as a guest's
	Left           bool    // it is a part that an interrupted command of LVM has left: nothing uses it
	Bypassed       bool    // it is the origin of thick snapshots, which lack what is written to it
	SameThin       bool    // it is the thin device that the metadata says: its pool keeps its blocks
	Failed         string  // what is wrong with its pool, its cache or a merge into it; "" = nothing
	Remedy         string  // for Failed
	Degraded       string  // which copies of its data do not work, "" = all do
	Differ         string  // which copies differ, "" = none is known to
	RAID           string  // the RAID with those copies, as lvconvert --repair takes it
	Refresh        string  // the same as lvchange --refresh takes it
	Split          string  // a copy that lvconvert --splitmirrors --trackchanges took out of that RAID, as lvconvert --merge takes it
	Rivals         []Rival // other devices that show its file, and its own if that is of another file
	ReadOnly       bool
	Link           string // the name by which it should be found; "" = none is expected
	LinkBad        bool   // and that does not lead there
}

// A Rival is another device or file that is the same volume.
type Rival struct{ Text, Hint string }

// A Claim is a note that kubelet wants a volume mounted at a directory.
type Claim struct {
	UUID  volume.UUID
	VG    string // of another group, that the volume was in; "" = this one
	LV    string // as it was called
	Dir   string
	Phase volume.Phase
	For   string // "pod default/web-0", "kubelet's global mount"

	ReadOnly bool // it was asked read-only
	Found    bool // flexd did not make its mount, or does not know
}

// A Lease is a note that a volume is to stay active.
type Lease struct {
	UUID volume.UUID
	LV   string
	Live bool
	Kept string // why its deactivation has failed again, "" = it has not
}

// A Mount is an entry of the mount table: every one of the group's devices, and
// everything at the directory of a claim.
type Mount struct {
	Dir      string
	Device   string // number of the block device, "" = none
	What     string // "ext4 from /dev/dm-3"
	Owner    volume.Owner
	Other    bool   // Elsewhere, at a directory of another driver
	BindLeft bool   // Elsewhere, a bind of kubelet's whose original is gone
	Outside  bool   // Ours, but below none of the present roots
	Gone     bool   // the kernel has no device of that number
	Part     bool   // it shows only a part of the filesystem
	Over     string // what keeps a lookup of Dir from it, "" = nothing
	Again    bool   // that is the same filesystem at the same directory

	ReadOnly      bool     // the mount's own flag
	SuperReadOnly bool     // the superblock's
	Options       []string // the mount's

	Fault  string   // what the kernel says is wrong with the filesystem, "" = nothing
	Lost   string   // the first of its writes that the kernel logged as lost, "" = none
	Nested []string // where something is mounted below it

	UUID    volume.UUID // the volume that it is of, where the kernel was asked for it
	Unknown bool        // the device's volume is unknown
}

// A Group has all facts about a volume group.
type Group struct {
	Name string
	Survey
	Claims []Claim
	Leases []Lease
	Mounts []Mount
	Busy   map[volume.UUID]bool // an operation is running: it is not compared
	Keep   bool                 // volumes are left active on purpose
	Flags  []string             // of every mount that flexd makes

	Copies map[volume.UUID][]string // files with these uuids in the directories of other groups

	Filesystems map[volume.UUID]volume.FS // mounted ones that a child has found in error or truncated

	byDir, byDevice map[string][]*Mount
	older           bool // a device does not match the metadata: a refresh could lose data
}
