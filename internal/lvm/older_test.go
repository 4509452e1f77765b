package lvm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/volume"
)

// Older metadata was restored while volumes were active. Volumes are not activated, extended or deactivated
// if LVM would load or remove tables because of it.
func TestOlderMetadata(t *testing.T) {
	lv := func(i int) string { return string(fakeUUID(i).Earlier()) }
	segment := func(start, size int, owner string) string {
		return fmt.Sprintf(`{"pv_name":"/dev/null","pe_start":"1048576","pvseg_start":"%d","pvseg_size":"%d","lv_uuid":%q}`, start, size, owner)
	}
	// Extents of 8192 sectors, from 2048: v0 has the first two, v1 the next two, those behind are free.
	const onV0, onV1, free = "linear 1:3 2048", "linear 1:3 18432", "linear 1:3 34816"
	type device struct {
		name, table string
		uuid        int // 0 and 1 are known
		layer       string
	}
	activate := func(p *Provider, v0 volume.LV) error { return p.Activate(t.Context(), "", v0) }
	deactivate := func(p *Provider, v0 volume.LV) error {
		d, err := p.Device(t.Context(), v0)
		if err != nil {
			return err
		}
		return p.Deactivate(t.Context(), "", v0, d)
	}
	extend := func(p *Provider, v0 volume.LV) error { return p.Extend(t.Context(), "", v0, volume.Device{}, 16*mib) }
	for _, c := range []struct {
		name    string
		v0, v1  fakeLV // layout, role, pool, origin
		devices []device
		do      func(*Provider, volume.LV) error
		want    string // "" = it is done
	}{
		{"a RAID on a newer volume", fakeLV{layout: "raid,raid1"}, fakeLV{}, []device{{"new", onV0, 7, ""}}, activate, "vg0-new lies on space that the metadata gives to vg0/v0"},
		{"a plain one on a newer volume", fakeLV{}, fakeLV{}, []device{{"new", onV0, 7, ""}}, activate, ""}, // its device is not used, see overlap
		{"a RAID beside one that was removed by force", fakeLV{layout: "raid,raid1"}, fakeLV{}, []device{{"gone", free, 7, ""}}, activate, ""},
		{"an origin whose snapshot is on a newer volume", fakeLV{layout: "linear", role: "public,origin,thickorigin"}, fakeLV{layout: "linear", role: "public,snapshot,thicksnapshot", origin: "v0"}, []device{{"new", onV1, 7, ""}}, activate, "vg0-new lies on space that the metadata gives to vg0/v1"},
		{"an origin whose snapshot was split off", fakeLV{layout: "linear", role: "public,origin,thickorigin"}, fakeLV{layout: "linear", role: "public,snapshot,thicksnapshot", origin: "v0"}, []device{{"v1", onV1, 1, ""}}, activate, "vg0-v1 is not a snapshot, and the metadata says that it is"},
		{"in a pool that was moved", fakeLV{layout: "thin,sparse", pool: "v1"}, fakeLV{layout: "thin,pool"}, []device{{"v1_tdata", free, 1, "-tdata"}}, activate, "vg0-v1_tdata lies on space that the metadata counts as free"},
		{"extended in a pool that was moved", fakeLV{layout: "thin,sparse", pool: "v1"}, fakeLV{layout: "thin,pool"}, []device{{"v1_tdata", free, 1, "-tdata"}}, extend, "vg0-v1_tdata lies on space that the metadata counts as free"},
		{"cached since, as its type says", fakeLV{layout: "linear"}, fakeLV{}, []device{{"v0", "writecache s 253:91 253:92 512 0", 0, ""}}, deactivate, "has a writecache table, and the metadata says linear. It stays active"},
		{"cached since", fakeLV{}, fakeLV{}, []device{{"v0", "writecache s 253:91 253:92 512 0", 0, ""}, {"v0_wcorig", onV0, 7, ""}}, deactivate, "lies on space that the metadata gives to vg0/v0"},
		{"both legs replaced since", fakeLV{layout: "raid,raid1"}, fakeLV{}, []device{{"v0", "raid raid1 3 0 region_size 1024 2 - - - 253:91", 0, ""}, {"v0_rimage_0", free, 7, ""}}, deactivate, "lies on space that the metadata counts as free"},
		{"its snapshot was moved", fakeLV{layout: "linear", role: "public,origin,thickorigin"}, fakeLV{layout: "linear", role: "public,snapshot,thicksnapshot", origin: "v0"},
			[]device{{"v0", "snapshot-origin 253:91", 0, ""}, {"v0-real", onV0, 0, "-real"}, {"v1", "snapshot 253:91 253:93 P 8", 1, ""}, {"v1-cow", free, 1, "-cow"}}, deactivate, "together with vg0/v1: its device vg0-v1 lies on space"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, p := newFake(t, 0)
			f.pvs = `{"pv_name":"/dev/null","pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-PVPVPV","pv_missing":"","pv_allocatable":"allocatable","pv_size":"2143289344","pv_free":"0","pv_tags":""}`
			f.gaps = strings.Join([]string{segment(0, 2, lv(0)), segment(2, 2, lv(1)), segment(4, 4, "")}, ",")
			for i, l := range []fakeLV{c.v0, c.v1} {
				l.uuid, l.size = fakeUUID(i), 8*mib
				f.lvs[fmt.Sprint("v", i)] = &l
			}
			for i, d := range c.devices {
				target, params, _ := strings.Cut(d.table, " ")
				uuid := dmUUID(fakeUUID(d.uuid)) + d.layer
				f.devices[uuid] = devmapper.Mapped{Name: "vg0-" + d.name, UUID: uuid, Number: fmt.Sprint("253:", 90+i), Live: true, Targets: []devmapper.Target{{Type: target, Length: 8 * mib, Params: params}}}
			}
			v0 := f.lookUp(p, "v0")
			f.commands()
			err := c.do(p, v0)
			if (err != nil) != (c.want != "") || c.want != "" && !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if ran := f.commands(); c.want != "" && (slices.Contains(ran, "lvchange") || slices.Contains(ran, "lvextend")) {
				t.Errorf("ran %q", ran)
			}
		})
	}
}

