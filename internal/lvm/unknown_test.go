package lvm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/volume"
)

// Extents below a device that is unknown to the metadata are not allocated.
func TestUnknownDevice(t *testing.T) {
	f, p := newFake(t, 1)
	gone := dmUUID(fakeUUID(7)) + "-real" // an origin, its metadata restored from before
	f.devices[gone] = devmapper.Mapped{Name: "vg0-gone-real", UUID: gone, Number: "253:90", Live: true}
	other := dmUUID(identity(strings.ReplaceAll(vgUUID, "0", "1"), "LVLVLV-0000-0000-0000-0000-0000-000000"))
	f.devices[other] = devmapper.Mapped{Name: "vg1-a", UUID: other, Number: "253:91", Live: true}
	lv, fresh := f.lookUp(p, "v0"), volume.Name{VG: "vg0", LV: "new"}
	try := func() (create, extend error) {
		f.commands()
		return p.Create(t.Context(), "", fresh, 8*mib, ""), p.Extend(t.Context(), "", lv, volume.Device{}, 16*mib)
	}
	create, extend := try()
	for _, err := range []error{create, extend} {
		if err == nil || !strings.Contains(err.Error(), "dmsetup remove vg0-gone-real") {
			t.Errorf("got %v", err)
		}
	}
	if ran := f.commands(); slices.Contains(ran, "lvcreate") || slices.Contains(ran, "lvextend") {
		t.Errorf("ran %q", ran)
	}
	// It is of a volume that was made after the group was read.
	f.lvs["made"] = &fakeLV{uuid: fakeUUID(7), size: 4 * mib}
	if create, extend = try(); create != nil || extend != nil {
		t.Errorf("got %v, %v", create, extend)
	}
}

// LVM leaves the devices that took the place of a missing disk, of a leg that was removed since, and of one
// that is in use again: they have no space, and prevent no activation.
func TestStandIn(t *testing.T) {
	f, p := newFake(t, 1)
	f.lvs["[v0_corig]"] = &fakeLV{uuid: fakeUUID(4), size: 8 * mib, layout: "raid,raid1", role: "private"}
	f.lvs["[v0_corig_rimage_1]"] = &fakeLV{uuid: fakeUUID(5), size: 8 * mib, layout: "linear", role: "private"}
	for i, name := range []string{"v0_corig_rimage_1", "gone_rimage_1"} {
		uuid := dmUUID(fakeUUID(5+i)) + "-missing_0_0"
		f.devices[uuid] = devmapper.Mapped{Name: "vg0-" + name + "-missing_0_0", UUID: uuid, Number: fmt.Sprint("253:", 90+i), Live: true, Targets: []devmapper.Target{{Type: "error", Length: 8 * mib}}}
	}
	lv := f.lookUp(p, "v0")
	if err := errors.Join(p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "new"}, 8*mib, ""), p.Extend(t.Context(), "", lv, volume.Device{}, 16*mib)); err != nil {
		t.Error(err)
	}
	if s := p.Survey(t.Context(), "vg0", true); slices.ContainsFunc(s.Devices, func(d join.Device) bool { return strings.Contains(d.Kernel, "missing") }) {
		t.Errorf("survey: %+v", s)
	}
	g, err := p.configured("vg0")
	if err != nil {
		t.Fatal(err)
	}
	if why := p.activationBlocker(g.lastFacts(), "v0"); why != "" {
		t.Errorf("activation: %s", why)
	}
}

// In older metadata a volume is larger than its device, and the group has a device that this metadata does
// not know: a refresh could give the volume the space of that device.
func TestNoRefreshBesideUnknown(t *testing.T) {
	f, p := newFake(t, 1)
	lv := f.lookUp(p, "v0")
	if err := p.Activate(t.Context(), "", lv); err != nil {
		t.Fatal(err)
	}
	f.lvs["v0"].size *= 2
	gone := dmUUID(fakeUUID(7))
	f.devices[gone] = devmapper.Mapped{Name: "vg0-gone", UUID: gone, Number: "253:90", Live: true}
	extend := func() error { return p.Extend(t.Context(), "", lv, volume.Device{}, f.lvs["v0"].size) }
	f.commands()
	if err := extend(); err == nil || !strings.Contains(err.Error(), "dmsetup remove vg0-gone") {
		t.Errorf("got %v", err)
	}
	if ran := f.commands(); slices.Contains(ran, "lvchange") {
		t.Errorf("ran %q", ran)
	}
	delete(f.devices, gone)
	_ = extend() // this LVM refreshes nothing
	if ran := f.commands(); !slices.Contains(ran, "lvchange") {
		t.Errorf("without it: ran %q", ran)
	}
}

