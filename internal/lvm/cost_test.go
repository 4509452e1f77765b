package lvm

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// A countedDM counts requests to device-mapper.
type countedDM struct {
	DM
	mu                     sync.Mutex
	lists, devices, states int // guarded by mu
}

func (c *countedDM) add(n *int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*n++
}

func (c *countedDM) List() ([]devmapper.Mapped, error) {
	c.add(&c.lists)
	return c.DM.List()
}

func (c *countedDM) Device(key devmapper.Key) (devmapper.Mapped, error) {
	c.add(&c.devices)
	return c.DM.Device(key)
}

func (c *countedDM) Status(key devmapper.Key) (devmapper.Mapped, error) {
	c.add(&c.states)
	return c.DM.Status(key)
}

func (c *countedDM) take() (lists, devices, states int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lists, devices, states = c.lists, c.devices, c.states
	c.lists, c.devices, c.states = 0, 0, 0
	return lists, devices, states
}

// Ensure that each volume costs a fixed number of requests to device-mapper, however
// many volumes the group has.
func TestRequestsPerVolume(t *testing.T) {
	const n = 200
	f, p := newFake(t, n)
	dm := &countedDM{DM: f}
	p.DM = dm
	// All are thin volumes of one pool, whose device is below each of them.
	thin := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		const pool = "253:1000"
		f.devices["LVM-pool-tpool"] = devmapper.Mapped{Name: "vg0-pool-tpool", UUID: "LVM-pool-tpool", Number: pool, Live: true,
			Targets: []devmapper.Target{{Type: "thin-pool", Length: 8 * mib, Params: "253:1001 253:1002 128 0"}}}
		for i, part := range []string{"tmeta", "tdata"} {
			uuid := "LVM-pool-" + part
			f.devices[uuid] = devmapper.Mapped{Name: "vg0-pool_" + part, UUID: uuid, Number: fmt.Sprintf("253:%d", 1001+i), Live: true,
				Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: "8:0 2048"}}}
		}
		f.status = map[string]string{"LVM-pool-tpool": "1 10/1024 10/128 - rw no_discard_passdown queue_if_no_space - 1024"}
		for i := range n {
			m := f.devices[dmUUID(fakeUUID(i))]
			m.Targets = []devmapper.Target{{Type: "thin", Length: 8 * mib, Params: fmt.Sprintf("%s %d", pool, i)}}
			f.devices[m.UUID] = m
		}
	}
	var lvs []volume.LV
	each := func(do func(lv volume.LV) error) {
		t.Helper()
		var wg sync.WaitGroup
		for _, lv := range lvs {
			wg.Go(func() {
				if err := do(lv); err != nil {
					t.Errorf("%s: %v", lv.Name, err)
				}
			})
		}
		wg.Wait()
	}
	active := func(want volume.Activity) func(lv volume.LV) error {
		return func(lv volume.LV) error {
			d, err := p.Device(t.Context(), lv)
			if err == nil && (d.Activity != want || d.Unusable) {
				err = fmt.Errorf("got %+v", d)
			}
			return err
		}
	}
	for _, step := range []struct {
		what                   string
		do                     func()
		lists, devices, states int
	}{
		{"look up, by one report", func() {
			for i := range n {
				lvs = append(lvs, f.lookUp(p, fmt.Sprintf("v%d", i)))
			}
		}, 1, 0, 0},
		{"look at an inactive one", func() { each(active(volume.Inactive)) }, 0, n, 0},
		// Before the command, and after it.
		{"activate", func() { each(func(lv volume.LV) error { return p.Activate(t.Context(), "", lv) }) }, 0, 2 * n, 0},
		{"look at an active one", func() { each(active(volume.Active)) }, 0, n, 0},
		{"activate again", func() { each(func(lv volume.LV) error { return p.Activate(t.Context(), "", lv) }) }, 0, n, 0},
		{"survey", func() { p.Survey(t.Context(), "vg0", false) }, 1, n, 0},
		{"look at a thin one", func() {
			thin()
			p.Invalidate("") // the metadata says that they are thin
			f.lookUp(p, "v0")
			f.commands()
			dm.take()
			each(active(volume.Active))
		}, 0, 4 * n, n},
		{"survey thin ones", func() { p.Survey(t.Context(), "vg0", false) }, 1, n + 3, 1},
		{"deactivate", func() {
			each(func(lv volume.LV) error { return p.Deactivate(t.Context(), "", lv, volume.Device{}) })
		}, 0, 5 * n, 0}, // with the pool and its parts, which pvmove may move
	} {
		f.commands()
		step.do()
		lists, devices, states := dm.take()
		lists -= len(slices.DeleteFunc(f.commands(), func(c string) bool { return c == "lvmconfig" })) // each keeps out pools that hang
		if lists != step.lists || devices != step.devices || states != step.states {
			t.Errorf("%s, %d volumes: got %d lists, %d devices, %d states, want %d, %d, %d", step.what, n, lists, devices, states, step.lists, step.devices, step.states)
		}
	}
}

// Ensure the same for origins and thick snapshots.
func TestRequestsPerSnapshot(t *testing.T) {
	const n = 100 // origins with a snapshot each
	f, p := newFake(t, 2*n)
	var lvs []volume.LV
	for i := range n {
		origin, snapshot := f.lvs[fmt.Sprintf("v%d", 2*i)], f.lvs[fmt.Sprintf("v%d", 2*i+1)]
		origin.layout, origin.role = "linear", "public,origin,thickorigin"
		snapshot.layout, snapshot.role, snapshot.origin = "linear", "public,snapshot,thicksnapshot", fmt.Sprintf("v%d", 2*i)
	}
	for i := range 2 * n {
		lvs = append(lvs, f.lookUp(p, fmt.Sprintf("v%d", i)))
		if err := p.Activate(t.Context(), "", lvs[i]); err != nil {
			t.Fatal(err)
		}
	}
	dm := &countedDM{DM: f}
	p.DM = dm
	for _, lv := range lvs {
		if d, err := p.Device(t.Context(), lv); err != nil || len(d.Relatives) != 1 {
			t.Errorf("%s: %+v, %v", lv.Name, d.Relatives, err)
		}
	}
	if lists, devices, _ := dm.take(); lists > 0 || devices > 5*len(lvs) {
		t.Errorf("%d volumes: %d lists, %d devices", len(lvs), lists, devices)
	}
	if err := p.Fence(t.Context(), volume.Taken{UUID: lvs[0].UUID}); err != nil {
		t.Error(err)
	}
	if lists, devices, _ := dm.take(); lists > 1 || devices > 2*len(f.devices) {
		t.Errorf("a fence among %d devices: %d lists, %d devices", len(f.devices), lists, devices)
	}
}
