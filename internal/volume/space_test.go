package volume

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The space test walks every state of a small world: one volume, kubelet's
// global directory and one pod directory, every combination of notes, mounts,
// content, record, lease and waiting calls that can be told apart by Plan. From
// each state it takes the first planned step in three ways: it succeeds, it
// fails (its calls get Failure), or flexd is killed (calls and facts are gone).
// Every state so reached is walked as well, so that every prefix of every plan
// is cut somewhere. The promises are checked at each step, on the truth of the
// world and not on what Plan was told.

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
	tData     // somebody's bytes that nobody recognises
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
	oReclaimG
	oReclaimP      // an operator's
	oReclaimPAlone // flexd's own
	oReclaimV
	ops     // those of an identified volume
	oCreate // in the lane of a name
	oCreateRefused
)

// A world is one state. It is comparable, so that each is walked once.
type world struct {
	lv        Presence
	lvRO      bool
	dev       Activity
	unlinked  bool // the device's stable link is missing
	suspended bool // the device: an access to it hangs
	patient   bool // the calls wait for its end
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
	short     bool // the LV is smaller than what Expand wants
	created   bool // flexd created the volume
	rec       Record
	recXfs    bool // the record is of an mkfs of xfs
	late      bool // the record is too old to repeat its mkfs
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
		c := Call{ID: callIDs[i], Size: largeSize, Patient: w.patient}
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
		case oReclaimG:
			c.Verb, c.Dir = Reclaim, dirG
		case oReclaimP, oReclaimPAlone:
			c.Verb, c.Dir, c.Alone = Reclaim, dirP, o == oReclaimPAlone
		case oReclaimV:
			c.Verb = Reclaim
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
	h.Device = Device{Activity: w.dev, Size: largeSize, Link: "/dev/vg/lv", Relatives: relatives[w.kin], Suspended: w.suspended}
	if w.unlinked {
		h.Device.Link = ""
	}
	if w.short {
		h.LV.Size, h.Device.Size = smallSize, smallSize
	}
	if h.Record, h.RecordType = w.rec, "ext4"; w.recXfs {
		h.RecordType = "xfs"
	}
	if w.late {
		h.RecordLate = "it is too old"
	}
	if w.known || w.truth == tError && w.mounted() { // the kernel tells of errors without being asked
		h.FS.Content = ForeignContent
		switch w.truth {
		case tBlank:
			h.FS.Content = Blank
		case tExt4, tXfs:
			h.FS.Content, h.FS.Type = Filesystem, w.fsType()
		case tError:
			h.FS.Content, h.FS.Type = FilesystemFailed, "ext4"
		case tCut:
			h.FS.Content, h.FS.Type = Truncated, "ext4"
		case tLUKS:
			h.FS.Signature = "crypto_LUKS"
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
				Whole: true, Owner: Ours, Kind: []Kind{Staged, Published}[i]})
		}
	}
	p := h.Targets[dirP]
	p.Pod, p.PodReason = w.pod, "so it was said"
	h.Targets[dirP] = p
	if w.elsewhere {
		h.Mounts = append(h.Mounts, Mount{Dir: "/mnt", Type: w.fsType(), Whole: true, Owner: Elsewhere})
	}
	return h
}

func dirIndex(dir string) int { return slices.Index(dirs[:], dir) }

