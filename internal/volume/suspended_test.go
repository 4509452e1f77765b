package volume

import (
	"strings"
	"testing"
)

// A call waits for a suspended device if it is to, and is refused otherwise. Nothing is
// set up meanwhile, and a release does not wait.
func TestSuspended(t *testing.T) {
	const dir, other = "/pods/a", "/pods/b"
	have := Have{
		LV:      LV{Presence: Present, UUID: "u"},
		Device:  Device{Activity: Active, Path: "/dev/dm-3", Link: "/dev/vg0/data", Suspended: true},
		Record:  Seen,
		Mounts:  []Mount{{Dir: dir, Type: "ext4", Owner: Ours, Kind: Published}},
		Targets: map[string]TargetState{dir: {This: true}, other: {}},
	}
	want := func(waits bool) Want {
		return Want{
			Claims: []Claim{{Kind: Published, Dir: dir, Phase: Held}},
			Calls: []Call{
				{ID: "check", Verb: Check, Waits: waits},
				{ID: "activate", Verb: Activate, Waits: waits},
				{ID: "stage", Verb: Stage, Dir: other, Waits: waits},
				{ID: "expand", Verb: Expand, Dir: dir, Size: 1, Waits: waits},
			},
		}
	}
	v := Plan(want(true), have)
	if !v.Waiting || len(v.Steps)+len(v.Done)+len(v.Refused) != 0 {
		t.Errorf("waits: got %+v", v)
	}
	v = Plan(want(false), have)
	if v.Waiting || len(v.Steps)+len(v.Done) != 0 || len(v.Refused) != 4 {
		t.Errorf("got %+v", v)
	}
	for _, r := range v.Refused {
		for _, words := range []string{"/dev/dm-3 stays suspended", "snapshot or pvmove may be in progress", "pvmove --abort", "dmsetup resume /dev/dm-3"} {
			if !strings.Contains(r.Reason, words) {
				t.Errorf("%s: %q does not say %q", r.Call, r.Reason, words)
			}
		}
	}
	// An lvextend that has written the metadata does nothing when it is repeated.
	for size, repeats := range map[int64]bool{0: true, 1: false} {
		have := have
		have.LV.Size = size
		if v := Plan(want(false), have); len(v.Refused) != 4 || strings.Contains(v.Refused[3].Reason, "repeat") != repeats {
			t.Errorf("size %d: got %+v", size, v.Refused)
		}
	}
	// What is mounted is Success, and a release goes on.
	w := want(true)
	w.Calls = []Call{{ID: "again", Verb: Publish, Dir: dir, Waits: true}}
	if v := Plan(w, have); v.Waiting || len(v.Done) != 1 {
		t.Errorf("mounted: got %+v", v)
	}
	w = want(true)
	w.Calls = append(w.Calls, Call{ID: "release", Verb: Release, Dir: dir, Waits: true})
	if v := Plan(w, have); !v.Waiting || len(v.Steps) == 0 || v.Steps[0].Kind != NoteReleasing {
		t.Errorf("release: got %+v", v)
	}
	have.Device.Suspended = false
	if v := Plan(want(false), have); v.Waiting || len(v.Steps) == 0 {
		t.Errorf("resumed: got %+v", v)
	}
}

// The advice to deactivate a family by hand is withheld while a snapshot of it is lost: it could look valid afterwards.
func TestReclaimWithLostSnapshot(t *testing.T) {
	for _, lost := range []bool{false, true} {
		have := Have{LV: LV{Presence: Present, Name: Name{VG: "vg0", LV: "o"}}, Device: Device{Activity: Active, Path: "/dev/dm-1", Relatives: []Relative{
			{Name: Name{VG: "vg0", LV: "s1"}}, {Name: Name{VG: "vg0", LV: "s2"}, Lost: lost},
		}}}
		v := Plan(Want{Calls: []Call{{ID: "c", Verb: Reclaim}}}, have)
		if len(v.Refused) != 1 || strings.Contains(v.Refused[0].Reason, "lvchange -an vg0/o") == lost || strings.Contains(v.Refused[0].Reason, "The contents of vg0/s2 are lost: lvremove it") != lost {
			t.Errorf("lost %v: got %+v", lost, v)
		}
	}
}
