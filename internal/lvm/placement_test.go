package lvm

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/volume"
)

// After older metadata was restored, a device is not where the metadata places its volume: it stays active,
// and nothing is allocated in its group.
func TestMisplaced(t *testing.T) {
	disks, err := os.ReadDir("/sys/dev/block")
	if err != nil || len(disks) == 0 {
		t.Fatalf("no disk: %v", err)
	}
	other := disks[0].Name()
	lv := func(i int) string { return string(fakeUUID(i).Earlier()) }
	for _, c := range []struct {
		name   string
		tables []string // of v0's device, and of the one below it
		want   string   // "" = it is where it should be
	}{
		{"own", []string{"linear 1:3 2048"}, ""}, // extents of 8192 sectors, from 2048
		{"another volume's", []string{"linear 1:3 18432"}, "lies on space that the metadata gives to vg0/v1"},
		{"partly another volume's", []string{"linear 1:3 2049"}, "lies on space that the metadata gives to vg0/v1"},
		{"free", []string{"linear 1:3 34816"}, "lies on space that the metadata counts as free"},
		{"another disk", []string{"linear " + other + " 2048"}, "lies on the disk " + other},
		{"a disk that is gone", []string{"linear 1:4 2048"}, ""},
		{"a copy's", []string{"linear 1:3 51200"}, "lies on space that the metadata gives to vg0/v0_rimage_0"},
		{"a RAID", []string{"raid raid1 3 0 region_size 1024 2 - - 253:91 253:92", "linear 1:3 51200"}, ""},
		{"a RAID that lost a leg", []string{"raid raid1 3 0 region_size 1024 1 253:91 253:92", "linear 1:3 51200"}, "has 1 copies or stripes, and the metadata says 2"},
		{"a RAID's leg elsewhere", []string{"raid raid1 3 0 region_size 1024 2 - - 253:91 253:92", "linear 1:3 2048"}, "lies on space that the metadata gives to vg0/v0"},
		{"a thin device", []string{"thin 253:80 5"}, ""},
		{"another thin device", []string{"thin 253:80 6"}, "is the thin device 6 of its pool, and the metadata says 5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, p := newFake(t, 2)
			f.segs = fmt.Sprintf(`{"lv_uuid":%q,"thin_id":"5"}`, lv(0))
			f.pvs = `{"pv_name":"/dev/null","pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-PVPVPV","pv_missing":"","pv_allocatable":"allocatable","pv_size":"2143289344","pv_free":"0","pv_tags":""}`
			f.gaps = strings.Join([]string{segment(0, 2, lv(0)), segment(2, 2, lv(1)), segment(4, 2, ""), segment(6, 2, lv(2)), segment(8, 2, lv(3))}, ",")
			for i := range 2 {
				f.lvs[fmt.Sprintf("[v0_rimage_%d]", i)] = &fakeLV{uuid: fakeUUID(2 + i), size: 8 * mib, role: "private", layout: "linear"}
			}
			v0 := f.lookUp(p, "v0")
			for i, table := range c.tables {
				target, params, _ := strings.Cut(table, " ")
				m := devmapper.Mapped{Name: "vg0-v0", UUID: dmUUID(fakeUUID(0)), Number: "253:90", Live: true, Targets: []devmapper.Target{{Type: target, Length: 8 * mib, Params: params}}}
				if i > 0 {
					m.Name, m.UUID, m.Number = "vg0-v0_rimage_0", dmUUID(fakeUUID(2)), "253:92"
				}
				f.devices[m.UUID] = m
			}
			p.Invalidate("")
			f.lookUp(p, "v0")
			f.commands()
			s := p.Survey(t.Context(), "vg0", false)
			if i := slices.IndexFunc(s.Devices, func(d join.Device) bool { return d.Name == "v0" }); i < 0 || (s.Devices[i].Misplaced != "") != (c.want != "") || !strings.Contains(s.Devices[i].Misplaced, c.want) {
				t.Errorf("survey: %+v", s)
			}
			errs := map[string]error{
				"create":     p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "new"}, 8*mib, ""),
				"extend":     p.Extend(t.Context(), "", v0, volume.Device{}, 16*mib),
				"deactivate": p.Deactivate(t.Context(), "", v0, volume.Device{}),
			}
			for what, err := range errs {
				if refused := strings.Contains(fmt.Sprint(err), "vg0-v0"); err != nil && !refused && c.want != "" || refused != (c.want != "") || !strings.Contains(fmt.Sprint(err), c.want) {
					t.Errorf("%s: got %v", what, err)
				}
			}
			if ran := f.commands(); c.want != "" && (slices.Contains(ran, "lvcreate") || slices.Contains(ran, "lvextend") || slices.Contains(ran, "lvchange")) {
				t.Errorf("ran %q", ran)
			}
		})
	}
}