// do applies a step that succeeds, and reports what it broke.
func (w world) do(s Step) (world, error) {
	i := dirIndex(s.Dir)
	if s.Kind.SetsUp() && len(s.Calls) == 0 {
		return w, fmt.Errorf("sets up without a waiting call")
	}
	if w.suspended && slices.Contains([]StepKind{ActivateDevice, Inspect, Format, CheckFS, MountVolume, Extend, Grow}, s.Kind) {
		return w, fmt.Errorf("touches a suspended device")
	}
	switch s.Kind {
	case NoteMaking:
		if ours(w.at[i]) {
			return w, fmt.Errorf("a landed mount is noted as making")
		}
		w.phase[i] = pMaking
	case NoteHeld:
		if !ours(w.at[i]) {
			return w, fmt.Errorf("held without a mount")
		}
		w.phase[i] = pHeld
	case NoteReleasing:
		w.phase[i] = pReleasing
	case Drop:
		if ours(w.at[i]) {
			return w, fmt.Errorf("the claim of a standing mount is dropped")
		}
		if s.Lease {
			w.lease = 1
		}
		w.phase[i] = pNone
		if w.dev == Active && w.phase == [2]ph{} && w.lease == 0 && !w.mounted() {
			return w, fmt.Errorf("an active volume is left with neither claim nor lease")
		}
	case NoteLease:
		w.lease = 1
	case DropLease:
		if w.lease == 1 && !w.wants(oReclaimV) {
			return w, fmt.Errorf("a live lease is dropped")
		}
		if w.dev == Active {
			return w, fmt.Errorf("the lease of an active volume is dropped")
		}
		w.lease = 0
	case CreateVolume:
		switch {
		case w.lv != Absent:
			return w, fmt.Errorf("creates what exists, or may exist")
		case w.rec != NoRecord:
			return w, fmt.Errorf("creates an empty volume in place of one that had data, or may have had")
		case s.Size != largeSize:
			return w, fmt.Errorf("creates a volume of another size than was asked for")
		}
		for _, id := range s.Calls {
			if w.calls[id[0]-'0'] == oCreateRefused {
				return w, fmt.Errorf("creates what the configuration forbids")
			}
		}
		w.lv = Present
	case ActivateDevice:
		if w.lease == 0 && w.phase == [2]ph{} {
			return w, fmt.Errorf("activated before anything was noted")
		}
		if w.lv != Present || w.dev != Inactive && (w.dev != Active || !w.unlinked) {
			return w, fmt.Errorf("activates what is foreign, absent, unknown or active")
		}
		w.dev, w.unlinked = Active, false
	case Inspect:
		if w.dev != Active {
			return w, fmt.Errorf("inspects a volume that is not active")
		}
		if len(s.Calls) == 0 && !w.grow && !w.suspect {
			return w, fmt.Errorf("looks at a device that nobody asks about")
		}
		w.unlooked = false
		w.known, w.sized = true, w.truth != tBlank && w.truth != tData && w.truth != tLUKS && w.truth != tLeftover
	case Format:
		asked := "ext4"
		if w.recXfs {
			asked = "xfs"
		}
		cut := w.truth == tLeftover && w.rec == Formatting && asked == s.FSType && w.created && !w.late && !w.published
		switch {
		case w.truth != tBlank && !cut:
			return w, fmt.Errorf("formats over %d", w.truth)
		case s.Repeat != (w.truth != tBlank):
			return w, fmt.Errorf("says of what is blank that it is not, or of what is not that it is")
		case w.rec == RecordUnknown || w.rec == Seen:
			return w, fmt.Errorf("formats under an unknown record, or under one that says seen")
		case w.mounted():
			return w, fmt.Errorf("formats what is mounted")
		case w.use != UseUnknown:
			return w, fmt.Errorf("formats what something else uses")
		case !w.known:
			return w, fmt.Errorf("formats without having looked")
		case w.lvRO || w.lv != Present || w.dev != Active:
			return w, fmt.Errorf("formats what is not its own to write")
		}
		w = w.begun(s)
		w.made, w.checked, w.known, w.sized = true, true, false, false
		if w.truth = tExt4; s.FSType == "xfs" {
			w.truth = tXfs
		}
	case RecordSeen:
		w.rec, w.recXfs, w.late = Seen, false, false
	case CheckFS:
		if w.mounted() || w.lvRO {
			return w, fmt.Errorf("fsck of a mounted or read-only volume")
		}
		if w.truth == tCut {
			return w, fmt.Errorf("fsck of a filesystem whose end is cut off")
		}
		if w.use != UseUnknown {
			return w, fmt.Errorf("fsck of what something else uses")
		}
		w.checked = true
	case MountVolume:
		switch {
		case w.phase[i] != pMaking:
			return w, fmt.Errorf("lands without its note")
		case w.at[i] != aNone:
			return w, fmt.Errorf("lands on a mount")
		case w.lv != Present || w.dev != Active:
			return w, fmt.Errorf("mounts what is foreign, unknown or inactive")
		case w.elsewhere:
			return w, fmt.Errorf("mounts what somebody else has mounted")
		case w.use != UseUnknown && !w.mounted():
			return w, fmt.Errorf("mounts what something else uses")
		case w.truth == tCut && w.mounted() && !w.known: // only the child sees it, and refuses
		case w.truth != tExt4 && w.truth != tXfs:
			return w, fmt.Errorf("mounts what is no filesystem: %d", w.truth)
		case w.rec == Formatting || w.rec == NoRecord && !w.mounted():
			return w, fmt.Errorf("mounts before the filesystem is recorded as seen")
		case !w.mounted() && !w.checked && w.truth == tExt4 && !w.lvRO:
			return w, fmt.Errorf("mounts without a check")
		case i == 1 && w.truth != tXfs && w.wants(oPublishXfs) && !w.wants(oPublish) && !w.wants(oPublishRO):
			return w, fmt.Errorf("mounts another filesystem than was asked for")
		case i == 1 && w.at[0] == aOther && !w.wants(oPublishRO) && !w.wants(oPublishXfs):
			return w, fmt.Errorf("mounts although kubelet's global mount is another volume")
		}
		w.at[i] = aRW
		if i == 1 && w.wants(oPublishRO) || w.lvRO {
			w.at[i] = aRO
		}
		w.published = true
		w.grow = w.grow || w.small
	case Unmount:
		switch {
		case !w.mayTake(i):
			return w, fmt.Errorf("a mount is taken back without a release, or while a pod may need it")
		case i == 1 && !s.Alone && !w.wants(oReleaseP) && !w.wants(oReclaimP):
			return w, fmt.Errorf("flexd's own release is not held to its second proof")
		case w.at[i] != aRW && w.at[i] != aRO:
			return w, fmt.Errorf("unmounts what is foreign or not there")
		case w.phase[i] != pReleasing:
			return w, fmt.Errorf("unmounts before the release is noted")
		}
		w.at[i], w.known, w.checked, w.made, w.sized, w.grown = aNone, false, false, false, false, false
	case Extend:
		if w.lv != Present || w.lvRO {
			return w, fmt.Errorf("extends what is not its own")
		}
		if s.Blank {
			if w.truth != tBlank || !w.known || !w.created || w.rec == Seen || w.mounted() {
				return w, fmt.Errorf("takes for blank and its own what is not")
			}
			w.short, w.known = false, false
			return w, nil
		}
		if !w.wants(oExpand) {
			return w, fmt.Errorf("extends what nobody asks to expand")
		}
		if w.short {
			w.short, w.small, w.grown = false, true, false
		}
	case Grow:
		if len(s.Calls) == 0 && !w.grow {
			return w, fmt.Errorf("grows without a call, and found nothing small at a mount")
		}
		if !w.mounted() || w.truth == tError || w.truth == tCut && w.known || w.lvRO {
			return w, fmt.Errorf("grows what is not mounted, in error or read-only")
		}
		w.small, w.grown, w.grow, w.sized = false, true, false, false
	case Deactivate:
		if w.wants(oReclaimV) && len(s.Calls) > 0 {
			if w.lv != Present || w.phase != [2]ph{} {
				return w, fmt.Errorf("a claimed or unknown volume is released")
			}
		} else if w.lease != 2 {
			return w, fmt.Errorf("deactivates what is leased or not ours")
		}
		if w.mounted() || slices.Contains(w.phase[:], pMaking) || slices.Contains(w.phase[:], pReleasing) {
			return w, fmt.Errorf("deactivates what is in use")
		}
		if w.kin > kFree {
			return w, fmt.Errorf("deactivates another volume that is needed")
		}
		w.dev, w.kin, w.known, w.checked, w.made, w.sized, w.grown = Inactive, kNone, false, false, false, false, false
	default:
		return w, fmt.Errorf("unknown step")
	}
	return w, nil
}

