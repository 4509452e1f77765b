//go:build vm && many

package lvm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// Ensure that 200 concurrently requested volumes all get their own device, with few commands, and are all
// released likewise. They are in the volume group `many` on the disk of scripts/vm.d/volumes.
func TestVMTwoHundred(t *testing.T) {
	const n, limit = 200, 6
	dir := t.TempDir()
	r := &recorder{t: t, Runner: run.NewExec()}
	p := New(Options{Runner: r, LockDir: filepath.Join(dir, "locks"), Groups: map[string]Group{"many": {}}})
	l := &lab{T: t, Provider: p, recorder: r, dir: dir, lock: filepath.Join(dir, "lane")}

	var lvs []volume.LV
	for i := range n {
		lv, err := l.LookUp(t.Context(), volume.Name{VG: "many", LV: fmt.Sprintf("v%d", i+1)})
		if err != nil || lv.Presence != volume.Present {
			t.Fatalf("v%d: %+v %v", i+1, lv, err)
		}
		lvs = append(lvs, lv)
	}
	if got := l.count("fullreport"); got != 1 {
		t.Errorf("%d reports for %d volumes", got, n)
	}
	all := func(what string, do func(ctx context.Context, lv volume.LV) error) {
		t.Helper()
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i, lv := range lvs {
			wg.Go(func() { errs[i] = do(t.Context(), lv) })
		}
		wg.Wait()
		for i, err := range errs {
			if err != nil {
				t.Errorf("%s %s: %v", what, lvs[i].Name, err)
			}
		}
		if got := l.count(""); got > limit {
			t.Errorf("%s: %d commands", what, got)
		}
	}
	all("activate", func(ctx context.Context, lv volume.LV) error { return l.Activate(ctx, l.lock, lv) })
	numbers := map[string]volume.Name{}
	for _, lv := range lvs {
		d := l.device(lv)
		if d.Activity != volume.Active || d.Unusable || d.Size != lv.Size || d.Link != "/dev/"+lv.Name.String() {
			t.Errorf("%s: %+v", lv.Name, d)
		}
		if other, taken := numbers[d.Number]; taken {
			t.Errorf("%s and %s are the same device", lv.Name, other)
		}
		numbers[d.Number] = lv.Name
		// The kernel's own word for it.
		_, minor, _ := sysfs.SplitNumber(d.Number)
		uuid, err := os.ReadFile(fmt.Sprintf("/sys/block/dm-%d/dm/uuid", minor))
		if got, ok := parseDMUUID(string(uuid[:max(0, len(uuid)-1)])); err != nil || !ok || got != lv.UUID {
			t.Errorf("%s is %s, and its device %s is of %q (%v)", lv.Name, lv.UUID, d.Number, uuid, err)
		}
	}
	all("deactivate", func(ctx context.Context, lv volume.LV) error { return l.Deactivate(ctx, l.lock, lv, volume.Device{}) })
	left, err := p.DM.List()
	if err != nil || slices.ContainsFunc(left, func(m devmapper.Mapped) bool { return groupOf(m) == "many" }) {
		t.Errorf("left: %+v %v", left, err)
	}
}
