package volume

import (
	"strings"
	"testing"
)

// Ensure that a blank volume whose space is zeroed before it is used is not extended: after
// a crash in between, what was added would pass for blank.
func TestBlankNotExtended(t *testing.T) {
	for _, zero := range []bool{false, true} {
		call := Call{ID: "a", Verb: Publish, Dir: "/pods/a", Size: 2 << 30}
		have := Have{
			LV:      LV{Presence: Present, Name: Name{"vg0", "data"}, Size: 1 << 30, Created: true, Zero: zero},
			Device:  Device{Activity: Active, Path: "/dev/dm-3", Size: 1 << 30},
			FS:      FS{Content: Blank, Use: Unused},
			Record:  NoRecord,
			Targets: map[string]TargetState{"/pods/a": {}},
		}
		want := Want{Claims: []Claim{{Kind: Published, Dir: "/pods/a", Phase: Making}}, Calls: []Call{call}}
		v := Plan(want, have)
		extends := false
		for _, s := range v.Steps {
			extends = extends || s.Kind == Extend
		}
		if refused := len(v.Refused) == 1 && strings.Contains(v.Refused[0].Reason, "lvremove vg0/data"); extends == zero || refused != zero {
			t.Errorf("zero %v: %+v", zero, v)
		}
		have.LV.Size = call.Size
		if v := Plan(want, have); len(v.Refused) > 0 {
			t.Errorf("of its size: %+v", v)
		}
		have.LV.Unzeroed, have.FS.Content = 1<<30, ForeignContent // cut, and `zero: all` is new
		if v := Plan(want, have); len(v.Refused) > 0 != zero || zero && !strings.Contains(v.Refused[0].Reason, "has 1 GiB, and option size wants 2 GiB") {
			t.Errorf("zero %v, cut: %+v", zero, v)
		}
		have.LV.Unzeroed, have.FS.Content = call.Size, Blank // lvextend has failed, and the size was corrected
		if v := Plan(want, have); len(v.Refused) > 0 || len(v.Steps) == 0 || v.Steps[0].Kind != Extend || v.Steps[0].Size != call.Size {
			t.Errorf("zero %v, never extended: %+v", zero, v)
		}
		have.FS.Content, have.Record = ForeignContent, Seen
		if v := Plan(want, have); len(v.Refused) != 1 || v.Refused[0].Code != NotBlank {
			t.Errorf("seen with a filesystem: %+v", v)
		}
	}
}
