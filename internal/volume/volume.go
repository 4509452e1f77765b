// Package volume is the planner: Want has the requests and claims of one volume, Have its observed
// state, and Plan returns the steps that lead from Have to Want.
//
// The package is pure: it has no I/O, no clock and no lock. Every fact that a step depends on is a field
// of Have, and every possible cause of a step is a field of Want. The zero value of an observed fact
// means "unknown", not "absent": Plan plans no step that needs an unknown fact.
package volume

import (
	"fmt"
	"strings"
)

// A Name is a logical volume's name in kubelet's options. flexd uses it only to find the volume, and
// then identifies the volume by its UUID.
type Name struct {
	VG string `json:"vg"`
	LV string `json:"lv"`
}

func (n Name) String() string { return n.VG + "/" + n.LV }

// A UUID identifies a logical volume for as long as it exists. A volume that was deleted
// and created again under the same name has another UUID. LVM's has two parts,
// "VGUUID_LVUUID": volumes in a clone by vgimportclone keep the second.
type UUID string

// Earlier returns the volume's UUID in an earlier version of flexd: the second part alone.
// "" = the same.
func (u UUID) Earlier() UUID {
	_, lv, _ := strings.Cut(string(u), "_")
	return UUID(lv)
}

// An Identity is the volume of a device; UUID "" = it is not a volume of flexd.
type Identity struct {
	UUID UUID
	Name Name // zero = not known any more
}

// Presence says whether a logical volume exists.
type Presence uint8

// The presences of a volume. Foreign: a volume or file with that name exists, but flexd must not use it
// (see LV.Reason).
const (
	PresenceUnknown Presence = iota
	Absent
	Present
	Foreign
)

// An LV is a logical volume in the provider's metadata.
type LV struct {
	Presence Presence  `json:"presence"`
	Name     Name      `json:"name"`
	UUID     UUID      `json:"uuid,omitempty"`
	Size     int64     `json:"size,omitempty"`     // bytes
	ReadOnly bool      `json:"readOnly,omitempty"` // the LV itself, not a mount of it
	Reason   string    `json:"reason,omitempty"`   // why it is Foreign, or why it is unknown
	Created  bool      `json:"created,omitempty"`  // created by flexd
	External bool      `json:"-"`                  // the external origin of a thin volume: LVM keeps it read-only
	Zero     bool      `json:"-"`                  // added space may contain other data, and is to be zeroed first
	Unzeroed int64     `json:"-"`                  // its size when it was extended while blank: the added space may contain other data; 0 = it was not
	Now      Name      `json:"-"`                  // Absent by its name: its present name, if its device shows it
	Pending  bool      `json:"-"`                  // its group's metadata is not known yet: steps that need it wait
	Family   []LV      `json:"-"`                  // volumes that are activated together with this one
	Tagged   RecordTag `json:"-"`                  // its format record in its tags
	File     File      `json:"-"`                  // for a volume that is a file
}

// A File is the file that a look-up found; zero = not known.
type File struct {
	Path     string
	Dev, Ino uint64
	Birth    int64 // the time of its creation, which a rename keeps and a copy does not
	Unmarked bool  // a regular file without a uuid
}

// Activity reports whether a logical volume has a block device.
type Activity uint8

// The activities of a device.
const (
	ActivityUnknown Activity = iota
	Inactive
	Active
)

// A Device is the block device of an active volume.
type Device struct {
	Activity  Activity `json:"activity"`
	Path      string   `json:"path,omitempty"`    // the kernel's own node, such as /dev/loop3
	Link      string   `json:"link,omitempty"`    // the stable name handed to kubelet
	Number    string   `json:"number,omitempty"`  // "major:minor"
	Checked   uint64   `json:"checked,omitempty"` // all devices up to this diskseq were compared with it or do not respond
	Seq       uint64   `json:"seq,omitempty"`     // diskseq: this incarnation of the device, never reused in a boot
	Size      int64    `json:"size,omitempty"`    // bytes
	ReadOnly  bool     `json:"readOnly,omitempty"`
	Suspended bool     `json:"suspended,omitempty"`
	Reason    string   `json:"reason,omitempty"` // why it is unknown, or why it must not be used
	Unusable  bool     `json:"unusable,omitempty"`
	Unsound   string   `json:"unsound,omitempty"` // why it must not be formatted, "" = no reason is known

	// Reshaped is the RAID, the volume itself or below it, that the kernel reshapes: the space beyond its old
	// size cannot be read or written until the reshape ends.
	Reshaped string `json:"reshaped,omitempty"`

	Loaded         bool   `json:"-"` // the suspended device has an inactive table, which a resume makes active
	SuspendedBelow string `json:"-"` // the suspended device, if it is below this one, for example of a thin pool

	Unlocked  bool       `json:"-"` // in a shared group: its lock is not known to be held
	LockLeft  bool       `json:"-"` // it is inactive, and this node may hold its lock after an interrupted command
	Relatives []Relative `json:"-"` // volumes that are deactivated together with this one
}