// No event reports the restored metadata, for example in a container with its own device nodes: flexd reads
// the metadata again before LVM could write to the space of a device in use.
func TestOlderMetadataUnnoticed(t *testing.T) {
	activate := func(p *Provider, v0 volume.LV) error { return p.Activate(t.Context(), "", v0) }
	for _, c := range []struct {
		name   string
		v0, v1 fakeLV
		layer  string // of the device of v1, whose space is free in the older metadata
		do     func(*Provider, volume.LV) error
		want   string
	}{
		{"thin", fakeLV{layout: "thin,sparse", pool: "v1"}, fakeLV{layout: "thin,pool"}, "-tdata", activate, "vg0-v1-tdata lies on space that the metadata counts as free"},
		{"RAID", fakeLV{layout: "raid,raid1"}, fakeLV{}, "", activate, "vg0-v1 lies on space that the metadata counts as free"},
		{"plain", fakeLV{}, fakeLV{}, "", activate, ""},
		{"new", fakeLV{}, fakeLV{}, "", func(p *Provider, _ volume.LV) error {
			return p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "new"}, 8*mib, "")
		}, "vg0-v1 lies on space that the metadata counts as free"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, p := newFake(t, 0)
			f.pvs = `{"pv_name":"/dev/null","pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-PVPVPV","pv_missing":"","pv_allocatable":"allocatable","pv_size":"2143289344","pv_free":"0","pv_tags":""}`
			for i, l := range []fakeLV{c.v0, c.v1} {
				l.uuid, l.size = fakeUUID(i), 8*mib
				f.lvs[fmt.Sprint("v", i)] = &l
			}
			uuid := dmUUID(fakeUUID(1)) + c.layer
			f.devices[uuid] = devmapper.Mapped{Name: "vg0-v1" + c.layer, UUID: uuid, Number: "253:90", Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: "1:3 34816"}}}
			segments := func(of1 int) string { // extents of 8192 sectors, from 2048
				row := `{"pv_name":"/dev/null","pe_start":"1048576","pvseg_start":"%d","pvseg_size":"2","lv_uuid":%q},`
				return fmt.Sprintf(row+row, 0, fakeUUID(0).Earlier(), of1, fakeUUID(1).Earlier()) +
					fmt.Sprintf(`{"pv_name":"/dev/null","pe_start":"1048576","pvseg_start":"%d","pvseg_size":"2","lv_uuid":""}`, 6-of1)
			}
			f.gaps = segments(4) // where its device is
			v0 := f.lookUp(p, "v0")
			f.gaps = segments(2)
			f.commands()
			err := c.do(p, v0)
			if (err != nil) != (c.want != "") || c.want != "" && !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if ran := f.commands(); c.want != "" && (slices.Contains(ran, "lvchange") || slices.Contains(ran, "lvcreate")) || c.want == "" && slices.Contains(ran, "fullreport") {
				t.Errorf("ran %q", ran)
			}
		})
	}
}

