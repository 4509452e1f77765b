package lvm

import (
	"fmt"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// lvchange succeeds without activation if activation/volume_list excludes the volume.
func TestVolumeList(t *testing.T) {
	f, p := newFake(t, 1)
	lv := f.lookUp(p, "v0")
	f.volumeList = []string{"vg9"}
	is(t, f.activate(t.Context(), p, lv), errNoDevice, "vg0/v0", `activation/volume_list=["vg9"]`, `add "vg0" or "vg0/v0"`)
	f.volumeList = []string{"vg9", "vg0"}
	if err := f.activate(t.Context(), p, lv); err != nil {
		t.Error(err)
	}
}

// Space on disks that are not allocatable is free but unusable: another disk is not the remedy.
func TestNotAllocatable(t *testing.T) {
	f, p := newFake(t, 1)
	f.free = 100 * mib
	pv := func(n int, path, allocatable string, free int64) string {
		return fmt.Sprintf(`{"pv_name":%q,"pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-%06d","pv_missing":"","pv_allocatable":%q,"pv_size":"2143289344","pv_free":"%d","pv_tags":""}`, path, n, allocatable, free)
	}
	f.pvs = pv(1, "/dev/sda", "", 60*mib) + "," + pv(2, "/dev/sdb", "allocatable", 40*mib) + "," + pv(3, "/dev/sdc", "", 0)
	lv := f.lookUp(p, "v0")
	const advice = "60 MiB more are free on disks that are not allocatable: pvchange -xy /dev/sda;"
	name := volume.Name{VG: "vg0", LV: "new"}
	is(t, p.CanCreate(t.Context(), name, 80*mib, ""), ErrNoSpace, "80 MiB wanted, 40 MiB free", advice)
	if err := p.CanCreate(t.Context(), name, 40*mib, ""); err != nil {
		t.Error(err)
	}
	is(t, p.Create(t.Context(), "", name, 80*mib, ""), ErrNoSpace, "80 MiB wanted, 40 MiB free", advice)
	is(t, p.Extend(t.Context(), "", lv, volume.Device{}, 88*mib), ErrNoSpace, "80 MiB wanted, 40 MiB free", advice)
	if err := p.Create(t.Context(), "", name, 40*mib, ""); err != nil {
		t.Error(err)
	}
}