// A device of another group is on a disk of this group, as after a vgsplit whose metadata was replaced by the
// former one. Its extents are not allocated.
func TestForeignDeviceOnDisk(t *testing.T) {
	f, p := newFake(t, 1)
	g, err := p.configured("vg0")
	if err != nil {
		t.Fatal(err)
	}
	facts, _, err := g.look(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	disk := "/dev/null" // any node has a number
	facts.PVs = []PV{{Path: disk}}
	if facts.place, err = facts.placed(); err != nil {
		t.Fatal(err)
	}
	const number = "1:3"
	other := dmUUID(identity(strings.ReplaceAll(vgUUID, "0", "1"), "LVLVLV-0000-0000-0000-0000-0000-000000"))
	split := devmapper.Mapped{Name: "vg1-a", UUID: other, Number: "253:91", Live: true,
		Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: number + " 2048"}}}
	f.devices[other] = split
	if err := g.checkFree(facts); err == nil || !strings.Contains(err.Error(), "vg1-a, which does not belong to this group") {
		t.Errorf("got %v", err)
	}
	split.Targets[0].Params = "253:7 2048"
	f.devices[other] = split
	if err := g.checkFree(facts); err != nil {
		t.Errorf("on another disk: got %v", err)
	}
}

// LVM reports the cache of a volume as its pool. The volume is not thin: it uses space of the group, is
// zeroed with `zero: all`, and has its own lock.
func TestCachedVolume(t *testing.T) {
	t.Parallel()
	f, p, _ := newShared(t, 1)
	f.lvs["c"] = &fakeLV{uuid: fakeUUID(8), size: 8 * mib, layout: "cache", role: "public", pool: "[fast_cvol]"}
	f.lvs["fast_cvol"] = &fakeLV{uuid: fakeUUID(9), size: 8 * mib, layout: "cache,cachevol", role: "private"}
	f.others["c"] = "ex"
	lv := f.lookUp(p, "c")
	if w := waits(t, p.WouldWait(t.Context(), lv), "another host has it active"); w.Holder == nil || w.Holder.Host != "b" {
		t.Errorf("%+v", w)
	}
	delete(f.others, "c")
	if err := p.Activate(t.Context(), "", lv); err != nil {
		t.Fatal(err)
	}
	f.others["c"] = "ex"
	if all, err := p.Taken(t.Context(), "vg0", nil); err != nil || len(all) != 1 || all[0].UUID != lv.UUID {
		t.Errorf("%+v %v", all, err)
	}

	f, _ = newFake(t, 0)
	f.lvs["c"] = &fakeLV{uuid: fakeUUID(8), size: 8 * mib, layout: "cache", role: "public", pool: "[fast_cvol]"}
	gone := dmUUID(fakeUUID(7))
	f.devices[gone] = devmapper.Mapped{Name: "vg0-gone", UUID: gone, Number: "253:90", Live: true}
	p = f.provider(Group{ZeroAll: true})
	if lv = f.lookUp(p, "c"); !lv.Zero {
		t.Error("what is added to it is not zeroed")
	}
	if err := p.Extend(t.Context(), "", lv, volume.Device{}, 16*mib); err == nil || !strings.Contains(err.Error(), "dmsetup remove vg0-gone") {
		t.Errorf("extended over the device of another volume: %v", err)
	}
}

