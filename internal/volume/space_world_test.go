package volume

import (
	"slices"
	"time"
)

// The space test walks every state of a small world: one volume, kubelet's global directory
// and one pod directory, every combination of notes, mounts, content, record, lease and
// waiting calls that Plan distinguishes. From each state it takes the first planned step in
// three ways: it succeeds, it fails (its calls get Failure), or flexd is killed (calls and
// facts are gone). Every state so reached is walked as well, so that every prefix of every
// plan is cut somewhere. The promises are checked at each step, on the truth of the world
// and not on the input of Plan.

const (
	dirG = "/k/plugins/global"
	dirP = "/k/pods/p"
)

var dirs = [2]string{dirG, dirP}

// What a world's bytes really are.
type truth uint8

const (
	tBlank truth = iota
	tExt4
	tXfs
	tData     // data of an owner, without a known signature
	tLUKS     // a foreign signature
	tError    // ext4 in error
	tLeftover // what a cut mkfs left, ours or another's
	tCut      // ext4, larger than its device
	truths
)

// What stands at a directory.
type at uint8

const (
	aNone at = iota
	aRW
	aRO
	aOther
	aUnder // ours, covered by a foreign mount
	ats
)

type ph uint8

const (
	pNone ph = iota
	pMaking
	pHeld
	pReleasing
	phs
)

var phases = [...]Phase{pMaking: Making, pHeld: Held, pReleasing: Releasing}

// What the volume's tags say.
type tag uint8

const (
	gNone  tag = iota
	gHere      // this node has started an mkfs
	gThere     // another one has
	gBad       // a node has, it is unknown which
	gSeen
	tags
)

type kin uint8

const (
	kNone kin = iota
	kFree
	kClaimed
	kOpen
	kLeased
	kForeign // active, and not by flexd
	kins
)

var relatives = [kins][]Relative{
	kFree:    {{Lease: Lease{Noted: true}}},
	kClaimed: {{Lease: Lease{Noted: true}}, {Claimed: true, Lease: Lease{Noted: true}}},
	kOpen:    {{Open: 1, Lease: Lease{Noted: true}}},
	kLeased:  {{Lease: Lease{Noted: true, Live: true}}},
	kForeign: {{}},
}

type op uint8

const (
	oNone op = iota
	oCheck
	oActivate
	oStage
	oPublish
	oPublishRO
	oPublishXfs
	oReleaseG
	oReleaseP
	oExpand
	oExpandLess // to less than the LV may have
	oReclaimG
	oReclaimP      // an operator's
	oReclaimPAlone // flexd's own
	oReclaimV
	ops     // those of an identified volume
	oCreate // in the lane of a name
	oCreateRefused
	oFind
)

// A world is one state. It is comparable, so that each is walked once.
type world struct {
	lv        Presence
	lvRO      bool
	dev       Activity
	unlinked  bool // the device's stable link is missing
	unlocked  bool // the device is active, and its lock is not known to be held
	lockLeft  bool // the device is inactive, and this node may have its lock
	suspended bool // the device: an access to it hangs
	waits     bool // the calls do, for its end or for something else
	suspect   bool // the kernel complained about the filesystem
	truth     truth
	known     bool // FS facts of this turn
	checked   bool
	made      bool
	sized     bool
	grown     bool
	use       Use  // by something that is no mount that flexd sees; UseUnknown = none
	unlooked  bool // the facts of this turn do not say so
	small     bool // the filesystem is smaller than its device
	stale     bool // it was extended while it was blank, and what was added has other data
	short     bool // the LV is smaller than what Expand wants
	created   bool // flexd created the volume
	rec       Record
	recXfs    bool // the record is of an mkfs of xfs
	late      bool // the record is too old to repeat its mkfs
	shared    bool // other nodes see the volume, and only its tags
	tag       tag
	at        [2]at
	phase     [2]ph
	gone      bool // dirP
	pod       Life // of dirP
	elsewhere bool
	blind     bool  // what is mounted cannot be identified
	lease     uint8 // 0 none, 1 live, 2 expired
	kin       kin   // a volume that is deactivated together with this one
	calls     [2]op
	grow      bool
	published bool // something of ours was ever mounted: truth must never be formatted again
}

func (w world) mounted() bool {
	return w.elsewhere || slices.ContainsFunc(w.at[:], ours)
}

func ours(a at) bool { return a == aRW || a == aRO || a == aUnder }

const (
	smallSize = 64 << 20
	largeSize = 128 << 20
)

var callIDs = [...]string{"0", "1"}

