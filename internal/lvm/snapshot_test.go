package lvm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

func (lv *fakeLV) thick() bool { return strings.Contains(lv.role, "thick") }

// familyOf returns the volumes that LVM activates and deactivates together.
func (f *fakeLVM) familyOf(lv *fakeLV) map[string]*fakeLV {
	all := map[string]*fakeLV{}
	for name, o := range f.lvs {
		if o == lv || lv.thick() && (lv.origin == name || o.origin != "" && (o.origin == lv.origin || f.lvs[o.origin] == lv)) {
			all[name] = o
		}
	}
	return all
}

func (f *fakeLVM) openMember(lv *fakeLV) string {
	for name, m := range f.familyOf(lv) {
		if f.devices[dmUUID(m.uuid)].Open > 0 {
			return name
		}
	}
	return ""
}

func (f *fakeLVM) activateFamily(lv *fakeLV) {
	add := func(name, layer string, uuid volume.UUID, target string, params ...string) string {
		m := devmapper.Mapped{
			Name: dmName(volume.Name{VG: "vg0", LV: name}) + layer, UUID: dmUUID(uuid) + layer, Live: true,
			Number:  fmt.Sprintf("253:%d", len(f.devices)),
			Targets: []devmapper.Target{{Type: target, Length: lv.size, Params: strings.Join(params, " ")}},
		}
		f.devices[m.UUID] = m
		return m.Number
	}
	place := func() string { return fmt.Sprint(len(f.devices) << 20) } // no two on the same extents
	all := f.familyOf(lv)
	for name, o := range all {
		if o.origin != "" {
			continue
		}
		real := add(name, "-real", o.uuid, "linear", "254:0", place())
		add(name, "", o.uuid, "snapshot-origin", real)
		for name, s := range all {
			if s.origin != "" {
				cow := add(name, "-cow", s.uuid, "linear", "254:0", place())
				add(name, "", s.uuid, "snapshot", real, cow, "P", "8")
			}
		}
	}
}

// A snapshot that is being merged gets no lease when its origin is activated.
func TestFamilyMerging(t *testing.T) {
	f := Facts{Name: "vg0", LVs: map[string]Logical{
		"o": {Name: "o", Role: []string{"public", "origin", "thickorigin"}},
		"s": {Name: "s", Role: []string{"public", "snapshot", "thicksnapshot"}, Origin: "o"},
		"m": {Name: "m", Role: []string{"public", "snapshot", "thicksnapshot"}, Origin: "o", Hidden: true},
	}}
	if all := f.family(f.LVs["o"]); len(all) != 1 || all[0].Name.LV != "s" {
		t.Errorf("got %+v", all)
	}
}

// See TestVMThickSnapshots, which tests the same with LVM.
func TestThickSnapshots(t *testing.T) {
	f, p := newFake(t, 0)
	for i, name := range []string{"o", "s1", "s2", "o2", "s3", "thin", "thinsnap"} {
		f.lvs[name] = &fakeLV{uuid: fakeUUID(i), size: 8 * mib, layout: "linear", role: "public"}
	}
	f.lvs["o"].role, f.lvs["o2"].role = "public,origin,thickorigin,multithickorigin", "public,origin,thickorigin"
	for _, s := range []string{"s1", "s2", "s3"} {
		f.lvs[s].role, f.lvs[s].origin = "public,snapshot,thicksnapshot", "o"
	}
	f.lvs["s3"].origin = "o2"
	f.lvs["thin"].role, f.lvs["thinsnap"].role, f.lvs["thinsnap"].origin = "public,origin,thinorigin", "public,snapshot,thinsnapshot", "thin"

	for name, want := range map[string][]string{"o": {"s1", "s2"}, "s1": {"o", "s2"}, "s3": {"o2"}, "thin": nil, "thinsnap": nil} {
		var family, relatives []string
		lv := f.lookUp(p, name)
		for _, m := range lv.Family {
			family = append(family, m.Name.LV)
		}
		if slices.Sort(family); !slices.Equal(family, want) {
			t.Errorf("family of %s: got %v", name, family)
		}
		if err := p.Activate(t.Context(), "", lv); err != nil {
			t.Fatal(err)
		}
		d, err := p.Device(t.Context(), lv)
		for _, m := range d.Relatives {
			relatives = append(relatives, m.Name.LV)
		}
		if err != nil || !slices.Equal(relatives, want) {
			t.Errorf("relatives of %s: got %v %v", name, relatives, err)
		}
	}

	s1 := f.lookUp(p, "s1")
	d, _ := p.Device(t.Context(), s1)
	f.commands()
	if err := p.Deactivate(t.Context(), "", s1, volume.Device{}); err == nil || !strings.Contains(err.Error(), "together with vg0/o") {
		t.Errorf("the origin is not known: %v", err)
	}
	open := f.devices[dmUUID(f.lvs["s2"].uuid)]
	open.Open = 1
	f.devices[open.UUID] = open
	if err := p.Deactivate(t.Context(), "", s1, d); err == nil || !strings.Contains(err.Error(), "together with vg0/s2, which was opened") {
		t.Errorf("a snapshot is open: %v", err)
	}
	if ran := f.commands(); len(ran) > 0 {
		t.Errorf("ran %v", ran)
	}
	open.Open = 0
	f.devices[open.UUID] = open
	if err := p.Deactivate(t.Context(), "", s1, d); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]volume.Activity{"o": volume.Inactive, "s1": volume.Inactive, "s2": volume.Inactive, "o2": volume.Active, "s3": volume.Active} {
		if d, err := p.Device(t.Context(), f.lookUp(p, name)); err != nil || d.Activity != want {
			t.Errorf("%s: got %v %v", name, d.Activity, err)
		}
	}
}

