package volume

import "strings"

// A StepKind is one thing the reconciler can do to a volume.
type StepKind uint8

// The kinds of step. Writing notes and records are steps, too, so that the planner decides
// their order, and its tests check it.
const (
	NoteMaking StepKind = iota + 1
	NoteHeld
	NoteReleasing
	Drop // remove the claim's note, after noting a lease if Step.Lease
	NoteLease
	DropLease
	CreateVolume
	ActivateDevice
	Inspect // look at the device's content
	Format  // prove blank, record durably that mkfs starts, mkfs
	RecordSeen
	CheckFS
	MountVolume // mount, in one instant
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

// SetsUp reports whether the step may only be taken for a waiting call.
func (k StepKind) SetsUp() bool {
	switch k {
	case NoteMaking, CreateVolume, ActivateDevice, Format, CheckFS, MountVolume, Extend:
		return true
	}
	return false
}

// A Step is one thing to do, in the order of Verdict.Steps.
type Step struct {
	Kind   StepKind
	Dir    string   // the claim or mount point it is about
	Claim  Kind     // for steps about a claim
	FSType string   // Format, RecordSeen, CheckFS, MountVolume
	Size   int64    // CreateVolume, Extend: wanted bytes
	Blank  bool     // Extend: what is added is to be blank
	Repeat bool     // Format: over what an earlier, cut mkfs of ours left
	Lease  bool     // Drop: note a lease first
	Below  int      // Unmount: how many more mounts of the volume are there, to be unmounted after this one
	Alone  bool     // Unmount: only if no other mount namespace has the device
	Why    string   // NoteHeld, Drop: for the operator
	Calls  []string // the calls that wait for it, which fail when it fails; none = flexd's own work
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
	Reason string // what is in the way, and the owner's way out
}

// A Verdict is the result of Plan. Every call is in Done, in Refused, or waits for one of
// the Steps (or for those of another call), for what Call.Waits says, or for the metadata of
// its group.
type Verdict struct {
	Steps   []Step
	Refused []Refusal
	Done    []string // calls whose wish is seen to hold
	Waiting bool     // a call waits, or flexd's own work for a suspended device: look again soon
}
