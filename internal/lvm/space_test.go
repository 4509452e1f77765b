package lvm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// A volume of the size in Space can be created, and a volume that is one extent larger cannot.
func TestLargestVolume(t *testing.T) {
	const extent = 4 * mib
	thin := Group{ThinPool: "pool"}
	for name, row := range map[string]struct {
		group  Group
		free   int64
		limit  int64
		limits volume.Limits
		used   int // percent of the pool
		there  int // volumes that flexd has created
		maxLVs int
		want   int64
		why    string
	}{
		"free":           {free: 10 * extent, want: 10 * extent},
		"maxSize":        {free: 10 * extent, limit: 2*extent + 1, want: 2*extent + 1},
		"beyond maxSize": {free: 10 * extent, limit: 10*extent - 1, want: 10*extent - 1},
		"full":           {why: "no space in volume group vg0"},
		"maxTotalSize":   {free: 10 * extent, limits: volume.Limits{Group: volume.Limit{MaxTotalSize: 3*extent + 1}}, want: 3 * extent},
		"maxVolumes":     {free: 10 * extent, limits: volume.Limits{Group: volume.Limit{MaxVolumes: 1}}, there: 1, why: "maxVolumes"},
		"max_lv":         {free: 10 * extent, maxLVs: 1, there: 1, why: "may have 1 (max_lv)"},
		"below max_lv":   {free: 10 * extent, maxLVs: 2, there: 1, want: 10 * extent},
		"perNamespace":   {free: 10 * extent, limits: volume.Limits{Namespace: volume.Limit{MaxTotalSize: 2 * extent}}, want: 2 * extent},
		"pool":           {group: thin, limits: volume.Limits{Reserve: 10}, want: 22 * extent},
		"overcommit":     {group: thin, limit: 1 << 50, limits: volume.Limits{Reserve: 10, Overcommit: true}, want: 1 << 50},
		"reserve":        {group: thin, limits: volume.Limits{Reserve: 10, Overcommit: true}, used: 95, why: "reserve: 10%"},
		"full pool":      {group: thin, limits: volume.Limits{Overcommit: true}, used: 100, why: "the pool is full"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := newFake(t, 0)
			p := f.provider(row.group)
			f.free, f.maxLVs = row.free, row.maxLVs
			f.pvs = `{"pv_name":"/dev/sda","pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-000001","pv_missing":"","pv_allocatable":"allocatable","pv_size":"2147483648","pv_free":"4194304","pv_tags":""}`
			p.Limits = func(string) *volume.Limits { return &row.limits }
			if row.group.ThinPool != "" {
				f.lvs["pool"] = &fakeLV{uuid: fakeUUID(7), size: 25 * extent, layout: "thin,pool", role: "private", attr: "twi-aotz--"}
				uuid := dmUUID(fakeUUID(7)) + "-tpool"
				f.devices[uuid] = devmapper.Mapped{UUID: uuid, Live: true, Targets: []devmapper.Target{{Type: "thin-pool", Length: 25 * extent}}}
				f.status = map[string]string{uuid: fmt.Sprintf("1 10/100 %d/100 - rw discard_passdown queue_if_no_space - 1024", row.used)}
			}
			for i := range row.there {
				f.lvs[fmt.Sprint("there", i)] = &fakeLV{uuid: fakeUUID(100 + i), size: extent, tags: []string{tagCreated}}
			}
			f.lookUp(p, "new")
			limit := row.limit
			if limit == 0 {
				limit = 1 << 40
			}
			f.commands()
			s, err := p.Space(t.Context(), "vg0", limit)
			if ran := f.commands(); err != nil || s.Largest != row.want || s.Size != 1<<31 || s.Free != row.free || len(ran) > 0 ||
				len(s.Disks) != 1 || s.Disks[0].Device != "/dev/sda" || s.Disks[0].Free != extent {
				t.Fatalf("want %d, got %+v, %v; started %q", row.want, s, err, ran)
			}
			if (s.Refused == nil) != (row.why == "") || s.Refused != nil && !strings.Contains(s.Refused.Error(), row.why) {
				t.Errorf("want %q, got %v", row.why, s.Refused)
			}
			create := func(size int64) error {
				return p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "new"}, size, "a")
			}
			if more := s.Largest + extent; more <= limit {
				if err := create(more); volume.CodeOf(err) != volume.NoSpace {
					t.Errorf("%d bytes: %v", more, err)
				}
			}
			if err := create(s.Largest); s.Largest > 0 && err != nil {
				t.Errorf("%d bytes: %v", s.Largest, err)
			}
		})
	}
}

// Space reads the metadata again only if it may have changed, and says when it was last true.
func TestSpaceIsCurrent(t *testing.T) {
	f, p := newFake(t, 0)
	want := func(what string, reports int, age time.Duration) {
		t.Helper()
		f.free += int64(reports) * mib
		f.commands()
		before := time.Now()
		s, err := p.Space(t.Context(), "vg0", 1<<40)
		n := strings.Count(strings.Join(f.commands(), " "), "fullreport")
		if err != nil || n != reports || s.Free != f.free || before.Sub(s.At).Round(time.Second) != age {
			t.Errorf("%s: %+v as of %v, %v; %d reports", what, s, s.At, err, n)
		}
	}
	want("first", 1, 0)
	g := p.groups["vg0"]
	g.known.read = g.known.read.Add(-time.Minute)
	want("disks that are not watched", 0, time.Minute)
	g.last.watched = true
	p.watch.Store(&watch{})
	want("watched disks", 0, 0)
	p.watch.Store(nil)
	g.invalidate()
	want("changed", 1, 0)
}