// See TestUnusableSnapshots in test/e2e.
func TestUnusableSnapshots(t *testing.T) {
	f, p := newFake(t, 0)
	f.lvs["o"] = &fakeLV{uuid: fakeUUID(0), size: 8 * mib, layout: "linear", role: "public,origin,thickorigin"}
	f.lvs["[m]"] = &fakeLV{uuid: fakeUUID(1), size: 8 * mib, layout: "linear", role: "public,snapshot,thicksnapshot", origin: "o"}
	f.lvs["full"] = &fakeLV{uuid: fakeUUID(2), size: 8 * mib, layout: "linear", role: "public,snapshot,thicksnapshot", origin: "o"}
	if lv := f.lookUp(p, "m"); lv.Presence != volume.Foreign || !strings.Contains(lv.Reason, "vg0/m is being merged into vg0/o") || !strings.Contains(lv.Reason, "use vg0/o") {
		t.Errorf("merging: got %+v", lv)
	}
	m := devmapper.Mapped{Name: "vg0-m", UUID: dmUUID(fakeUUID(1)), Number: "253:2", Live: true, Targets: []devmapper.Target{{Type: "snapshot", Length: 8 * mib}}}
	for m.Open = range 2 {
		f.devices[m.UUID] = m
		s := p.Survey(t.Context(), "vg0", true)
		for _, v := range s.Volumes {
			if v.Merging != map[string]string{"o": "m"}[v.Name] || v.Into != map[string]string{"m": "o"}[v.Name] {
				t.Errorf("to be merged: got %+v", v)
			}
		}
		if len(s.Volumes) != 3 || len(s.Devices) != m.Open {
			t.Errorf("%+v", s)
		}
	}
	delete(f.devices, m.UUID)
	full := f.lookUp(p, "full")
	uuid := dmUUID(full.UUID)
	for state, says := range map[string][]string{
		"Overflow": {"vg0-full is a snapshot that was too small", "lvremove it", "and create a larger one"},
		// Of the persistent snapshots of LVM 2.03 the kernel says this, too, when they are full.
		"Invalid": {"vg0-full is an invalid snapshot", "too small for the changes of its origin, or its disk had an error", "dmesg", "lvremove it"},
	} {
		f.devices[uuid] = devmapper.Mapped{Name: "vg0-full", UUID: uuid, Number: "253:1", Live: true, Targets: []devmapper.Target{{Type: "snapshot", Length: 8 * mib, Params: state}}}
		d, err := p.Device(t.Context(), full)
		all := p.Survey(t.Context(), "vg0", true).Devices
		if err != nil || !d.Unusable || len(all) != 1 {
			t.Fatalf("%s: got %+v %+v %v", state, d, all, err)
		}
		for _, words := range says {
			if !strings.Contains(d.Reason, words) || !strings.Contains(all[0].Broken+": "+all[0].Repair, words) {
				t.Errorf("%s: got %q %q, not %q", state, d.Reason, all[0].Broken, words)
			}
		}
	}
}

