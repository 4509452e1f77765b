package lvm

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// halfRAID returns the state after lvcreate was killed before it activated a RAID.
func halfRAID(t *testing.T) (*fakeLVM, *Provider) {
	f, p := newFake(t, 0)
	f.lvs["db"] = &fakeLV{uuid: fakeUUID(1), size: 8 * mib, layout: "raid,raid1", role: "public", tags: []string{tagCreating}}
	f.lvs["db_rmeta_0"] = &fakeLV{uuid: fakeUUID(2), size: 4 * mib, tags: []string{tagCreating}}
	f.lvs["[db_rimage_0]"] = &fakeLV{uuid: fakeUUID(3), size: 8 * mib, layout: "linear", role: "private"}
	f.broken["db"] = "Refusing activation of RAID LV vg0/db with visible SubLVs."
	return f, p
}

// A RAID that was never active is removed and created again; nothing else is removed.
func TestCreateOverRemains(t *testing.T) {
	db := volume.Name{VG: "vg0", LV: "db"}
	for _, row := range []struct {
		what    string
		change  func(f *fakeLVM)
		removed bool
		says    string // "" = it is created
	}{
		{"never active", func(*fakeLVM) {}, true, ""},
		{"no creation of flexd's", func(f *fakeLVM) { f.lvs["db"].tags = nil }, false, "exists already"},
		{"completed meanwhile", func(f *fakeLVM) {
			f.before = func(words string) error {
				if strings.HasPrefix(words, "lvremove") {
					f.lvs["db"].tags = []string{tagCreated}
				}
				return nil
			}
		}, false, "exists already"},
		{"another one meanwhile", func(f *fakeLVM) {
			f.before = func(words string) error {
				if strings.HasPrefix(words, "lvremove") {
					f.lvs["db"].uuid = fakeUUID(9)
				}
				return nil
			}
		}, false, "vg0/db"},
		{"active", func(f *fakeLVM) {
			uuid := dmUUID(fakeUUID(1))
			f.devices[uuid] = devmapper.Mapped{Name: "vg0-db", UUID: uuid, Number: "253:0", Live: true, Targets: []devmapper.Target{{Type: "raid", Length: 8 * mib}}}
		}, false, "has a device"},
		{"may have been active", func(f *fakeLVM) {
			f.lvs["[db_rmeta_0]"] = f.lvs["db_rmeta_0"]
			delete(f.lvs, "db_rmeta_0")
		}, false, "Refusing activation"},
		{"a leg was about to be added", func(f *fakeLVM) {
			f.lvs["[db_rmeta_0]"] = f.lvs["db_rmeta_0"]
			delete(f.lvs, "db_rmeta_0")
			f.lvs["db_rmeta_2"] = &fakeLV{uuid: fakeUUID(4), size: 4 * mib, tags: []string{tagCreating}}
		}, false, "Refusing activation"},
		{"no RAID", func(f *fakeLVM) { f.lvs["db"].layout = "linear" }, false, "Refusing activation"},
		{"a disk is missing", func(f *fakeLVM) { f.missing = 1 }, false, "lacks 1 of its disks"},
	} {
		f, p := halfRAID(t)
		f.mu.Lock()
		row.change(f)
		if row.removed {
			delete(f.broken, "db") // of the new one
		}
		f.mu.Unlock()
		err := p.Create(t.Context(), "", db, 8*mib, "")
		lv, there := f.lvs["db"]
		if removed := !there || lv.uuid != fakeUUID(1) && lv.uuid != fakeUUID(9); removed != row.removed {
			t.Errorf("%s: removed %v", row.what, removed)
		}
		if row.says != "" {
			is(t, err, nil, row.says)
			if strings.Contains(err.Error(), "does not exist any more") {
				t.Errorf("%s: %v", row.what, err)
			}
			continue
		}
		if err != nil || !slices.Equal(f.lvs["db"].tags, []string{tagCreated}) || len(f.lvs) != 1 {
			t.Errorf("%s: got %v, %+v", row.what, err, f.lvs)
		}
	}
}

