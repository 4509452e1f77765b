//go:build vm

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Pods get snapshots while their origins are in use: read-only ones unchanged, without a check, a replayed
// journal or growth; an xfs although its UUID is mounted already; one that LVM skips at activation. A btrfs
// is refused.
func TestSnapshotsBesideTheirOrigins(t *testing.T) {
	need(t, "mkfs.xfs", "mkfs.btrfs")
	h := newHost(t)
	p, q := podN(1), podN(2)
	// copied is a snapshot of a volume in use.
	copied := func(lv, snapshot string, args ...string) (origin, copy vol) {
		t.Helper()
		origin = h.vol(lv, lv)
		h.ok(h.up(noAttach, origin, p))
		h.write(origin, p, "f", lv)
		h.sh("sync", "-f", h.PodDir(p, origin))
		h.lvm("lvcreate", append([]string{"-y", "-s", "-n", snapshot, "vg0/" + lv}, args...)...)
		return origin, h.vol(snapshot, lv).With("size", "-")
	}
	options := func(v vol, p pod) string {
		info, _ := os.ReadFile("/proc/self/mountinfo")
		for line := range strings.Lines(string(info)) {
			if strings.Contains(line, " "+h.PodDir(p, v)+" ") {
				return line
			}
		}
		return "not mounted"
	}
	// steps are those that flexd has taken on a volume, by its log.
	steps := func(lv string) (all string) {
		for line := range strings.Lines(h.LogTail(1 << 20)) {
			if strings.Contains(line, "volume=vg0/"+lv+" ") && strings.Contains(line, "step=") && strings.Contains(line, "  done") {
				all += line
			}
		}
		return all
	}

	for _, fs := range []string{"ext4", "xfs"} {
		origin, copy := copied(fs, fs+"-copy", "-L", "32m", "-pr")
		var before []byte
		if fs == "ext4" { // the other is large
			before = h.content("vg0/ext4-copy")
		}
		h.refused(h.mount(copy, q), "vg0/"+fs+"-copy: mount", "read-only")
		h.ok(h.mount(readOnly(copy), q))
		h.reads(copy, q, "f", fs)
		if o := options(copy, q); fs == "xfs" && !(strings.Contains(o, "norecovery") && strings.Contains(o, "nouuid")) {
			t.Errorf("%s: mounted with %s", fs, o)
		}
		h.ok(h.unmount(copy, q))
		if before != nil && !bytes.Equal(h.content("vg0/ext4-copy"), before) {
			t.Error("the snapshot was changed")
		}
		h.end(noAttach, origin, p)
		if done := steps(fs + "-copy"); !strings.Contains(done, "step=mount") || strings.Contains(done, "fsck") || strings.Contains(done, "grow") || strings.Contains(done, "mkfs") {
			t.Errorf("the snapshot of %s: %s", fs, done)
		}
		h.quiet() // LVM deactivates such a snapshot only with its origin
	}

	origin, copy := copied("btrfs", "btrfs-copy", "-L", "32m", "-pr")
	h.refused(h.mount(readOnly(copy), q), "vg0/btrfs-copy: mount", "mounted already from", filepath.Base(h.story("btrfs").Device), filepath.Base(h.story("btrfs-copy").Device))
	h.reads(origin, p, "f", "btrfs")
	h.end(noAttach, origin, p)
	h.quiet()

	h.lvm("lvcreate", "-y", "-an", "-L", "64m", "-T", "vg0/pool")
	h.lvm("lvcreate", "-y", "-an", "-V", "64m", "-T", "vg0/pool", "-n", "thin")
	origin, copy = h.vol("thin", "ext4"), h.vol("thin-copy", "ext4").With("size", "-")
	h.ok(h.up(noAttach, origin, p))
	h.write(origin, p, "f", "thin")
	h.sh("sync", "-f", h.PodDir(p, origin))
	h.lvm("lvcreate", "-y", "-s", "-n", "thin-copy", "vg0/thin")
	if got := h.lvm("lvs", "--noheadings", "-o", "lv_skip_activation", "vg0/thin-copy"); got != "skip activation" {
		t.Errorf("the snapshot: %q", got)
	}
	h.ok(h.up(noAttach, copy, q))
	h.reads(copy, q, "f", "thin")
	h.write(copy, q, "f", "copy")
	h.reads(origin, p, "f", "thin")
	h.end(noAttach, copy, q)
	h.end(noAttach, origin, p)
	if done := steps("thin-copy"); !strings.Contains(done, "step=fsck") { // as one that can be written is
		t.Errorf("the snapshot that can be written: %s", done)
	}
}
