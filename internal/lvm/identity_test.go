package lvm

import (
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// vgimportclone makes a copy of a volume group in which the volumes keep their uuids.
// The device of a copy is never taken for the original's.
func TestCopiedGroup(t *testing.T) {
	f, p := newFake(t, 1)
	lv := f.lookUp(p, "v0")
	half := lv.UUID.Earlier()
	copied := devmapper.Mapped{
		Name: "copy-v0", UUID: dmUUID(identity("VGCOPY-0000-0000-0000-0000-0000-VGCOPY", string(half))), Live: true, Number: "253:9",
		Targets: []devmapper.Target{{Type: "linear", Length: lv.Size}},
	}
	f.devices[copied.UUID] = copied
	p = f.provider(Group{})
	f.commands()
	device := func(uuid volume.UUID) (volume.Device, error) {
		return p.Device(t.Context(), volume.LV{Name: lv.Name, UUID: uuid})
	}
	if d, err := device(lv.UUID); err != nil || d.Activity != volume.Inactive {
		t.Errorf("the original: got %+v %v", d, err)
	}
	if err := p.Deactivate(t.Context(), "", lv, volume.Device{}); err != nil || len(f.commands()) > 0 {
		t.Errorf("got %v", err)
	}
	if id, err := p.Identify(t.Context(), "253:9"); err != nil || id.UUID == "" || id.UUID == lv.UUID || id.Name.VG != "copy" {
		t.Errorf("the copy: got %+v %v", id, err)
	}

	// A note of an earlier version lacks half of the identity.
	if _, err := device(half); err == nil || !strings.Contains(err.Error(), "copy-v0") {
		t.Errorf("got %v", err)
	}
	if id, err := p.Identity(half, "vg0"); id != "" || err != nil {
		t.Errorf("got %s %v", id, err)
	}
	if err := p.Activate(t.Context(), "", lv); err != nil {
		t.Fatal(err)
	}
	if id, err := p.Identity(half, "vg0"); id != lv.UUID || err != nil {
		t.Errorf("got %s %v", id, err)
	}
	delete(f.devices, copied.UUID)
	delete(f.devices, dmUUID(lv.UUID))
	if d, err := device(half); err != nil || d.Activity != volume.Inactive {
		t.Errorf("got %+v %v", d, err)
	}
}