// lvcreate was killed after it wrote the metadata of a thin volume, and before its message to the pool: LVM
// can never activate the volume. It is removed and created again.
func TestCreateUnknownToPool(t *testing.T) {
	const said = "device-mapper: reload ioctl on  (253:4) failed: No data available"
	meanwhile := func(command string, change func(lv *fakeLV)) func(f *fakeLVM) {
		return func(f *fakeLVM) {
			f.before = func(words string) error {
				if strings.HasPrefix(words, command) {
					change(f.lvs["db"])
				}
				return nil
			}
		}
	}
	for _, row := range []struct {
		what    string
		change  func(f *fakeLVM)
		removed bool
		says    string // "" = it is created
	}{
		{"unknown to the pool", func(*fakeLVM) {}, true, ""},
		{"no creation of flexd's", func(f *fakeLVM) { f.lvs["db"].tags = nil }, false, "exists already"},
		{"completed meanwhile", meanwhile("lvremove", func(lv *fakeLV) { lv.tags = []string{tagCreated} }), false, "No data available"},
		{"another one meanwhile", meanwhile("lvremove", func(lv *fakeLV) { lv.uuid = fakeUUID(9) }), false, "No data available"},
		{"active meanwhile", func(f *fakeLVM) {
			uuid := dmUUID(fakeUUID(1))
			f.failing = map[string]bool{uuid: true}
			f.devices[uuid] = devmapper.Mapped{Name: "vg0-db", UUID: uuid, Number: "253:0", Live: true, Targets: []devmapper.Target{{Type: "thin", Length: 8 * mib}}}
		}, false, "does not parse"},
		{"no thin volume", func(f *fakeLVM) { f.lvs["db"].layout, f.lvs["db"].pool = "linear", "" }, false, "No data available"},
		{"a cached volume", func(f *fakeLVM) { f.lvs["db"].layout = "cache" }, false, "No data available"},
		{"another error", func(f *fakeLVM) {
			f.broken["db"] = "device-mapper: reload ioctl on  (253:4) failed: Input/output error"
		}, false, "Input/output error"},
		{"a disk is missing", func(f *fakeLVM) { f.missing = 1 }, false, "lacks 1 of its disks"},
	} {
		f, p := newFake(t, 0)
		f.lvs["db"] = &fakeLV{uuid: fakeUUID(1), size: 8 * mib, layout: "thin,sparse", role: "public", pool: "pool", tags: []string{tagCreating}}
		f.broken["db"] = said
		f.hook = func(c run.Cmd) (run.Result, error, bool) {
			if c.Argv[0] == "lvm" && c.Argv[1] == "lvcreate" {
				delete(f.broken, "db") // of the new one
			}
			return run.Result{}, nil, false
		}
		row.change(f)
		err := p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "db"}, 8*mib, "")
		if removed := slices.Contains(f.commands(), "lvcreate"); removed != row.removed {
			t.Errorf("%s: removed %v", row.what, removed)
		}
		if row.says != "" {
			is(t, err, nil, row.says)
		} else if err != nil || !slices.Equal(f.lvs["db"].tags, []string{tagCreated}) || f.lvs["db"].uuid == fakeUUID(1) {
			t.Errorf("%s: got %v, %+v", row.what, err, f.lvs["db"])
		}
	}
}

