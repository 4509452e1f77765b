package lvm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// A device without a live table is inactive unless it is open. An activation loads a table.
func TestNoTable(t *testing.T) {
	f, p := newFake(t, 1)
	lv := f.lookUp(p, "v0")
	uuid := dmUUID(lv.UUID)
	device := func(m devmapper.Mapped) volume.Device {
		t.Helper()
		m.Name, m.UUID, m.Number = "vg0-v0", uuid, "253:7"
		f.devices[uuid] = m
		d, err := p.Device(t.Context(), lv)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := device(devmapper.Mapped{Open: 1}); d.Activity != volume.Active || !d.Unusable || !strings.Contains(d.Reason, "no table") {
		t.Errorf("open: got %+v", d)
	}
	if d := device(devmapper.Mapped{}); d.Activity != volume.Inactive {
		t.Errorf("not open: got %+v", d)
	}
	if s := p.Survey(t.Context(), "vg0", true); s.Kernel != "" || len(s.Devices) != 0 {
		t.Errorf("survey: got %+v", s)
	}
	if err := f.activate(t.Context(), p, lv); err != nil || !f.devices[uuid].Live {
		t.Errorf("activate: %v, %+v", err, f.devices[uuid])
	}
}

// A device that cannot be read is unknown; the other devices and pools of the group are surveyed.
func TestOneUnknownDevice(t *testing.T) {
	f, p := newFake(t, 2)
	for _, name := range []string{"v0", "v1"} {
		if err := f.activate(t.Context(), p, f.lookUp(p, name)); err != nil {
			t.Fatal(err)
		}
	}
	bad := f.lookUp(p, "v0").UUID
	f.failing = map[string]bool{dmUUID(bad): true}
	s := p.Survey(t.Context(), "vg0", true)
	if s.Metadata != "" || s.Kernel != "" || len(s.Devices) != 2 {
		t.Fatalf("got %+v", s)
	}
	for _, d := range s.Devices {
		if (d.UUID == bad) != strings.Contains(d.Unknown, "vg0-v0 cannot be inspected") {
			t.Errorf("got %+v", d)
		}
	}
	pools, err := p.PoolStates("vg0", []string{"v0", "v1"})
	if err == nil || len(pools) != 1 || pools[0].Name.LV != "v1" {
		t.Errorf("pools: got %+v %v", pools, err)
	}
}

// Volumes that pvmove has locked, and suspended volumes, stay active: lvchange would deactivate pvmove's
// mirror, too.
func TestDeactivateMoved(t *testing.T) {
	f, p := newFake(t, 1)
	lv := f.lookUp(p, "v0")
	if err := f.activate(t.Context(), p, lv); err != nil {
		t.Fatal(err)
	}
	uuid := dmUUID(lv.UUID)
	f.lvs["v0"].attr = "-wI-XX----"
	p.Invalidate("")
	is(t, p.Deactivate(t.Context(), "", lv, volume.Device{}), nil, "pvmove --abort")
	is(t, p.Extend(t.Context(), "", lv, volume.Device{}, 16*mib), nil, "pvmove --abort")
	f.lvs["v0"].attr = ""
	p.Invalidate("")
	m := f.devices[uuid]
	m.Suspended = true
	f.devices[uuid] = m
	is(t, p.Deactivate(t.Context(), "", lv, volume.Device{}), nil, "vg0-v0 is suspended")
	m.Suspended = false
	part := devmapper.Mapped{Name: "vg0-v0_rmeta_0", UUID: dmUUID(fakeUUID(7)), Number: "253:77", Live: true, Suspended: true}
	f.devices[part.UUID] = part
	above := m
	above.Targets = []devmapper.Target{{Type: "raid", Length: m.Size(), Params: "raid1 3 0 region_size 4096 1 253:77 -"}}
	f.devices[uuid] = above
	is(t, p.Deactivate(t.Context(), "", lv, volume.Device{}), nil, "vg0-v0_rmeta_0 is suspended")
	delete(f.devices, part.UUID)
	larger := m
	larger.Targets = []devmapper.Target{{Type: "linear", Length: m.Size() + 4*mib, Params: "8:0 2048"}}
	f.devices[uuid] = larger // of an extension that the metadata does not have
	is(t, p.Deactivate(t.Context(), "", lv, volume.Device{}), nil, "its device vg0-v0 has 12 MiB, and the metadata says 8 MiB", "It stays active", "vgcfgrestore --list vg0", "lvchange -an vg0/v0")
	f.devices[uuid] = m
	if err := p.Deactivate(t.Context(), "", lv, volume.Device{}); err != nil || len(f.devices) != 0 {
		t.Errorf("got %v, %+v", err, f.devices)
	}
}

// While pvmove moves the parts of a pool, the metadata shows only the parts as locked, as in LVM's report.
func TestDeactivateMovedParts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ about, tdata, below, letters, says string }{
		{"not moved", "Twi-XX----", "253:9 linear 254:0 10240", "AA", ""},
		{"locked", "TwI-XX----", "253:9 linear 254:0 10240", "AA", "pvmove moves vg0/pool_tdata, or was interrupted; to continue"},
		{"moved", "TwI-XX----", "253:9 linear 253:7 16384", "AA", "pvmove moves vg0/pool_tdata, or was interrupted; to continue"},
		{"the metadata was read before", "Twi-XX----", "253:9 linear 253:7 16384", "AA", "pvmove moves vg0/v0, or was interrupted; to continue"},
		{"its mirror has a failed leg", "TwI-XX----", "253:9 linear 253:7 16384", "DA", "pvmove moves vg0/pool_tdata, or was interrupted, and 1 of 2 devices of pvmove's mirror vg0-pvmove0 have failed or are missing (DA); bring the disk back"},
	} {
		f, p := newFake(t, 1)
		f.lvs["v0"].layout, f.lvs["v0"].role, f.lvs["v0"].pool = "thin,sparse", "public", "pool"
		f.lvs["pool"] = &fakeLV{uuid: fakeUUID(1), size: 64 * mib, layout: "thin,pool", role: "private", attr: "twi-XXtz--"}
		f.lvs["[pool_tdata]"] = &fakeLV{uuid: fakeUUID(2), size: 64 * mib, layout: "linear", role: "private,thin,pool,data", attr: c.tdata}
		f.lvs["[pvmove0]"] = &fakeLV{uuid: fakeUUID(3), size: 64 * mib, layout: "mirror", role: "private,pvmove", attr: "p-C-XXm---"}
		lv := f.lookUp(p, "v0")
		for i, text := range []string{
			"vg0-v0 253:5 thin 253:6 1", "vg0-pool-tpool 253:6 thin-pool 253:8 253:9 128 0", "vg0-pool_tdata " + c.below,
			"vg0-pvmove0 253:7 mirror core 1 4096 2 254:0 10240 254:16 18432",
		} {
			w := strings.SplitN(text, " ", 4)
			uuid := dmUUID(fakeUUID(i)) + map[int]string{1: "-tpool", 2: "-tdata"}[i]
			f.devices[uuid] = devmapper.Mapped{Name: w[0], UUID: uuid, Number: w[1], Live: true, Targets: []devmapper.Target{{Type: w[2], Length: 8 * mib, Params: w[3]}}}
		}
		f.status = map[string]string{dmUUID(fakeUUID(3)): "2 254:0 254:16 25/30 1 " + c.letters + " 1 core"}
		err := p.Deactivate(t.Context(), "", lv, volume.Device{})
		if (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v", c.about, err)
		}
	}
}

