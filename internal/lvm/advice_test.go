package lvm

import (
	"errors"
	"fmt"
	"testing"

	"github.com/flexd/flexd/internal/run"
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

// A group that LVM does not show any more, as after a change of lvm.conf, is unknown for calls, too. Other errors of a
// survey leave the known metadata valid.
func TestRefusedGroup(t *testing.T) {
	for name, c := range map[string]struct {
		stderr string
		want   error
	}{
		"another machine's": {"Cannot access VG vg0 with system ID a with local system ID b.", ErrForeignSystem},
		"not found":         {`Volume group "vg0" not found`, ErrNoVG},
		"locked":            {"Can't get lock for vg0", nil},
	} {
		f, p := newFake(t, 1)
		lv := f.lookUp(p, "v0")
		f.hook = func(cmd run.Cmd) (run.Result, error, bool) {
			return run.Result{Stderr: []byte(c.stderr)}, &run.ExitError{Argv: cmd.Argv, Code: 5}, true
		}
		if s := p.Survey(t.Context(), "vg0", true); s.Metadata == "" {
			t.Errorf("%s: the survey has no error", name)
		}
		if _, err := p.LookUp(t.Context(), lv.Name); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		f.hook = nil
		f.lookUp(p, "v0")
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
