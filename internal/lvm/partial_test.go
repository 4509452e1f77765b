package lvm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// loses removes a disk with extents of these volumes and parts. LVM reports the volumes above as partial.
func (f *fakeLVM) loses(partial string, parts ...string) {
	f.missing = 1
	f.pvs = `{"pv_name":"[unknown]","pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-PVPVPV","pv_missing":"missing","pv_allocatable":"allocatable","pv_size":"2143289344","pv_free":"0","pv_tags":""}`
	var rows []string
	for i, part := range parts {
		lv := f.lvs[part]
		lv.health = "partial"
		rows = append(rows, fmt.Sprintf(`{"pv_name":"[unknown]","pe_start":"1048576","pvseg_start":"%d","pvseg_size":"1","lv_uuid":%q}`, i, lv.uuid.Earlier()))
	}
	for name := range strings.FieldsSeq(partial) {
		f.lvs[name].health = "partial"
	}
	f.gaps = strings.Join(rows, ",")
}

// See TestDeadDisk of test/e2e, which tests the same with LVM.
func TestPartial(t *testing.T) {
	t.Parallel()
	const (
		repair = "lvconvert --repair vg0/"
		drop   = "lvremove -y --config activation/activation_mode=partial vg0/s"
	)
	raid := func(name, layout string, legs int) (all []string) {
		all = append(all, name+" "+layout)
		for i := range legs {
			bare := strings.Trim(name, "[]")
			all = append(all, fmt.Sprintf("[%s_rimage_%d] linear private", bare, i), fmt.Sprintf("[%s_rmeta_%d] linear private", bare, i))
		}
		return all
	}
	pool := slices.Concat(raid("[p_tdata]", "raid,raid1 private", 2), raid("[p_tmeta]", "raid,raid1 private", 2), []string{"p thin,pool private", "v thin,sparse public p"})
	snapshot := []string{"v linear public,origin,thickorigin", "s linear public,snapshot,thicksnapshot - v"}
	merging := []string{"v linear public,origin,thickorigin", "[s] linear private,snapshot,thicksnapshot - v"}
	cached := slices.Concat(raid("[v_corig]", "raid,raid1 private", 2), raid("[c_cvol]", "raid,raid1,cache,cachevol private", 2), []string{"v cache public [c_cvol] [v_corig]"})
	integrity := slices.Concat(raid("v", "raid,raid1 public", 2), []string{"[v_rimage_0_imeta] linear private", "[v_rimage_1_iorig] linear private"})
	for _, c := range []struct {
		name     string
		lvs      []string // NAME LAYOUT ROLE [POOL|- [ORIGIN]]
		partial  string
		lost     []string
		refused  string // inactive
		inUse    string // active
		stays    string // why it is not deactivated
		reported string
	}{
		{"a thin volume on RAIDs", pool, "[p_tdata] [p_tmeta] p v", []string{"[p_tdata_rimage_1]", "[p_tdata_rmeta_1]", "[p_tmeta_rimage_1]"},
			"lvchange -ay -K --activationmode partial vg0/v, then " + repair + "p_tdata, then " + repair + "p_tmeta", "",
			"a copy of vg0/p_tdata and vg0/p_tmeta is on a disk that is missing (PV PVPVPV-", "a copy of vg0/p_tdata and vg0/p_tmeta|" + repair + "p_tdata, then " + repair + "p_tmeta"},
		{"both legs of a RAID below it", pool, "[p_tdata] p v", []string{"[p_tdata_rimage_1]", "[p_tdata_rmeta_0]"}, "it has extents on", "it has extents on", "it has extents on", "|"},
		{"a cache on RAIDs", cached, "[v_corig] [c_cvol] v", []string{"[v_corig_rimage_0]", "[c_cvol_rimage_0]"},
			"lvchange -ay -K --activationmode partial vg0/v, then " + repair + "c_cvol, then " + repair + "v_corig", "", "a copy of vg0/c_cvol and vg0/v_corig", "a copy of vg0/c_cvol and vg0/v_corig|" + repair},
		{"a cache", []string{"[v_corig] linear private", "[c_cvol] cache,cachevol private", "v cache public [c_cvol] [v_corig]"}, "v", []string{"[c_cvol]"}, "it has extents on", "it has extents on", "it has extents on", "|"},
		{"the snapshot of an origin", snapshot, "v", []string{"s"}, drop, "", drop, "the space of its snapshot vg0/s|" + drop},
		{"another snapshot of its origin", []string{"o linear public,origin,thickorigin", "s linear public,snapshot,thicksnapshot - o", "v linear public,snapshot,thicksnapshot - o"}, "o", []string{"s"},
			"vg0/o is partial: the space of its snapshot vg0/s", "", drop, "|"},
		{"a snapshot that is merged into it", merging, "v", []string{"[s]"}, "it has extents on", "it has extents on", "it has extents on", "|"},
		{"the snapshot of a RAID", slices.Concat(raid("v", "raid,raid1 public,origin,thickorigin", 2), snapshot[1:]), "v", []string{"s"}, drop, "", drop, "the space of its snapshot vg0/s|" + drop},
		{"a leg of a RAID", raid("v", "raid,raid1 public", 2), "v", []string{"[v_rimage_1]", "[v_rmeta_1]"}, "", "", "", "|"},
		{"both legs of it", raid("v", "raid,raid1 public", 2), "v", []string{"[v_rimage_1]", "[v_rmeta_0]"}, "it has extents on", "it has extents on", "it has extents on", "|"},
		{"two legs of four", raid("v", "raid,raid10 public", 4), "v", []string{"[v_rimage_0]", "[v_rimage_3]"}, "", "", "", "|"},
		{"two legs with the same data", raid("v", "raid,raid10 public", 4), "v", []string{"[v_rimage_2]", "[v_rimage_3]"}, "it has extents on", "it has extents on", "it has extents on", "|"},
		{"two legs of a raid6", raid("v", "raid,raid6,raid6_zr public", 5), "v", []string{"[v_rimage_2]", "[v_rimage_3]"}, "", "", "", "|"},
		{"two legs of a raid5", raid("v", "raid,raid5,raid5_ls public", 3), "v", []string{"[v_rimage_1]", "[v_rimage_2]"}, "it has extents on", "it has extents on", "it has extents on", "|"},
		{"a leg of a raid0", raid("v", "raid,raid0 public", 2), "v", []string{"[v_rimage_1]"}, "it has extents on", "it has extents on", "it has extents on", "|"},
		{"a leg of a raid0_meta", raid("v", "raid public", 2), "v", []string{"[v_rimage_1]", "[v_rmeta_1]"}, "it has extents on", "it has extents on", "it has extents on", "|"},
		{"a leg of a RAID with integrity", integrity, "v [v_rimage_1]", []string{"[v_rimage_1_iorig]", "[v_rmeta_1]"}, "lvconvert -y --raidintegrity n vg0/v", "", repair + "v", "|"},
		{"a copy of a mirror", []string{"v mirror public", "[v_mimage_0] linear private", "[v_mimage_1] linear private"}, "v", []string{"[v_mimage_1]"},
			"lvchange -ay -K --activationmode partial vg0/v, then " + repair + "v", "", repair + "v", "a copy of vg0/v|" + repair},
		{"extents of its own", []string{"v linear public"}, "v", []string{"v"}, "it has extents on", "it has extents on", "it has extents on", "|"},
		{"the reserve of a pool with such a name", append(raid("v", "raid,raid1 public", 2), "[v_pmspare] linear private"), "v", []string{"[v_rimage_1]", "[v_pmspare]"}, "", "", "", "|"},
		{"the origin of a snapshot", []string{"o linear public,origin,thickorigin", "v linear public,snapshot,thicksnapshot - o"}, "o", []string{"o"},
			"vg0/o is partial: it has extents on", "vg0/o is partial: it has extents on", "it has extents on", "|"},
		{"an external origin", append(pool[:len(pool)-1:len(pool)-1], "v thin,sparse public p e", "e linear public,origin,thickorigin"), "[p_tdata] p v e", []string{"[p_tdata_rimage_1]", "e"},
			"it has extents on", "it has extents on", "it has extents on", "|"},
		{"a part of what is not known", append(snapshot[:2:2], "[pvmove0] linear private"), "v", []string{"s", "[pvmove0]"}, "it has extents on", "it has extents on", "it has extents on", "|"},
		{"a writecache on a RAID", slices.Concat([]string{"[v_wcorig] linear private"}, raid("[c_cvol]", "raid,raid1,writecache,cachevol private", 2), []string{"v writecache public [c_cvol] [v_wcorig]"}), "[c_cvol] v", []string{"[c_cvol_rimage_0]"},
			"does not activate it while a disk is missing: bring the disk back (pvs, dmesg), or let LVM see it again", "", repair + "c_cvol", "a copy of vg0/c_cvol|" + repair},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, p := newFake(t, 0)
			for i, text := range c.lvs {
				w := append(strings.Fields(text), "", "")
				size := int64(8 * mib)
				if strings.Contains(w[1], "raid10") {
					size *= 2
				}
				f.lvs[w[0]] = &fakeLV{uuid: fakeUUID(i), size: size, layout: w[1], role: w[2], pool: strings.Trim(w[3], "-"), origin: w[4]}
			}
			f.loses(c.partial, c.lost...)
			check := func(what, got, want string) {
				t.Helper()
				if (got == "") != (want == "") || !strings.Contains(got, want) {
					t.Errorf("%s: got %q, want %q", what, got, want)
				}
			}
			check("inactive", f.lookUp(p, "v").Reason, c.refused)
			uuid := dmUUID(f.lvs["v"].uuid)
			table := devmapper.Target{Type: "linear", Length: f.lvs["v"].size, Params: "8:0 2048"}
			if strings.Contains(f.lvs["v"].role, "thicksnapshot") {
				table.Type, table.Params = "snapshot", "8:0 8:1 P 8"
			}
			f.devices[uuid] = devmapper.Mapped{Name: "vg0-v", UUID: uuid, Number: "253:0", Live: true, Targets: []devmapper.Target{table}}
			lv := f.lookUp(p, "v")
			check("active", lv.Reason, c.inUse)
			for _, v := range p.Survey(t.Context(), "vg0", true).Volumes {
				lost, remedy, _ := strings.Cut(c.reported, "|")
				if v.Name == "v" && (v.Lost != lost || (v.Remedy == "") != (remedy == "") || !strings.Contains(v.Remedy, remedy) || v.Stays != (c.stays != "") || (v.Missing != "") != (f.lvs["v"].health != "" || c.inUse != "") || v.Partly != (c.inUse != "")) {
					t.Errorf("survey: got %+v", v)
				}
			}
			f.commands()
			got := ""
			if err := p.Deactivate(t.Context(), "", lv, volume.Device{}); err != nil {
				got = err.Error()
			}
			check("deactivation", got, c.stays)
			if ran := slices.Contains(f.commands(), "lvchange"); ran != (c.stays == "") {
				t.Errorf("deactivated: %v", ran)
			}
		})
	}
}

