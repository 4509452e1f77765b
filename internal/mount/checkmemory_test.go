//go:build !vm

package mount

import "testing"

// Ensure that an fsck that needs more than checkMemory fails, and one within it does not; only a filesystem
// that needs a real check is reported as unclean. The VM has no disk of that size.
func TestCheckMemory(t *testing.T) {
	need(t, "mkfs.ext4", "debugfs")
	r := newRig(t, 1<<40)
	r.sh("mkfs.ext4", "-q", "-O", "^has_journal", r.dev.Path)
	if fs := r.probe(""); fs.Unclean {
		t.Error("a new filesystem is unclean")
	}
	r.sh("debugfs", "-w", "-R", "ssv state 0", r.dev.Path)
	if fs := r.probe(""); !fs.Unclean {
		t.Error("a filesystem that was not unmounted is clean")
	}
	r.Memory = 12 * mib
	if err := r.Check(t.Context(), r.lock, r.dev, "ext4"); err == nil {
		t.Error("e2fsck needs no memory")
	}
	r.Memory = 256 * mib
	if err := r.Check(t.Context(), r.lock, r.dev, "ext4"); err != nil {
		t.Error(err)
	}
	if fs := r.probe(""); fs.Unclean {
		t.Error("a checked filesystem is unclean")
	}
}
