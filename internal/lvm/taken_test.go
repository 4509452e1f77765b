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

// An active volume is taken if this node has locked or mounted it, nodes do not share it for reading, and its
// device did not change while the lock was read.
func TestTaken(t *testing.T) {
	t.Parallel()
	f, p, locks := newShared(t, 6)
	f.lvs["v3"].attr, f.lvs["v3"].layout = "-ri-a-----", "linear"
	var lvs []volume.LV
	for i := range 6 {
		lvs = append(lvs, f.lookUp(p, fmt.Sprintf("v%d", i)))
		if i != 2 {
			if err := p.Activate(t.Context(), "", lvs[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.forgetLock(lvs[1].UUID) // mounted by an earlier flexd
	p.forgetLock(lvs[4].UUID) // an operator's
	taken := func(mounted ...volume.UUID) (names []string) {
		t.Helper()
		all, err := p.Taken(t.Context(), "vg0", mounted)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range all {
			if v.Holder.Host != "b" || v.Fenced || v.Number == "" {
				t.Errorf("%+v", v)
			}
			names = append(names, v.Name.LV)
		}
		slices.Sort(names)
		return names
	}
	if got := taken(lvs[1].UUID); len(got) > 0 {
		t.Errorf("%v while no other node has a lock", got)
	}
	for i := range 5 {
		f.others[fmt.Sprintf("v%d", i)] = "ex"
	}
	if d := device(t, p, lvs[0]); d.Unlocked || d.Unusable {
		t.Errorf("%+v", d)
	}
	locks.before = func() { // v0 is activated anew while the locks are read
		m := f.devices[dmUUID(lvs[0].UUID)]
		m.Number = "253:77"
		f.devices[m.UUID] = m
	}
	if got := taken(lvs[1].UUID); !slices.Equal(got, []string{"v1"}) {
		t.Errorf("%v while a device changes", got)
	}
	locks.before = nil
	m := f.devices[dmUUID(lvs[0].UUID)]
	m.Number = p.locked[lvs[0].UUID].number
	f.devices[m.UUID] = m
	if got := taken(lvs[1].UUID); !slices.Equal(got, []string{"v0", "v1"}) {
		t.Errorf("%v", got)
	}
	if d := device(t, p, lvs[0]); !d.Unusable || !strings.Contains(d.Reason, "host b (host id 2) has now") {
		t.Errorf("%+v", d)
	}
	if got := taken(); !slices.Equal(got, []string{"v0", "v1"}) {
		t.Errorf("%v when it has no mount any more", got)
	}
	f.mu.Lock()
	delete(f.devices, dmUUID(lvs[0].UUID))
	f.mu.Unlock()
	if d := device(t, p, lvs[0]); d.Unusable {
		t.Errorf("%+v", d)
	}
	if got := taken(); !slices.Equal(got, []string{"v1"}) {
		t.Errorf("%v when it is not active", got)
	}
}

// lvmlockd grants a lock that it has without reading the disk, where another node may have taken it while
// this node was paused. So a device that was active before flexd locked it is used only if the disk has the
// lock, too.
func TestActivateTaken(t *testing.T) {
	t.Parallel()
	f, p, locks := newShared(t, 1)
	v := f.lookUp(p, "v0")
	if err := p.Activate(t.Context(), "", v); err != nil {
		t.Fatal(err)
	}
	p.forgetLock(v.UUID) // an operator's
	f.others["v0"] = "ex"
	locks.known = false
	if err := p.Activate(t.Context(), "", v); err == nil || !strings.Contains(err.Error(), "another host took over its lock, which host b (host id 2) has now") {
		t.Error(err)
	}
	if d := device(t, p, v); !d.Unusable {
		t.Errorf("%+v", d)
	}
}

// A fence stops a RAID's parts before the RAID, so that it cannot write to the parts that it removes.
func TestFence(t *testing.T) {
	t.Parallel()
	f, p := newFake(t, 2)
	device := func(name, uuid, number, target, params string) {
		f.devices[uuid] = devmapper.Mapped{Name: name, UUID: uuid, Number: number, Open: 1, Live: true, Targets: []devmapper.Target{{Type: target, Length: 8 * mib, Params: params}}}
	}
	device("mpath", "mpath-x", "253:9", "multipath", "8:0 8:16")
	device("vg0-v0", dmUUID(fakeUUID(0)), "253:0", "linear", "253:9 2048")
	device("vg0-v1", dmUUID(fakeUUID(1)), "253:1", "raid", "raid1 3 0 region_size 4096 2 253:2 253:3 253:4 253:5")
	for i, part := range []string{"rmeta_0", "rimage_0", "rmeta_1", "rimage_1"} {
		device("vg0-v1_"+part, dmUUID(fakeUUID(11+i)), fmt.Sprintf("253:%d", i+2), "linear", "253:9 4096")
	}
	device("vg0-v2", dmUUID(fakeUUID(2)), "253:20", "thin", "253:22 1")
	device("vg0-v3", dmUUID(fakeUUID(3)), "253:21", "thin", "253:22 2")
	device("vg0-pool-tpool", dmUUID(fakeUUID(20))+"-tpool", "253:22", "thin-pool", "253:23 253:24 128 0 0")
	device("vg0-pool_tmeta", dmUUID(fakeUUID(21))+"-tmeta", "253:23", "linear", "253:9 6144")
	device("vg0-pool_tdata", dmUUID(fakeUUID(22))+"-tdata", "253:24", "linear", "253:9 8192")
	device("other-pv", strings.Replace(dmUUID(fakeUUID(30)), "LVM-VGVGVG", "LVM-OTHERS", 1), "253:30", "linear", "8:32 2048")
	device("vg0-v4", dmUUID(fakeUUID(4)), "253:31", "linear", "253:30 2048")
	device("vg0-v5", dmUUID(fakeUUID(5)), "253:40", "snapshot-origin", "253:41")
	device("vg0-v5-real", dmUUID(fakeUUID(5))+"-real", "253:41", "linear", "253:9 10240")
	device("vg0-v6", dmUUID(fakeUUID(6)), "253:42", "snapshot", "253:41 253:43 P 8")
	device("vg0-v6-cow", dmUUID(fakeUUID(6))+"-cow", "253:43", "linear", "253:9 12288")
	device("vg0-v7", dmUUID(fakeUUID(7)), "253:50", "snapshot-origin", "253:51")
	device("vg0-v7-real", dmUUID(fakeUUID(7))+"-real", "253:51", "raid", "raid1 3 0 region_size 4096 1 - 253:52")
	device("vg0-v7_rimage_0", dmUUID(fakeUUID(31)), "253:52", "integrity", "253:53 0 32 J 3 meta_device:253:54 block_size:512 internal_hash:crc32c")
	device("vg0-v7_rimage_0_iorig", dmUUID(fakeUUID(32)), "253:53", "linear", "253:9 14336")
	device("vg0-v7_rimage_0_imeta", dmUUID(fakeUUID(33)), "253:54", "linear", "253:9 16384")
	device("vg0-v8", dmUUID(fakeUUID(8)), "253:55", "snapshot", "253:51 253:56 P 8")
	device("vg0-v8-cow", dmUUID(fakeUUID(8))+"-cow", "253:56", "linear", "253:9 18432")
	var ran []string
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		if c.Lock == "" || !c.Mutates || c.Deadline == 0 {
			t.Errorf("%+v", c)
		}
		ran = append(ran, strings.Join(c.Argv, " "))
		return run.Result{}, nil, true
	}
	for i, want := range map[int][]string{
		0: {"dmsetup wipe_table --noflush --nolockfs --noudevsync vg0-v0"},
		1: {
			"dmsetup suspend --noflush --nolockfs --noudevsync vg0-v1_rmeta_0 vg0-v1_rimage_0 vg0-v1_rmeta_1 vg0-v1_rimage_1",
			"dmsetup wipe_table --noflush --nolockfs --noudevsync vg0-v1_rmeta_0 vg0-v1_rimage_0 vg0-v1_rmeta_1 vg0-v1_rimage_1 vg0-v1",
		},
		2: { // the pool is not wiped: its other volumes would hang
			"dmsetup suspend --noflush --nolockfs --noudevsync vg0-pool_tmeta vg0-pool_tdata",
			"dmsetup wipe_table --noflush --nolockfs --noudevsync vg0-pool_tmeta vg0-pool_tdata vg0-v2",
		},
		5: { // with its snapshot, which would write that it is invalid
			"dmsetup suspend --noflush --nolockfs --noudevsync vg0-v5-real vg0-v6-cow",
			"dmsetup wipe_table --noflush --nolockfs --noudevsync vg0-v5-real vg0-v6-cow vg0-v5",
		},
		7: { // the same on a RAID with checksums
			"dmsetup suspend --noflush --nolockfs --noudevsync vg0-v7_rimage_0_iorig vg0-v7_rimage_0_imeta vg0-v8-cow",
			"dmsetup wipe_table --noflush --nolockfs --noudevsync vg0-v7_rimage_0_iorig vg0-v7_rimage_0_imeta vg0-v8-cow vg0-v7",
		},
		4: {"dmsetup wipe_table --noflush --nolockfs --noudevsync vg0-v4"}, // its disk is a volume of another group
	} {
		if ran = nil; p.Fence(t.Context(), volume.Taken{UUID: fakeUUID(i)}) != nil || !slices.Equal(ran, want) {
			t.Errorf("%q", ran)
		}
	}
	if err := p.Fence(t.Context(), volume.Taken{UUID: fakeUUID(9)}); err != nil {
		t.Errorf("of a volume without a device: %v", err)
	}
}

// Parts that LVM leaves of a fenced volume are removed with it, unless they are open.
func TestDeactivateFenced(t *testing.T) {
	t.Parallel()
	f, p := newFake(t, 2)
	f.hook = f.dmsetupRemove
	device := func(name, uuid, number, target string, open int) {
		f.devices[uuid] = devmapper.Mapped{Name: name, UUID: uuid, Number: number, Open: open, Live: true, Targets: []devmapper.Target{{Type: target, Length: 8 * mib}}}
	}
	device("vg0-v0", dmUUID(fakeUUID(0)), "253:0", "error", 0)
	device("vg0-fast_cvol", dmUUID(fakeUUID(11))+"-cvol", "253:1", "error", 0)
	device("vg0-v0_wcorig", dmUUID(fakeUUID(12))+"-real", "253:2", "error", 1)
	device("vg0-r_rimage_0", dmUUID(fakeUUID(13)), "253:3", "linear", 0)
	device("vg0-v1", dmUUID(fakeUUID(1)), "253:4", "error", 0)
	lv := volume.LV{Name: volume.Name{VG: "vg0", LV: "v0"}, UUID: fakeUUID(0)}
	if err := p.Deactivate(t.Context(), "", lv, volume.Device{Activity: volume.Active}); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, m := range f.devices {
		left = append(left, m.Name)
	}
	slices.Sort(left)
	if !slices.Equal(left, []string{"vg0-r_rimage_0", "vg0-v0_wcorig", "vg0-v1"}) {
		t.Errorf("%q", left)
	}
}

// A device without a live table gets its loaded one at a resume.
func TestFenced(t *testing.T) {
	for types, want := range map[string]bool{"": false, "error": true, "error error": true, "linear": false, "error linear": false} {
		var m devmapper.Mapped
		for _, kind := range strings.Fields(types) {
			m.Targets = append(m.Targets, devmapper.Target{Type: kind})
		}
		if got := fenced(m); got != want {
			t.Errorf("%q: %v", types, got)
		}
	}
}

// Before the first write flexd reads the lock on the disk, and its managers must run.
func TestHasLock(t *testing.T) {
	t.Parallel()
	f, p, locks := newShared(t, 1)
	lv := f.lookUp(p, "v0")
	if err := p.Activate(t.Context(), "", lv); err != nil {
		t.Fatal(err)
	}
	if err := p.HasLock(t.Context(), lv); err != nil {
		t.Error(err)
	}
	f.others["v0"] = "ex"
	if err := p.HasLock(t.Context(), lv); volume.CodeOf(err) != volume.Busy || !strings.Contains(err.Error(), "took over its lock") {
		t.Errorf("another node has taken it: %v", err)
	}
	delete(f.others, "v0")
	locks.unread = errors.New("input/output error")
	if err := p.HasLock(t.Context(), lv); volume.CodeOf(err) != volume.Unknown || !strings.Contains(err.Error(), "lvchange -an vg0/v0") {
		t.Errorf("it cannot be read: %v", err)
	}
	lockType := f.lockType
	f.lockType = "dlm"
	p.Invalidate("vg0")
	if g, err := p.configured("vg0"); err != nil {
		t.Fatal(err)
	} else if _, _, err := g.look(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if err := p.HasLock(t.Context(), lv); err != nil {
		t.Errorf("dlm has no lease that could be read: %v", err)
	}
	f.lockType = lockType
	locks.unread, locks.ready = nil, errors.New("sanlock does not run")
	if err := p.HasLock(t.Context(), lv); !errors.Is(err, locks.ready) {
		t.Errorf("its lock manager does not run: %v", err)
	}
}

// The lock of a thick snapshot of a thin volume is that of the pool.
func TestLockOfThickSnapshotOfThin(t *testing.T) {
	t.Parallel()
	f, p, _ := newShared(t, 3)
	f.lvs["v0"].layout, f.lvs["v0"].role = "thin,pool", "private"
	f.lvs["v1"].layout, f.lvs["v1"].role, f.lvs["v1"].pool = "thin,sparse", "public,origin,thickorigin", "v0"
	f.lvs["v2"].layout, f.lvs["v2"].role, f.lvs["v2"].origin = "linear", "public,snapshot,thicksnapshot", "v1"
	lv := f.lookUp(p, "v2")
	if err := p.Activate(t.Context(), "", lv); err != nil {
		t.Fatal(err)
	}
	if err := p.HasLock(t.Context(), lv); err != nil {
		t.Error(err)
	}
	f.others["v0"] = "ex"
	if w := waits(t, p.WouldWait(t.Context(), lv), "another host has it active"); w.Holder == nil || w.Holder.Host != "b" {
		t.Errorf("%+v", w)
	}
	if err := p.HasLock(t.Context(), lv); volume.CodeOf(err) != volume.Busy || !strings.Contains(err.Error(), "took over its lock") {
		t.Error(err)
	}
	if all, err := p.Taken(t.Context(), "vg0", nil); len(all) != 1 || all[0].Name.LV != "v2" || err != nil {
		t.Errorf("%+v %v", all, err)
	}
	// A lock that the metadata does not have cannot be read.
	delete(f.lvs, "v0")
	if err := p.Refresh(t.Context(), "vg0"); err != nil {
		t.Fatal(err)
	}
	if err := p.HasLock(t.Context(), lv); volume.CodeOf(err) != volume.Unknown || !strings.Contains(err.Error(), "the metadata has no lock for it") {
		t.Error(err)
	}
}
