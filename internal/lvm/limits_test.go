package lvm

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// Concurrent creations and extensions together do not exceed a limit, and an operator's volume does not
// count. The count is from the metadata: another flexd counts the same.
func TestLimits(t *testing.T) {
	f, p := newFake(t, 3) // an operator's
	f.free = 1 << 40
	limits := &volume.Limits{Group: volume.Limit{MaxVolumes: 8}, Namespace: volume.Limit{MaxVolumes: 5, MaxTotalSize: 40 * mib}}
	p.Limits = func(string) *volume.Limits { return limits }
	var all sync.WaitGroup
	errs := make([]error, 50)
	for i := range errs {
		all.Go(func() {
			errs[i] = p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: fmt.Sprint("new", i)}, 8*mib, []string{"a", "b"}[i%2])
		})
	}
	all.Wait()
	created := 0
	for _, err := range errs {
		switch {
		case err == nil:
			created++
		case volume.CodeOf(err) != volume.NoSpace || !strings.Contains(err.Error(), "axVolumes of volume group vg0 is"):
			t.Error(err)
		}
	}
	usage := func() volume.Usage {
		p := f.provider(Group{}) // a restart
		f.lookUp(p, "v0")
		p.groups["vg0"].mu.Lock()
		defer p.groups["vg0"].mu.Unlock()
		return p.groups["vg0"].known.usage
	}
	u := usage()
	if created != 8 || u.All != (volume.Amount{Volumes: 8, Size: 64 * mib}) || len(u.ByNamespace) != 2 || u.ByNamespace["a"].Volumes > 5 || u.ByNamespace["b"].Volumes > 5 {
		t.Errorf("%d created: %+v", created, u)
	}
	// 8 volumes of 8 MiB, of which one namespace has at most 5: extended, they have 80 MiB at most.
	for i, err := range errs {
		if err == nil {
			lv := f.lookUp(p, fmt.Sprint("new", i))
			all.Go(func() { errs[i] = p.Extend(t.Context(), "", lv, volume.Device{}, 20*mib) })
		}
	}
	all.Wait()
	for i, part := range []string{"[new0_rmeta_0]", "new0_rmeta_1"} { // visible after an interrupted creation
		f.lvs[part] = &fakeLV{uuid: fakeUUID(500 + i), size: 4 * mib, tags: []string{tagCreating, tagNamespace + "a"}}
	}
	if u := usage(); u.All.Volumes != 8 {
		t.Errorf("with parts of a RAID: %+v", u)
	}
	for ns, a := range usage().ByNamespace {
		if a.Size > 40*mib || a.Size < 32*mib {
			t.Errorf("namespace %s has %+v", ns, a)
		}
	}
	if err := p.Extend(t.Context(), "", f.lookUp(p, "v0"), volume.Device{}, 80*mib); err != nil {
		t.Errorf("a volume that flexd did not create: %v", err)
	}
	// The group is full: nothing is started to refuse a creation but the report.
	f.commands()
	late := volume.Name{VG: "vg0", LV: "late"}
	can, err := p.CanCreate(t.Context(), late, 4*mib, "c"), p.Create(t.Context(), "", late, 4*mib, "c")
	if err == nil || fmt.Sprint(can) != err.Error() || strings.Contains(strings.Join(f.commands(), " "), "lvcreate") {
		t.Errorf("got %v, and before that %v", err, can)
	}
}

// A thin pool keeps its reserve and, without overcommit, the space of all its volumes, including those that
// flexd did not create. An inactive pool shows only the latter.
func TestPoolSpace(t *testing.T) {
	fake, p := newFake(t, 0)
	pool := Logical{Name: "pool", UUID: fakeUUID(7), Size: 1000, Layout: []string{"thin", "pool"}}
	f := &Facts{Name: "vg0", ExtentSize: 1, LVs: map[string]Logical{"pool": pool}, inPool: map[string]volume.Amount{}}
	f.count(pool)
	f.count(Logical{Pool: "pool", Layout: []string{"thin", "sparse"}, Size: 600})
	f.count(Logical{Pool: "pool", Layout: []string{"thin", "sparse"}, Size: 100, Tags: []string{tagCreated}})
	f.count(Logical{Pool: "cache", Layout: []string{"cache"}, Size: 100})
	for _, row := range []struct {
		overcommit bool
		more       int64
		used       int // blocks of 10; 0 = the pool is inactive, -1 = its metadata is full
		want       string
	}{
		{false, 200, 0, ""},
		{false, 200, 90, ""},
		{false, 100, 91, "thin pool vg0/pool: 100 bytes wanted, 90 bytes free (of which at least 100 bytes must remain free (reserve: 10%))"},
		{true, 1 << 40, 90, ""},
		{true, 1, 91, "reserve"},
		{true, 1, 100, "the pool is full"},
		{true, 1, -1, "thin pool vg0/pool: the pool's metadata is full: lvextend --poolmetadatasize +SIZE vg0/pool"},
		{false, 201, 0, "thin pool vg0/pool: 201 bytes wanted, 200 bytes free (its 2 volumes may use 700 bytes of its 1000 bytes, and 100 bytes must remain free (reserve: 10%))"},
		{true, 1 << 40, 0, ""},
	} {
		p.Groups["vg0"] = Group{ThinPool: "pool"}
		p.Limits = func(string) *volume.Limits { return &volume.Limits{Reserve: 10, Overcommit: row.overcommit} }
		fake.devices = map[string]devmapper.Mapped{}
		if uuid := dmUUID(pool.UUID) + "-tpool"; row.used != 0 {
			fake.devices[uuid] = devmapper.Mapped{UUID: uuid, Live: true, Targets: []devmapper.Target{{Type: "thin-pool", Length: pool.Size}}}
			fake.status = map[string]string{uuid: fmt.Sprintf("1 10/100 %d/100 - rw discard_passdown queue_if_no_space - 1024", row.used)}
			if row.used < 0 {
				fake.status[uuid] = "1 100/100 10/100 - rw discard_passdown queue_if_no_space - 1024"
			}
		}
		err := p.groups["vg0"].checkSpace(f, volume.Name{VG: "vg0", LV: "new"}, row.more, "a")
		if (err != nil) != (row.want != "") || err != nil && (!strings.Contains(err.Error(), row.want) || row.used < 0 && strings.Contains(err.Error(), "lvextend -L")) {
			t.Errorf("%+v: %v", row, err)
		}
	}
}