// In a group that lacks a disk LVM allocates nothing, and advises to remove the disk from the group: flexd
// and `flexd explain` first advise to bring it back. If LVM changes tags, it marks the disk as missing, and
// its volumes stay unusable when it is back.
func TestDiskMissing(t *testing.T) {
	f, p := newFake(t, 1)
	f.lvs["half"] = &fakeLV{uuid: fakeUUID(7), size: 8 * mib, tags: []string{tagCreating}}
	lv, fresh := f.lookUp(p, "v0"), volume.Name{VG: "vg0", LV: "new"}
	f.missing = 1
	p.Invalidate("vg0")
	f.commands()
	for _, err := range []error{
		p.Create(t.Context(), "", fresh, 8*mib, ""), p.Extend(t.Context(), "", lv, volume.Device{}, 16*mib), p.CanCreate(t.Context(), fresh, 8*mib, ""),
		p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "half"}, 8*mib, ""), p.SetRecord(t.Context(), lv, volume.Seen, "ext4"),
	} {
		if err == nil || !strings.Contains(err.Error(), "lacks 1 of its disks") || volume.CodeOf(err) != volume.Unusable {
			t.Errorf("got %v", err)
		}
	}
	if ran := f.commands(); slices.Contains(ran, "lvcreate") || slices.Contains(ran, "lvextend") || len(f.lvs["v0"].tags) > 0 || !slices.Contains(f.lvs["half"].tags, tagCreating) {
		t.Errorf("ran %q: %+v %+v", ran, f.lvs["v0"], f.lvs["half"])
	}
	f.missing = 0 // no event tells that yet
	if err := p.Create(t.Context(), "", fresh, 8*mib, ""); err != nil {
		t.Error(err)
	}
}

// Extents that the metadata counts as free are not allocated while a device of a known volume is on them.
func TestNotFree(t *testing.T) {
	f, p := newFake(t, 1)
	f.gaps = `{"pv_name":"/dev/null","pe_start":"1048576","pvseg_start":"1","pvseg_size":"2","lv_uuid":""}` // 1:3, from sector 10240 to 26624
	uuid := dmUUID(fakeUUID(0))
	for i, c := range []struct {
		start   int
		refused bool
	}{{26623, true}, {26624, false}} {
		f.devices[uuid] = devmapper.Mapped{Name: "vg0-v0", UUID: uuid, Number: "253:90", Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: fmt.Sprint("1:3 ", c.start)}}}
		f.commands()
		err := p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: fmt.Sprint("new", i)}, 8*mib, "")
		if (err != nil) != c.refused || c.refused && !strings.Contains(err.Error(), "vg0-v0 lies on space that the metadata counts as free") || slices.Contains(f.commands(), "lvcreate") == c.refused {
			t.Errorf("%d: got %v", c.start, err)
		}
		if s := p.Survey(t.Context(), "vg0", false); len(s.Devices) == 0 || (s.Devices[0].Misplaced != "") != c.refused {
			t.Errorf("%d: survey: %+v", c.start, s)
		}
	}
}

// Space of unreadable devices and disks does not count as free.
func TestFreeUnknown(t *testing.T) {
	const gap = `{"pv_name":%q,"pe_start":"1048576","pvseg_start":"1","pvseg_size":"2","lv_uuid":""}`
	uuid := dmUUID(fakeUUID(0))
	for _, c := range []struct {
		disk    string
		fail    func(f *fakeLVM)
		refusal string // "" = none
		survey  string // what is unknown
	}{
		{disk: "/dev/null", fail: func(f *fakeLVM) { f.failing = map[string]bool{uuid: true} }, refusal: "vg0-v0 lies on space that the metadata counts as free is unknown"},
		{disk: "/dev/no-such-disk", fail: func(*fakeLVM) {}, refusal: "/dev/no-such-disk cannot be read", survey: "/dev/no-such-disk cannot be read"},
		{disk: "[unknown]", fail: func(*fakeLVM) {}}, // LVM allocates nothing on a missing disk
		{disk: "/dev/null", fail: func(*fakeLVM) {}},
	} {
		f, p := newFake(t, 1)
		f.gaps = fmt.Sprintf(gap, c.disk)
		f.devices[uuid] = devmapper.Mapped{Name: "vg0-v0", UUID: uuid, Number: "253:90", Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: "1:3 26624"}}}
		c.fail(f)
		err := p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "new"}, 8*mib, "")
		if (err != nil) != (c.refusal != "") || !strings.Contains(fmt.Sprint(err), c.refusal) || slices.Contains(f.commands(), "lvcreate") != (err == nil) {
			t.Errorf("%s: got %v, want %q", c.disk, err, c.refusal)
		}
		if s := p.Survey(t.Context(), "vg0", true); len(s.Devices) == 0 || s.Kernel == "" != (c.survey == "") || !strings.Contains(s.Kernel, c.survey) {
			t.Errorf("%s: survey: %+v", c.disk, s)
		}
	}
}