// LVM deactivates a snapshot that is to be merged only with its origin.
func TestDeactivateMerging(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"thicksnapshot", "thinsnapshot"} {
		f, p, _ := newShared(t, 0)
		f.lvs["o"] = &fakeLV{uuid: fakeUUID(0), size: 8 * mib, layout: "linear", role: "public,origin," + strings.Replace(role, "snapshot", "origin", 1)}
		f.lvs["s"] = &fakeLV{uuid: fakeUUID(1), size: 8 * mib, layout: "linear", role: "public,snapshot," + role, origin: "o"}
		lv := f.lookUp(p, "s")
		if err := p.Activate(t.Context(), "", lv); err != nil {
			t.Fatal(role, err)
		}
		f.lvs["[s]"] = f.lvs["s"]
		delete(f.lvs, "s")
		p.Invalidate("vg0")
		if role == "thinsnapshot" {
			m := devmapper.Mapped{Name: "vg0-o", UUID: dmUUID(fakeUUID(0)), Number: "253:50", Live: true}
			f.devices[m.UUID] = m
			if err := p.Deactivate(t.Context(), "", lv, device(t, p, lv)); err == nil || !strings.Contains(err.Error(), "only together with that volume, which is active") || len(f.devices) != 2 {
				t.Errorf("its origin is active: %v %v", err, f.devices)
			}
			delete(f.devices, m.UUID)
		}
		if err := p.Deactivate(t.Context(), "", lv, device(t, p, lv)); err != nil || len(f.devices) > 0 {
			t.Errorf("%s: %v %v", role, err, f.devices)
		}
		p.NoteLock(lv.UUID) // an interrupted command may have left it
		m := devmapper.Mapped{Name: "vg0-o", UUID: dmUUID(fakeUUID(0)), Number: "253:50", Live: true}
		f.devices[m.UUID] = m // it is being merged
		if err := p.Deactivate(t.Context(), "", lv, device(t, p, lv)); err == nil || len(f.devices) != 1 {
			t.Errorf("%s: its origin is active: %v %v", role, err, f.devices)
		}
		delete(f.devices, m.UUID)
		if err := p.Deactivate(t.Context(), "", lv, device(t, p, lv)); err != nil || device(t, p, lv).LockLeft {
			t.Errorf("%s: %v", role, err)
		}
	}
}

// Errors below an origin affect the origin and its snapshots. The tables and states are those of LVM 2.03:
// see TestVMThickSnapshots.
func TestBelowSnapshots(t *testing.T) {
	for _, c := range []struct {
		about, target, params, status string
		pool                          string // state of the pool at 253:2
		unusable, broken, degraded    string
	}{
		{about: "linear", target: "linear", params: "254:0 2048"},
		{about: "full pool", target: "thin", params: "253:2 1", status: "9856 81407",
			pool:     "3 118/1024 1024/1024 - out_of_data_space discard_passdown error_if_no_space - 256 ",
			unusable: "thin pool vg0/pool: the pool is full"},
		{about: "failed pool", target: "thin", params: "253:2 1", status: "9856 81407", pool: "Fail", unusable: "lvconvert --repair vg0/pool"},
		{about: "room in the pool", target: "thin", params: "253:2 1", status: "9856 81407",
			pool: "3 118/1024 154/1024 - rw discard_passdown error_if_no_space - 256 "},
		{about: "RAID", target: "raid", params: "raid1 3 0 region_size 4096 2 254:0 254:0 254:0 254:0", status: "raid1 2 AD 65536/65536 idle 0 0 -",
			degraded: "1 of 2 devices of IT have failed or are missing (AD)"},
		{about: "missing part", target: "error", unusable: `vg0-o-real has an "error" target at 0`, broken: "vg0-o-real has"},
	} {
		f, p := newFake(t, 0)
		f.lvs["o"] = &fakeLV{uuid: fakeUUID(0), size: 32 * mib, layout: "linear", role: "public,origin,thickorigin"}
		f.lvs["s"] = &fakeLV{uuid: fakeUUID(1), size: 32 * mib, layout: "linear", role: "public,snapshot,thicksnapshot", origin: "o"}
		o, s := dmUUID(fakeUUID(0)), dmUUID(fakeUUID(1))
		f.status = map[string]string{o: "", s: "16/40960 16", "LVM-pool": c.pool}
		add := func(name, uuid, number, target, params string) {
			f.devices[uuid] = devmapper.Mapped{Name: name, UUID: uuid, Number: number, Live: true, Targets: []devmapper.Target{{Type: target, Length: 32 * mib, Params: params}}}
		}
		add("vg0-o", o, "253:4", "snapshot-origin", "253:7")
		add("vg0-o-real", o+"-real", "253:7", c.target, c.params)
		add("vg0-s", s, "253:9", "snapshot", "253:7 253:8 P 8")
		add("vg0-s-cow", s+"-cow", "253:8", "linear", "254:0 67584")
		if c.status != "" {
			f.status[o+"-real"] = c.status
		}
		if c.pool != "" {
			add("vg0-pool-tpool", "LVM-pool", "253:2", "thin-pool", "253:0 253:1 128 256")
			add("vg0-pool_tmeta", "LVM-tmeta", "253:0", "linear", "254:0 200704")
			add("vg0-pool_tdata", "LVM-tdata", "253:1", "linear", "254:0 270336")
		}
		for _, name := range []string{"o", "s"} {
			d, err := p.Device(t.Context(), f.lookUp(p, name))
			if err != nil || d.Unusable != (c.unusable != "") || !strings.Contains(d.Reason, c.unusable) {
				t.Errorf("%s: %s: got %+v %v", c.about, name, d, err)
			}
		}
		devices := p.Survey(t.Context(), "vg0", true).Devices
		if len(devices) != 2 {
			t.Errorf("%s: got %+v", c.about, devices)
		}
		for _, d := range devices {
			it := map[string]string{"o": "its raid1", "s": "the raid1 vg0/o below it"}[d.Name]
			if !strings.Contains(d.Broken, c.broken) || d.Degraded != strings.Replace(c.degraded, "IT", it, 1) || d.Degraded != "" && d.RAID != "vg0/o" {
				t.Errorf("%s: %s: got %q %q", c.about, d.Name, d.Broken, d.Degraded)
			}
		}
	}
}

