package volume

import (
	"strings"
	"testing"
)

// Ensure that users of a volume are compared by what they asked for: not by what
// flexd or the kernel adds, such as the nouuid of a snapshot beside its origin.
func TestOptionsDiffer(t *testing.T) {
	shown := []string{"rw", "nouuid", "attr2", "inode64", "logbufs=8", "noquota"}
	for _, c := range []struct {
		name string
		want string
		m    Mount
		diff string
	}{
		{"none, asked for none", "", Mount{Super: shown, AskedKnown: true}, ""},
		{"none, not known what was asked for", "", Mount{Super: shown}, ""},
		{"the same", "logbufs=8", Mount{Super: shown, AskedKnown: true, Asked: []string{"logbufs=8"}}, ""},
		{"one that is shown", "logbufs=8", Mount{Super: shown}, ""},
		{"another", "logbufs=4", Mount{Super: shown, AskedKnown: true, Asked: []string{"logbufs=8"}}, "wanted logbufs=4, mounted with logbufs=8"},
		{"one that is not shown", "wsync", Mount{Super: shown}, "wanted wsync"},
		{"none, asked for one", "", Mount{Super: shown, AskedKnown: true, Asked: []string{"wsync"}}, "wanted none, mounted with wsync"},
	} {
		var want []string
		if c.want != "" {
			want = []string{c.want}
		}
		if diff := optionsDiffer(want, []Mount{c.m}); (diff == "") != (c.diff == "") || !strings.Contains(diff, c.diff) {
			t.Errorf("%s: got %q", c.name, diff)
		}
	}
}

// What makes a volume read-only decides how it is made writable again.
func TestReadOnlyRemedy(t *testing.T) {
	for _, row := range []struct {
		lv, external bool
		file         string
		want         string
	}{
		{false, false, "", "blockdev --setrw /dev/loop1"},
		{true, false, "", "the logical volume is read-only: mount it with readOnly: true, or make it writable: lvchange -prw vg0/data"},
		{false, false, "/srv/data", "losetup -d /dev/loop1"},
		{true, true, "", "LVM never makes it writable: mount it with readOnly: true"},
		{true, false, "/srv/data", "chmod u+w /srv/data"},
	} {
		h := Have{LV: LV{Presence: Present, Name: Name{VG: "vg0", LV: "data"}, ReadOnly: row.lv, External: row.external, File: File{Path: row.file}}, Device: Device{Activity: Active, Path: "/dev/loop1", ReadOnly: true}}
		v := Plan(Want{Calls: []Call{{ID: "c", Verb: Publish, Dir: "/k/p"}}}, h)
		if len(v.Refused) != 1 || !strings.Contains(v.Refused[0].Reason, row.want) || row.external && strings.Contains(v.Refused[0].Reason, "lvchange") {
			t.Errorf("read-only volume %v: got %+v, want %q", row.lv, v, row.want)
		}
	}
}
