package volume

import (
	"slices"
	"testing"
)

// Ensure that a call waits for the metadata of a group that has not answered yet if it
// needs it, and that nothing else does.
func TestPending(t *testing.T) {
	const dir, other = "/pods/a", "/pods/b"
	claimed := []Claim{{Kind: Published, Dir: dir, Phase: Held}}
	ended := TargetState{This: true, Pod: Ended}
	for _, c := range []struct {
		name    string
		call    Call
		spot    TargetState // at dir
		waits   bool
		refused bool
		step    StepKind // 0 = none, and the call is done unless it waits
	}{
		{name: "attach", call: Call{Verb: Check}, spot: TargetState{This: true}, waits: true},
		{name: "waitforattach", call: Call{Verb: Activate}, spot: TargetState{This: true}, waits: true},
		{name: "mountdevice", call: Call{Verb: Stage, Dir: other}, spot: TargetState{This: true}, waits: true},
		{name: "mount", call: Call{Verb: Publish, Dir: other}, spot: TargetState{This: true}, waits: true},
		{name: "mount where it is mounted", call: Call{Verb: Publish, Dir: dir}, spot: TargetState{This: true}},
		{name: "expandfs", call: Call{Verb: Expand, Dir: dir}, spot: TargetState{This: true}, waits: true},
		{name: "unmount", call: Call{Verb: Release, Dir: dir}, spot: TargetState{This: true}, step: NoteReleasing},
		{name: "unmount of a missing mount", call: Call{Verb: Release, Dir: dir}, step: Drop},
		{name: "unmount where nothing was", call: Call{Verb: Release, Dir: other}, spot: TargetState{This: true}},
		{name: "unmount of something else", call: Call{Verb: Release, Dir: dir}, spot: TargetState{Other: "tmpfs"}, refused: true},
		{name: "release of a mount", call: Call{Verb: Reclaim, Dir: dir}, spot: ended, step: NoteReleasing},
		{name: "release of a device", call: Call{Verb: Reclaim}, waits: true},
	} {
		have := Have{
			LV:      LV{Pending: true, Reason: "not yet"},
			Device:  Device{Activity: Active, Path: "/dev/dm-3", Link: "/dev/vg0/data"},
			Record:  Seen,
			Targets: map[string]TargetState{dir: c.spot, other: {}},
		}
		if c.spot.This {
			have.Mounts = []Mount{{Dir: dir, Type: "ext4", Owner: Ours, Kind: Published}}
		}
		w := Want{Claims: claimed, Lease: Lease{Noted: true, Live: true}, Grow: true, Calls: []Call{c.call}}
		if c.call.Verb == Reclaim && c.call.Dir == "" {
			w.Claims = nil
		}
		v := Plan(w, have)
		var step StepKind
		if len(v.Steps) > 0 {
			step = v.Steps[0].Kind
		}
		if done := len(v.Done) == 1; step != c.step || (len(v.Refused) == 1) != c.refused || done != (!c.waits && !c.refused && c.step == 0) {
			t.Errorf("%s: got %+v", c.name, v)
		}
	}
	// The growth that flexd does by itself does not know whether it may write.
	w := Want{Claims: claimed, Grow: true}
	have := Have{
		LV: LV{Pending: true}, Device: Device{Activity: Active, Size: 1 << 30}, FS: FS{Size: 1 << 29}, Record: Seen,
		Mounts: []Mount{{Dir: dir, Type: "ext4", Owner: Ours, Kind: Published}}, Targets: map[string]TargetState{dir: {This: true}},
	}
	for _, pending := range []bool{true, false} {
		if have.LV.Pending = pending; len(Plan(w, have).Steps) > 0 == pending {
			t.Errorf("growth, pending %v: got %+v", pending, Plan(w, have))
		}
	}
}

// A call that waits for a look-up is refused as soon as the configuration refuses it, unless the
// volume is known: then its own lane does so.
func TestPendingRefused(t *testing.T) {
	why := Refusal{Code: NotAllowed, Reason: "not in volumes"}
	find := Call{ID: "1", Verb: Find, Refusal: why}
	v := Plan(Want{Calls: []Call{find}}, Have{LV: LV{Pending: true, Reason: "another node has the lock"}})
	if len(v.Refused) != 1 || v.Refused[0] != (Refusal{Call: "1", Code: why.Code, Reason: why.Reason}) {
		t.Errorf("while it is looked up: %+v", v)
	}
	if v := Plan(Want{Calls: []Call{find}}, Have{LV: LV{Presence: Present}}); len(v.Done) != 1 {
		t.Errorf("when it is known: %+v", v)
	}
}

// The claim of a copy ends, if the mount that counts is known.
func TestClaimOfCopy(t *testing.T) {
	for name, c := range map[string]struct {
		device Device
		mounts []Mount
		want   bool
	}{
		"a copy":                 {Device{Activity: Active}, []Mount{{Dir: "/b", Kind: Published, Owner: Ours}}, true},
		"the mount that counts":  {Device{Activity: Active}, []Mount{{Dir: "/a", Kind: Published, Owner: Ours}}, false},
		"no mount is known":      {Device{Activity: Active}, nil, false},
		"another driver's mount": {Device{Activity: Active}, []Mount{{Dir: "/b", Owner: Elsewhere}}, false},
		"unknown device":         {Device{Reason: "dm ioctl failed"}, []Mount{{Dir: "/b", Kind: Published, Owner: Ours}}, false},
		"unusable device":        {Device{Activity: Inactive, Unusable: true}, nil, false},
	} {
		v := Plan(Want{Claims: []Claim{{Dir: "/a", Kind: Published, Phase: Held}}},
			Have{LV: LV{Presence: Present}, Device: c.device, Mounts: c.mounts, Targets: map[string]TargetState{"/a": {This: true}}})
		got := slices.ContainsFunc(v.Steps, func(s Step) bool { return s.Kind == Drop && s.Dir == "/a" })
		if got != c.want {
			t.Errorf("%s: dropped %t: %v", name, got, v.Steps)
		}
	}
}