// mayTake says whether a mount may go: kubelet asks for it, or it was asked to be
// let go and no pod needs it.
func (w world) mayTake(i int) bool {
	if i == 0 {
		return w.wants(oReleaseG) || w.wants(oReclaimG) && !ours(w.at[1]) && !w.wants(oStage) && !w.wantsPod()
	}
	return w.wants(oReleaseP) || (w.wants(oReclaimP) || w.wants(oReclaimPAlone)) && w.pod == Ended && !w.wantsPod()
}

// wantsPod says whether a call waits for a pod's mount.
func (w world) wantsPod() bool {
	return w.wants(oPublish) || w.wants(oPublishRO) || w.wants(oPublishXfs)
}

func (w world) wants(o op) bool { return slices.Contains(w.calls[:], o) }

// holds says whether the wish of a call that was answered with Success is true.
func (w world) holds(o op) bool {
	switch o {
	case oCheck:
		return w.lv == Present && w.lease == 1
	case oActivate:
		return w.lv == Present && w.dev == Active && w.lease == 1 && !w.unlinked
	case oStage:
		return (w.at[0] == aRW || w.at[0] == aRO) && w.phase[0] == pHeld
	case oPublish, oPublishXfs:
		return w.at[1] == aRW && w.phase[1] == pHeld
	case oPublishRO:
		return w.at[1] == aRO && w.phase[1] == pHeld
	case oReclaimV:
		return w.dev == Inactive && w.lease == 0
	case oReleaseG, oReclaimG:
		return !ours(w.at[0]) && w.phase[0] == pNone
	case oReleaseP, oReclaimP, oReclaimPAlone:
		return !ours(w.at[1]) && w.phase[1] == pNone
	case oExpand:
		return !w.short && !w.small
	case oCreate, oCreateRefused:
		return w.lv == Present
	}
	return false
}

