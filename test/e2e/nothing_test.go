package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// A mount on a missing directory creates no volume.
func TestMountOnMissingDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("a", "ext4"), podN(1)
	nothing := func(want ...string) {
		t.Helper()
		records, _ := os.ReadDir(h.State + "/formats")
		if got := h.volumes(); !slices.Equal(got, want) || len(records) != 0 || len(h.Active()) != 0 {
			t.Errorf("volumes %q, records %v, active %q", got, records, h.Active())
		}
		if _, err := os.Lstat(h.PodDir(p, v)); !os.IsNotExist(err) {
			t.Errorf("its directory: %v", err)
		}
	}
	h.refused(h.call("mount", h.PodDir(p, v), v.Blob(&p)), "vg0/a: mount", "does not exist", h.PodDir(p, v))
	nothing()
	h.refused(h.call("mountdevice", h.GlobalDir(v), "", v.Blob(nil)), "vg0/a: mountdevice", "does not exist", h.GlobalDir(v))
	nothing()
	// A blank volume that is there stays blank.
	h.volume("vg0/a", 16*mib, nil)
	h.refused(h.call("mount", h.PodDir(p, v), v.Blob(&p)), "does not exist")
	nothing("vg0/a")
	h.ok(h.up(noAttach, v, p))
	h.end(noAttach, v, p)
}

// Devices of a volume group that is no longer configured are deactivated after the unmount.
func TestDeviceOfGroupTakenFromConfiguration(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{noAttach, byKubelet} {
		h := newHost(t)
		v, p := h.vol("a", "ext4"), podN(1)
		h.ok(h.up(m, v, p))
		h.stop()
		text, err := os.ReadFile(h.Config())
		h.must(err)
		h.must(os.WriteFile(h.Config(), []byte(strings.Split(string(text), "volumeGroups:")[0]), 0o600))
		h.start()
		h.end(m, v, p)
		h.quiet()
	}
}