// A device is newer than the kept report, as while lvcreate waits at a prompt: the metadata is read again before
// the group is called unusable, but not for a device that the report has found.
func TestSpaceDuringCreation(t *testing.T) {
	f, p := newFake(t, 1)
	f.lookUp(p, "v0")
	for i, reports := range []int{1, 1, 0} {
		uuid := dmUUID(fakeUUID(7 + min(i, 1)))
		f.devices[uuid] = devmapper.Mapped{Name: "vg0-new", UUID: uuid, Number: "253:90", Live: true}
		if i == 0 {
			f.lvs["new"] = &fakeLV{uuid: fakeUUID(7), size: 4 * mib}
		}
		f.commands()
		s, err := p.Space(t.Context(), "vg0", 1<<40)
		if n := strings.Count(strings.Join(f.commands(), " "), "fullreport"); err != nil || n != reports || s.Unusable != (i > 0) {
			t.Errorf("%d: %+v, %v; %d reports", i, s, err, n)
		}
	}
}

// Nothing can be created in a group that is exported or lacks a disk. Space on missing disks, or on disks
// that are not allocatable, is not free.
func TestUnusableSpace(t *testing.T) {
	f, p := newFake(t, 0)
	pv := func(n int, path, missing, allocatable string) string {
		return fmt.Sprintf(`{"pv_name":%q,"pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-%06d","pv_missing":%q,"pv_allocatable":%q,"pv_size":"8388608","pv_free":"4194304","pv_tags":""}`, path, n, missing, allocatable)
	}
	f.free = 12 * mib
	f.pvs = pv(1, "/dev/sda", "", "allocatable") + "," + pv(2, "/dev/sdb", "", "") + "," + pv(3, "[unknown]", "missing", "allocatable")
	f.lookUp(p, "a")
	s, err := p.Space(t.Context(), "vg0", 1<<40)
	if err != nil || s.Free != 4*mib || s.Largest != 8*mib || s.Disks[0] != (volume.Disk{Size: 8 * mib, Free: 4 * mib, Missing: true}) || s.Disks[2] != (volume.Disk{Device: "/dev/sdb", Size: 8 * mib, Free: 4 * mib, NotAllocatable: true}) {
		t.Errorf("got %+v, %v", s, err)
	}
	known := p.groups["vg0"].known
	known.Missing = 1
	if s, err = p.Space(t.Context(), "vg0", 1<<40); err != nil || s.Largest != 0 || !s.Unusable || !strings.Contains(s.Refused.Error(), "PVPVPV-0000-0000-0000-0000-0000-000003") {
		t.Errorf("got %+v, %v", s, err)
	}
	known.Exported = true
	if s, err = p.Space(t.Context(), "vg0", 1<<40); err != nil || !s.Unusable || !strings.Contains(s.Refused.Error(), "vgimport vg0") {
		t.Errorf("got %+v, %v", s, err)
	}
}

// A layout fits on disks of its own: as many as it has stripes, copies and parities, with
// room for the metadata of a RAID, and with the configured tag.
func TestLayoutFits(t *testing.T) {
	f := &Facts{ExtentSize: 512}
	disk := func(path string, tags []string, areas ...int64) {
		f.PVs = append(f.PVs, PV{Path: path, Allocatable: path != "/fenced", Missing: path == "", Tags: tags})
		at := int64(0)
		for _, size := range areas {
			f.free = append(f.free, span{extent: extent{disk: path, start: at, end: at + size}})
			at += size + 1
		}
	}
	disk("/a", nil, 43)
	disk("/b", []string{"fast"}, 23)
	disk("/c", nil, 58)
	disk("/d", []string{"fast", "old"}, 19)
	disk("/fenced", []string{"fast"}, 1000)
	disk("", []string{"fast"}, 1000)
	for _, row := range []struct {
		Layout
		want int64 // as LVM 2.03 allocates
	}{
		{Layout{PVTag: "fast"}, 42},
		{Layout{PVTag: "none"}, 0},
		{Layout{Type: "striped", Stripes: 2}, 132},
		{Layout{Type: "striped", Stripes: 3}, 126},
		{Layout{Type: "raid0"}, 132},
		{Layout{Type: "raid1"}, 65},
		{Layout{Type: "raid1", Mirrors: 2}, 41},
		{Layout{Type: "raid1", PVTag: "fast"}, 18},
		{Layout{Type: "raid5"}, 82},
		{Layout{Type: "raid10"}, 36},
		{Layout{Type: "raid6"}, 0},
	} {
		got := int64(0)
		for row.fits(f, got+1) && got < 1000 {
			got++
		}
		if got != row.want {
			t.Errorf("%+v: %d extents fit, want %d", row.Layout, got, row.want)
		}
	}
}
