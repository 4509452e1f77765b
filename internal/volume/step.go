package volume

import "strings"

// A StepKind is an operation of the reconciler on a volume.
type StepKind uint8

// The kinds of step. Notes and records are written in steps of their own, so that the planner decides their
// order, and its tests check it.
const (
	NoteMaking StepKind = iota + 1
	NoteHeld
	NoteReleasing
	Drop // remove the claim's note, after noting a lease if Step.Lease
	NoteLease
	DropLease
	CreateVolume
	ActivateDevice
	Inspect // read the device's content
	Format  // prove the device blank, write the record durably, run mkfs
	RecordSeen
	CheckFS
	MountVolume // in one instant
	Unmount
	Extend
	Grow
	Deactivate
)

var stepNames = [...]string{
	NoteMaking:     "note making",
	NoteHeld:       "note held",
	NoteReleasing:  "note releasing",
	Drop:           "drop claim",
	NoteLease:      "note lease",
	DropLease:      "drop lease",
	CreateVolume:   "create",
	ActivateDevice: "activate",
	Inspect:        "probe",
	Format:         "mkfs",
	RecordSeen:     "record filesystem seen",
	CheckFS:        "fsck",
	MountVolume:    "mount",
	Unmount:        "umount",
	Extend:         "extend",
	Grow:           "grow",
	Deactivate:     "deactivate",
}

func (k StepKind) String() string {
	if int(k) < len(stepNames) && stepNames[k] != "" {
		return stepNames[k]
	}
	return "unknown step"
}

// SetsUp reports whether the step needs a waiting call.
func (k StepKind) SetsUp() bool {
	switch k {
	case NoteMaking, CreateVolume, ActivateDevice, Format, CheckFS, MountVolume, Extend:
		return true
	}
	return false
}

// A Step is one operation of a plan.
type Step struct {
	Kind   StepKind
	Dir    string   // the claim or mount point it is about
	Claim  Kind     // for steps about a claim
	FSType string   // Format, RecordSeen, CheckFS, MountVolume
	Size   int64    // CreateVolume, Extend: wanted bytes
	Blank  bool     // Extend: zero the added space
	Repeat bool     // Format: over the remains of an interrupted mkfs of flexd
	Lease  bool     // Drop: note a lease first
	Below  int      // Unmount: the number of mounts of the volume under this one, to be unmounted next
	Alone  bool     // Unmount: only if no other mount namespace has the device
	Why    string   // NoteHeld, Drop: for the operator
	Calls  []string // the calls that wait for the step, and fail if it fails; none = flexd's own work
}

func (s Step) String() string {
	var b strings.Builder
	b.WriteString(s.Kind.String())
	if s.FSType != "" {
		b.WriteString(" " + s.FSType)
	}
	if s.Repeat {
		b.WriteString(" again")
	}
	if s.Dir != "" {
		b.WriteString(" " + s.Dir)
	}
	if s.Why != "" {
		b.WriteString(" (" + s.Why + ")")
	}
	return b.String()
}

// A Refusal is a call that must not be served, with the reason.
type Refusal struct {
	Call   string
	Code   Code
	Reason string // the cause, and the remedy for the owner
}

// A Verdict is the result of Plan. Every call is in Done or in Refused, or it waits: for one of the Steps
// or those of another call, because of Call.Waits, or for the metadata of its group.
type Verdict struct {
	Steps   []Step
	Refused []Refusal
	Done    []string // calls whose requested state was observed
	Waiting bool     // a call waits, or flexd's own work waits for a suspended device: observe again soon
}