// The parts of a RAID after an interrupted activation are removed before its next activation, unless they are
// open; their contents stay.
func TestFreeParts(t *testing.T) {
	f, p := halfRAID(t)
	f.lvs["[db_rmeta_0]"] = f.lvs["db_rmeta_0"]
	delete(f.lvs, "db_rmeta_0")
	f.broken = map[string]string{}
	part := func(n int, name string, open int) {
		uuid := dmUUID(fakeUUID(n))
		f.devices[uuid] = devmapper.Mapped{Name: name, UUID: uuid, Number: "253:9" + string(rune('0'+n)), Open: open, Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib}}}
	}
	part(2, "vg0-db_rmeta_0", 0)
	part(3, "vg0-db_rimage_0", 1)
	var removed []string
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		if c.Argv[0] == "dmsetup" {
			removed = append(removed, c.Argv[3:]...)
		}
		return f.dmsetupRemove(c)
	}
	if err := p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "db"}, 8*mib, ""); err != nil {
		t.Error(err)
	}
	if ran := f.commands(); !slices.Equal(removed, []string{"vg0-db_rmeta_0"}) || slices.Contains(ran, "lvremove") || f.lvs["db"].uuid != fakeUUID(1) {
		t.Errorf("removed %q, ran %q", removed, ran)
	}
}

// pvmove ends with an internal error if its volumes are deactivated meanwhile, and leaves parts of a thin
// pool. LVM then does not activate the pool, without a reason.
func TestLeftParts(t *testing.T) {
	t.Parallel()
	const said = "Activation of logical volume vg0/v0 is prohibited while logical volume vg0/pool_tmeta is active."
	for _, c := range []struct {
		about     string
		change    func(f *fakeLVM, tmeta, tdata *devmapper.Mapped)
		left      string // as flexd check has them
		activated string // what the activation says besides
	}{
		{"left", nil, "pool_tdata pool_tmeta", "dmsetup remove vg0-pool_tdata vg0-pool_tmeta"},
		{"suspended without a table", func(_ *fakeLVM, tmeta, _ *devmapper.Mapped) { tmeta.Live, tmeta.Suspended = false, true }, "pool_tdata pool_tmeta", "dmsetup remove vg0-pool_tdata vg0-pool_tmeta"},
		{"one is open", func(_ *fakeLVM, tmeta, _ *devmapper.Mapped) { tmeta.Open = 1 }, "pool_tdata", "dmsetup remove vg0-pool_tdata"},
		{"of an active pool", func(f *fakeLVM, _, _ *devmapper.Mapped) {
			uuid := dmUUID(fakeUUID(1)) + "-tpool"
			f.devices[uuid] = devmapper.Mapped{Name: "vg0-pool-tpool", UUID: uuid, Number: "253:5", Live: true, Targets: []devmapper.Target{{Type: "thin-pool", Length: 8 * mib, Params: "253:3 253:2 128 0"}}}
		}, "", ""},
		{"pvmove was interrupted", func(f *fakeLVM, _, _ *devmapper.Mapped) {
			f.lvs["[pool_tdata]"].attr, f.lvs["[pool_tmeta]"].attr = "TwI-XX----", "ewI-XX----"
		}, "", "pvmove moves vg0/pool_tdata, or was interrupted"},
		{"pvmove was interrupted, and its volume has no live table", func(f *fakeLVM, _, _ *devmapper.Mapped) {
			f.lvs["[pool_tdata]"].attr, f.lvs["[pool_tmeta]"].attr = "TwI-XX----", "ewI-XX----"
			f.lvs["[pvmove0]"] = &fakeLV{uuid: fakeUUID(5), size: 64 * mib, layout: "linear", role: "private,pvmove"}
			f.devices[dmUUID(fakeUUID(5))] = devmapper.Mapped{Name: "vg0-pvmove0", UUID: dmUUID(fakeUUID(5)), Number: "253:5", Loaded: true}
		}, "", "dmsetup resume vg0-pvmove0, and the next activation works; pvmove moves vg0/pool_tdata, or was interrupted"},
	} {
		f, p := newFake(t, 1)
		f.lvs["v0"].layout, f.lvs["v0"].role, f.lvs["v0"].pool = "thin,sparse", "public", "pool"
		f.lvs["pool"] = &fakeLV{uuid: fakeUUID(1), size: 64 * mib, layout: "thin,pool", role: "private"}
		f.lvs["[pool_tdata]"] = &fakeLV{uuid: fakeUUID(2), size: 64 * mib, layout: "linear", role: "private,thin,pool,data"}
		f.lvs["[pool_tmeta]"] = &fakeLV{uuid: fakeUUID(3), size: 4 * mib, layout: "linear", role: "private,thin,pool,metadata"}
		f.lvs["[lvol0_pmspare]"] = &fakeLV{uuid: fakeUUID(4), size: 4 * mib, layout: "linear", role: "private,pool,spare"}
		f.broken["v0"] = said
		part := func(n int, name, layer string) devmapper.Mapped {
			return devmapper.Mapped{Name: name, UUID: dmUUID(fakeUUID(n)) + layer, Number: fmt.Sprintf("253:%d", n), Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 4 * mib, Params: "254:0 2048"}}}
		}
		tdata, tmeta, spare := part(2, "vg0-pool_tdata", "-tdata"), part(3, "vg0-pool_tmeta", "-tmeta"), part(4, "vg0-lvol0_pmspare", "")
		if c.change != nil {
			c.change(f, &tmeta, &tdata)
		}
		for _, m := range []devmapper.Mapped{tdata, tmeta, spare} {
			f.devices[m.UUID] = m
		}
		err := p.Activate(t.Context(), "", f.lookUp(p, "v0"))
		if err == nil || !strings.Contains(err.Error(), said) || !strings.HasSuffix(strings.TrimSuffix(err.Error(), "; to continue: pvmove, to cancel: pvmove --abort"), c.activated) {
			t.Errorf("%s: got %v", c.about, err)
		}
		var left []string
		for _, d := range p.Survey(t.Context(), "vg0", true).Devices {
			if d.Left && strings.Contains(d.Misplaced, "is a part of vg0/pool, which LVM does not activate") {
				left = append(left, d.Name)
			}
		}
		slices.Sort(left)
		if got := strings.Join(left, " "); got != c.left {
			t.Errorf("%s: reported %q", c.about, got)
		}
	}
}

