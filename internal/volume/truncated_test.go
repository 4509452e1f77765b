package volume

import (
	"strings"
	"testing"
)

// Nothing extends a filesystem that is larger than its device: LVM may take other extents than
// those that it was cut off.
func TestExpandTruncated(t *testing.T) {
	const dir, mib = "/pods/p", 1 << 20
	h := Have{
		LV:      LV{Presence: Present, Name: Name{VG: "vg0", LV: "db"}, Size: 64 * mib},
		Device:  Device{Activity: Active, Size: 64 * mib, Path: "/dev/dm-0", Link: "/dev/vg0/db"},
		FS:      FS{Content: Truncated, Type: "ext4", Size: 127 * mib},
		Record:  Seen,
		Targets: map[string]TargetState{dir: {This: true}},
		Mounts:  []Mount{{Dir: dir, Type: "ext4", Owner: Ours, Kind: Published}},
	}
	expand := func(size int64) Verdict {
		return Plan(Want{Claims: []Claim{{Kind: Published, Dir: dir, Phase: Held}}, Calls: []Call{{ID: "1", Verb: Expand, Dir: dir, Size: size}}}, h)
	}
	for lv, remedy := range map[int64]string{
		64 * mib:  "vgcfgrestore --list vg0; vgcfgrestore -f FILE vg0",
		128 * mib: "the metadata has that size, so: lvchange --refresh vg0/db",
	} {
		for _, size := range []int64{64 * mib, 127 * mib, 128 * mib, 256 * mib} {
			h.LV.Size = lv
			v := expand(size)
			if len(v.Steps) > 0 || len(v.Done) > 0 || len(v.Refused) != 1 || v.Refused[0].Code != Damaged || !strings.Contains(v.Refused[0].Reason, remedy) {
				t.Errorf("of %d to %d: got %+v", lv, size, v)
			}
			if cut := strings.Contains(v.Refused[0].Reason, "made smaller"); cut != (lv < h.FS.Size) {
				t.Errorf("of %d to %d: got %+v", lv, size, v)
			}
			if extends := strings.Contains(v.Refused[0].Reason, "lvextend -L 133169152b vg0/db"); extends != (lv < h.FS.Size) {
				t.Errorf("of %d to %d: got %+v", lv, size, v)
			}
		}
	}
	h.LV.Size, h.FS = 64*mib, FS{}
	if v := expand(128 * mib); len(v.Steps) != 1 || v.Steps[0].Kind != Inspect || len(v.Done)+len(v.Refused) > 0 {
		t.Errorf("not looked at: got %+v", v)
	}
}

// Nor one with smaller sectors than its device has: the kernel would not mount it again.
func TestExpandSmallSectors(t *testing.T) {
	const dir, mib = "/pods/p", 1 << 20
	what, hint := SmallSectors("xfs", 512, 4096, "/dev/dm-0", Handle{Name: Name{VG: "vg0", LV: "db"}})
	h := Have{
		LV:      LV{Presence: Present, Name: Name{VG: "vg0", LV: "db"}, Size: 64 * mib},
		Device:  Device{Activity: Active, Size: 64 * mib, Path: "/dev/dm-0", Link: "/dev/vg0/db"},
		FS:      FS{Content: Filesystem, Type: "xfs", Size: 32 * mib, Small: what + "; " + hint},
		Record:  Seen,
		Targets: map[string]TargetState{dir: {This: true}},
		Mounts:  []Mount{{Dir: dir, Type: "xfs", Owner: Ours, Kind: Published}},
	}
	for _, size := range []int64{64 * mib, 128 * mib} {
		v := Plan(Want{Claims: []Claim{{Kind: Published, Dir: dir, Phase: Held}}, Calls: []Call{{ID: "1", Verb: Expand, Dir: dir, Size: size}}}, h)
		if len(v.Steps) > 0 || len(v.Refused) != 1 || v.Refused[0].Code != Unusable || !strings.Contains(v.Refused[0].Reason, "pvmove -n db DISK OTHER") {
			t.Errorf("to %d: got %+v", size, v)
		}
	}
	claims := []Claim{{Kind: Published, Dir: dir, Phase: Held}}
	if v := Plan(Want{Claims: claims, Calls: []Call{{ID: "1", Verb: Expand, Dir: dir, Size: 33 * mib}}}, h); len(v.Steps) > 0 || len(v.Refused) > 0 {
		t.Errorf("to the size that it has: got %+v", v)
	}
	if v := Plan(Want{Claims: claims, Grow: true}, h); len(v.Steps) > 0 {
		t.Errorf("without a call: got %+v", v)
	}
}