// answer takes the calls away that Plan answered.
func (w world) answer(v Verdict) (world, error) {
	for _, id := range v.Done {
		i := int(id[0] - '0')
		if !w.holds(w.calls[i]) {
			return w, fmt.Errorf("call %v is answered with Success but does not hold", w.want().Calls)
		}
		w.calls[i] = oNone
	}
	for _, r := range v.Refused {
		if r.Code == "" {
			return w, fmt.Errorf("the refusal %q has no code", r.Reason)
		}
		if i := int(r.Call[0] - '0'); w.calls[i] == oNone {
			return w, fmt.Errorf("call %s is both done and refused", r.Call)
		} else {
			w.calls[i] = oNone
		}
	}
	return w, nil
}

// begun is the world while mkfs runs: its record stands, and it leaves something.
func (w world) begun(s Step) world {
	w.rec, w.recXfs, w.late = Formatting, s.FSType == "xfs", false
	w.truth, w.known = tLeftover, false
	return w
}

// fails are the worlds after a step that did not do its work.
func (w world) fails(s Step) []world {
	for _, id := range s.Calls {
		w.calls[id[0]-'0'] = oNone
	}
	if s.Kind == CreateVolume { // it may be there all the same
		made := w
		made.lv = Present
		return []world{w, made}
	}
	if s.Kind != Format {
		return []world{w}
	}
	// mkfs did not start; was cut by a crash; failed by itself, and its bytes could
	// not be zeroed, or were.
	left := w.begun(s)
	left.rec, left.recXfs, left.late = NoRecord, false, false
	clean := w
	clean.rec, clean.recXfs, clean.late, clean.truth, clean.known = NoRecord, false, false, tBlank, false
	return []world{w, w.begun(s), left, clean}
}