func (w world) want() Want {
	v := Want{Claims: make([]Claim, 0, 2), Calls: make([]Call, 0, 2)}
	for i, p := range w.phase {
		if p != pNone {
			v.Claims = append(v.Claims, Claim{Kind: []Kind{Staged, Published}[i], Dir: dirs[i], Phase: phases[p]})
		}
	}
	v.Lease = Lease{Noted: w.lease > 0, Live: w.lease == 1}
	v.Grow, v.Recheck = w.grow, w.suspect
	for i, o := range w.calls {
		c := Call{ID: callIDs[i], Size: largeSize, Waits: w.waits}
		switch o {
		case oNone:
			continue
		case oCheck:
			c.Verb = Check
		case oActivate:
			c.Verb = Activate
		case oStage:
			c.Verb, c.Dir = Stage, dirG
		case oPublish:
			c.Verb, c.Dir, c.Global = Publish, dirP, dirG
		case oPublishRO:
			c.Verb, c.Dir, c.ReadOnly, c.FSType = Publish, dirP, true, "ext4"
		case oPublishXfs:
			c.Verb, c.Dir, c.FSType = Publish, dirP, "xfs"
		case oReleaseG:
			c.Verb, c.Dir = Release, dirG
		case oReleaseP:
			c.Verb, c.Dir = Release, dirP
		case oExpand:
			c.Verb, c.Dir = Expand, dirP
		case oExpandLess:
			c.Verb, c.Dir, c.Size = Expand, dirP, smallSize
		case oReclaimG:
			c.Verb, c.Dir = Reclaim, dirG
		case oReclaimP, oReclaimPAlone:
			c.Verb, c.Dir, c.Alone = Reclaim, dirP, o == oReclaimPAlone
		case oReclaimV:
			c.Verb = Reclaim
		case oFind:
			c.Verb = Find
		case oCreate:
			c.Verb = Create
		case oCreateRefused:
			c.Verb, c.Refusal = Create, Refusal{Code: NotAllowed, Reason: "the configuration forbids it"}
		}
		v.Calls = append(v.Calls, c)
	}
	return v
}

func (w world) fsType() string {
	if w.truth == tXfs {
		return "xfs"
	}
	return "ext4"
}

func (w world) have() Have {
	var h Have
	h.LV = LV{Presence: w.lv, ReadOnly: w.lvRO, Size: largeSize, Created: w.created}
	h.Device = Device{Activity: w.dev, Size: largeSize, Link: "/dev/vg/lv", Relatives: relatives[w.kin], Suspended: w.suspended, Unlocked: w.unlocked, LockLeft: w.lockLeft}
	if w.unlinked {
		h.Device.Link = ""
	}
	if w.stale {
		h.LV.Unzeroed = smallSize / 2
	}
	if w.short {
		h.LV.Size, h.Device.Size = smallSize, smallSize
	}
	rec := w.record()
	h.Record, h.RecordType, h.RecordLate, h.RecordPartial = rec.State, rec.Type, rec.Late, rec.Partial
	if w.known || w.truth == tError && w.mounted() { // the kernel reports errors without a probe
		h.FS.Content = ForeignContent
		switch w.truth {
		case tBlank:
			if !w.stale {
				h.FS.Content = Blank
			}
		case tExt4, tXfs:
			h.FS.Content, h.FS.Type = Filesystem, w.fsType()
		case tError:
			h.FS.Content, h.FS.Type = FilesystemFailed, "ext4"
		case tCut:
			h.FS.Content, h.FS.Type = Truncated, "ext4"
		case tLeftover:
			h.FS.Leftover = true
		}
	}
	if w.known && !w.unlooked && !w.mounted() {
		h.FS.Use = max(w.use, Unused)
	}
	h.FS.Checked, h.FS.Made, h.FS.Grown = w.checked, w.made, w.grown
	if w.sized {
		h.FS.Size = largeSize
		if w.small || w.short {
			h.FS.Size = smallSize
		}
		if w.small && w.short {
			h.FS.Size = smallSize / 2
		}
	}
	h.Targets = map[string]TargetState{}
	for i, a := range w.at {
		if w.blind && a != aNone {
			h.Targets[dirs[i]] = TargetState{Unknown: "the child does not answer"}
			continue
		}
		switch a {
		case aRW, aRO:
			h.Targets[dirs[i]] = TargetState{This: true}
		case aOther:
			h.Targets[dirs[i]] = TargetState{Other: "tmpfs"}
		case aUnder:
			h.Targets[dirs[i]] = TargetState{Other: "tmpfs", Under: true}
		case aNone:
			h.Targets[dirs[i]] = TargetState{Gone: i == 1 && w.gone}
		}
		if ours(a) {
			h.Mounts = append(h.Mounts, Mount{Dir: dirs[i], ReadOnly: a == aRO, Type: w.fsType(), SuperReadOnly: w.lvRO,
				Owner: Ours, Kind: []Kind{Staged, Published}[i]})
		}
	}
	p := h.Targets[dirP]
	p.Pod, p.PodReason = w.pod, "so it was said"
	h.Targets[dirP] = p
	if w.elsewhere {
		h.Mounts = append(h.Mounts, Mount{Dir: "/mnt", Type: w.fsType(), Owner: Elsewhere})
	}
	return h
}

// record is the record in the state directory joined with that in the tags.
func (w world) record() RecordFacts {
	now := time.Unix(1e9, 0)
	f, t := RecordFacts{State: w.rec, Type: "ext4"}, RecordTag{Shared: w.shared, Type: "ext4", At: now}
	if w.recXfs {
		f.Type, t.Type = "xfs", "xfs"
	}
	if w.late {
		f.Late, t.At = "it is too old", now.Add(-RepeatWithin)
	}
	switch w.tag {
	case gNone:
		t.State = NoRecord
	case gSeen:
		t.State = Seen
	case gHere, gThere, gBad:
		t.State, t.Here = Formatting, w.tag == gHere
		if w.tag == gBad {
			t.Bad = "it does not say when"
		}
	}
	return f.With(t, now)
}

func dirIndex(dir string) int { return slices.Index(dirs[:], dir) }