// An interrupted lvconvert --splitcache has left a part on the space of its volume: nothing uses it, and it
// must be removed, whether the metadata knows it or not.
func TestPartLeft(t *testing.T) {
	for _, c := range []struct {
		what, want string
		part       *fakeLV // in the metadata; nil = not there
		open       int
	}{
		{"virtual", "dmsetup remove vg0-v0_wcorig", &fakeLV{uuid: fakeUUID(5), size: 8 * mib, layout: "unknown", role: "private"}, 0},
		{"unknown", "dmsetup remove vg0-v0_wcorig", nil, 0},
		{"in use", "vgcfgrestore --list vg0", &fakeLV{uuid: fakeUUID(5), size: 8 * mib, layout: "unknown", role: "private"}, 1},
	} {
		f, p := newFake(t, 1)
		f.pvs = `{"pv_name":"/dev/null","pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-PVPVPV","pv_missing":"","pv_allocatable":"allocatable","pv_size":"2143289344","pv_free":"0","pv_tags":""}`
		f.gaps = segment(0, 2, string(fakeUUID(0).Earlier())) + "," + segment(2, 100, "")
		if c.part != nil {
			f.lvs["[v0_wcorig]"] = c.part
		}
		for i, name := range []string{"v0", "v0_wcorig"} {
			uuid := dmUUID(fakeUUID(5 * i))
			f.devices[uuid] = devmapper.Mapped{Name: "vg0-" + name, UUID: uuid, Number: fmt.Sprint("253:", 90+i), Live: true, Open: i * c.open, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: "1:3 2048"}}}
		}
		lv := f.lookUp(p, "v0")
		d, err := p.Device(t.Context(), lv)
		if err != nil || !d.Unusable || !strings.Contains(d.Reason, c.want) || strings.Contains(d.Reason, "vgcfgrestore") != (c.open > 0) {
			t.Errorf("%s: got %+v %v", c.what, d, err)
		}
		is(t, p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "new"}, 8*mib, ""), nil, "vg0-v0_wcorig", c.want)
		s := p.Survey(t.Context(), "vg0", false)
		if i := slices.IndexFunc(s.Devices, func(d join.Device) bool { return d.Name == "v0_wcorig" }); len(s.Devices) != 2 || i < 0 || s.Devices[i].Left != (c.open == 0) || s.Devices[i].Misplaced == "" {
			t.Errorf("%s: survey: %+v", c.what, s)
		}
		delete(f.devices, dmUUID(fakeUUID(5)))
		p.Invalidate("")
		f.lookUp(p, "v0")
		if s := p.Survey(t.Context(), "vg0", false); len(s.Devices) != 1 {
			t.Errorf("%s: removed: %+v", c.what, s)
		}
	}
}

// The same for the origin of a snapshot that an interrupted lvconvert to an external origin leaves: the
// volume has space in the metadata, and no device.
func TestLayerLeft(t *testing.T) {
	for open, want := range []string{"dmsetup remove vg0-v1-real", "vgcfgrestore --list vg0"} {
		f, p := newFake(t, 2)
		f.pvs = `{"pv_name":"/dev/null","pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-PVPVPV","pv_missing":"","pv_allocatable":"allocatable","pv_size":"2143289344","pv_free":"0","pv_tags":""}`
		f.gaps = segment(0, 2, string(fakeUUID(0).Earlier())) + "," + segment(2, 2, string(fakeUUID(1).Earlier())) + "," + segment(4, 98, "")
		for i, name := range []string{"v0", "v1-real"} {
			uuid := dmUUID(fakeUUID(i)) + strings.TrimPrefix(name, fmt.Sprint("v", i))
			f.devices[uuid] = devmapper.Mapped{Name: "vg0-" + name, UUID: uuid, Number: fmt.Sprint("253:", 90+i), Live: true, Open: i * open, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: "1:3 2048"}}}
		}
		if d, err := p.Device(t.Context(), f.lookUp(p, "v0")); err != nil || !d.Unusable || !strings.Contains(d.Reason, want) {
			t.Errorf("open %d: got %+v %v", open, d, err)
		}
	}
}

