// Package volume is the planner: Want has the requests and claims of one volume, Have its
// observed state, and Plan returns the steps that lead from one to the other.
//
// It is pure: no I/O, no clock, no lock. Every fact that a step depends on is a field of
// Have; every possible cause of a step is a field of Want. The zero value of every observed
// fact is "unknown", which is never "absent": nothing that needs an unknown fact is
// planned.
package volume

import (
	"fmt"
	"strings"
)

// A Name is a logical volume's name in kubelet's options. It is only used to find the
// volume; from then on flexd identifies it by its UUID.
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

// An Identity says which volume a device is of; a UUID of "" = of none of flexd's.
type Identity struct {
	UUID UUID
	Name Name // zero = not known any more
}

// Presence says whether a logical volume exists.
type Presence uint8

// The presences of a volume. Foreign means: a volume or file with that name exists, but
// flexd must not use it (LV.Reason has the reason).
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
	Zero     bool      `json:"-"`                  // space that is added to it contains other data, and is to be zeroed first
	Unzeroed int64     `json:"-"`                  // it was blank and had this size, and was extended: what was added may contain other data; 0 = it was not
	Now      Name      `json:"-"`                  // Absent by its name: its present name, if its device shows it
	Pending  bool      `json:"-"`                  // its group has not answered yet: what needs its metadata waits
	Family   []LV      `json:"-"`                  // volumes that are activated together with this one
	Tagged   RecordTag `json:"-"`                  // its format record in its tags
	File     File      `json:"-"`                  // of a volume that is one
}

// A File is the file that a look-up found; zero = not known.
type File struct {
	Path     string
	Dev, Ino uint64
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
	Checked   uint64   `json:"checked,omitempty"` // up to this diskseq, all devices were compared with it or do not answer
	Seq       uint64   `json:"seq,omitempty"`     // diskseq: this incarnation of the device, never reused in a boot
	Size      int64    `json:"size,omitempty"`    // bytes
	ReadOnly  bool     `json:"readOnly,omitempty"`
	Suspended bool     `json:"suspended,omitempty"`
	Reason    string   `json:"reason,omitempty"` // why it is unknown, or why it must not be used
	Unusable  bool     `json:"unusable,omitempty"`
	Unsound   string   `json:"unsound,omitempty"` // why nothing may be formatted on it, "" = nothing is known against it

	// Reshaped is the RAID, its own or one below it, that the kernel reshapes: what is behind its earlier
	// size cannot be read or written until that ends.
	Reshaped string `json:"reshaped,omitempty"`

	Loaded         bool   `json:"-"` // and has a table that replaces its present one when it is resumed
	SuspendedBelow string `json:"-"` // that device, if it is one below, such as that of a thin pool

	Unlocked  bool       `json:"-"` // in a shared group: its lock is not known to be held
	LockLeft  bool       `json:"-"` // it is inactive, and a command that was interrupted may have left its lock on this node
	Relatives []Relative `json:"-"` // volumes that are deactivated together with this one
}

// Reshaping describes the reshape of a RAID.
func Reshaping(raid string) string {
	vg, _, _ := strings.Cut(raid, "/")
	return fmt.Sprintf("the RAID %s is being reshaped (lvconvert); lvs -a -o name,sync_percent %s shows how far that is", raid, vg)
}

// Released reports whether the volume is inactive and this node has no lock of it.
func (d Device) Released() bool { return d.Activity == Inactive && !d.LockLeft }

// A Relative is an active volume that is deactivated together with another: LVM deactivates
// an origin and its thick snapshots only as a whole.
type Relative struct {
	Name    Name
	UUID    UUID
	Open    int   // how often its device is open
	Claimed bool  // kubelet wants it, or has it
	Lease   Lease // without one noted, flexd has not activated it
}

// Kept describes the relative that keeps a volume active, with the reason; "" = none does.
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
		return fmt.Sprintf("LVM deactivates it only together with %s, and %s", r.Name, why)
	}
	return ""
}

// Content is the kind of data on the device.
type Content uint8

// The contents of a device.
const (
	ContentUnknown   Content = iota // not looked at in this turn
	Blank                           // proved: no signature, and zero where a filesystem keeps its superblocks
	Filesystem                      // a filesystem flexd can mount (FS.Type)
	ForeignContent                  // data, or a signature that is no filesystem of ours (FS.What)
	FilesystemFailed                // a filesystem that is in error (FS.What)
	Truncated                       // a filesystem of FS.Size bytes, larger than its device
)

// Use reports whether anything else uses a device that flexd has not mounted.
type Use uint8

// The uses of a device.
const (
	UseUnknown Use = iota
	Unused
	InUse     // open, mounted elsewhere, or below another device
	Unmounted // the kernel has its filesystem active without a mount: usually frozen
)

