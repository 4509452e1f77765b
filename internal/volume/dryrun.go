package volume

import (
	"maps"
	"slices"
)

// A DryRunResult is the outcome of a call if all its steps succeed.
type DryRunResult struct {
	Steps   []Step // those of the call, in order
	Done    bool
	Refused Refusal // zero = it is not refused
	// If it is neither done nor refused, the call waits for the result of the last step, which is not
	// known, or, without a step, because of Call.Waits or for its group's metadata.

	// The volume after the steps.
	Want Want
	Have Have
}

// maxDryRunSteps limits the steps of a dry run. The longest plan has about a dozen.
const maxDryRunSteps = 50

// DryRun follows the plan of the call c to its end without taking a step. content is the expected
// result of an inspection of the device, if it is known. Other calls are not considered.
func DryRun(w Want, h Have, c Call, content FS) DryRunResult {
	f := DryRunResult{Want: w, Have: h}
	f.Want.Claims, f.Want.Calls = slices.Clone(w.Claims), []Call{c}
	f.Have.Mounts, f.Have.Targets = slices.Clone(h.Mounts), map[string]TargetState{}
	maps.Copy(f.Have.Targets, h.Targets)
	for range maxDryRunSteps {
		v := Plan(f.Want, f.Have)
		f.Done = len(v.Done) > 0
		if len(v.Refused) > 0 {
			f.Refused = v.Refused[0]
		}
		if f.Done || len(v.Refused) > 0 || len(v.Steps) == 0 {
			break
		}
		s := v.Steps[0]
		if slices.Contains(s.Calls, c.ID) {
			f.Steps = append(f.Steps, s)
		}
		if s.Kind == Inspect && content.Content == ContentUnknown {
			break
		}
		f.assume(s, c, &content)
	}
	f.Want.Calls = nil
	return f
}

// assume changes the state like a step that succeeds.
func (f *DryRunResult) assume(s Step, c Call, content *FS) {
	w, h := &f.Want, &f.Have
	at := h.Targets[s.Dir]
	switch s.Kind {
	case NoteMaking:
		f.note(s, Making)
	case NoteHeld:
		f.note(s, Held)
	case NoteReleasing:
		f.note(s, Releasing)
	case Drop:
		w.Claims = slices.DeleteFunc(w.Claims, func(c Claim) bool { return c.Dir == s.Dir })
		if s.Lease {
			w.Lease = Lease{Noted: true, Live: true}
		}
	case NoteLease:
		w.Lease = Lease{Noted: true, Live: true}
	case DropLease:
		w.Lease = Lease{}
	case CreateVolume:
		h.LV.Presence, h.LV.Size, h.LV.Created = Present, s.Size, true
	case ActivateDevice:
		if h.Device.Activity = Active; h.Device.Link == "" {
			h.Device.Link = "/dev/" + h.LV.Name.String()
		}
		h.Device.Unlocked = false
		h.Device.Size, h.Device.ReadOnly = h.LV.Size, h.LV.ReadOnly
	case Inspect:
		made, checked, grown := h.FS.Made, h.FS.Checked, h.FS.Grown
		h.FS = *content
		h.FS.Made, h.FS.Checked, h.FS.Grown = made, checked, grown
	case Format:
		*content = FS{Content: Filesystem, Type: s.FSType, Use: Unused}
		h.FS = FS{Made: true, Checked: true}
		h.Record, h.RecordType = Formatting, s.FSType
	case RecordSeen:
		h.Record, h.RecordType, h.RecordPartial = Seen, s.FSType, false
	case CheckFS:
		h.FS.Checked = true
	case Extend:
		h.LV.Size, h.Device.Size = max(h.LV.Size, s.Size), max(h.Device.Size, s.Size)
		if s.Blank {
			h.FS, h.LV.Unzeroed = FS{}, 0
			*content = FS{Content: Blank, Use: Unused}
		}
	case Grow:
		h.FS.Grown, h.FS.Size, w.Grow = true, 0, false
	case MountVolume:
		at.This = true
		h.Mounts = append(h.Mounts, Mount{
			Dir: s.Dir, Type: s.FSType, Owner: Ours, Kind: s.Claim, Asked: c.Super, AskedKnown: true,
			ReadOnly: c.ReadOnly || h.LV.ReadOnly || h.Device.ReadOnly, SuperReadOnly: h.LV.ReadOnly || h.Device.ReadOnly,
		})
	case Unmount:
		at = TargetState{}
		h.Mounts = slices.DeleteFunc(h.Mounts, func(m Mount) bool { return m.Dir == s.Dir })
		h.FS = FS{}
	case Deactivate:
		h.Device, h.FS = Device{Activity: Inactive}, FS{}
	}
	if s.Dir != "" {
		h.Targets[s.Dir] = at
	}
}

// note changes or adds the claim of a step.
func (f *DryRunResult) note(s Step, phase Phase) {
	claims := slices.DeleteFunc(f.Want.Claims, func(c Claim) bool { return c.Dir == s.Dir })
	f.Want.Claims = append(claims, Claim{Kind: s.Claim, Dir: s.Dir, Phase: phase})
}
