package lvm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

const whole = "raid1 2 AA 16384/16384 idle 0 0 -"

// An error anywhere below a volume is found, a device that cannot be read is unknown, and a failed leg of a
// RAID does not make the volume unusable.
func TestTree(t *testing.T) {
	top := dmUUID(fakeUUID(0))
	thin := []string{
		"vg0-v0 253:9 thin 253:5 1", "vg0-pool-tpool 253:5 thin-pool 253:4 253:3 128 0 0",
		"vg0-pool_tmeta 253:4 linear 254:0 0", "vg0-pool_tdata 253:3 raid raid1 3 0 region_size 4096 2 253:1 253:0 253:1 253:2",
		"vg0-pool_tdata_rimage_0 253:0 linear 254:0 2048", "vg0-pool_tdata_rmeta_0 253:1 linear 254:0 1024", "vg0-pool_tdata_rimage_1 253:2 linear 254:16 2048",
	}
	cache := []string{
		"vg0-v0 253:9 cache 253:1 253:2 253:3 128 2 metadata2 writeback mq 0", "vg0-fast_cvol-cmeta 253:1 linear 253:0 0", "vg0-fast_cvol-cdata 253:2 linear 253:0 8192",
		"vg0-fast_cvol 253:0 linear 254:0 0", "vg0-v0_corig 253:3 raid raid5_ls 3 128 region_size 4096 3 - - 253:4 253:5 253:6 253:7",
		"vg0-v0_corig_rmeta_0 253:4 linear 254:0 0", "vg0-v0_corig_rimage_0 253:5 linear 254:0 8", "vg0-v0_corig_rmeta_1 253:6 linear 254:0 0", "vg0-v0_corig_rimage_1 253:7 linear 254:0 8",
	}
	const (
		room    = "1 12/1024 10/1000 - rw discard_passdown queue_if_no_space - 10"
		cached  = "8 27/1024 128 3/320 1 2 3 4 0 0 0 2 metadata2 writeback 2 migration_threshold 2048 smq 0 rw - "
		merging = "16/81920 16"
	)
	integrity := []string{
		"vg0-v0 253:9 raid raid1 3 0 region_size 4096 1 253:1 253:2", "vg0-v0_rmeta_0 253:1 linear 254:0 0",
		"vg0-v0_rimage_0 253:2 integrity 253:3 0 32 J 3 meta_device:253:4 block_size:512 internal_hash:crc32c", "vg0-v0_rimage_0_iorig 253:3 linear 254:0 8", "vg0-v0_rimage_0_imeta 253:4 linear 254:0 16",
	}
	raid1 := []string{
		"vg0-v0 253:9 raid raid1 3 0 region_size 4096 2 253:1 253:2 253:3 253:4", "vg0-v0_rmeta_0 253:1 linear 254:0 0", "vg0-v0_rimage_0 253:2 linear 254:0 8",
		"vg0-v0_rmeta_1 253:3 linear 254:16 0", "vg0-v0_rimage_1 253:4 linear 254:16 8",
	}
	merge := []string{"vg0-v0 253:9 snapshot-merge 253:1 253:2 P 8", "vg0-v0-real 253:1 linear 254:0 0", "vg0-s-cow 253:2 linear 254:0 9"}
	for _, c := range []struct {
		about   string
		devices []string
		state   map[string]string // name: status; or its target "error", or "unread"; or "table Fail", which hides the pool
		reason  string            // of Device; "" = it may be used
		survey  string            // words of Broken, Failed, Degraded, Differ or Unknown; "" = none of them
	}{
		{"thin on RAID", thin, map[string]string{"vg0-pool-tpool": room, "vg0-pool_tdata": whole}, "", ""},
		{"leg of the pool's RAID failed", thin, map[string]string{"vg0-pool-tpool": room, "vg0-pool_tdata": "raid1 2 AD 16384/16384 idle 0 0 -"}, "", "degraded 1 of 2 devices of the raid1 vg0/pool_tdata below it have failed"},
		{"leg of the pool's RAID is missing", thin, map[string]string{"vg0-pool-tpool": room, "vg0-pool_tdata": "raid1 2 AD 16384/16384 idle 0 0 -", "vg0-pool_tdata_rimage_1": "error"}, "", "degraded 1 of 2"},
		{"legs of the pool's RAID differ", thin, map[string]string{"vg0-pool-tpool": room, "vg0-pool_tdata": "raid1 2 AA 16384/16384 idle 128 0 -"}, "", "differ found 128 sectors"},
		{"a check of the RAID runs", thin, map[string]string{"vg0-pool-tpool": room, "vg0-pool_tdata": "raid1 2 AA 6384/16384 check 128 0 -"}, "", ""},
		{"pool metadata missing", thin, map[string]string{"vg0-pool-tpool": room, "vg0-pool_tdata": whole, "vg0-pool_tmeta": "error"}, `vg0-pool_tmeta has an "error" target`, "broken vg0-pool_tmeta"},
		{"pool full", thin, map[string]string{"vg0-pool-tpool": "1 12/1024 1000/1000 - out_of_data_space discard_passdown queue_if_no_space - 10", "vg0-pool_tdata": whole}, "thin pool vg0/pool: the pool is full", "failed thin pool vg0/pool: the pool is full"},
		{"pool failed", thin, map[string]string{"vg0-v0": "table Fail", "vg0-pool-tpool": "Fail", "vg0-pool_tdata": whole}, "thin pool vg0/pool: the pool has failed", "failed lvchange -an vg0/pool; lvchange -ay --config"},
		{"failed pool unread", thin, map[string]string{"vg0-v0": "table Fail", "vg0-pool-tpool": "unread", "vg0-pool_tdata": whole}, "253:5 below vg0-v0 cannot be inspected", "unknown 253:5 below vg0-v0"},
		{"pool unread", thin, map[string]string{"vg0-pool-tpool": "unread", "vg0-pool_tdata": whole}, "253:5 below vg0-v0 cannot be inspected", "unknown 253:5 below vg0-v0"},
		{"leg unread", thin, map[string]string{"vg0-pool-tpool": room, "vg0-pool_tdata": whole, "vg0-pool_tdata_rmeta_0": "unread"}, "253:1 below vg0-pool_tdata cannot be inspected", "unknown 253:1"},
		{"pool's state does not parse", thin, map[string]string{"vg0-pool-tpool": "1 2", "vg0-pool_tdata": whole}, "thin pool vg0/pool: its status does not parse", "unknown does not parse"},
		{"metadata of checksums unread", integrity, map[string]string{"vg0-v0": whole, "vg0-v0_rimage_0_imeta": "unread"}, "253:4 below vg0-v0_rimage_0 cannot be inspected", "unknown 253:4"},
		{"cache on RAID", cache, map[string]string{"vg0-v0": cached, "vg0-v0_corig": "raid5_ls 3 AAA 16384/16384 idle 0 0 -"}, "", ""},
		{"leg below a cache failed", cache, map[string]string{"vg0-v0": cached, "vg0-v0_corig": "raid5_ls 3 ADA 16384/16384 idle 0 0 -"}, "", "degraded 1 of 3 devices of the raid5_ls vg0/v0_corig below it"},
		{"legs below a cache gone and not in sync", cache, map[string]string{"vg0-v0": cached, "vg0-v0_corig": "raid5_ls 3 DaA 8192/16384 idle 0 0 -"}, "the raid5_ls vg0/v0_corig has lost data", "broken has lost data"},
		{"the only leg in sync is gone", raid1, map[string]string{"vg0-v0": "raid1 2 Aa 8192/16384 idle 0 0 -", "vg0-v0_rimage_0": "error"}, "has lost data: of its 2 legs (Aa) 1 have failed", "broken has lost data"},
		{"the leg that is not in sync is gone", raid1, map[string]string{"vg0-v0": "raid1 2 Aa 8192/16384 idle 0 0 -", "vg0-v0_rimage_1": "error"}, "", ""},
		{"a leg is rebuilt", raid1, map[string]string{"vg0-v0": "raid1 2 Aa 8192/16384 recover 0 0 -"}, "", ""},
		{"a leg is gone in the first synchronization", raid1, map[string]string{"vg0-v0": "raid1 2 aa 8192/16384 resync 0 0 -", "vg0-v0_rimage_0": "error"}, "", ""},
		{"cache failed", cache, map[string]string{"vg0-v0": "Fail", "vg0-v0_corig": "raid5_ls 3 AAA 16384/16384 idle 0 0 -"}, "", "failed the cache of vg0/v0 has failed"},
		{"cache must be checked", cache, map[string]string{"vg0-v0": strings.Replace(cached, "rw -", "rw needs_check", 1), "vg0-v0_corig": "raid5_ls 3 AAA 1/1 idle 0 0 -"}, "", "failed must be checked"},
		{"cache metadata read-only", cache, map[string]string{"vg0-v0": strings.Replace(cached, "rw -", "ro -", 1), "vg0-v0_corig": "raid5_ls 3 AAA 1/1 idle 0 0 -"}, "", "failed is read-only"},
		{"cache device unread", cache, map[string]string{"vg0-v0": cached, "vg0-fast_cvol": "unread"}, "253:0 below vg0-fast_cvol-cmeta", "unknown 253:0"},
		{"writecache", []string{"vg0-v0 253:9 writecache s 253:1 253:2 4096 0", "vg0-v0_wcorig 253:1 linear 254:0 0", "vg0-w_cvol 253:2 linear 254:0 9"}, map[string]string{"vg0-v0": "0 8191 8191 0 1"}, "", ""},
		{"writecache failed", []string{"vg0-v0 253:9 writecache s 253:1 253:2 4096 0", "vg0-v0_wcorig 253:1 linear 254:0 0", "vg0-w_cvol 253:2 linear 254:0 9"}, map[string]string{"vg0-v0": "-5 8191 8191 0 1"}, "", "failed the writecache of vg0/v0"},
		{"merging", merge, map[string]string{"vg0-v0": merging}, "", ""},
		{"merge failed", merge, map[string]string{"vg0-v0": "Merge failed"}, "", "failed vg0/v0: the merge of its snapshot has failed"},
		{"merge from a lost snapshot", merge, map[string]string{"vg0-v0": "Invalid"}, "whose contents are lost", "broken whose contents are lost"},
		{"half of a raid0 is missing", []string{"vg0-v0 253:9 raid raid0 1 128 2 - 253:1 - 253:2", "vg0-v0_rimage_0 253:1 linear 254:0 8", "vg0-v0_rimage_1 253:2 linear 254:0 8"},
			map[string]string{"vg0-v0": "raid0 2 AA 1/1 idle 0 0 -", "vg0-v0_rimage_1": "error"}, `vg0-v0_rimage_1 has an "error" target`, "broken vg0-v0_rimage_1"},
		{"leg of a mirror failed", []string{"vg0-v0 253:9 mirror core 1 1024 2 253:1 0 253:2 0 1 handle_errors", "vg0-v0_mimage_0 253:1 linear 254:0 8", "vg0-v0_mimage_1 253:2 linear 254:16 8"},
			map[string]string{"vg0-v0": "2 253:1 253:2 64/64 1 AD 1 core", "vg0-v0_mimage_1": "error"}, "", "degraded 1 of 2 devices of its mirror have failed"},
		{"pvmove", []string{"vg0-v0 253:9 linear 253:3 0", "vg0-pvmove0 253:3 mirror core 1 1024 2 254:0 0 254:16 0 1 handle_errors"},
			map[string]string{"vg0-pvmove0": "2 254:0 254:16 3/64 1 AA 1 core"}, "", ""},
		{"leg of a pvmove failed", []string{"vg0-v0 253:9 linear 253:3 0", "vg0-pvmove0 253:3 mirror core 1 1024 2 254:0 0 254:16 0"},
			map[string]string{"vg0-pvmove0": "2 254:0 254:16 3/64 1 DA 1 core"}, "", "failed 1 of 2 devices of pvmove's mirror vg0-pvmove0 have failed"},
		{"a PV is a device of device-mapper", []string{"vg0-v0 253:9 linear 253:1 2048", "mpatha 253:1 error -"}, nil, "", ""},
	} {
		t.Run(c.about, func(t *testing.T) {
			f, p := newFake(t, 1)
			f.status, f.failing = map[string]string{}, map[string]bool{}
			for i, line := range c.devices {
				w := strings.SplitN(line, " ", 4)
				m := devmapper.Mapped{Name: w[0], UUID: fmt.Sprintf("LVM-%d", i), Number: w[1], Live: true, Targets: []devmapper.Target{{Type: w[2], Length: 32 * mib, Params: w[3]}}}
				if i == 0 {
					m.UUID = top
				} else if w[0] == "mpatha" {
					m.UUID = "mpath-1"
				}
				switch state := c.state[m.Name]; state {
				case "":
				case "error":
					m.Targets[0].Type, m.Targets[0].Params = "error", ""
				case "unread":
					f.failing[m.UUID] = true
				case "table Fail":
					m.Below, m.Targets[0].Params = []string{"253:5"}, "Fail"
				default:
					f.status[m.UUID] = state
				}
				f.devices[m.UUID] = m
			}
			lv := f.lookUp(p, "v0")
			d, err := p.Device(t.Context(), lv)
			if err != nil || d.Activity != volume.Active || d.Unusable != (c.reason != "") || !strings.Contains(d.Reason, c.reason) {
				t.Errorf("device: got %+v %v", d, err)
			}
			all := p.Survey(t.Context(), "vg0", true).Devices
			if len(all) == 0 || all[0].UUID != lv.UUID {
				t.Fatalf("got %+v", all)
			}
			var got []string
			for name, text := range map[string]string{"broken": all[0].Broken, "failed": all[0].Failed, "degraded": all[0].Degraded, "differ": all[0].Differ, "unknown": all[0].Unknown} {
				if text != "" {
					got = append(got, name+" "+text)
				}
			}
			kind, words, _ := strings.Cut(c.survey, " ")
			if c.survey == "" && len(got) > 0 || c.survey != "" && (len(got) != 1 || !strings.HasPrefix(got[0], kind+" ") || !strings.Contains(got[0], words)) {
				t.Errorf("survey: got %q, want %q", got, c.survey)
			}
			if (all[0].Failed != "") != (all[0].Remedy != "") || all[0].Degraded != "" && (all[0].RAID == "" || all[0].Refresh != map[bool]string{true: "vg0/pool", false: "vg0/v0"}[strings.HasPrefix(all[0].RAID, "vg0/pool")]) {
				t.Errorf("no remedy: %+v", all[0])
			}
		})
	}
}