// written are the worlds after an owner wrote to the device itself, while nothing
// of flexd's runs on it, or its record has become old, or was removed.
func (w world) written() (all []world) {
	if w.rec != Formatting || w.mounted() || w.calls != [2]op{} {
		return nil
	}
	for _, t := range []truth{tData, tLUKS, tExt4} {
		u := w
		u.truth, u.known = t, false
		all = append(all, u)
	}
	old, gone := w, w
	old.late = true
	gone.rec, gone.recXfs, gone.late = NoRecord, false, false
	return append(all, old, gone)
}

// meanwhile are the worlds in which others were at work since flexd has looked.
func (w world) meanwhile() []world {
	slept := w
	slept.suspended = true
	if w.truth != tExt4 && w.truth != tXfs {
		return []world{slept}
	}
	w.elsewhere = true
	return []world{slept, w}
}

// killed is the world after kill -9: the calls, the facts of the turn and what
// only this life knew are gone.
func (w world) killed() world {
	w.calls, w.known, w.checked, w.made, w.sized, w.grown, w.grow, w.suspect = [2]op{}, false, false, false, false, false, false, false
	w.pod = LifeUnknown // without a call it is not looked at
	return w
}

// names enumerates the worlds of a name that may mean no volume.
func names(yield func(world)) {
	for lv := PresenceUnknown; lv <= Foreign; lv++ {
		for _, rec := range []Record{RecordUnknown, NoRecord, Seen} {
			for _, c0 := range []op{oNone, oCreate, oCreateRefused} {
				for _, c1 := range []op{oNone, oCreate, oCreateRefused} {
					yield(world{lv: lv, rec: rec, calls: [2]op{c0, c1}})
				}
			}
		}
	}
}