// A device without a uuid on the extents of a volume is unknown to the metadata.
func TestOverlapWithoutUUID(t *testing.T) {
	f, p := newFake(t, 1)
	f.pvs = `{"pv_name":"/dev/null","pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-PVPVPV","pv_missing":"","pv_allocatable":"allocatable","pv_size":"2143289344","pv_free":"0","pv_tags":""}`
	table := []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: "1:3 2048"}}
	mine := dmUUID(fakeUUID(0))
	f.devices[mine] = devmapper.Mapped{Name: "vg0-v0", UUID: mine, Number: "253:90", Live: true, Targets: table}
	f.devices[""] = devmapper.Mapped{Name: "rescue", Number: "253:91", Live: true, Targets: table}
	if d, err := p.Device(t.Context(), f.lookUp(p, "v0")); err != nil || !d.Unusable || !strings.Contains(d.Reason, "it lies on extents of rescue") {
		t.Errorf("got %+v %v", d, err)
	}
}

// Two thin devices with the same id share all blocks; a thin volume waits for its suspended pool.
func TestThinDevice(t *testing.T) {
	f, p := newFake(t, 1)
	device := func(name, uuid, number, target, params string) {
		f.devices[uuid] = devmapper.Mapped{Name: name, UUID: uuid, Number: number, Live: true, Targets: []devmapper.Target{{Type: target, Length: 8 * mib, Params: params}}}
	}
	f.lvs["pool"] = &fakeLV{uuid: fakeUUID(5), size: 8 * mib, layout: "thin,pool", role: "private"}
	pool := dmUUID(fakeUUID(5)) + "-tpool"
	device("vg0-pool-tpool", pool, "253:90", "linear", "1:3 0")
	device("vg0-v0", dmUUID(fakeUUID(0)), "253:91", "thin", "253:90 2")
	for id, twin := range map[string]bool{"2": true, "3": false} {
		device("vg0-gone", dmUUID(fakeUUID(7)), "253:92", "thin", "253:90 "+id)
		p.Invalidate("")
		if d, err := p.Device(t.Context(), f.lookUp(p, "v0")); err != nil || d.Unusable != twin || twin && !strings.Contains(d.Reason, "vg0-gone") {
			t.Errorf("id %s: got %+v %v", id, d, err)
		}
	}
	m := f.devices[pool]
	m.Suspended = true
	f.devices[pool] = m
	if d, err := p.Device(t.Context(), f.lookUp(p, "v0")); err != nil || !d.Suspended || !strings.HasSuffix(d.SuspendedBelow, "/vg0-pool-tpool") {
		t.Errorf("got %+v %v", d, err)
	}
	s := p.Survey(t.Context(), "vg0", true)
	if !slices.ContainsFunc(s.Devices, func(d join.Device) bool {
		return d.Name == "v0" && slices.Equal(d.Suspended, []join.Suspended{{Kernel: "vg0-pool-tpool"}})
	}) {
		t.Errorf("survey: %+v", s.Devices)
	}
}