// A command that was killed before it resumed the volume has left a table of another type than that in the
// metadata. A table counts as that of the metadata only if all of it was compared.
func TestTableType(t *testing.T) {
	const raid = "raid raid1 3 0 region_size 1024 2 - - 253:91 253:92"
	id := fakeUUID(0)
	for _, c := range []struct {
		table, layout, want string
		compared            bool
	}{
		{"linear 8:0 2048", "linear", "", true},
		{"linear 8:16 2048", "linear", "", false},   // of the group under another number, or gone
		{"linear 253:91 0", "raid,raid1", "", true}, // a layer, as over an external origin
		{raid, "raid,raid1", "", true},
		{"raid raid1 3 0 region_size 1024 3 - - - - 253:91 253:92", "raid,raid1", "", false},
		{raid, "linear", "has a raid table, and the metadata says linear", true},
		{raid, "cache", "has a raid table, and the metadata says cache", true},
		{raid, "unknown", "", true},
		{"cache 253:1 253:2 253:92 128 0 mq 0", "striped", "has a cache table, and the metadata says striped", true},
		{"writecache s 253:91 253:92 512 0", "linear", "has a writecache table, and the metadata says linear", true},
		{"thin 253:80 5", "linear", "has a thin table, and the metadata says linear", true},
		{"thin 253:80 5", "thin,sparse", "", true},
		{"snapshot-origin 253:91", "raid,raid1", "", true},
		{"error ", "linear", "", false},
		{"zero ", "unknown", "", false},
	} {
		f := &Facts{
			Name: "vg0", UUID: vgUUID, names: map[volume.UUID]string{id: "v"}, legs: map[string]int{"v": 2},
			LVs:   map[string]Logical{"v": {Name: "v", UUID: id, Size: 8 * mib, Layout: strings.Split(c.layout, ",")}},
			place: &placement{disks: map[string]bool{"8:0": true}},
		}
		target, params, _ := strings.Cut(c.table, " ")
		dm, p := newFake(t, 0)
		dm.devices["LVM-below"] = devmapper.Mapped{UUID: "LVM-below", Number: "253:91"}
		below, m := p.tree(), devmapper.Mapped{Name: "vg0-v", UUID: dmUUID(id), Number: "253:90", Live: true, Targets: []devmapper.Target{{Type: target, Length: 8 * mib, Params: params}}}
		if got, compared := f.misplaced(m), f.compared(below, below.add(m, nil)); got != c.want || compared != c.compared {
			t.Errorf("%s, %s: got %q %v", c.table, c.layout, got, compared)
		}
		m.Targets[0].Length *= 2
		if f.compared(below, below.add(m, nil)) {
			t.Errorf("%s, larger than the metadata says: compared", c.table)
		}
	}
}

// segment returns extents of a disk in a report, of a volume or free.
func segment(start, size int, owner string) string {
	return fmt.Sprintf(`{"pv_name":"/dev/null","pe_start":"1048576","pvseg_start":"%d","pvseg_size":"%d","lv_uuid":%q}`, start, size, owner)
}

// A device that pvmove has moved since the metadata was read matches the present metadata.
func TestMovedSince(t *testing.T) {
	f, p := newFake(t, 2)
	v0, v1 := string(fakeUUID(0).Earlier()), string(fakeUUID(1).Earlier())
	f.pvs = `{"pv_name":"/dev/null","pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-PVPVPV","pv_missing":"","pv_allocatable":"allocatable","pv_size":"2143289344","pv_free":"0","pv_tags":""}`
	f.gaps = strings.Join([]string{segment(0, 2, v0), segment(2, 2, v1), segment(4, 2, "")}, ",")
	f.lookUp(p, "v0")
	f.gaps = strings.Join([]string{segment(0, 2, ""), segment(2, 2, v1), segment(4, 2, v0)}, ",")
	f.devices[dmUUID(fakeUUID(0))] = devmapper.Mapped{Name: "vg0-v0", UUID: dmUUID(fakeUUID(0)), Number: "253:90", Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: "1:3 34816"}}}
	for _, d := range p.Survey(t.Context(), "vg0", false).Devices {
		if d.Misplaced != "" {
			t.Errorf("got %+v", d)
		}
	}
}

// A thin device is larger than its volume: the pool keeps its blocks at any activation. Only a device with
// another id would be lost.
func TestThinSize(t *testing.T) {
	for id, kept := range map[string]bool{"5": false, "6": true} {
		f, p := newFake(t, 2)
		f.segs = fmt.Sprintf(`{"lv_uuid":%q,"thin_id":"5"}`, string(fakeUUID(0).Earlier()))
		v0 := f.lookUp(p, "v0")
		m := devmapper.Mapped{Name: "vg0-v0", UUID: dmUUID(fakeUUID(0)), Number: "253:90", Live: true, Targets: []devmapper.Target{{Type: "thin", Length: 16 * mib, Params: "253:80 " + id}}}
		f.devices[m.UUID] = m
		p.Invalidate("")
		f.lookUp(p, "v0")
		if err := p.Deactivate(t.Context(), "", v0, volume.Device{}); strings.Contains(fmt.Sprint(err), "It stays active") != kept {
			t.Errorf("the metadata says 5, and the table %s: %v", id, err)
		}
	}
}