// A volume stays active while a RAID below it is reshaped or synchronized, even if that cannot end. In a
// shared group, where another node may wait for it, it is deactivated.
func TestDeactivateReshaped(t *testing.T) {
	t.Parallel()
	own := []string{"vg0-v0 253:5 raid raid5_ls 3 128 region_size 4096 4 - 254:6"}
	pool := []string{"vg0-v0 253:5 thin 253:7 1", "vg0-pool-tpool 253:7 thin-pool 254:8 253:9 128 0", "vg0-pool_tdata 253:9 raid raid5_ls 3 128 region_size 4096 4 - 254:6"}
	for _, c := range []struct {
		about    string
		devices  []string
		state    string
		shared   bool
		reshaped string
		stays    string
	}{
		{"reshaped", own, "raid5_ls 4 aaaa 8192/65536 reshape 0 8192 -", false, "vg0/v0", "the RAID vg0/v0 is being reshaped"},
		{"it has ended", own, "raid5_ls 4 AAAA 65536/65536 idle 0 0 -", false, "", ""},
		{"rebuilt", own, "raid5_ls 4 AAAa 8192/65536 recover 0 0 -", false, "", "until the RAID vg0/v0 is in sync"},
		{"synchronized for the first time", own, "raid5_ls 4 aaaa 8192/65536 resync 0 0 -", false, "", "until the RAID vg0/v0 is in sync"},
		{"a mirror is synchronized for the first time", own, "raid1 4 aaaa 8192/65536 resync 0 0 -", false, "", ""},
		{"rebuilt, and a disk is gone", own, "raid5_ls 4 DAAa 8192/65536 idle 0 0 -", false, "", "has lost data"},
		{"its pool is reshaped", pool, "raid5_ls 4 aaaa 8192/65536 reshape 0 8192 -", false, "vg0/pool_tdata", "the RAID vg0/pool_tdata is being reshaped"},
		{"reshaped in a shared group", own, "raid5_ls 4 aaaa 8192/65536 reshape 0 8192 -", true, "vg0/v0", ""},
	} {
		f, p := newFake(t, 1)
		f.status = map[string]string{}
		if c.shared {
			f.lockType, p = "sanlock", f.provider(Group{Shared: true})
		}
		lv := f.lookUp(p, "v0")
		for i, text := range c.devices {
			w := strings.SplitN(text, " ", 4)
			uuid := dmUUID(fakeUUID(i)) + map[bool]string{true: fmt.Sprint("-", i)}[i > 0]
			f.devices[uuid] = devmapper.Mapped{Name: w[0], UUID: uuid, Number: w[1], Live: true, Targets: []devmapper.Target{{Type: w[2], Length: 8 * mib, Params: w[3]}}}
			if w[2] == "raid" {
				f.status[uuid] = c.state
			} else if w[2] == "thin-pool" {
				f.status[uuid] = "1 12/1024 10/1000 - rw discard_passdown queue_if_no_space - 10"
			}
		}
		d, err := p.Device(t.Context(), lv)
		if err != nil || d.Unusable != (c.stays == "has lost data") || d.Reshaped != c.reshaped {
			t.Errorf("%s: got %+v, %v", c.about, d, err)
		}
		err = p.Deactivate(t.Context(), "", lv, d)
		if c.stays != "" {
			is(t, err, nil, "it stays active", c.stays)
		} else if err != nil {
			t.Errorf("%s: got %v", c.about, err)
		}
	}
}