// The survey includes a volume that is a part of another one in older metadata.
func TestSurveyPart(t *testing.T) {
	f, p := newFake(t, 1)
	f.lvs["v0_cvol"] = f.lvs["v0"]
	f.lvs["v0_cvol"].role = "private,cache,pool,data"
	f.lvs["v0_cvol"].attr = "Cwi---C---"
	delete(f.lvs, "v0")
	uuid := dmUUID(fakeUUID(0))
	f.devices[uuid] = devmapper.Mapped{Name: "vg0-v0", UUID: uuid, Number: "253:90", Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: "1:3 2048"}}}
	s := p.Survey(t.Context(), "vg0", true)
	if !slices.ContainsFunc(s.Devices, func(d join.Device) bool {
		return d.Name == "v0" && strings.Contains(d.Misplaced, "is a volume, and the metadata has it as vg0/v0_cvol")
	}) {
		t.Errorf("survey: %+v", s.Devices)
	}
}

// A device that is larger than its volume may be from an interrupted extension; one of the same size at
// another place was moved.
func TestEnlarged(t *testing.T) {
	segment := func(start, size int, owner string) string {
		return fmt.Sprintf(`{"pv_name":"/dev/null","pe_start":"1048576","pvseg_start":"%d","pvseg_size":"%d","lv_uuid":%q}`, start, size, owner)
	}
	linear := func(start, extents int64) devmapper.Target {
		return devmapper.Target{Type: "linear", Length: extents * 4 * mib, Params: fmt.Sprint("1:3 ", start)}
	}
	for _, c := range []struct {
		name    string
		targets []devmapper.Target
		want    string
	}{
		{"as the metadata says", []devmapper.Target{linear(2048, 2)}, ""},
		{"extended", []devmapper.Target{linear(2048, 3)}, join.Enlarged},
		{"extended elsewhere", []devmapper.Target{linear(2048, 2), linear(51200, 1)}, join.Enlarged},
		{"half of it moved", []devmapper.Target{linear(2048, 1), linear(51200, 1)}, "lies on space that the metadata counts as free"},
		{"moved and extended", []devmapper.Target{linear(51200, 3)}, "lies on space that the metadata counts as free"},
	} {
		f, p := newFake(t, 1)
		f.pvs = `{"pv_name":"/dev/null","pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-PVPVPV","pv_missing":"","pv_allocatable":"allocatable","pv_size":"2143289344","pv_free":"0","pv_tags":""}`
		f.gaps = segment(0, 2, string(fakeUUID(0).Earlier())) + "," + segment(2, 100, "")
		uuid := dmUUID(fakeUUID(0))
		f.devices[uuid] = devmapper.Mapped{Name: "vg0-v0", UUID: uuid, Number: "253:90", Live: true, Targets: c.targets}
		s := p.Survey(t.Context(), "vg0", true)
		if len(s.Devices) != 1 || s.Devices[0].Misplaced != c.want {
			t.Errorf("%s: got %+v", c.name, s.Devices)
		}
	}
}

// The origin of a thick snapshot has a snapshot-origin target: otherwise the snapshot misses writes.
func TestBypassed(t *testing.T) {
	f := &Facts{LVs: map[string]Logical{"o": {Role: []string{"public", "origin", "thickorigin"}}, "p": {Role: []string{"public"}}}, names: map[volume.UUID]string{"uo": "o", "up": "p"}}
	for _, row := range []struct {
		id   volume.UUID
		kind string
		want bool
	}{{"uo", "linear", true}, {"uo", "snapshot-origin", false}, {"uo", "snapshot-merge", false}, {"uo", "error", false}, {"up", "linear", false}} {
		if got := f.bypassed(devmapper.Mapped{Targets: []devmapper.Target{{Type: row.kind}}}, row.id); got != row.want {
			t.Errorf("%v: got %v", row, got)
		}
	}
}