// An interrupted activation or deactivation leaves some devices of a cache, and LVM does not activate the
// volume until they are removed, from the top.
func TestLeftCache(t *testing.T) {
	t.Parallel()
	type device struct {
		lv, layer string
		open      int
		on        string // the number of that below
	}
	cvol := map[string]string{"a_corig": "linear private,cache,origin", "fast_cvol": "linear private,cache,pool,data"}
	cpool := map[string]string{"a_corig": "linear private,cache,origin", "fast_cpool": "cache,pool private", "fast_cpool_cdata": "linear private,cache,pool,data", "fast_cpool_cmeta": "linear private,cache,pool,metadata"}
	whole := []device{{"fast_cvol", "", 2, "254:0"}, {"fast_cvol", "-cdata", 0, "253:0"}, {"fast_cvol", "-cmeta", 0, "253:0"}}
	for _, c := range []struct {
		about string
		lvs   map[string]string
		cache string
		left  []device
		says  string
		check string // the first one, as flexd check has it
	}{
		{"a cachevol", cvol, "fast_cvol", []device{{"fast_cvol", "", 0, "254:0"}}, "dmsetup remove vg0-fast_cvol", "fast_cvol"},
		{"the devices of a cachevol", cvol, "fast_cvol", whole, "dmsetup remove vg0-fast_cvol-cdata vg0-fast_cvol-cmeta vg0-fast_cvol", "fast_cvol"},
		{"with another user", cvol, "fast_cvol", append([]device{{"fast_cvol", "", 3, "254:0"}}, whole[1:]...), "dmsetup remove vg0-fast_cvol-cdata vg0-fast_cvol-cmeta", "fast_cvol"},
		{"a cache pool", cpool, "fast_cpool", []device{{"fast_cpool_cmeta", "", 0, "254:0"}, {"a_corig", "", 0, "254:0"}}, "dmsetup remove vg0-a_corig vg0-fast_cpool_cmeta", "a_corig fast_cpool_cmeta"},
		{"of an active volume", cpool, "fast_cpool", []device{{"fast_cpool_cmeta", "", 0, "254:0"}, {"a", "", 0, "254:0"}}, "", ""},
	} {
		f, p := newFake(t, 0)
		f.lvs["a"] = &fakeLV{uuid: fakeUUID(1), size: 8 * mib, layout: "cache", role: "public", pool: "[" + c.cache + "]", origin: "[a_corig]"}
		for i, name := range slices.Sorted(maps.Keys(c.lvs)) {
			layout, role, _ := strings.Cut(c.lvs[name], " ")
			f.lvs["["+name+"]"] = &fakeLV{uuid: fakeUUID(2 + i), size: 8 * mib, layout: layout, role: role}
		}
		for i, d := range c.left {
			lv := cmp.Or(f.lvs["["+d.lv+"]"], f.lvs[d.lv])
			m := devmapper.Mapped{Name: "vg0-" + d.lv + d.layer, UUID: dmUUID(lv.uuid) + d.layer, Number: fmt.Sprintf("253:%d", i), Open: d.open, Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 4 * mib, Params: d.on + " 0"}}}
			f.devices[m.UUID] = m
		}
		facts, err := parseReport([]byte(f.report()), "vg0")
		if err != nil {
			t.Fatal(err)
		}
		if got := p.activationBlocker(facts, "a"); !strings.HasSuffix(got, c.says) || c.says == "" && got != "" {
			t.Errorf("%s: got %q", c.about, got)
		}
		var left []string
		for _, d := range p.Survey(t.Context(), "vg0", true).Devices {
			if d.Left && strings.Contains(d.Misplaced, "is a part of vg0/a, which LVM does not activate") {
				left = append(left, d.Name)
			}
		}
		slices.Sort(left)
		if got := strings.Join(left, " "); got != c.check {
			t.Errorf("%s: reported %q", c.about, got)
		}
	}
}

