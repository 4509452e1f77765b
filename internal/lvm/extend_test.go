package lvm

import (
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// An lvextend that fails at its end, without a semaphore for udev, leaves the device suspended: the error has the
// command that resumes it, and does not suggest another size.
func TestExtendLeavesSuspended(t *testing.T) {
	const cause = "  Limit for the maximum number of semaphores reached. You can check and set the limits in /proc/sys/kernel/sem.\n  Unable to resume vg0-v0 (253:0).\n"
	for _, row := range []struct {
		name           string
		written, table bool // the metadata, a second table
		want           string
	}{
		{"after the metadata", true, true, "are suspended: vg0-v0. If no command of LVM runs (ps ax | grep lv): dmsetup resume vg0-v0"},
		{"before the metadata", false, true, "are suspended: vg0-v0. flexd check says how to resume them safely"},
		{"without a second table", true, false, "are suspended: vg0-v0. If no command of LVM runs (ps ax | grep lv): dmsetup resume vg0-v0"},
	} {
		f, p := newFake(t, 1)
		lv := f.lookUp(p, "v0")
		if err := p.Activate(t.Context(), "", lv); err != nil {
			t.Fatal(err)
		}
		uuid := dmUUID(lv.UUID)
		f.hook = func(c run.Cmd) (run.Result, error, bool) {
			if !c.Mutates {
				return run.Result{}, nil, false
			}
			if row.written && c.Argv[1] == "lvextend" {
				f.lvs["v0"].size = 16 * mib
			}
			m := f.devices[uuid]
			m.Suspended, m.Loaded = true, row.table
			f.devices[uuid] = m
			res, err := utterance{Argv: c.Argv, Code: 5, Stderr: cause}.result()
			return res, err, true
		}
		err := p.Extend(t.Context(), "", lv, volume.Device{}, 16*mib)
		is(t, err, ErrFailed, "/proc/sys/kernel/sem", row.want)
		if volume.CodeOf(err) != volume.Busy {
			t.Errorf("%s: code %s", row.name, volume.CodeOf(err))
		}

		// Another failure, which leaves nothing suspended.
		f.hook = func(c run.Cmd) (run.Result, error, bool) {
			f.devices[uuid] = devmapper.Mapped{Name: "vg0-v0", UUID: uuid, Number: "253:0", Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 * mib}}}
			res, err := utterance{Argv: c.Argv, Code: 5, Stderr: cause}.result()
			return res, err, slices.Contains(c.Argv, "lvextend") || slices.Contains(c.Argv, "--refresh")
		}
		if err := p.Extend(t.Context(), "", lv, volume.Device{}, 32*mib); err == nil || strings.Contains(err.Error(), "suspended") {
			t.Errorf("%s: resumed: %v", row.name, err)
		}
	}
}
