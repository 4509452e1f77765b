package lvm

import (
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// While LVM sees a disk twice, it changes and activates nothing in the group, and a deactivated volume would
// stay inactive.
func TestDuplicate(t *testing.T) {
	f, p := newFake(t, 2)
	f.pvs = fakePV(1, "/dev/sda")
	active, idle := f.lookUp(p, "v0"), volume.Name{VG: "vg0", LV: "v1"}
	if err := f.activate(t.Context(), p, active); err != nil {
		t.Fatal(err)
	}
	setting := "allow_changes_with_duplicate_pvs=0"
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		if slices.Contains(c.Argv, "devices/allow_changes_with_duplicate_pvs") {
			return run.Result{Stdout: []byte(setting + "\n")}, nil, true
		}
		said := "  WARNING: Not using device /dev/sdb for PV " + fakePVUUID(1) + ".\n  WARNING: Not using device /dev/sdy for PV " + fakePVUUID(2) + ".\n"
		return run.Result{Stdout: []byte(f.report()), Stderr: []byte(said)}, nil, slices.Contains(c.Argv, "fullreport")
	}
	p.Invalidate("vg0")
	why := "PV " + fakePVUUID(1) + " is on /dev/sda and on /dev/sdb"
	lv, err := p.LookUp(t.Context(), idle)
	if err != nil || lv.Presence != volume.Foreign || !strings.HasSuffix(lv.Reason, "(vgimportclone with all of them): "+why) {
		t.Errorf("idle: got %+v %v", lv, err)
	}
	if lv := f.lookUp(p, "v0"); lv.Presence != volume.Present {
		t.Errorf("active: got %+v", lv)
	}
	if s, err := p.Space(t.Context(), "vg0", 1<<40); err != nil || !s.Unusable || s.Largest != 0 {
		t.Errorf("got %+v %v", s, err)
	}
	if s := p.Survey(t.Context(), "vg0", true); !strings.Contains(s.Twice, why) || len(s.Volumes) != 2 {
		t.Errorf("survey: %+v", s)
	}
	is(t, p.CanCreate(t.Context(), volume.Name{VG: "vg0", LV: "new"}, mib, ""), ErrDuplicate, why)
	d, err := p.Device(t.Context(), active)
	if err != nil {
		t.Fatal(err)
	}
	is(t, p.Deactivate(t.Context(), "", active, d), nil, "it stays active", why)

	setting = "allow_changes_with_duplicate_pvs=1"
	p.Invalidate("vg0")
	if lv, err := p.LookUp(t.Context(), idle); err != nil || lv.Presence != volume.Present {
		t.Errorf("LVM ignores it: got %+v %v", lv, err)
	}
}
