//go:build vm

package lvm

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// Limits count LVM's metadata: 20 concurrent creations, a restart and an operator's own volumes. A thin pool
// keeps its reserve, and with overcommit: false the space of its volumes.
func TestVMLimits(t *testing.T) {
	l := newLab(t)
	l.lv("by-hand", "64m")
	limits := &volume.Limits{Group: volume.Limit{MaxTotalSize: 40 * mib}, Namespace: volume.Limit{MaxVolumes: 3}}
	restart := func(g Group) {
		l.restart(g)
		l.Limits = func(string) *volume.Limits { return limits }
	}
	restart(Group{})
	name := func(i any) volume.Name { return volume.Name{VG: "vg0", LV: fmt.Sprint("v", i)} }
	var all sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		all.Go(func() { errs[i] = l.Create(t.Context(), fmt.Sprint(l.lock, i), name(i), 8*mib, "team-a") })
	}
	all.Wait()
	created := []volume.LV{}
	for i, err := range errs {
		if err == nil {
			created = append(created, l.present(name(i).LV))
			continue
		}
		is(t, err, nil, "perNamespace.maxVolumes of volume group vg0 is 3, and flexd has created 3 for namespace team-a")
	}
	tags := l.sh("lvs", "--noheadings", "-o", "lv_tags", "vg0")
	if len(created) != 3 || strings.Count(tags, "flexd.namespace=team-a") != 3 || strings.Contains(tags, tagCreating) {
		t.Fatalf("created %+v, tags:\n%s", created, tags)
	}
	restart(Group{})
	is(t, l.Create(t.Context(), l.lock, name("late"), 8*mib, "team-a"), nil, "has created 3 for namespace team-a")
	if err := l.Create(t.Context(), l.lock, name("other"), 8*mib, "team-b"); err != nil {
		t.Fatal(err)
	}
	is(t, l.Extend(t.Context(), l.lock, created[0], volume.Device{}, 20*mib), nil, "maxTotalSize of volume group vg0 is 40 MiB, and 12 MiB more are wanted beside the 32 MiB of 4 volumes")
	if err := l.Extend(t.Context(), l.lock, created[0], volume.Device{}, 16*mib); err != nil {
		t.Error(err)
	}
	for _, lv := range created {
		l.sh("lvremove", "-q", "-f", lv.Name.String())
	}
	l.Invalidate("")
	if err := l.Create(t.Context(), l.lock, name("late"), 8*mib, "team-a"); err != nil {
		t.Errorf("a removed volume counts: %v", err)
	}

	l.sh("lvcreate", "-q", "-y", "-L", "64M", "-T", "vg0/pool")
	limits = &volume.Limits{Reserve: 25}
	restart(Group{ThinPool: "pool"})
	if err := l.Create(t.Context(), l.lock, name("thin"), 40*mib, ""); err != nil {
		t.Fatal(err)
	}
	if s, err := l.Space(t.Context(), "vg0", 1<<40); err != nil || s.Largest != 8*mib {
		t.Errorf("the largest volume: %+v, %v", s, err)
	}
	is(t, l.Create(t.Context(), l.lock, name("more"), 12*mib, ""), ErrNoSpace, "thin pool vg0/pool", "its 1 volumes may use 40 MiB", "reserve: 25%")
	is(t, l.Extend(t.Context(), l.lock, l.present("vthin"), volume.Device{}, 52*mib), ErrNoSpace, "thin pool vg0/pool", "12 MiB wanted")
	limits = &volume.Limits{Reserve: 25, Overcommit: true} // applied without a restart
	if err := l.Create(t.Context(), l.lock, name("more"), 200*mib, ""); err != nil {
		t.Fatal(err)
	}
	l.sh("sh", "-c", "dd if=/dev/zero of="+l.device(l.present("vmore")).Path+" bs=1M count=50 oflag=direct 2>&1")
	is(t, l.Create(t.Context(), l.lock, name("most"), 8*mib, ""), ErrNoSpace, "thin pool vg0/pool", "at least", "reserve: 25%")
}
