package lvm

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// dmsetupRemove is the kernel's part of dmsetup remove: it keeps open devices.
func (f *fakeLVM) dmsetupRemove(c run.Cmd) (run.Result, error, bool) {
	if c.Argv[0] != "dmsetup" {
		return run.Result{}, nil, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ran = append(f.ran, strings.Join(c.Argv, " "))
	var err error
	for uuid, m := range f.devices {
		if slices.Contains(c.Argv[3:], m.Name) && m.Open > 0 {
			err = errors.New("Device or resource busy")
		} else if slices.Contains(c.Argv[3:], m.Name) {
			delete(f.devices, uuid)
			for below, part := range f.devices { // the kernel closes what the table named
				if len(m.Targets) > 0 && slices.Contains(strings.Fields(m.Targets[0].Params), part.Number) {
					part.Open--
					f.devices[below] = part
				}
			}
		}
	}
	return run.Result{}, err, true
}

func TestRemoveUnused(t *testing.T) {
	t.Parallel()
	f, p := newFake(t, 3)
	f.hook = f.dmsetupRemove
	device := func(name, uuid, number string, open int, params string) {
		f.devices[uuid] = devmapper.Mapped{Name: name, UUID: uuid, Number: number, Open: open, Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib, Params: params}}}
	}
	device("vg0-v0", dmUUID(fakeUUID(0)), "253:0", 0, "8:0 2048")
	device("vg0-v1", dmUUID(fakeUUID(1)), "253:1", 0, "253:2 0") // a RAID with one part
	device("vg0-v1_rimage_0", dmUUID(fakeUUID(11)), "253:2", 1, "8:0 4096")
	device("vg0-v2", dmUUID(fakeUUID(2)), "253:3", 2, "8:0 6144")
	device("vg0-lvmlock", dmUUID(fakeUUID(12)), "253:4", 0, "8:0 8192")
	device("vg1-v0", "LVM-"+strings.Repeat("x", 64), "253:5", 0, "8:16 0")
	device("vg0-crypt", "CRYPT-1", "253:6", 0, "253:3 0")
	left, err := p.RemoveUnused(t.Context(), "vg0")
	if err != nil || len(left) != 1 || left[0] != (volume.Used{Name: volume.Name{VG: "vg0", LV: "v2"}, UUID: fakeUUID(2), Open: 2}) {
		t.Errorf("%+v %v", left, err)
	}
	var names []string
	for _, m := range f.devices {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "vg0-crypt vg0-lvmlock vg0-v2 vg1-v0" {
		t.Errorf("left: %s", got)
	}
	if ran := f.commands(); len(ran) != 2 {
		t.Errorf("%q", ran)
	}

	// A device that another removes meanwhile is no failure.
	m := f.devices[dmUUID(fakeUUID(2))]
	m.Open = 0
	f.devices[m.UUID] = m
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		f.dmsetupRemove(c)
		return run.Result{}, errors.New("No such device or address"), true
	}
	if left, err = p.RemoveUnused(t.Context(), "vg0"); err != nil || len(left) != 0 {
		t.Errorf("%+v %v", left, err)
	}

	// A device that dmsetup does not remove is not tried again and again.
	f.devices[m.UUID] = m
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		return run.Result{}, errors.New("no dmsetup"), c.Argv[0] == "dmsetup"
	}
	if left, err = p.RemoveUnused(t.Context(), "vg0"); err == nil || len(left) != 1 {
		t.Errorf("%+v %v", left, err)
	}
}

// With lost locks a volume is deactivated without LVM, whose commands would hang.
func TestDeactivateWithLostLocks(t *testing.T) {
	t.Parallel()
	f, p := newFake(t, 1)
	f.hook = f.dmsetupRemove
	p.Lost = func(vg string) bool { return vg == "vg0" }
	uuid := dmUUID(fakeUUID(0))
	f.devices[uuid] = devmapper.Mapped{Name: "vg0-v0", UUID: uuid, Number: "253:0", Live: true}
	lv := volume.LV{Name: volume.Name{VG: "vg0", LV: "v0"}, UUID: fakeUUID(0)}
	if err := p.Deactivate(t.Context(), "", lv, volume.Device{Activity: volume.Active}); err != nil {
		t.Error(err)
	}
	if ran := f.commands(); len(f.devices) != 0 || len(ran) != 1 || !strings.HasPrefix(ran[0], "dmsetup remove") {
		t.Errorf("%v %q", f.devices, ran)
	}
}