// A guest's group with the same name has another uuid. Without metadata only the name is known.
func TestNamesake(t *testing.T) {
	f, p := newFake(t, 1)
	f.lookUp(p, "v0")
	own, other := dmUUID(fakeUUID(0)), dmUUID(identity(strings.ReplaceAll(vgUUID, "0", "1"), "LVLVLV-0000-0000-0000-0000-0000-000000"))
	for i, uuid := range []string{own, other} {
		f.devices[uuid] = devmapper.Mapped{Name: fmt.Sprint("vg0-v", i), UUID: uuid, Number: fmt.Sprint("253:", 90+i), Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: "1:5 2048"}}}
	}
	s := p.Survey(t.Context(), "vg0", true)
	for _, d := range s.Devices {
		if len(s.Devices) != 2 || d.Namesake != (d.Name == "v1") {
			t.Errorf("got %+v", s.Devices)
		}
	}
	if all, err := p.devicesOf("vg0", nil, false); err != nil || len(all) != 2 || all[0].Namesake || all[1].Namesake {
		t.Errorf("without metadata: %+v %v", all, err)
	}
}

// A failed listing of devices does not mean that there are none.
func TestUnknownNotListed(t *testing.T) {
	f, p := newFake(t, 1)
	dm := &unlisted{DM: f, fail: true}
	p.DM = dm
	if _, err := p.LookUp(t.Context(), volume.Name{VG: "vg0", LV: "v0"}); !errors.Is(err, errUnlisted) {
		t.Errorf("got %v", err)
	}
	dm.fail = false
	f.lookUp(p, "v0")
}

var errUnlisted = errors.New("no list")

type unlisted struct {
	DM
	fail bool
}

func (u *unlisted) List() ([]devmapper.Mapped, error) {
	if u.fail {
		return nil, errUnlisted
	}
	return u.DM.List()
}

// A device on the extents of an unknown device is not used.
func TestOverlap(t *testing.T) {
	f, p := newFake(t, 1)
	mine, gone := dmUUID(fakeUUID(0)), dmUUID(fakeUUID(7))
	for _, c := range []struct {
		mine, gone string // type and table
		overlap    bool
	}{
		{"linear 254:0 2048", "linear 254:0 18431", true}, // 8 MiB are 16384 sectors
		{"linear 254:0 2048", "linear 254:0 18432", false},
		{"linear 254:0 2048", "linear 254:16 2048", false},
		{"striped 2 128 254:0 2048 254:16 2048", "linear 254:16 10239", true},
		{"striped 2 128 254:0 2048 254:16 2048", "linear 254:16 10240", false},
		{"linear 254:0 2048", "", false},
		{"linear 254:0 2048", "mirror core 1 1024 2 254:16 2048 254:0 18431 1 handle_errors", true},
		{"linear 254:0 2048", "mirror core 1 1024 2 254:16 2048 254:0 18432 1 handle_errors", false},
	} {
		for uuid, table := range map[string]string{mine: c.mine, gone: c.gone} {
			target, params, ok := strings.Cut(table, " ")
			if f.devices[uuid] = (devmapper.Mapped{Name: "vg0-" + target, UUID: uuid, Live: true, Targets: []devmapper.Target{{Type: target, Length: 8 * mib, Params: params}}}); !ok {
				delete(f.devices, uuid)
			}
		}
		if c.gone != "" { // without it, what is known is older
			p.Invalidate("")
		}
		d, err := p.Device(t.Context(), f.lookUp(p, "v0"))
		if err != nil || d.Unusable != c.overlap || c.overlap && !strings.Contains(d.Reason, "dmsetup remove vg0-"+strings.Fields(c.gone)[0]) {
			t.Errorf("%s and %s: got %+v %v", c.mine, c.gone, d, err)
		}
		if c.gone != "" {
			f.failing = map[string]bool{gone: true}
			d, err = p.Device(t.Context(), f.lookUp(p, "v0"))
			if err != nil || !d.Unusable || !strings.Contains(d.Reason, "is unknown: the answer does not parse") {
				t.Errorf("%s cannot be read: got %+v %v", c.gone, d, err)
			}
			f.failing = nil
		}
	}
}

