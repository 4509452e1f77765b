package join

import (
	"github.com/flexd/flexd/internal/volume"
)

// A Class is the kind of a disagreement.
type Class string

// The classes.
const (
	LVOnly          Class = "lv-only"          // needed and in the metadata, but no device
	DMOnly          Class = "dm-only"          // a device of a volume that the metadata does not have
	MountedUnknown  Class = "mounted-unknown"  // mounted at a directory without a claim
	ActiveUnclaimed Class = "active-unclaimed" // an active device that no call asked for
	ClaimedMissing  Class = "claimed-missing"  // a held claim without its mount
	StillActive     Class = "still-active"     // not needed any more, and its deactivation fails again and again
	StaleMapping    Class = "stale-mapping"    // the device differs from the metadata
	Covered         Class = "covered"          // the mount of a held claim is covered by another one
	Degraded        Class = "degraded"         // in use, and a disk or a copy of it is missing, or copies differ; or a disk is too short for it
	Faulty          Class = "faulty"           // in use, and its filesystem, cache or thin pool has failed
	MergePending    Class = "merge-pending"    // in use, and its contents are replaced at its next activation
	NestedMount     Class = "nested-mount"     // something is mounted below a mount of flexd
	ReadOnly        Class = "read-only"        // the volume is read-only, and mounted read-write; or a mount is, and was requested read-write
	MountFlags      Class = "mount-flags"      // a mount lacks a flag that the configuration gives every mount
)

// Classes has all classes.
var Classes = []Class{LVOnly, DMOnly, MountedUnknown, ActiveUnclaimed, StillActive, ClaimedMissing, StaleMapping, Covered, Degraded, Faulty, MergePending, NestedMount, ReadOnly, MountFlags}

// Informational reports whether a class is not a problem.
func (c Class) Informational() bool { return c == ActiveUnclaimed }

// A Finding is one disagreement between the sources.
type Finding struct {
	Class Class
	LV    string // its name in the metadata, or else in the claim or the kernel
	UUID  volume.UUID
	Dir   string // the mount point or the copied file, or ""
	Text  string // the observation
	Hint  string // the remedy
}

// Same reports whether two disagreements are one, seen twice.
func (d Finding) Same(o Finding) bool {
	return d.Class == o.Class && d.UUID == o.UUID && d.Dir == o.Dir
}

// A Survey is what a provider reports about one volume group.
type Survey struct {
	Kind     string   // "lvm" or "loopdev"
	Volumes  []Volume // the volumes in the metadata, without the provider's internal ones
	Metadata string   // why the metadata could not be read completely; then Volumes means nothing
	Gone     bool     // the group does not exist, which is why Metadata is set
	Devices  []Device // the kernel's devices of this group, without the provider's internal ones
	Kernel   string   // why Devices may be incomplete

	Directory string                 // of the files of a loopdev group
	Refused   map[volume.UUID]string // why a file there with that uuid is not a volume
	Unread    map[string]string      // why a file could not be read, by name: its volume is unknown
	Twice     string                 // a disk that is visible twice, with the remedy: which one is right is unknown; "" = none
	Short     string                 // a disk that is smaller than its physical volume, with the remedy, "" = none
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
	Missing  string // the missing disks with a part of it, "" = none
	Partly   bool   // some data on the missing disks is on no other disk
	Lost     string // the part on the missing disks, if all data is on other disks
	Remedy   string // the commands that repair it, for Lost
	Stays    bool   // LVM would not activate it again without these disks
	CutOff   string // a disk that ends before a part of it, with the remedy, "" = none
	RAID     bool
	ReadOnly bool
}

// Sectors are the sizes of the sectors of a filesystem and of the logical blocks of its device; 0 = unknown.
type Sectors struct{ Filesystem, Device int64 }

// A Suspended is a device of device-mapper that is suspended.
type Suspended struct {
	Kernel string // its name
	Loaded bool   // it has an inactive table, which a resume makes active
}