// Reshaping describes the reshape of a RAID.
func Reshaping(raid string) string {
	vg, _, _ := strings.Cut(raid, "/")
	return fmt.Sprintf("the RAID %s is being reshaped (lvconvert); lvs -a -o name,sync_percent %s shows how far that is", raid, vg)
}

// Released reports whether the volume is inactive and this node does not hold its lock.
func (d Device) Released() bool { return d.Activity == Inactive && !d.LockLeft }

// A Relative is an active volume that is deactivated together with another: LVM deactivates
// an origin and its thick snapshots only as a whole.
type Relative struct {
	Name    Name
	UUID    UUID
	Open    int   // the number of openers of its device
	Lost    bool  // it is a snapshot whose contents are lost
	Claimed bool  // it has a claim
	Lease   Lease // not noted = flexd has not activated it
}

// Kept describes the relative that prevents the deactivation of a volume, with the reason; "" = none.
func Kept(relatives []Relative) string {
	for _, r := range relatives {
		why := ""
		switch {
		case r.Claimed:
			why = "kubelet uses it"
		case r.Open > 0:
			why = fmt.Sprintf("it is open (%d times)", r.Open)
		case r.Lease.Live:
			why = "its lease has not ended"
		case !r.Lease.Noted:
			why = "flexd did not activate it"
		default:
			continue
		}
		for _, s := range relatives {
			if s.Lost {
				why += fmt.Sprintf(". The contents of %s are lost: lvremove it before a deactivation, after which it could look valid", s.Name)
			}
		}
		return fmt.Sprintf("LVM deactivates it only together with %s, and %s", r.Name, why)
	}
	return ""
}

// Content is the kind of data on the device.
type Content uint8

// The contents of a device.
const (
	ContentUnknown   Content = iota // not inspected in this turn
	Blank                           // proven: no signature, and zeros where a filesystem keeps its superblocks
	Filesystem                      // a filesystem that flexd can mount (FS.Type)
	ForeignContent                  // data, or the signature of anything else (FS.What)
	FilesystemFailed                // a filesystem in error (FS.What)
	Truncated                       // a filesystem of FS.Size bytes, larger than its device
)

// Use is the use of a device that flexd has not mounted.
type Use uint8

// The uses of a device.
const (
	UseUnknown Use = iota
	Unused
	InUse     // open, mounted elsewhere, or below another device
	Unmounted // the kernel has its filesystem active without a mount: usually frozen
)

// An FS has the facts about the filesystem on a device. A child reads them; they are valid for one turn of
// the lane.
type FS struct {
	Content Content `json:"content"`
	Type    string  `json:"type,omitempty"` // ext4, xfs, btrfs
	Size    int64   `json:"size,omitempty"` // bytes; 0 = unknown
	What    string  `json:"what,omitempty"` // the data found and its offset, or the error
	// Leftover: ForeignContent may be the remains of an interrupted mkfs: no superblock, no
	// backup superblock of another filesystem, nothing in the first kilobyte, no block full of data.
	Leftover bool `json:"leftover,omitempty"`
	Unclean  bool `json:"unclean,omitempty"` // fsck may have to read the whole filesystem
	Checked  bool `json:"checked,omitempty"`
	Made     bool `json:"made,omitempty"`  // mkfs succeeded in this turn
	Grown    bool `json:"grown,omitempty"` // extended to the device's present size in this turn
	// Small is SmallSectors of a mounted filesystem, "" = they suffice.
	Small string `json:"small,omitempty"`
	// For a device that is not mounted:
	Use    Use    `json:"use,omitempty"`
	UsedBy string `json:"usedBy,omitempty"` // its users, and the remedy if it is known
}

// A Kind is the kind of a claim's directory.
type Kind string

// The kinds of claim.
const (
	Staged    Kind = "staged"    // the global mount, by Stage
	Published Kind = "published" // a pod's mount, by Publish
)

// A Phase is the phase of a claim.
type Phase string

// The phases of a claim. Where they differ, the mount table is authoritative.
const (
	Making    Phase = "making"    // noted before the first step of the set-up
	Held      Phase = "held"      // noted before the answer
	Releasing Phase = "releasing" // noted before the first step of the release
)

// A Claim records that kubelet has requested the volume at Dir.
type Claim struct {
	Kind  Kind
	Dir   string
	Phase Phase
}

// A Lease keeps a volume active without a claim. Its note stays until the volume is
// observed inactive, so an expired lease means that flexd may deactivate the volume.
type Lease struct {
	Noted bool
	Live  bool
}