// No event reports that a partition was made smaller. A volume with a part beyond its end stays active, and is
// given to no pod; a RAID with another leg is given to pods while it is active. All are as before once the disk
// has its size back.
func TestPartialShort(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk")
	sh := func(script string) string {
		out, err := exec.Command("sh", "-ec", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %s", script, out)
		}
		return strings.TrimSpace(string(out))
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and loop devices")
	}
	loop := sh("truncate -s 64M " + file + "; losetup -f --show " + file)
	defer exec.Command("losetup", "-d", loop).Run()
	f, p := newFake(t, 0)
	f.pvs = fmt.Sprintf(`{"pv_name":%q,"pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-PVPVPV","pv_missing":"","pv_allocatable":"allocatable","pv_size":"66060288","pv_free":"0","pv_tags":""}`, loop)
	var rows []string
	for i, c := range []struct {
		name, layout, role, origin string
		start, size                int // extents on the disk
	}{
		{"rest", "linear", "public", "", 0, 2}, {"v", "linear", "public", "", 3, 2}, // its second extent is beyond the end
		{"r", "raid,raid1", "public", "", 0, 0}, {"[r_rimage_0]", "linear", "private", "", 2, 1}, {"[r_rimage_1]", "linear", "private", "", 5, 1},
		{"o", "linear", "public,origin,thickorigin", "", 0, 0}, {"s", "linear", "public,snapshot,thicksnapshot", "o", 6, 1},
		{"m", "linear", "public", "", 0, 0}, {"[pvmove0]", "mirror", "private,pvmove", "", 7, 2}, // pvmove moves m
		{"n", "linear", "public", "", 0, 0}, // another pvmove moves it between other disks
	} {
		lv := &fakeLV{uuid: fakeUUID(i), size: 8 * mib, layout: c.layout, role: c.role, origin: c.origin}
		lv.attr = map[string]string{"m": "-wI-XX----", "n": "-wI-XX----", "[pvmove0]": "p-C-XXm---"}[c.name]
		f.lvs[c.name] = lv
		if c.size > 0 {
			rows = append(rows, fmt.Sprintf(`{"pv_name":%q,"pe_start":"1048576","pvseg_start":"%d","pvseg_size":"%d","lv_uuid":%q}`, loop, c.start, c.size, lv.uuid.Earlier()))
		}
	}
	f.gaps = strings.Join(rows, ",")
	f.segs = fmt.Sprintf(`{"lv_uuid":%q,"thin_id":"","devices":"pvmove0(0)"},{"lv_uuid":%q,"thin_id":"","devices":"[pvmove1](0)"}`, f.lvs["m"].uuid.Earlier(), f.lvs["n"].uuid.Earlier())
	const end = "beyond the end of a disk: the disk /dev/loop"
	names := []string{"rest", "v", "r", "m", "n", "o", "s"}
	reports := func(short bool, refused, stay string) {
		t.Helper()
		for _, name := range names {
			lv := f.lookUp(p, name)
			if want := strings.Contains(refused, name); (lv.Presence == volume.Foreign) != want || strings.Contains(lv.Reason, end) != want {
				t.Errorf("short %v: %s is %v: %s", short, name, lv.Presence, lv.Reason)
			}
		}
		for _, v := range p.Survey(t.Context(), "vg0", false).Volumes {
			if (v.CutOff != "") != strings.Contains(stay, v.Name) {
				t.Errorf("short %v: reported for %s: %s", short, v.Name, v.CutOff)
			}
		}
	}
	reports(false, "", "")
	sh("truncate -s 17M " + file + "; losetup -c " + loop)
	reports(true, "v r m o s", "v r m o s")
	for i, name := range names[:4] {
		uuid := dmUUID(f.lvs[name].uuid)
		f.devices[uuid] = devmapper.Mapped{Name: "vg0-" + name, UUID: uuid, Number: fmt.Sprintf("253:%d", i), Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: fmt.Sprintf("8:4095 %d", i<<14)}}}
	}
	reports(true, "v m o s", "v r m o s")
	for name, stays := range map[string]bool{"rest": false, "v": true, "r": true, "m": true} {
		err := p.Deactivate(t.Context(), "", f.lookUp(p, name), volume.Device{})
		if (err != nil) != stays || stays && (!strings.Contains(err.Error(), "it stays active") || !strings.Contains(err.Error(), end)) {
			t.Errorf("deactivation of %s: %v", name, err)
		}
	}
	is(t, p.Deactivate(t.Context(), "", f.lookUp(p, "m"), volume.Device{}), nil, "pvmove moves vg0/m, or was interrupted; after that, to continue: pvmove")
	sh("truncate -s 64M " + file + "; losetup -c " + loop)
	reports(false, "", "")
	if err := p.Deactivate(t.Context(), "", f.lookUp(p, "v"), volume.Device{}); err != nil {
		t.Error(err)
	}
}