// An FS has the facts about the filesystem on a device. A child reads them, and they are
// valid for one turn of the lane.
type FS struct {
	Content Content `json:"content"`
	Type    string  `json:"type,omitempty"` // ext4, xfs, btrfs
	Size    int64   `json:"size,omitempty"` // bytes; 0 = unknown
	What    string  `json:"what,omitempty"` // what was found at which offset, or what is wrong
	// Leftover: ForeignContent that may be the remains of an interrupted mkfs: no
	// superblock, no backup superblock, nothing in the first kilobyte, no block full of
	// data.
	Leftover bool `json:"leftover,omitempty"`
	Unclean  bool `json:"unclean,omitempty"` // fsck may have to read the whole filesystem
	Checked  bool `json:"checked,omitempty"`
	Made     bool `json:"made,omitempty"`  // mkfs ended well in this turn
	Grown    bool `json:"grown,omitempty"` // grown to the device's present size in this turn
	// Of a device that is not mounted:
	Use    Use    `json:"use,omitempty"`
	UsedBy string `json:"usedBy,omitempty"` // its users, and the way out where it is known
}

// A Kind is the kind of kubelet's directory that a claim is for.
type Kind string

// The kinds of claim.
const (
	Staged    Kind = "staged"    // the global mount, by Stage
	Published Kind = "published" // a pod's mount, by Publish
)

// A Phase is the phase of a claim.
type Phase string

// The phases of a claim. The mount table wins every dispute with them.
const (
	Making    Phase = "making"    // noted before its first step
	Held      Phase = "held"      // noted before the answer
	Releasing Phase = "releasing" // noted before its first undo step
)

// A Claim says that kubelet wants, or has, the volume mounted at Dir.
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
	Super         []string // superblock options as the kernel shows them
	Subvolume     string   // the id of the btrfs subvolume that it shows; "" = unknown, or no btrfs
	Asked         []string // those flexd was asked for when it was mounted, if AskedKnown
	AskedKnown    bool
	Owner         Owner
	Kind          Kind // for Owner Ours
	OtherDriver   bool // for Owner Elsewhere: at a directory of another driver, for which pods may use it
	BindLeft      bool // for Owner Elsewhere: a bind of kubelet's (subPath) whose original is gone
}

// An Owner is the owner of a mount.
type Owner uint8

// The owners. Kubelet's own mounts (subPath) keep a volume in use but cause no refusal;
// Elsewhere means a mount of the volume outside kubelet's directories.
const (
	Ours Owner = iota + 1
	Kubelets
	Elsewhere
)

// A TargetState is the state of one directory in the mount table.
type TargetState struct {
	Unknown string // why the mount there is unknown; the other fields mean nothing then
	This    bool   // this volume is mounted there, on top
	Below   int    // how many more mounts of it are there, under that one
	Other   string // something else is on top: its description; "" = nothing
	Under   bool   // this volume is mounted there, covered by Other
	Gone    bool   // the directory does not exist (only looked at for claims whose mount is missing)

	Pod       Life   // of the pod whose directory it is (only looked at for a call that lets an orphan go)
	PodReason string // why it is unknown, or how it is known
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
	RecordType    string   // the filesystem that was being made, or was seen
	RecordLate    string   // Formatting: why that mkfs must not be repeated any more
	RecordName    Name     // the volume's name there
	RecordFile    string   // its path
	RecordTags    []string // those of the volume that say the same
	RecordReason  string   // why it is unknown
	RecordPartial bool     // not all places that must have the record say "seen"
	Mounts        []Mount
	Targets       map[string]TargetState // for the directories of claims and calls, and kubelet's global directory of a call
}

// A Place is what a directory is to the frontend that it belongs to; zero = nothing.
type Place struct {
	Kind Kind   // a volume is mounted there; "" = none
	Bind bool   // a part of a volume that is mounted elsewhere is bound there
	Name string // the frontend's name for the volume
	Pod  string // the uid of the pod that it is published for

	OtherDriver bool // another driver mounts volumes there
}

// A Stray is a directory for a volume that is not empty although nothing is mounted
// there: its frontend cannot remove it.
type Stray struct {
	Place
	Dir   string
	Names []string // the first few
}

// A Verb is the operation that a waiting call requests.
type Verb uint8

// The verbs of waiting calls.
const (
	Check    Verb = iota + 1 // the volume is here and may be used
	Activate                 // it has a device, and a lease
	Stage                    // it is mounted once for all of its pods
	Publish                  // it is mounted for a pod
	Release                  // it is not mounted at the directory
	Expand                   // it and its filesystem are larger
	Reclaim                  // flexd release: release an orphan, the mount at Dir or, without one, the device
	Create                   // for a call whose volume does not exist, in the lane of its name
	Find                     // for a call whose volume cannot be looked up yet, likewise: it can

	// These are not for Plan: they are answered without the volume's lane.
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
	Size     int64    // wanted bytes; but for Expand, only a blank volume that flexd created is extended to it
	MaxSize  int64    // the volume group's limit in bytes, 0 = none
	Refusal  Refusal  // why the configuration refuses this call; zero = it does not
	NoFormat Refusal  // why no filesystem may be made for it on a blank volume; zero = one may
	Waits    bool     // for what flexd cannot hasten: nothing is planned for it now, and only what holds already is its answer
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
	Grow            bool // a mount of this daemon's life found the filesystem smaller than its device
	Recheck         bool // the kernel complained about the mounted filesystem: look at it
}