// A survey reads each device of a shared pool once.
func TestTreeShared(t *testing.T) {
	f, p := newFake(t, 40)
	counted := &countingDM{DM: f}
	p.DM = counted
	add := func(uuid, name, number, target, params string) {
		f.devices[uuid] = devmapper.Mapped{Name: name, UUID: uuid, Number: number, Live: true, Targets: []devmapper.Target{{Type: target, Length: 32 * mib, Params: params}}}
	}
	f.status = map[string]string{"LVM-tpool": "1 12/1024 10/1000 - rw discard_passdown queue_if_no_space - 10", "LVM-tdata": whole}
	add("LVM-tpool", "vg0-pool-tpool", "253:5", "thin-pool", "253:4 253:3 128 0 0")
	add("LVM-tmeta", "vg0-pool_tmeta", "253:4", "linear", "254:0 0")
	add("LVM-tdata", "vg0-pool_tdata", "253:3", "raid", "raid1 3 0 region_size 4096 2 253:1 253:0 - -")
	add("LVM-rmeta", "vg0-pool_tdata_rmeta_0", "253:1", "linear", "254:0 0")
	add("LVM-rimage", "vg0-pool_tdata_rimage_0", "253:0", "linear", "254:0 8")
	for i := range 40 {
		add(dmUUID(fakeUUID(i)), fmt.Sprintf("vg0-v%d", i), fmt.Sprintf("253:%d", 10+i), "thin", fmt.Sprintf("253:5 %d", i))
	}
	for _, c := range []struct {
		fresh bool
		reads int
	}{
		{true, 40 + 40 + 5 + 2}, // the report reads the tables of the volumes, too
		{false, 40 + 5 + 2},     // each device's table, and the states of the pool and the RAID
	} {
		counted.n = 0
		if s := p.Survey(t.Context(), "vg0", c.fresh); len(s.Devices) != 40 {
			t.Fatalf("got %+v", s)
		}
		if counted.n != c.reads {
			t.Errorf("fresh %v: %d reads, not %d", c.fresh, counted.n, c.reads)
		}
	}
}