// Each disk has a stack. A device on a missing disk is broken.
func TestStack(t *testing.T) {
	loops, _ := os.ReadDir("/sys/dev/block")
	for _, l := range loops {
		if stack := stackOf(l.Name()); len(stack) == 0 {
			t.Errorf("%s: none", l.Name())
		}
	}
	if stack := stackOf("999:999"); len(stack) != 0 {
		t.Errorf("got %q", stack)
	}
}

// cutOff returns the volumes with a part beyond a sector of the disk 8:0.
func (f *Facts) cutOff(from int64) string {
	f.lost = map[string]loss{}
	f.place.needs = []need{{"/dev/sda", "8:0", 300, from}}
	f.recordLosses()
	var all []string
	for _, l := range f.LVs {
		if f.partial(l, false) != "" && !l.Hidden {
			all = append(all, l.Name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// The volumes beyond the end of a disk are found through pools and copies.
func TestCutOff(t *testing.T) {
	f := &Facts{LVs: map[string]Logical{}, names: map[volume.UUID]string{}, place: &placement{spans: spans{}}}
	for i, name := range []string{"lin", "r_rimage_0", "p_tdata", "r", "p", "t", "other"} {
		l := Logical{Name: name, UUID: volume.UUID(name), Hidden: strings.Contains(name, "_")}
		if name == "t" {
			l.Pool = "p"
		}
		f.LVs[name], f.names[l.UUID] = l, name
		if i < 3 {
			f.place.spans.add(extent{"8:0", int64(2-i) * 100, int64(2-i)*100 + 100}, name)
		}
	}
	f.place.spans.sort()
	for from, want := range map[int64]string{-1: "", 300: "", 250: "lin", 150: "lin r", 50: "lin p r t"} {
		if got := f.cutOff(from); got != want {
			t.Errorf("from %d: got %s, want %s", from, got, want)
		}
	}
}

// The volumes with a cache beyond the end of a disk are the cached ones, including those above a pool's data.
func TestCutOffCaches(t *testing.T) {
	f := &Facts{LVs: map[string]Logical{}, names: map[volume.UUID]string{}, cached: map[string]string{}, place: &placement{spans: spans{}}}
	for _, l := range []Logical{
		{Name: "a", Cache: "fast_cvol"}, {Name: "fast_cvol", Hidden: true},
		{Name: "b", Cache: "f2_cpool"}, {Name: "f2_cpool", Hidden: true}, {Name: "f2_cpool_cdata", Hidden: true},
		{Name: "p"}, {Name: "p_tdata", Hidden: true, Cache: "f3_cvol"}, {Name: "f3_cvol", Hidden: true}, {Name: "t", Pool: "p"},
		{Name: "other", Cache: "slow_cvol"},
	} {
		l.UUID = volume.UUID(l.Name)
		f.LVs[l.Name], f.names[l.UUID], f.cached[l.Cache] = l, l.Name, l.Name
	}
	for cache, want := range map[string]string{"fast_cvol": "a", "f2_cpool_cdata": "b", "f3_cvol": "p t"} {
		f.place.spans = spans{}
		f.place.spans.add(extent{"8:0", 0, 100}, cache)
		f.place.spans.sort()
		if got := f.cutOff(50); got != want {
			t.Errorf("%s: got %s, want %s", cache, got, want)
		}
	}
}

// No extension loads the table of a pod's device as read-only.
func TestReadOnlyList(t *testing.T) {
	for list, refused := range map[string]bool{
		"": false, `[]`: false, `["vg0"]`: true, `["vg0/v0"]`: true, `"vg0/v0"`: true, `["vg1","vg0/v1"]`: false,
		`["@vgtag"]`: true, `["x","@*"]`: true, `["@vg"]`: false,
	} {
		f, p := newFake(t, 2)
		v0 := f.lookUp(p, "v0")
		f.readOnlyList = list
		err := p.Extend(t.Context(), "", v0, volume.Device{}, 16*mib)
		if got := strings.Contains(fmt.Sprint(err), "read_only_volume_list"); got != refused || got == slices.Contains(f.commands(), "lvextend") {
			t.Errorf("%s: got %v", list, err)
		}
	}
}

// A device over a whole disk overlaps all its volumes. The time to find one of them does not grow with the
// square of their number.
func TestOwnersOfWholeDisk(t *testing.T) {
	const n = 50_000
	f := &Facts{Name: "vg0", names: map[volume.UUID]string{}, place: &placement{spans: spans{}}}
	for i := range n {
		id := volume.UUID(fmt.Sprintf("%s_%070d", "vg", i))
		f.names[id] = fmt.Sprintf("v%d", i)
		f.place.spans.add(extent{"8:0", int64(i) * 8, int64(i)*8 + 8}, string(id))
	}
	f.place.spans.sort()
	whole, began := extent{"8:0", 0, n * 8}, time.Now()
	if got := f.overlapsOther(whole, ""); got != "lies on space that the metadata gives to vg0/v0" {
		t.Error(got)
	}
	if all := slices.Collect(f.place.spans.owners(whole)); len(all) != n || all[n-1] == all[0] {
		t.Errorf("%d owners", len(all))
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("it took %v", took)
	}
}