// A device on the extents of another volume's device, which older metadata assigns to both, is not used.
func TestOverlapKnown(t *testing.T) {
	f, p := newFake(t, 3)
	add := func(i int, layer, number, table string) {
		target, params, _ := strings.Cut(table, " ")
		uuid := dmUUID(fakeUUID(i)) + layer
		f.devices[uuid] = devmapper.Mapped{Name: fmt.Sprint("vg0-v", i, layer), UUID: uuid, Number: number, Live: true, Targets: []devmapper.Target{{Type: target, Length: 8 * mib, Params: params}}}
	}
	check := func(what, reason string) {
		t.Helper()
		d, err := p.Device(t.Context(), f.lookUp(p, "v0"))
		if err != nil || d.Unusable != (reason != "") || !strings.Contains(d.Reason, reason) {
			t.Errorf("%s: got %+v %v, want %q", what, d, err, reason)
		}
	}
	const refused = "it lies on extents of vg0-v1, the device of another volume"
	add(0, "", "253:0", "snapshot-origin 253:3") // its own devices do not count
	add(0, "-real", "253:3", "linear 254:0 2048")
	add(2, "", "253:2", "linear 254:0 18432")
	check("beside another", "")
	add(1, "", "253:1", "linear 254:0 18431")
	p.Invalidate("")
	check("after a report", refused)
	f.failing = map[string]bool{dmUUID(fakeUUID(1)): true}
	check("cannot be read any more", "is unknown: the answer does not parse")
	f.failing = nil
	add(1, "", "253:1", "linear 254:16 2048")
	check("has another table", "")
	delete(f.devices, dmUUID(fakeUUID(1)))
	check("is gone", "")
	// Two long ones before it in order: the first is the one that reaches it.
	add(1, "", "253:1", "striped 1 128 254:0 2048")
	add(2, "", "253:2", "linear 254:0 2049")
	add(0, "-real", "253:3", "linear 254:0 18431")
	p.Invalidate("")
	check("below one of several", refused)
}

// Only the start of a name makes a volume pvmove's.
func TestPartNames(t *testing.T) {
	f, p := newFake(t, 0)
	for i, name := range []string{"db-pvmove", "pvmove0"} {
		uuid := dmUUID(fakeUUID(i))
		f.devices[uuid] = devmapper.Mapped{Name: dmName(volume.Name{VG: "vg0", LV: name}), UUID: uuid, Number: "253:9", Live: true, Targets: []devmapper.Target{{Type: "linear", Length: mib}}}
	}
	if all, err := p.devicesOf("vg0", nil, false); err != nil || len(all) != 1 || all[0].Name != "db-pvmove" {
		t.Errorf("got %+v %v", all, err)
	}
}