// countingDM counts reads of single devices.
type countingDM struct {
	DM
	n int
}

func (c *countingDM) Device(key devmapper.Key) (devmapper.Mapped, error) {
	c.n++
	return c.DM.Device(key)
}
func (c *countingDM) Status(key devmapper.Key) (devmapper.Mapped, error) {
	c.n++
	return c.DM.Status(key)
}

// LVM shows the copy that lvconvert --trackchanges split off a RAID as a volume.
func TestSplit(t *testing.T) {
	t.Parallel()
	f, p := newFake(t, 1)
	f.lvs["[v0_rimage_0]"] = &fakeLV{uuid: fakeUUID(1), size: 8 * mib, layout: "linear", role: "private,raid,image", attr: "iwi-aor---"}
	f.lvs["v0_rimage_1"] = &fakeLV{uuid: fakeUUID(2), size: 8 * mib, layout: "linear", role: "private,raid,image", attr: "Iri-a-r---"}
	uuid := dmUUID(fakeUUID(0))
	f.devices[uuid] = devmapper.Mapped{Name: "vg0-v0", UUID: uuid, Number: "253:9", Live: true, Targets: []devmapper.Target{{Type: "raid", Length: 8 * mib, Params: "raid1 3 0 region_size 4096 2 253:0 253:1 - -"}}}
	f.status = map[string]string{uuid: "raid1 2 A- 16384/16384 idle 0 0 -"}
	if all := p.Survey(t.Context(), "vg0", true).Devices; len(all) != 1 || all[0].Degraded == "" || all[0].Split != "vg0/v0_rimage_1" {
		t.Errorf("got %+v", all)
	}
}