// A volume whose last snapshot is removed during the look-up of its relatives has none; a device that sysfs
// does not list is an error.
func TestRelativesGone(t *testing.T) {
	f, p := newFake(t, 1)
	lv := f.lookUp(p, "v0")
	if err := p.Activate(t.Context(), "", lv); err != nil {
		t.Fatal(err)
	}
	m := f.devices[dmUUID(lv.UUID)]
	m.Targets = []devmapper.Target{{Type: "snapshot-origin", Length: m.Targets[0].Length, Params: "253:91"}}
	if all, err := p.relatives(m); len(all) > 0 || err != nil {
		t.Errorf("removed meanwhile: %+v, %v", all, err)
	}
	f.devices[m.UUID] = m
	p.devicesOn = func(string) ([]string, error) { return nil, nil }
	if _, err := p.relatives(m); err == nil {
		t.Error("not listed: no error")
	}
}

// See TestVMLostSnapshot.
func TestLostSnapshot(t *testing.T) {
	f, p := newFake(t, 0)
	f.lvs["o"] = &fakeLV{uuid: fakeUUID(0), size: 8 * mib, layout: "linear", role: "public,origin,thickorigin"}
	f.lvs["s"] = &fakeLV{uuid: fakeUUID(1), size: 8 * mib, layout: "linear", role: "public,snapshot,thicksnapshot", origin: "o"}
	lv := f.lookUp(p, "s")
	uuid, g := dmUUID(lv.UUID), p.groups["vg0"]
	var stuck *run.StuckError
	for _, row := range []struct {
		state, header string
		err           error
		gone, disks   string
		stays         string // words of the error; "" = none
	}{
		{"16/40960 16", "", nil, "", "8:16 8:32", ""},
		{"Invalid", `{"value":false}`, nil, "", "8:16 8:32", ""},
		{"Invalid", `{"value":true}`, nil, "", "8:16 8:32", "the disk of the snapshot says that it is valid"},
		{"Overflow", `{"value":true}`, nil, "", "8:16 8:32", "the disk of the snapshot says that it is valid"},
		{"Invalid", `{"error":{"text":"input/output error"}}`, nil, "8:16", "8:16 8:32", "whether the disk of the snapshot says so cannot be read"},
		{"Invalid", "", &run.StuckError{Step: "read", Done: make(chan struct{})}, "", "8:16 8:32", "whether the disk of the snapshot says so cannot be read"},
		{"Invalid", `{"value":true}`, nil, "8:16", "8:16 8:16", "the disk of the snapshot says that it is valid"}, // its origin may have changed before
		{"Invalid", `{"value":true}`, nil, "8:16 8:32", "8:16 8:32", "the disk of the snapshot says that it is valid"},
		{"failing", "", nil, "", "8:16 8:32", "the state of vg0/s cannot be read"},
	} {
		disks := strings.Fields(row.disks)
		part := func(suffix, number, disk string) {
			f.devices[uuid+suffix] = devmapper.Mapped{Name: "vg0-s" + suffix, UUID: uuid + suffix, Number: number, Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: disk + " 2048"}}}
		}
		part("-real", "253:7", disks[0])
		part("-cow", "253:8", disks[1])
		m := devmapper.Mapped{Name: "vg0-s", UUID: uuid, Number: "253:9", Live: true, Targets: []devmapper.Target{{Type: "snapshot", Length: 8 * mib, Params: "253:7 253:8 P 8"}}}
		f.devices[uuid] = m
		f.status = map[string]string{uuid: row.state}
		f.failing = map[string]bool{uuid: row.state == "failing"}
		f.hook = func(c run.Cmd) (run.Result, error, bool) {
			return run.Result{Stdout: []byte(row.header)}, row.err, strings.Contains(strings.Join(c.Argv, " "), "lvm-snapshot-valid")
		}
		p.diskGone = func(number string) bool { return strings.Contains(row.gone, number) }
		err := g.lossRecorded(t.Context(), "", m, lv.UUID)
		if (err == nil) != (row.stays == "") || err != nil && !strings.Contains(err.Error(), row.stays) || errors.As(err, &stuck) != (row.err != nil) {
			t.Errorf("%+v: got %v", row, err)
		}
		if err != nil && strings.Contains(err.Error(), "lvremove") == (row.state == "failing") {
			t.Errorf("%+v: the remedy: %v", row, err)
		}
	}
	merges := devmapper.Mapped{Name: "vg0-o", UUID: uuid, Targets: []devmapper.Target{{Type: "snapshot-merge", Params: "253:7 253:8 P 8"}}}
	f.devices[uuid], f.failing, f.status[uuid] = merges, nil, "Invalid"
	f.hook = func(run.Cmd) (run.Result, error, bool) {
		return run.Result{Stdout: []byte(`{"value":true}`)}, nil, true
	}
	is(t, g.lossRecorded(t.Context(), "", merges, fakeUUID(0)), nil, "vg0/o was being merged with a snapshot whose contents are lost", "copy its data off")
	f.lvs["[s]"] = f.lvs["s"]
	delete(f.lvs, "s")
	p.Invalidate("vg0")
	f.hook = nil
	f.lookUp(p, "o") // reads the metadata
	f.devices[uuid] = devmapper.Mapped{Name: "vg0-s", UUID: uuid, Number: "253:9", Live: true, Targets: []devmapper.Target{{Type: "snapshot", Length: 8 * mib, Params: "253:7 253:8 P 8"}}}
	is(t, g.lossRecorded(t.Context(), "", f.devices[uuid], lv.UUID), nil, "vg0/s, which is to be merged into o, are lost", "vgcfgrestore -f now.vg0 vg0")
	delete(f.devices, uuid)
	if err := g.lossRecorded(t.Context(), "", devmapper.Mapped{UUID: uuid, Targets: []devmapper.Target{{Type: "snapshot"}}}, lv.UUID); err != nil {
		t.Errorf("deactivated meanwhile: %v", err)
	}
}

func TestValidHeader(t *testing.T) {
	b := make([]byte, 4096)
	if _, err := validHeader(b); err == nil {
		t.Error("zeros")
	}
	copy(b, "SnAp\x01\x00\x00\x00\x01")
	if valid, err := validHeader(b); !valid || err != nil {
		t.Errorf("%t %v", valid, err)
	}
	b[4] = 0
	if valid, err := validHeader(b); valid || err != nil {
		t.Errorf("%t %v", valid, err)
	}
}

// Of the origins only the external origin of a thin volume stays read-only.
func TestExternalOrigin(t *testing.T) {
	for role, want := range map[string]bool{"public": false, "public,origin,thickorigin": false, "public,origin,extthinorigin": true, "public,origin,extthinorigin,multiextthinorigin": true} {
		f := &Facts{LVs: map[string]Logical{"v": {Name: "v", ReadOnly: true, Role: strings.Split(role, ",")}}}
		if lv := f.judge(volume.Name{VG: "vg0", LV: "v"}); lv.External != want || lv.Presence != volume.Present {
			t.Errorf("%s: got %+v", role, lv)
		}
	}
}