// flexd does not ask the kernel for the state of a pool whose metadata device hangs: the request would wait
// for it, in flexd itself.
func TestMetadataHangs(t *testing.T) {
	f, p := newFake(t, 1)
	dm := &countedDM{DM: f}
	p.DM = dm
	lv := f.lookUp(p, "v0")
	uuid := dmUUID(lv.UUID)
	f.devices[uuid] = devmapper.Mapped{Name: "vg0-v0", UUID: uuid, Number: "253:3", Live: true, Targets: []devmapper.Target{{Type: "thin", Length: lv.Size, Params: "253:2 1"}}}
	f.devices["LVM-pool"] = devmapper.Mapped{Name: "vg0-pool-tpool", UUID: "LVM-pool", Number: "253:2", Live: true, Targets: []devmapper.Target{{Type: "thin-pool", Length: 64 * mib, Params: "253:1 253:0 128 0 0"}}}
	for number, part := range map[string]string{"253:0": "tdata", "253:1": "tmeta"} {
		f.devices["LVM-"+part] = devmapper.Mapped{Name: "vg0-pool_" + part, UUID: "LVM-" + part, Number: number, Live: true, Targets: []devmapper.Target{{Type: "linear", Params: "254:0 0"}}}
	}
	f.status = map[string]string{"LVM-pool": "1 12/1024 10/1000 - rw discard_passdown queue_if_no_space - 10"}
	var done, each int64
	stands := "253:1"
	p.requests = func(number string) (bool, int64) {
		done += each
		return number == stands, done
	}
	d, err := p.Device(t.Context(), lv)
	if _, _, states := dm.take(); states != 0 || err != nil || !d.Unusable || !strings.Contains(d.Reason, "vg0-pool-tpool cannot be read: its metadata device (253:1) has completed no request") {
		t.Errorf("asked %d times: %+v %v", states, d, err)
	}
	stands = "253:0" // the kernel flushes the data before it commits the metadata
	d, err = p.Device(t.Context(), lv)
	if _, _, states := dm.take(); states != 0 || err != nil || !d.Unusable || !strings.Contains(d.Reason, "vg0-pool-tpool cannot be read: its data device (253:0) has completed no request") {
		t.Errorf("asked %d times: %+v %v", states, d, err)
	}
	stands = "253:1"
	// A device above it that is suspended is not the cause.
	thin := f.devices[uuid]
	above := thin
	above.Suspended = true
	f.devices[uuid] = above
	if d, err := p.Device(t.Context(), lv); err != nil || !d.Unusable || !d.Suspended {
		t.Errorf("the thin device is suspended: %+v %v", d, err)
	}
	f.devices[uuid] = thin
	// If it is suspended, its disk is not the cause.
	tmeta := f.devices["LVM-tmeta"]
	suspended := tmeta
	suspended.Suspended, suspended.Loaded = true, true
	f.devices["LVM-tmeta"] = suspended
	if d, err := p.Device(t.Context(), lv); err != nil || d.Unusable || !d.Suspended || !d.Loaded || !strings.HasSuffix(d.SuspendedBelow, "/vg0-pool_tmeta") {
		t.Errorf("suspended: %+v %v", d, err)
	}
	f.devices["LVM-tmeta"] = tmeta
	// Nor does a command of LVM ask for it.
	pool := f.devices["LVM-pool"]
	pool.UUID = dmUUID(fakeUUID(5)) + "-tpool"
	f.devices[pool.UUID], f.status[pool.UUID] = pool, f.status["LVM-pool"]
	delete(f.devices, "LVM-pool")
	g, _ := p.group("other")
	scope, err := p.scopeOf(t.Context(), g)
	for _, name := range []string{"vg0-v0", "vg0-pool-tpool"} {
		if err != nil || !strings.Contains(scope.config, "r|^"+p.Dev+"/mapper/"+name+"$|") {
			t.Errorf("%s %v", scope.config, err)
		}
	}
	each = 1 // the disk is busy
	if scope, err := p.scopeOf(t.Context(), g); err != nil || strings.Contains(scope.config, "vg0-") {
		t.Errorf("%s %v", scope.config, err)
	}
	dm.take()
	d, err = p.Device(t.Context(), lv)
	if _, _, states := dm.take(); states != 1 || err != nil || d.Unusable {
		t.Errorf("asked %d times: %+v %v", states, d, err)
	}
}

// A hangingDM does not return a state until it is released.
type hangingDM struct {
	countedDM
	release chan struct{}
}

func (h *hangingDM) Status(key devmapper.Key) (devmapper.Mapped, error) {
	m, err := h.countedDM.Status(key)
	<-h.release
	return m, err
}

// If the kernel does not return the state of a pool although no request is seen, one thread waits for it, and nothing else.
func TestStateHangs(t *testing.T) {
	f, p := newFake(t, 1)
	pool := devmapper.Mapped{Name: "vg0-pool-tpool", UUID: dmUUID(fakeUUID(5)) + "-tpool", Number: "253:2", Live: true, Targets: []devmapper.Target{{Type: "thin-pool", Params: "253:1 253:0 128 0 0"}}}
	f.devices[pool.UUID] = pool
	synctest.Test(t, func(t *testing.T) {
		dm := &hangingDM{countedDM{DM: f}, make(chan struct{})}
		p.DM = dm
		began := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if _, err := p.status(pool); err == nil || !strings.Contains(err.Error(), "the kernel has not returned it since") {
					t.Errorf("got %v", err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took > stateLimit {
			t.Errorf("it took %s", took)
		}
		began = time.Now()
		if names := p.hangingPools([]devmapper.Mapped{pool}); len(names) != 1 || time.Since(began) > 0 {
			t.Errorf("LVM would read %q; found after %s", names, time.Since(began))
		}
		if _, _, states := dm.take(); states != 1 {
			t.Errorf("asked %d times", states)
		}
		close(dm.release)
		synctest.Wait()
		if _, err := p.status(pool); err != nil {
			t.Error(err)
		}
	})
}
