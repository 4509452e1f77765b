package volume

import (
	"slices"
	"strings"
	"testing"
)

// A device that is larger than its volume, as after older metadata was restored: the next
// activation would cut off a filesystem that uses all of it.
func TestEnlargedDevice(t *testing.T) {
	const dir = "/pods/p"
	mounted := Have{
		LV:      LV{Presence: Present, Size: 64 << 20},
		Device:  Device{Activity: Active, Size: 128 << 20, Path: "/dev/dm-0", Link: "/dev/vg/lv"},
		FS:      FS{Content: Filesystem, Type: "ext4", Size: 63 << 20, Use: Unused},
		Record:  Seen,
		Targets: map[string]TargetState{dir: {This: true}},
		Mounts:  []Mount{{Dir: dir, Type: "ext4", Owner: Ours, Kind: Published}},
	}
	held := []Claim{{Kind: Published, Dir: dir, Phase: Held}}
	grows := func(w Want, h Have) bool {
		return slices.ContainsFunc(Plan(w, h).Steps, func(s Step) bool { return s.Kind == Grow })
	}
	if w := (Want{Claims: held, Grow: true}); grows(w, mounted) {
		t.Error("it is extended after a mount")
	}
	var expand Want
	var v Verdict
	for _, size := range []int64{192 << 20, 64 << 20} {
		expand = Want{Claims: held, Calls: []Call{{ID: "1", Verb: Expand, Dir: dir, Size: size}}}
		v = Plan(expand, mounted)
		if len(v.Steps) > 0 || len(v.Done) > 0 || len(v.Refused) != 1 || !strings.Contains(v.Refused[0].Reason, "/dev/dm-0 has 128 MiB") {
			t.Errorf("expandfs to %d: got %+v", size, v)
		}
	}
	mounted.LV.Size = mounted.Device.Size
	readOnly := mounted // its activation made it so, not its metadata
	readOnly.Device.ReadOnly, readOnly.FS.Grown = true, true
	if v := Plan(expand, readOnly); len(v.Steps) > 0 || len(v.Done) > 0 || len(v.Refused) != 1 || !strings.Contains(v.Refused[0].Reason, "blockdev --setrw /dev/vg/lv; if it stays read-only: remove it from activation/read_only_volume_list") {
		t.Errorf("read-only device: got %+v", v)
	}
	remounted := mounted // by an operator
	remounted.Mounts = []Mount{{Dir: dir, Type: "ext4", SuperReadOnly: true, Owner: Ours, Kind: Published}}
	larger := Want{Claims: held, Calls: []Call{{ID: "1", Verb: Expand, Dir: dir, Size: 192 << 20}}}
	if v := Plan(larger, remounted); len(v.Steps) > 0 || len(v.Refused) != 1 || !strings.Contains(v.Refused[0].Reason, "mounted read-only, and cannot be extended: mount -o remount,rw "+dir) {
		t.Errorf("remounted read-only: got %+v", v)
	}
	if !grows(Want{Claims: held, Grow: true}, mounted) {
		t.Error("it is not extended when the metadata has the size again")
	}
	// A call needs no extension of the filesystem, nor of the device, if the filesystem has its size.
	behind := mounted // an extension of the device was interrupted
	behind.Device.Size = 64 << 20
	for _, h := range []Have{mounted, behind} {
		if v := Plan(expand, h); len(v.Done) != 1 || len(v.Steps) > 0 {
			t.Errorf("expandfs to its size: got %+v", v)
		}
		for size := int64(128 << 20); size <= 192<<20; size += 64 << 20 {
			more := Want{Claims: held, Calls: []Call{{ID: "1", Verb: Expand, Dir: dir, Size: size}}}
			if v := Plan(more, h); len(v.Done) > 0 || len(v.Steps) != 1 || (v.Steps[0].Kind == Extend) != (size > h.Device.Size) {
				t.Errorf("expandfs to %d: got %+v", size, v)
			}
		}
	}

	blank := mounted
	blank.LV.Size, blank.FS, blank.Record, blank.Mounts, blank.Targets = 64<<20, FS{Content: Blank, Use: Unused}, NoRecord, nil, map[string]TargetState{dir: {}}
	v = Plan(Want{Calls: []Call{{ID: "1", Verb: Publish, Dir: dir}}}, blank)
	if slices.ContainsFunc(v.Steps, func(s Step) bool { return s.Kind == Format }) || len(v.Refused) != 1 || v.Refused[0].Code != Unusable {
		t.Errorf("blank: got %+v", v)
	}
}
