//go:build vm

package e2e

import (
	"os"
	"strings"
	"testing"
)

// A volume that was activated by hand is released when no process has it open.
func TestReleaseActive(t *testing.T) {
	h := newHost(t)
	h.lvm("lvcreate", "-y", "-ay", "-Zn", "-Wn", "-L", "16m", "-n", "idle", "vg0")
	uuid := h.identity("vg0/idle")
	h.disagrees("active-unclaimed", uuid)
	says := func(status int, word string, args ...string) {
		t.Helper()
		if out, code := h.release(args...); code != status || !strings.Contains(out, word) {
			t.Errorf("flexd release %q: exit status %d, want %d and %q:\n%s", args, code, status, word, out)
		}
	}
	says(0, "would deactivate", uuid)
	f, err := os.Open("/dev/vg0/idle")
	h.must(err)
	says(1, "has it open as", "vg0/idle", "--yes")
	h.must(f.Close())
	says(0, "released", "vg0/idle", "--yes")
	if all := h.Active(); len(all) != 0 {
		t.Errorf("active: %q", all)
	}
	h.lvm("lvremove", "-y", "vg0/idle")
}