// A Mount is one entry of the mount table whose device is this volume.
type Mount struct {
	Dir           string
	ReadOnly      bool     // the mount's own attribute
	SuperReadOnly bool     // the superblock's
	Type          string   // filesystem type
	Super         []string // superblock options in the mount table
	Subvolume     string   // the id of the mounted btrfs subvolume; "" = unknown, or not a btrfs
	FSID          string   // of a btrfs; likewise
	Asked         []string // the superblock options requested when it was mounted, if AskedKnown
	AskedKnown    bool
	Owner         Owner
	Kind          Kind   // for Owner Ours
	Pod           string // the uid of the pod that has it; "" = none
	OtherDriver   bool   // for Owner Elsewhere: at a directory of another driver, so pods may use it
	BindLeft      bool   // for Owner Elsewhere: a subPath bind of kubelet whose original mount is gone
	OtherRoot     bool   // for Owner Elsewhere: at a path as below a root of kubelet, which is not configured: it may also be a bind by another program
}

// An Owner is the owner of a mount.
type Owner uint8

// The owners. Kubelet's own mounts (subPath) keep a volume in use, but cause no refusal. Elsewhere is a
// mount outside kubelet's directories.
const (
	Ours Owner = iota + 1
	Kubelets
	Elsewhere
)

// A TargetState is the state of one directory in the mount table.
type TargetState struct {
	Unknown string // why the mount there is unknown; then the other fields mean nothing
	This    bool   // this volume is mounted there, on top
	Below   int    // the number of further mounts of this volume there, under the top one
	Other   string // the description of another mount on top; "" = none
	Moved   bool   // the volume's btrfs is mounted there, from another device, as after btrfs replace
	Under   bool   // this volume is mounted there, covered by Other
	Gone    bool   // the directory does not exist (known only for claims without their mount)

	Pod       Life   // the life of the pod with this directory (known only for the release of an orphan)
	PodUID    string // of that pod (likewise)
	PodReason string // why Pod is unknown, or the evidence
}

// A Life is the state of a pod's processes.
type Life uint8

// The lives of a pod.
const (
	LifeUnknown Life = iota
	Running
	Ended // its cgroup is gone, or no process is in it
)

// A Have has all observed facts about one volume.
type Have struct {
	LV            LV
	Device        Device
	FS            FS
	Record        Record
	RecordType    string   // the filesystem in the record
	RecordLate    string   // Formatting: why that mkfs must not be repeated any more
	RecordName    Name     // the volume's name in the record
	RecordFile    string   // the path of the record
	RecordTags    []string // the volume's tags with the same record
	RecordReason  string   // why the record is unknown
	RecordPartial bool     // the record or a required tag does not say "seen", or the record is of another file
	Mounts        []Mount
	Targets       map[string]TargetState // for the directories of claims and calls, and kubelet's global directory of a call
}

// A Place describes a directory of a frontend; zero = it is not one.
type Place struct {
	Kind Kind   // a volume is mounted there; "" = none
	Bind bool   // a part of a volume that is mounted elsewhere is bound there
	Name string // the frontend's name for the volume
	Pod  string // the uid of its pod

	OtherDriver bool // another driver mounts volumes there
}

// A Stray is a volume's directory that is not empty, although nothing is mounted there: its frontend
// cannot remove it.
type Stray struct {
	Place
	Dir   string
	Names []string // the first few
}

// A Verb is the operation that a waiting call requests.
type Verb uint8

// The verbs of waiting calls.
const (
	Check    Verb = iota + 1 // the volume exists and may be used
	Activate                 // it has a device, and a lease
	Stage                    // it is mounted once for all of its pods
	Publish                  // it is mounted for a pod
	Release                  // it is not mounted at the directory
	Expand                   // it and its filesystem are larger
	Reclaim                  // an orphan is released: the mount at Dir or, without Dir, the device
	Create                   // the volume is created, in the lane of its name
	Find                     // the volume can be looked up, in the lane of its name

	// Plan does not get these: they are answered without the volume's lane.
	Exists   // the volume exists, active or not
	EndLease // the volume need not stay active
)

// A Call is a request of a frontend that waits for an answer.
type Call struct {
	ID       string
	Verb     Verb
	Dir      string   // for Stage, Publish, Release, Expand, Reclaim
	Global   string   // for Publish: kubelet's global directory of the same volume name, "" = none
	ReadOnly bool     // the mount is to be read-only
	FSType   string   // wanted filesystem, "" = the existing one, DefaultFSType when blank
	Super    []string // wanted superblock options, sorted
	Size     int64    // wanted bytes; except for Expand, only a blank volume of flexd is extended to it
	MaxSize  int64    // the volume group's limit in bytes, 0 = none
	Refusal  Refusal  // why the configuration forbids this call; zero = it does not
	NoFormat Refusal  // why it must not format a blank volume; zero = it may
	Waits    bool     // the call waits, for example for another node: Plan plans no step for it now, and answers it only if the requested state already exists
	Alone    bool     // for Reclaim: only if no other mount namespace has the device
}

// DefaultFSType is made on a blank volume when kubelet names none.
const DefaultFSType = "ext4"

// A Want has all possible causes of a step on one volume.
type Want struct {
	Claims          []Claim
	Lease           Lease
	Calls           []Call
	NeverDeactivate bool // the VG says `deactivate: never`
	Grow            bool // this flexd found the filesystem smaller than its device at a mount
	Recheck         bool // the kernel has logged an error of the mounted filesystem: inspect it
}