// In a shared group another node may have all disks: it gets the volume.
func TestPartialShared(t *testing.T) {
	t.Parallel()
	f, p := newFake(t, 1)
	f.loses("v0", "v0")
	uuid := dmUUID(fakeUUID(0))
	m := devmapper.Mapped{Name: "vg0-v0", UUID: uuid, Number: "253:0", Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: "8:1 2048"}}}
	f.devices[uuid] = m
	g, err := p.group("vg0")
	if err != nil {
		t.Fatal(err)
	}
	for _, shared := range []bool{false, true} {
		p.Groups = map[string]Group{"vg0": {Shared: shared}}
		if why := g.deviceUser(t.Context(), m, fakeUUID(0)); (why == "") != shared {
			t.Errorf("shared %v: got %q", shared, why)
		}
	}
}

// No event reports that LVM does not find a disk any more, such as one with an unreadable label, or that it
// finds one again. The volume's device need not show it.
func TestPartialUnnoticed(t *testing.T) {
	t.Parallel()
	f, p := newFake(t, 1)
	lv := f.lookUp(p, "v0")
	if err := f.activate(t.Context(), p, lv); err != nil {
		t.Fatal(err)
	}
	f.loses("v0", "v0")
	p.groups["vg0"].at = time.Now().Add(-2 * deactivateFactsAge)
	is(t, p.Deactivate(t.Context(), "", lv, volume.Device{}), nil, "it stays active", "it has extents on a disk that is missing")
	f.missing, f.gaps, f.pvs, f.lvs["v0"].health = 0, "", "", ""
	p.groups["vg0"].at = time.Now().Add(-2 * deactivateFactsAge)
	if err := p.Deactivate(t.Context(), "", lv, volume.Device{}); err != nil || len(f.devices) != 0 {
		t.Errorf("%v %+v", err, f.devices)
	}
}

// After a disk has disappeared from the kernel, its return needs another activation: only a volume with a
// part on another disk stays active.
func TestPartialGone(t *testing.T) {
	t.Parallel()
	for gone, stays := range map[string]bool{"8:1": true, "8:1 8:2": false} {
		f, p := newFake(t, 1)
		p.diskGone = func(number string) bool { return slices.Contains(strings.Fields(gone), number) }
		f.loses("v0", "v0")
		uuid := dmUUID(fakeUUID(0))
		f.devices[uuid] = devmapper.Mapped{Name: "vg0-v0", UUID: uuid, Number: "253:0", Live: true, Targets: []devmapper.Target{
			{Type: "linear", Length: 4 * mib, Params: "8:1 2048"}, {Type: "linear", Start: 4 * mib, Length: 4 * mib, Params: "253:9 2048"}}}
		f.devices["LVM-part"] = devmapper.Mapped{Name: "vg0-v0_part", UUID: "LVM-part", Number: "253:9", Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: "8:2 2048"}}}
		err := p.Deactivate(t.Context(), "", f.lookUp(p, "v0"), volume.Device{})
		if (err != nil) != stays {
			t.Errorf("%s: got %v", gone, err)
		}
	}
}