// LVM checks the metadata of a cache before an activation. If that fails, each attempt reports the damage and
// its remedy, not the parts that LVM leaves.
func TestDamagedCache(t *testing.T) {
	t.Parallel()
	f, p := newFake(t, 0)
	f.lvs["a"] = &fakeLV{uuid: fakeUUID(1), size: 8 * mib, layout: "cache", role: "public", pool: "[fast_cvol]", origin: "[a_corig]"}
	f.lvs["[a_corig]"] = &fakeLV{uuid: fakeUUID(2), size: 8 * mib, layout: "linear", role: "private,cache,origin"}
	f.lvs["[fast_cvol]"] = &fakeLV{uuid: fakeUUID(3), size: 8 * mib, layout: "linear", role: "private,cache,pool,data"}
	f.broken["a"] = "Check of pool vg0/fast_cvol failed (status:1). Manual repair required!"
	f.hook = f.dmsetupRemove
	for range 2 {
		for i, name := range []string{"a_corig", "fast_cvol"} {
			uuid := dmUUID(fakeUUID(2+i)) + []string{"-real", ""}[i]
			f.devices[uuid] = devmapper.Mapped{Name: "vg0-" + name, UUID: uuid, Number: fmt.Sprintf("253:%d", i), Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 4 * mib, Params: "254:0 0"}}}
		}
		err := p.Activate(t.Context(), "", f.lookUp(p, "a"))
		is(t, err, nil, "Manual repair required!: the metadata of its cache is damaged", "lvconvert --uncache vg0/a, then")
		if len(f.devices) > 0 || strings.Contains(err.Error(), "dmsetup remove") {
			t.Errorf("left %v: %v", f.devices, err)
		}
	}
	f.broken["a"] = "Check of pool vg0/fast_cvol failed (status:1)."
	if err := p.Activate(t.Context(), "", f.lookUp(p, "a")); strings.Contains(err.Error(), "uncache") {
		t.Errorf("another failure: got %v", err)
	}
}
