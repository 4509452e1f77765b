package lvm

import (
	"errors"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
)

// In a full pool nothing is set up, even for a volume with all its blocks.
func TestFullPool(t *testing.T) {
	f, p := newFake(t, 1)
	lv := f.lookUp(p, "v0")
	uuid := dmUUID(lv.UUID)
	f.devices[uuid] = devmapper.Mapped{Name: "vg0-v0", UUID: uuid, Number: "253:3", Live: true, Targets: []devmapper.Target{{Type: "thin", Length: lv.Size, Params: "253:2 1"}}}
	f.devices["LVM-pool"] = devmapper.Mapped{Name: "vg0-pool-tpool", UUID: "LVM-pool", Number: "253:2", Live: true, Targets: []devmapper.Target{{Type: "thin-pool", Length: 64 * mib}}}
	f.status = map[string]string{}
	const (
		half  = "8192 16383"
		whole = "16384 16383"
	)
	for _, c := range []struct {
		about, pool, thin string
		role              string
		says              string
	}{
		{"room", "1 12/1024 10/1000 - rw discard_passdown queue_if_no_space - 10", half, "public", ""},
		{"full", "1 12/1024 1000/1000 - out_of_data_space discard_passdown queue_if_no_space - 10", half, "public", "lvextend -L +SIZE vg0/pool"},
		{"no free block", "1 12/1024 1000/1000 - rw discard_passdown queue_if_no_space - 10", half, "public", "lvextend -L +SIZE vg0/pool"},
		// Two snapshots whose origin was removed have this role and share their blocks.
		{"whole", "1 12/1024 1000/1000 - rw discard_passdown queue_if_no_space - 10", whole, "public", "lvextend"},
		{"whole, with a snapshot", "1 12/1024 1000/1000 - rw discard_passdown queue_if_no_space - 10", whole, "public,origin,thinorigin", "lvextend"},
		{"whole, room", "1 12/1024 999/1000 - rw discard_passdown queue_if_no_space - 10", whole, "public", ""},
		{"whole, full", "1 12/1024 1000/1000 - out_of_data_space discard_passdown queue_if_no_space - 10", whole, "public", "lvextend"},
		{"whole, read-only", "1 12/1024 1000/1000 - ro discard_passdown queue_if_no_space - 10", whole, "public", "read-only"},
		{"metadata full", "1 1024/1024 10/1000 - rw discard_passdown queue_if_no_space - 10", half, "public", "lvextend --poolmetadatasize +SIZE vg0/pool"},
		{"metadata full, read-only", "1 1024/1024 10/1000 - ro discard_passdown queue_if_no_space - 10", whole, "public", "metadata is full: lvextend --poolmetadatasize"},
		{"whole, to be checked", "1 12/1024 1000/1000 - rw discard_passdown queue_if_no_space needs_check 10", whole, "public", "lvconvert --repair"},
	} {
		f.lvs["v0"].layout, f.lvs["v0"].role = "thin,sparse", c.role
		f.status[uuid], f.status["LVM-pool"] = c.thin, c.pool
		p.Invalidate("")
		lv = f.lookUp(p, "v0")
		d, err := p.Device(t.Context(), lv)
		if err != nil || d.Unusable != (c.says != "") || !strings.Contains(d.Reason, c.says) {
			t.Errorf("%s: got %+v %v", c.about, d, err)
		}
	}
}

// LVM does not report that an activation failed because of the pool.
func TestActivateInFailedPool(t *testing.T) {
	const said = "device-mapper: reload ioctl on  (253:5) failed: Invalid argument"
	for _, c := range []struct {
		about, lv, pool string
		names           bool // the pool
	}{
		{"failed", "v0", "Fail", true},
		{"failed, a thick snapshot", "s", "Fail", true},
		{"healthy", "v0", "1 12/1024 10/1000 - rw discard_passdown queue_if_no_space - 10", false},
		{"inactive", "v0", "", false},
	} {
		f, p := newFake(t, 1)
		f.lvs["v0"].layout, f.lvs["v0"].role, f.lvs["v0"].pool = "thin,sparse", "public", "pool"
		f.lvs["pool"] = &fakeLV{uuid: fakeUUID(7), size: 64 * mib, layout: "thin,pool", role: "private"}
		f.lvs["s"] = &fakeLV{uuid: fakeUUID(8), size: 8 * mib, layout: "linear", role: "public,snapshot,thicksnapshot", origin: "v0"}
		f.broken[c.lv] = said
		if tpool := dmUUID(fakeUUID(7)) + "-tpool"; c.pool != "" {
			f.devices[tpool] = devmapper.Mapped{Name: "vg0-pool-tpool", UUID: tpool, Number: "253:2", Live: true, Targets: []devmapper.Target{{Type: "thin-pool", Length: 64 * mib, Params: "253:0 253:1 128 0"}}}
			f.status = map[string]string{tpool: c.pool}
		}
		err := p.Activate(t.Context(), "", f.lookUp(p, c.lv))
		if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "Invalid argument") {
			t.Errorf("%s: got %v", c.about, err)
		}
		if got := strings.Contains(err.Error(), "it is in the thin pool vg0/pool: the pool has failed: "); got != c.names {
			t.Errorf("%s: got %v", c.about, err)
		}
	}
}