// A Device is a block device of the group.
type Device struct {
	UUID      volume.UUID
	Name      string // the volume's name in the kernel's name of the device; "" = it has another form
	Kernel    string // the kernel's name, such as "vg0-data"
	Path      string
	Number    string      // "major:minor"
	Size      int64       // bytes
	Open      int         // how often it is open; -1 = not known
	Suspended []Suspended // the suspended devices among it and those below it, the lowest first
	Unknown   string      // why only its name and number are known; "" = it was inspected
	Broken    string      // why it, or a part of it, cannot be read
	Repair    string      // the remedy for Broken; "" = its disk must come back

	LostSnapshot string  // a snapshot that LVM deactivates with it, and whose contents are lost, "" = none
	Part         bool    // it shows only a part of its file
	NoNode       string  // why its node is missing, "" = it is there
	MakeNode     string  // the remedy for NoNode
	Ending       bool    // a loop device that the kernel detaches at its last close
	Merges       bool    // the kernel merges a snapshot into it
	Placed       bool    // its whole table was compared with the metadata; otherwise Misplaced may be incomplete
	Misplaced    string  // how its extents or its type differ from the metadata
	Namesake     bool    // it belongs to another group with the same name, such as a guest's
	Left         bool    // it is an unused part that an interrupted LVM command has left
	Bypassed     bool    // it is the origin of thick snapshots, but writes to it bypass them
	SameThin     bool    // it is the thin device in the metadata: its pool keeps its blocks
	Failed       string  // the failure of its pool, its cache or a merge into it; "" = none
	Remedy       string  // for Failed
	Degraded     string  // the failed copies of its data, "" = none
	Differ       string  // the copies that differ, "" = none is known
	RAID         string  // the RAID with these copies, as an argument of lvconvert --repair
	Refresh      string  // its visible volume, as an argument of lvchange --refresh
	Split        string  // a copy that lvconvert --splitmirrors --trackchanges has split off, as an argument of lvconvert --merge
	Rivals       []Rival // other devices of its file, or the file of its device if that is another one
	ReadOnly     bool
	Link         string // its stable name; "" = none is expected
	LinkBad      bool   // Link does not lead to the device
	Obstacle     string // a path between Link and the device that LVM does not replace; "" = none
}

// A Rival is another device or file that is the same volume.
type Rival struct{ Text, Hint string }

func (r Rival) String() string { return r.Text + ": " + r.Hint }

// A Claim is a note that kubelet has requested a volume at a directory.
type Claim struct {
	UUID  volume.UUID
	VG    string // the volume's former group; "" = this one
	LV    string // the volume's name in the note
	Dir   string
	Phase volume.Phase
	For   string // "pod default/web-0", "kubelet's global mount"

	Pod      string      // the uid of the pod with that directory; "" = none
	Life     volume.Life // of that pod, if nothing is mounted there
	FSID     string      // the btrfs that flexd has mounted there; "" = unknown, or none
	ReadOnly bool        // it was requested read-only
	Found    bool        // flexd did not make its mount, or does not know whether it did
}

// A Lease is a note that a volume is to stay active.
type Lease struct {
	UUID volume.UUID
	LV   string
	Live bool
	Kept string // why its deactivation has failed again, "" = it has not

	ByName bool // of a creation: UUID is only a key, and the new volume has no lease of its own yet
}

// A Mount is an entry of the mount table, for a device of the group or at the directory of a claim.
type Mount struct {
	Dir       string
	Device    string // number of the block device, "" = none
	Type      string // of its filesystem
	What      string // "ext4 from /dev/dm-3"
	Owner     volume.Owner
	Pod       string // the uid of the pod that has it; "" = none
	Other     bool   // Elsewhere, at a directory of another driver
	BindLeft  bool   // Elsewhere, a bind of kubelet's whose original is gone
	OtherRoot bool   // Elsewhere, at a path as below a root of kubelet, which is not configured
	Outside   bool   // Ours, but not below a present root
	Gone      bool   // the kernel has no device with that number
	Part      bool   // it shows only a part of the filesystem
	Over      string // the mount that covers it, "" = none
	Again     bool   // Over is the same filesystem at the same directory
	Deleted   bool   // the directory or subvolume that it shows was deleted

	ReadOnly      bool     // the mount's own flag
	SuperReadOnly bool     // the superblock's
	Options       []string // the mount's

	Fault  string   // the kernel's error of the filesystem, "" = none
	Lost   string   // the first lost write in the kernel's log, "" = none
	Nested []string // the mount points below it

	Disks  []string // the other devices of its btrfs
	FSID   string   // of its btrfs; "" = unknown, or none
	Source string   // the device of that btrfs

	UUID    volume.UUID // its volume, if the kernel was queried for it
	Name    volume.Name // the volume's present name in the kernel, if it is known
	Unknown bool        // the device's volume is unknown
}

// A Group has all facts about a volume group.
type Group struct {
	Name string
	Survey
	Claims []Claim
	Leases []Lease
	Mounts []Mount
	Busy   map[volume.UUID]bool // volumes with a running operation, which are not compared
	Keep   bool                 // the configuration leaves volumes active
	Flags  []string             // the required flags of flexd's mounts

	Compared []string // the names of all groups that are compared, this one included

	Copies map[volume.UUID][]string // files with these uuids in the directories of other groups

	Filesystems map[volume.UUID]volume.FS // mounted filesystems that are in error or truncated
	Sectors     map[volume.UUID]Sectors   // of mounted filesystems

	byDir, byDevice map[string][]*Mount
	creating        map[string]bool // the names with a lease of a creation
	older           bool            // a device does not match the metadata: a refresh could lose data
}
