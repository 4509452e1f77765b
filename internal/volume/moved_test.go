package volume

import (
	"slices"
	"strings"
	"testing"
)

// While btrfs replace has the filesystem of a claim on another device, the claim keeps the volume's own device, to
// which it can be moved back, and no other pod gets that device.
func TestMoved(t *testing.T) {
	const dir = "/pods/a"
	for _, c := range []struct {
		name  string
		spot  TargetState
		lease Lease
		want  []StepKind
	}{
		{"moved", TargetState{Other: "its filesystem", Moved: true}, Lease{}, nil},
		{"moved, with an old lease", TargetState{Other: "its filesystem", Moved: true}, Lease{Noted: true}, nil},
		{"moved, and covered", TargetState{Other: "tmpfs", Moved: true}, Lease{}, nil},
		{"another", TargetState{Other: "tmpfs"}, Lease{}, []StepKind{NoteLease}},
		{"another, with an old lease", TargetState{Other: "tmpfs"}, Lease{Noted: true}, []StepKind{Deactivate, DropLease}},
	} {
		w := Want{Claims: []Claim{{Kind: Published, Dir: dir, Phase: Held}}, Lease: c.lease}
		h := Have{
			LV:      LV{Presence: Present},
			Device:  Device{Activity: Active, Path: "/dev/dm-3", Link: "/dev/vg0/data"},
			Record:  Seen,
			Targets: map[string]TargetState{dir: c.spot},
		}
		var got []StepKind
		for _, s := range Plan(w, h).Steps {
			got = append(got, s.Kind)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", c.name, got)
		}
		w.Calls = []Call{{Verb: Publish, Dir: "/pods/b", ID: "1"}}
		w.Claims = append(w.Claims, Claim{Kind: Published, Dir: "/pods/b", Phase: Making})
		v := Plan(w, h)
		if refused := len(v.Refused) == 1 && strings.Contains(v.Refused[0].Reason, "is mounted at "+dir+": flexd check"); refused != c.spot.Moved {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
}