// start enumerates the worlds that make sense.
func start(yield func(world)) {
	each := func(base world) {
		for pg := range phs {
			for pp := range phs {
				for lease := range uint8(3) {
					for c0 := range ops {
						for c1 := oNone; c1 <= c0; c1++ {
							w := base
							w.phase, w.lease, w.calls = [2]ph{pg, pp}, lease, [2]op{c0, c1}
							yield(w)
							if w.wants(oReclaimP) || w.wants(oReclaimPAlone) {
								for _, w.pod = range []Life{Running, Ended} {
									yield(w)
								}
							}
						}
					}
				}
			}
		}
	}
	suspended := func(base world) {
		all := yield
		defer func() { yield = all }()
		yield = func(w world) {
			for i, a := range w.at {
				if w.phase[i] != pNone && w.phase[i] != pHeld || ours(a) != (w.phase[i] == pHeld) {
					return
				}
			}
			for _, w.patient = range []bool{false, true} {
				all(w)
			}
		}
		base.suspended = true
		each(base)
	}
	// Where something of ours is mounted there is a claim, too.
	claimed := func(base world) {
		all := yield
		defer func() { yield = all }()
		yield = func(w world) {
			for i, a := range w.at {
				if ours(a) && w.phase[i] == pNone {
					return
				}
			}
			all(w)
		}
		each(base)
	}
	spots := func(mounted bool, f func([2]at)) {
		for g := range ats {
			for p := range ats {
				if s := [2]at{g, p}; (ours(g) || ours(p)) == mounted {
					f(s)
				}
			}
		}
	}
	// Present, not mounted by us.
	spots(false, func(s [2]at) {
		for t := range truths {
			for rec := RecordUnknown; rec <= Seen; rec++ {
				for dev := Inactive; dev <= Active; dev++ {
					w := world{lv: Present, dev: dev, truth: t, rec: rec, at: s, gone: s[1] == aNone && t == tBlank, small: t == tXfs}
					each(w)
					if rec != Formatting || dev != Active || s != [2]at{} {
						continue
					}
					for _, w.created = range []bool{false, true} {
						for _, w.late = range []bool{false, true} {
							for _, w.recXfs = range []bool{false, true} {
								each(w)
							}
						}
					}
				}
			}
		}
		for _, created := range []bool{false, true} {
			for rec := RecordUnknown; rec <= Seen; rec++ {
				each(world{lv: Present, dev: Active, truth: tBlank, rec: rec, at: s, created: created, short: true})
			}
			each(world{lv: Present, dev: Active, truth: tExt4, rec: NoRecord, at: s, created: created, short: true})
			each(world{lv: Present, dev: Active, truth: tLeftover, rec: Formatting, at: s, created: created, short: true})
		}
		for _, lv := range []Presence{PresenceUnknown, Absent, Foreign} {
			for dev := ActivityUnknown; dev <= Active; dev++ {
				each(world{lv: lv, dev: dev, truth: tBlank, rec: NoRecord, at: s})
			}
		}
		each(world{lv: Present, dev: ActivityUnknown, truth: tBlank, rec: NoRecord, at: s})
		each(world{lv: Present, lvRO: true, dev: Active, truth: tExt4, rec: NoRecord, at: s})
		each(world{lv: Present, lvRO: true, dev: Active, truth: tBlank, rec: NoRecord, at: s})
		each(world{lv: Present, dev: Active, truth: tExt4, rec: Seen, at: s, elsewhere: true})
		each(world{lv: Present, dev: Active, unlinked: true, truth: tExt4, rec: Seen, at: s})
		if s == [2]at{} {
			for _, t := range []truth{tBlank, tExt4} {
				suspended(world{lv: Present, dev: Active, truth: t, rec: NoRecord, at: s})
			}
		}
		for k := kFree; k < kins; k++ {
			each(world{lv: Present, dev: Active, kin: k, truth: tExt4, rec: Seen, at: s})
		}
		for _, t := range []truth{tBlank, tExt4, tXfs} {
			for use := InUse; use <= Unmounted; use++ {
				each(world{lv: Present, dev: Active, truth: t, rec: NoRecord, at: s, use: use})
			}
			each(world{lv: Present, dev: Active, truth: t, rec: NoRecord, at: s, use: InUse, known: true, unlooked: true})
		}
	})
	// Mounted by us.
	spots(true, func(s [2]at) {
		if s[0] == aRW && (s[1] == aRW || s[1] == aNone) {
			w := world{lv: Present, dev: Active, truth: tExt4, rec: Seen, at: s, published: true}
			suspended(w)
			w.suspect = true
			suspended(w)
			w.suspect, w.grow, w.small = false, true, true
			suspended(w)
		}
		each(world{lv: Present, dev: Active, unlinked: true, truth: tExt4, rec: Seen, at: s, published: true})
		for _, rec := range []Record{NoRecord, Seen} {
			each(world{lv: Present, dev: Active, truth: tExt4, rec: rec, at: s, published: true})
		}
		each(world{lv: Present, dev: Active, truth: tError, rec: Seen, at: s, published: true, known: true})
		each(world{lv: Present, dev: Active, truth: tCut, rec: Seen, at: s, published: true, known: true, sized: true})
		each(world{lv: Present, dev: Active, truth: tExt4, rec: Seen, at: s, published: true, short: true, small: true})
		each(world{lv: Present, dev: Active, truth: tExt4, rec: Seen, at: s, published: true, small: true, grow: true})
		each(world{lv: Present, dev: Active, truth: tExt4, rec: Seen, at: s, published: true, elsewhere: true})
		each(world{lv: Absent, dev: Active, truth: tExt4, rec: Seen, at: s, published: true})
		each(world{lv: PresenceUnknown, dev: ActivityUnknown, truth: tExt4, rec: RecordUnknown, at: s, published: true})
		each(world{lv: Present, dev: ActivityUnknown, truth: tExt4, rec: Seen, at: s, published: true, blind: true})
		claimed(world{lv: Present, dev: Active, truth: tExt4, rec: Seen, at: s, published: true, blind: true})
	})
}

// A walker follows worlds to where Plan has nothing left to do.
type walker struct {
	t       *testing.T
	visited map[world]uint8 // 1 on the path, 2 done
	later   []world         // where a failed step or a kill leads: not part of the path
	plans   int
	broken  int
}

