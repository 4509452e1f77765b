//go:build vm

package lvm

import (
	"sync"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// Ensure that LVM accepts the tags of format records for each type of volume that can be mounted, also while
// it is open, without changing its device.
func TestVMRecordTags(t *testing.T) {
	l := newLab(t)
	l.lvm("lvcreate -q -y -an -Zn -Wn -L 8m -n plain vg0", "lvcreate -q -y -an -Zn -Wn -L 8m -pr -n readonly vg0",
		"lvcreate -q -y -L 20m -T vg0/pool", "lvcreate -q -y -V 8m -T vg0/pool -n thin", "lvcreate -q -y --type raid1 -m1 --nosync -L 8m -n raid vg0",
		"lvcreate -q -y -Zn -Wn -L 8m -n origin vg0", "lvcreate -q -y -s -L 8m -n snap vg0/origin")
	var lvs []volume.LV
	for _, name := range []string{"plain", "readonly", "thin", "raid", "origin", "snap"} {
		lv := l.present(name)
		if lv.Tagged.State != volume.NoRecord || lv.Tagged.Shared {
			t.Errorf("%s: got %+v", name, lv.Tagged)
		}
		lvs = append(lvs, lv)
	}
	for _, lv := range lvs {
		l.activate(lv)
	}
	before := l.device(lvs[0])
	for _, state := range []volume.Record{volume.Formatting, volume.Seen} {
		for i, err := range together(lvs, func(lv volume.LV) error { return l.SetRecord(t.Context(), lv, state, "ext4") }) {
			if got := l.lookUp(lvs[i].Name.LV).Tagged; err != nil || got.State != state || got.Type != "ext4" || len(got.Tags) != 1 {
				t.Errorf("%s: %v, %+v", lvs[i].Name, err, got)
			}
		}
		if state == volume.Formatting {
			if err := l.SetRecord(t.Context(), lvs[0], volume.NoRecord, ""); err != nil || l.lookUp("plain").Tagged.State != volume.NoRecord {
				t.Errorf("got %v, %+v", err, l.lookUp("plain").Tagged)
			}
		}
	}
	if now := l.device(lvs[0]); now.Seq != before.Seq || now.Suspended {
		t.Errorf("got %+v, was %+v", now, before)
	}
	if got := l.sh("lvs", "--noheadings", "-o", "lv_tags", "vg0/plain"); got != "flexd.fs=ext4" {
		t.Errorf("got %q", got)
	}

	// A snapshot gets no tags.
	l.lvm("lvcreate -q -y -kn -s -n tsnap vg0/thin", "lvcreate -q -y -s -L 4m -n psnap vg0/plain")
	for _, name := range []string{"tsnap", "psnap"} {
		if got := l.present(name).Tagged; got.State != volume.NoRecord {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

// together calls do for all volumes at once.
func together(lvs []volume.LV, do func(lv volume.LV) error) []error {
	errs := make([]error, len(lvs))
	var wg sync.WaitGroup
	for i, lv := range lvs {
		wg.Go(func() { errs[i] = do(lv) })
	}
	wg.Wait()
	return errs
}
