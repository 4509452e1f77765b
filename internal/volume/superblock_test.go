package volume

import (
	"strings"
	"testing"
)

// A filesystem that was mounted while its volume was read-only stays read-only when the volume becomes
// writable: read-only pods get it, and a call that may write is refused.
func TestReadOnlySuperblock(t *testing.T) {
	h := Have{
		LV:      LV{Presence: Present, Name: Name{VG: "vg0", LV: "db"}, Size: 64 << 20},
		Device:  Device{Activity: Active, Size: 64 << 20, Path: "/dev/dm-0", Link: "/dev/vg0/db"},
		FS:      FS{Content: Filesystem, Type: "ext4", Checked: true},
		Record:  Seen,
		Targets: map[string]TargetState{"/pods/p": {This: true}, "/pods/q": {}},
		Mounts:  []Mount{{Dir: "/pods/p", Type: "ext4", Owner: Ours, Kind: Published, ReadOnly: true, SuperReadOnly: true, AskedKnown: true}},
	}
	if v := Plan(Want{Calls: []Call{{ID: "1", Verb: Stage, Dir: "/global"}}}, h); len(v.Refused) != 1 || v.Refused[0].Code != Conflict {
		t.Errorf("a global mount: got %+v", v)
	}
	for _, readOnly := range []bool{true, false} {
		v := Plan(Want{
			Claims: []Claim{{Kind: Published, Dir: "/pods/p", Phase: Held}},
			Calls:  []Call{{ID: "1", Verb: Publish, Dir: "/pods/q", ReadOnly: readOnly}},
		}, h)
		refused := len(v.Refused) == 1 && v.Refused[0].Code == Conflict && strings.Contains(v.Refused[0].Reason, "its ext4 is mounted read-only")
		if refused == readOnly || readOnly != (len(v.Steps) > 0) {
			t.Errorf("readOnly %t: got %+v", readOnly, v)
		}
	}
}
