//go:build vm

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// LVM deactivates an origin and its thick snapshots only together. flexd does so if it has activated all of
// them and none is in use.
func TestThickSnapshots(t *testing.T) {
	h := newHost(t)
	p, q := podN(1), podN(2)
	h.volume("vg0/o", 32*mib, func(path string) { h.sh("mkfs.ext4", "-q", path) })
	h.lvm("lvcreate", "-y", "-s", "-L", "8m", "-n", "s", "vg0/o")
	origin, snapshot := h.vol("o", "ext4").With("size", "-"), h.vol("s", "ext4").With("size", "-")
	both := func() bool { a := h.Active(); return slices.Contains(a, "vg0/o") && slices.Contains(a, "vg0/s") }
	// kept waits until flexd has nothing to do, and says why a volume stays active.
	kept := func(lv, why string) {
		t.Helper()
		h.eventually(lv+" stays active", func() string {
			s := h.story(lv)
			if s.State == "active" && s.Lease != nil && !s.Lease.Live && len(s.Plan) == 0 && s.Error == nil {
				for _, f := range s.Observed {
					if f.Name == "stays active" && strings.Contains(f.Value, why) {
						return ""
					}
				}
			}
			return h.show("vg0/" + lv)
		})
		tried := strings.Count(h.LogTail(1<<20), "step=deactivate")
		time.Sleep(3 * lease)
		if now := strings.Count(h.LogTail(1<<20), "step=deactivate"); now != tried || !both() {
			t.Errorf("%s: %s", lv, h.show("vg0/"+lv))
		}
	}

	// The operator's own: nothing of it is deactivated, and no command is tried.
	h.lvm("lvchange", "-y", "-ay", "vg0/o")
	h.ok(h.mount(readOnly(snapshot), q))
	h.ok(h.unmount(readOnly(snapshot), q))
	kept("s", "vg0/o, and flexd did not activate it")
	if out, code := h.release("--yes", "vg0/s"); code == 0 || !both() {
		t.Errorf("%d: %s", code, out)
	}
	h.lvm("lvchange", "-y", "-an", "vg0/o")
	h.quiet()

	// flexd activates the snapshot, and with it the origin: both go.
	h.ok(h.mount(readOnly(snapshot), q))
	if !both() {
		t.Errorf("active: %v", h.Active())
	}
	h.restart()
	h.ok(h.unmount(readOnly(snapshot), q))
	h.quiet()

	// The origin is in use: the snapshot waits for it.
	h.ok(h.mount(origin, p))
	h.ok(h.mount(readOnly(snapshot), q))
	h.ok(h.unmount(readOnly(snapshot), q))
	kept("s", "vg0/o, and kubelet uses it")
	h.ok(h.unmount(origin, p))
	h.quiet()
}

// A thin volume is rolled back to a snapshot from before an extension, while its pod runs: LVM merges them at
// the next activation, and gives the device the larger size once more. This is not older metadata: nothing
// must be restored, and the next activation has the right size.
func TestMergedAfterExtension(t *testing.T) {
	h := newHost(t)
	p, v := podN(1), h.vol("thin", "ext4").With("size", "-")
	h.lvm("lvcreate", "-y", "-an", "-L", "200M", "-T", "vg0/pool")
	h.lvm("lvcreate", "-y", "-an", "-V", "64M", "-T", "vg0/pool", "-n", "thin")
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "old")
	h.sh("sync")
	h.lvm("lvcreate", "-y", "-s", "-n", "earlier", "vg0/thin")
	h.write(v, p, "f", "new")
	h.ok(h.call("expandfs", v.Blob(nil), "", h.PodDir(p, v), fmt.Sprint(128*mib), fmt.Sprint(64*mib)))
	h.lvm("lvconvert", "-y", "--merge", "vg0/earlier")
	h.end(noAttach, v, p)
	h.quiet()

	h.ok(h.up(noAttach, v, p))
	h.reads(v, p, "f", "old")
	h.disagrees("stale-mapping", h.identity("vg0/thin"), "the metadata says 64 MiB", "128 MiB", "nothing is lost", "lvextend -L 134217728b vg0/thin")
	h.end(noAttach, v, p)
	h.quiet()
	h.ok(h.up(noAttach, v, p))
	h.reads(v, p, "f", "old")
	h.eventually("all agree", func() string {
		if l := h.list(); len(l.Disagreements) > 0 {
			return fmt.Sprintf("%+v", l.Disagreements)
		}
		return ""
	})
	h.end(noAttach, v, p)
}
