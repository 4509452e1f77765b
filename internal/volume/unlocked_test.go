package volume

import (
	"slices"
	"testing"
)

// In a shared group an active device is no proof of its lock: nothing is inspected, checked,
// formatted or mounted before a command has taken it. What is released needs no lock.
func TestUnlocked(t *testing.T) {
	const dir, other = "/pods/a", "/pods/b"
	blank := Have{
		LV:      LV{Presence: Present, UUID: "u", Created: true},
		Device:  Device{Activity: Active, Path: "/dev/dm-3", Link: "/dev/vg0/data", Unlocked: true},
		Record:  NoRecord,
		FS:      FS{Content: Blank, Use: Unused},
		Targets: map[string]TargetState{dir: {}, other: {}},
	}
	mounted := blank
	mounted.Record, mounted.FS = Seen, FS{}
	mounted.Mounts = []Mount{{Dir: dir, Type: "ext4", Owner: Ours, Kind: Published}}
	mounted.Targets = map[string]TargetState{dir: {This: true}, other: {}}
	lease := Lease{Noted: true, Live: true}
	for name, have := range map[string]Have{"blank": blank, "mounted": mounted} {
		for _, c := range []Call{{ID: "c", Verb: Publish, Dir: other}, {ID: "c", Verb: Stage, Dir: other}, {ID: "c", Verb: Activate}} {
			w := Want{Calls: []Call{c}, Lease: lease}
			if c.Dir != "" {
				w.Claims = append(w.Claims, Claim{Kind: kindFor(c), Dir: other, Phase: Making})
			}
			if len(have.Mounts) > 0 {
				w.Claims = append(w.Claims, Claim{Kind: Published, Dir: dir, Phase: Held})
			}
			v := Plan(w, have)
			if len(v.Steps) == 0 || v.Steps[0].Kind != ActivateDevice || len(v.Done)+len(v.Refused) != 0 {
				t.Errorf("%s %v: %+v", name, c.Verb, v)
			}
			have.Device.Unlocked = false
			if v := Plan(w, have); slices.ContainsFunc(v.Steps, func(s Step) bool { return s.Kind == ActivateDevice }) {
				t.Errorf("%s %v, locked: %+v", name, c.Verb, v)
			}
			have.Device.Unlocked = true
		}
	}
	v := Plan(Want{Calls: []Call{{ID: "c", Verb: Release, Dir: dir}}, Claims: []Claim{{Kind: Published, Dir: dir, Phase: Held}}}, mounted)
	if len(v.Steps) == 0 || v.Steps[0].Kind != NoteReleasing {
		t.Errorf("release: %+v", v)
	}
	v = Plan(Want{Lease: Lease{Noted: true}}, blank)
	if len(v.Steps) == 0 || v.Steps[0].Kind != Deactivate {
		t.Errorf("deactivate: %+v", v)
	}
}