func (k *walker) broke(w world, v Verdict, format string, a ...any) {
	if k.broken++; k.broken <= 5 {
		var steps []string
		for _, s := range v.Steps {
			steps = append(steps, s.String()+fmt.Sprint(s.Calls))
		}
		k.t.Errorf("%s\n  in   %+v\n  plan %s\n  done %v refused %v", fmt.Sprintf(format, a...), w, strings.Join(steps, " · "), v.Done, v.Refused)
	}
	if os.Getenv(plantedBug) != "" { // it is found
		k.t.Logf("walked %d states", k.plans)
		k.t.FailNow()
	}
}

func (k *walker) walk(w world) {
	switch k.visited[w] {
	case 1:
		k.broke(w, Plan(w.want(), w.have()), "a plan that comes back to where it was")
		return
	case 2:
		return
	}
	k.visited[w] = 1
	defer func() { k.visited[w] = 2 }()
	k.plans++
	v := Plan(w.want(), w.have())

	// The whole plan, as far as it goes, keeps the promises in its order.
	for _, s := range v.Steps {
		for _, id := range s.Calls {
			if w.calls[id[0]-'0'] == oNone || slices.Contains(v.Done, id) {
				k.broke(w, v, "step %v is for a call that does not wait", s)
			}
		}
	}
	u := w
	for _, s := range v.Steps {
		var err error
		if u, err = u.do(s); err != nil {
			k.broke(w, v, "%s: %v", s, err)
			return
		}
	}

	next, err := w.answer(v)
	if err != nil {
		k.broke(w, v, "%v", err)
		return
	}
	if len(v.Steps) == 0 {
		switch {
		case next != w:
			k.walk(next) // what is left must be served, or at rest
		case v.Waiting && w.suspended && (w.patient || w.calls == [2]op{}):
			resumed, refused := w, w
			resumed.suspended, refused.patient = false, false
			k.later = append(k.later, resumed, refused)
		case w.calls != [2]op{}:
			k.broke(w, v, "a call is neither answered nor worked for")
		case w.dev == Active && w.lease == 0 && w.phase != [2]ph{} && !w.mounted() && !w.elsewhere:
			k.broke(w, v, "claims without a mount hold the device forever")
		}
		return
	}
	s := v.Steps[0]
	did, err := next.do(s)
	if err != nil {
		k.broke(w, v, "%s: %v", s, err)
		return
	}
	if did == w {
		k.broke(w, v, "%s changes nothing", s)
		return
	}
	k.later = append(k.later, did.killed())
	k.later = append(k.later, did.killed().written()...)
	if s.Kind == Inspect {
		k.later = append(k.later, did.meanwhile()...)
	}
	for _, failed := range next.fails(s) {
		k.later = append(k.later, failed.killed())
		k.later = append(k.later, failed.killed().written()...)
		if len(s.Calls) > 0 {
			k.later = append(k.later, failed)
		}
	}
	k.walk(did)
}

func TestPlanSpace(t *testing.T) {
	k := &walker{t: t, visited: map[world]uint8{}}
	n, samples := 0, []int{1} // of so many worlds, one is walked from
	if raceEnabled {          // the race detector finds nothing in a pure function
		samples = []int{16}
	}
	if os.Getenv(plantedBug) != "" {
		samples = []int{101, 13}
	}
	walk := func(w world) {
		n++
		k.walk(w)
		for len(k.later) > 0 {
			last := k.later[len(k.later)-1]
			k.later = k.later[:len(k.later)-1]
			k.walk(last)
		}
	}
	names(walk)
	for _, sample := range samples {
		i := 0
		start(func(w world) {
			if i++; i%sample == 0 {
				walk(w)
			}
		})
	}
	if k.broken > 5 {
		t.Errorf("... and %d more", k.broken-5)
	}
	t.Logf("walked %d states from %d starting worlds", k.plans, n)
}
