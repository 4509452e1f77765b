package volume

import (
	"fmt"
	"slices"
)

// do applies a step that succeeds, and reports what it broke.
func (w world) do(s Step) (world, error) {
	i := dirIndex(s.Dir)
	if s.Kind.SetsUp() && len(s.Calls) == 0 {
		return w, fmt.Errorf("sets up without a waiting call")
	}
	if w.suspended && slices.Contains([]StepKind{ActivateDevice, Inspect, Format, CheckFS, MountVolume, Extend, Grow}, s.Kind) {
		return w, fmt.Errorf("touches a suspended device")
	}
	if w.unlocked && (slices.Contains([]StepKind{Format, CheckFS, MountVolume}, s.Kind) || s.Kind == Inspect && !w.mounted()) {
		return w, fmt.Errorf("uses a device without its lock")
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
		if (w.dev == Active || w.lockLeft) && w.phase == [2]ph{} && w.lease == 0 && !w.mounted() {
			return w, fmt.Errorf("an active or locked volume is left with neither claim nor lease")
		}
	case NoteLease:
		w.lease = 1
	case DropLease:
		if w.lease == 1 && !w.wants(oReclaimV) {
			return w, fmt.Errorf("a live lease is dropped")
		}
		if w.dev == Active || w.lockLeft {
			return w, fmt.Errorf("the lease of an active or locked volume is dropped")
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
			if w.calls[id[0]-'0'] == oFind {
				return w, fmt.Errorf("creates a volume for a call that only looks for one")
			}
		}
		w.lv = Present
	case ActivateDevice:
		if w.lease == 0 && w.phase == [2]ph{} {
			return w, fmt.Errorf("activated before anything was noted")
		}
		if w.lv != Present || w.dev != Inactive && (w.dev != Active || !w.unlinked && !w.unlocked) {
			return w, fmt.Errorf("activates what is foreign, absent, unknown or active")
		}
		w.dev, w.unlinked, w.unlocked, w.lockLeft = Active, false, false, false
	case Inspect:
		if w.dev != Active {
			return w, fmt.Errorf("inspects a volume that is not active")
		}
		if len(s.Calls) == 0 && !w.grow && !w.suspect {
			return w, fmt.Errorf("looks at a device without a request")
		}
		w.unlooked = false
		w.known, w.sized = true, w.truth != tBlank && w.truth != tData && w.truth != tLUKS && w.truth != tLeftover
	case Format:
		asked := "ext4"
		if w.recXfs {
			asked = "xfs"
		}
		began := w.rec == Formatting && (!w.shared || w.tag == gHere) && w.tag != gBad || w.rec != Seen && w.tag == gThere
		cut := w.truth == tLeftover && began && asked == s.FSType && w.created && !w.late && !w.published
		switch {
		case w.truth != tBlank && !cut:
			return w, fmt.Errorf("formats over %d", w.truth)
		case w.stale:
			return w, fmt.Errorf("formats over what was added to it")
		case s.Repeat != (w.truth != tBlank):
			return w, fmt.Errorf("says of what is blank that it is not, or of what is not that it is")
		case w.rec == RecordUnknown || w.rec == Seen || w.tag == gSeen:
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
		if w.shared {
			w.tag = gSeen
		}
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
			return w, fmt.Errorf("mounts a volume with a foreign mount")
		case w.use != UseUnknown && !w.mounted():
			return w, fmt.Errorf("mounts what something else uses")
		case w.truth == tCut && w.mounted() && !w.known: // only the child sees it, and refuses
		case w.truth != tExt4 && w.truth != tXfs:
			return w, fmt.Errorf("mounts what is no filesystem: %d", w.truth)
		case w.rec == Formatting || w.rec == NoRecord && !w.mounted():
			return w, fmt.Errorf("mounts before the filesystem is recorded as seen")
		case w.shared && w.tag != gSeen && !w.mounted():
			return w, fmt.Errorf("mounts before other nodes see that it has a filesystem")
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
			w.short, w.known, w.stale = false, false, false
			return w, nil
		}
		if !w.wants(oExpand) {
			return w, fmt.Errorf("extends a volume without a request")
		}
		if w.truth == tCut {
			return w, fmt.Errorf("extends a filesystem whose end is cut off over other extents")
		}
		if w.short {
			w.short, w.small, w.grown = false, true, false
		}
	case Grow:
		if len(s.Calls) == 0 && !w.grow {
			return w, fmt.Errorf("grows without a call, and found nothing small at a mount")
		}
		if len(s.Calls) > 0 && !w.wants(oExpand) && w.small && !w.short {
			return w, fmt.Errorf("grows for a call what has the size already, so the call fails where that is impossible")
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
		w.unlocked, w.lockLeft = false, false
	default:
		return w, fmt.Errorf("unknown step")
	}
	return w, nil
}

// mayTake reports whether a mount may be unmounted: kubelet asks for it, or its release was
// asked for and no pod needs it.
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
		return w.dev == Inactive && !w.lockLeft && w.lease == 0
	case oReleaseG, oReclaimG:
		return !ours(w.at[0]) && w.phase[0] == pNone
	case oReleaseP, oReclaimP, oReclaimPAlone:
		return !ours(w.at[1]) && w.phase[1] == pNone
	case oExpand:
		return !w.short && !w.small
	case oExpandLess:
		return !w.short || !w.small
	case oCreate, oCreateRefused:
		return w.lv == Present
	case oFind:
		return w.lv != PresenceUnknown
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
	w.waits = w.waits && w.calls != [2]op{}
	return w, nil
}

// begun is the world while mkfs runs: its record stands, and it leaves something.
func (w world) begun(s Step) world {
	w.rec, w.recXfs, w.late = Formatting, s.FSType == "xfs", false
	if w.shared {
		w.tag = gHere
	}
	w.truth, w.known = tLeftover, false
	return w
}

// mustWait are the worlds after a step that must wait, for another host for example.
func (w world) mustWait(s Step) []world {
	switch s.Kind {
	case ActivateDevice, Extend:
		w.waits = true
		return []world{w}
	case CreateVolume: // the other host may be creating it
		w.waits = true
		made := w
		made.lv = Present
		return []world{w, made}
	}
	return nil
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
	if s.Kind == RecordSeen && w.shared { // the tag could not be written
		noted := w
		noted.rec = Seen
		return []world{w, noted}
	}
	if s.Kind != Format {
		return []world{w}
	}
	// mkfs did not start; was cut by a crash; failed by itself, and its bytes could
	// not be zeroed, or were.
	left := w.begun(s)
	left.rec, left.recXfs, left.late = NoRecord, false, false
	clean := left
	clean.truth = tBlank
	all := []world{w, w.begun(s), left, clean}
	if w.shared { // the tag was removed, too
		left.tag, clean.tag = gNone, gNone
		all = append(all, left, clean)
	}
	return all
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
	w.calls, w.waits, w.known, w.checked, w.made, w.sized, w.grown, w.grow, w.suspect = [2]op{}, false, false, false, false, false, false, false, false
	w.pod = LifeUnknown // without a call it is not looked at
	return w
}

// names enumerates the worlds of a name that may mean no volume.
func names(yield func(world)) {
	for lv := PresenceUnknown; lv <= Foreign; lv++ {
		for _, rec := range []Record{RecordUnknown, NoRecord, Seen} {
			for _, c0 := range []op{oNone, oCreate, oCreateRefused, oFind} {
				for _, c1 := range []op{oNone, oCreate, oCreateRefused, oFind} {
					yield(world{lv: lv, rec: rec, calls: [2]op{c0, c1}})
				}
			}
		}
	}
}
