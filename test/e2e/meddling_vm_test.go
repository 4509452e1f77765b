//go:build vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/test/umount"
)

// actions returns changes of an LVM volume, at any point of its life. While it is mounted LVM and the kernel
// refuse all but the last.
func (h *host) actions() []action {
	lv := func(v vol) string { return "vg0/" + v.Options["volumeID"] }
	try := func(argv ...string) bool { return exec.Command(argv[0], argv[1:]...).Run() == nil }
	return []action{
		{"lvchange -an", func(v vol, _ string) trace {
			try("lvm", "lvchange", "-an", lv(v))
			return trace{}
		}},
		{"dmsetup remove", func(_ vol, device string) trace {
			try("dmsetup", "remove", "--noudevsync", device)
			return trace{}
		}},
		{"lvremove", func(v vol, _ string) trace {
			if !try("lvm", "lvremove", "-y", lv(v)) {
				return trace{}
			}
			return trace{inTheWay: "does not exist", lost: true}
		}},
		{"dmsetup remove -f", func(_ vol, device string) trace {
			try("dmsetup", "remove", "-f", "--noudevsync", device)
			return trace{inTheWay: "error"}
		}},
	}
}

// An administrator changes volumes while pods use them. flexd reports it without a call; it never mounts
// anything again, gives no pod another volume under the same name, and releases volumes by their uuids.
func TestMeddlingWithMounted(t *testing.T) {
	h := newHost(t)
	p, q := podN(1), podN(2)
	up := func(lv string, m mode) (vol, volumeStatus) {
		t.Helper()
		v := h.vol(lv, "ext4")
		h.ok(h.up(m, v, p))
		h.write(v, p, "f", lv)
		h.sh("sync", "-f", h.PodDir(p, v))
		return v, h.story(lv)
	}

	// Extended: the size is observed. No call requested an expansion.
	v, _ := up("extended", noAttach)
	was := capacity(t, h.PodDir(p, v))
	h.extend("vg0/extended", 64*mib)
	h.noticed("lvextend", "vg0/extended", func(s volumeStatus) bool { return s.Size == 64*mib && s.State == "mounted" })
	if now := capacity(t, h.PodDir(p, v)); now != was {
		t.Errorf("the filesystem grew from %d to %d unasked", was, now)
	}
	h.reads(v, p, "f", "extended")
	h.end(noAttach, v, p)

	// Renamed, and another made under the old name.
	for _, m := range []mode{noAttach, byKubelet} {
		lv := "named-" + strings.Fields(string(m))[0][:4]
		v, s := up(lv, m)
		h.lvm("lvrename", "vg0/"+lv, "vg0/"+lv+"-new")
		h.noticed("lvrename", "-/"+s.UUID, func(s volumeStatus) bool { return s.State == "missing" })
		h.disagrees("stale-mapping", s.UUID, "renamed to "+lv+"-new")
		h.refused(h.mount(v, q), "vg0/"+lv, "does not exist", s.UUID, "vg0/"+lv+"-new")
		h.volume("vg0/"+lv, 16*mib, nil)
		fresh := h.identity("vg0/" + lv)
		h.noticed("lvcreate", "-/"+s.UUID, func(now volumeStatus) bool { return now.sees("is another volume by now", s.UUID, fresh) })
		h.refused(h.call("mount", h.PodDir(p, v), v.Blob(&p)), s.UUID, fresh, h.PodDir(p, v))
		h.refused(h.call("expandfs", v.Blob(nil), "", h.PodDir(p, v), fmt.Sprint(64*mib), "0"), s.UUID, fresh)
		h.refused(h.mount(v, q), s.UUID, "rename that one back", "delete the pods that use the other one")
		h.restart()
		h.reads(v, p, "f", lv)
		h.end(m, v, p)
		h.eventually("it is released by its uuid", func() string { return strings.Join(h.Active(), " ") })
	}

	// Its device is taken away by force, and its disk is dead.
	v, s := up("dead", noAttach)
	h.sh("sh", "-c", "dmsetup remove -f --noudevsync vg0-dead || true") // in use: its table is replaced by errors
	h.noticed("dmsetup remove -f", "vg0/dead", func(s volumeStatus) bool {
		return s.sees("device", "error", "a part of the volume is missing")
	})
	h.disagrees("stale-mapping", s.UUID, "vg0-dead")
	if out, code := h.check(); code != 1 || !strings.Contains(out, "vg0/dead") || !strings.Contains(out, "stale-mapping") {
		t.Errorf("flexd check: exit status %d, want 1 and stale-mapping:\n%s", code, out)
	}
	h.refused(h.up(noAttach, v, q), "vg0/dead: mount", "its device is not usable", `"error" target`, "is missing")
	if m := mounts(h.Dir); !slices.Equal(m, []string{h.PodDir(p, v)}) {
		t.Errorf("mounted: %q", m)
	}
	h.end(noAttach, v, p)
	h.eventually("it is released", func() string { return strings.Join(h.Active(), " ") })
	h.ok(h.up(noAttach, v, q)) // the volume is well
	h.reads(v, q, "f", "dead")
	if out, code := h.check(); code != 0 {
		t.Errorf("flexd check: exit status %d, want 0:\n%s", code, out)
	}
	if now := h.story("dead"); now.UUID != s.UUID {
		t.Errorf("uuid %s, then %s", s.UUID, now.UUID)
	}
	h.end(noAttach, v, q)

	// Made read-only under its pod.
	v, s = up("fixed", noAttach)
	h.lvm("lvchange", "-pr", "vg0/fixed")
	h.disagrees("read-only", s.UUID, h.PodDir(p, v), "lvchange -prw vg0/fixed")
	a := h.up(noAttach, readOnly(v), q) // refused by Linux 6.1
	if a.Status != "Success" {
		h.refused(a, "the volume is read-only, and its filesystem is mounted read-write", "as flexd check says")
	} else {
		h.end(noAttach, readOnly(v), q)
	}
	h.lvm("lvchange", "-prw", "vg0/fixed")
	if out, code := h.check(); code != 0 {
		t.Errorf("flexd check: exit status %d, want 0:\n%s", code, out)
	}
	h.end(noAttach, v, p)
}

// The same with active volumes that are not mounted.
func TestMeddlingWithActive(t *testing.T) {
	h := newHost(t, func(h *host) {
		h.settings.lease = time.Hour
		h.kubeletsCgroups()
	})
	v, p := h.vol("a", "ext4"), podN(1)
	use := func() string {
		t.Helper()
		h.ok(h.up(noAttach, v, p))
		s := h.story("a")
		h.ok(h.unmount(v, p))
		h.state("a", "active")
		return s.UUID
	}
	idle := func(s volumeStatus) bool { return s.State == "idle" && s.Device == "" }
	use()
	h.deactivate("vg0/a")
	h.noticed("lvchange -an", "vg0/a", idle)
	use()
	h.sh("dmsetup", "remove", "--noudevsync", "vg0-a")
	h.noticed("dmsetup remove", "vg0/a", idle)

	// Its nodes are gone: the next that wants it finds them again.
	old := use()
	h.sh("rm", "-f", "/dev/vg0/a", "/dev/mapper/vg0-a")
	a := h.ok(h.call("waitforattach", "", v.Blob(nil)))
	if st, err := os.Stat(a.Device); err != nil || st.Mode()&os.ModeDevice == 0 || a.Device != "/dev/vg0/a" {
		t.Errorf("waitforattach: %q: %v", a.Device, err)
	}

	// A pod's mount was taken, and its volume removed and made again.
	h.ok(h.up(noAttach, v, p))
	h.must(umount.Plain(h.PodDir(p, v)))
	h.state("a", "missing")
	h.disagrees("claimed-missing", old, h.PodDir(p, v))
	h.lvm("lvremove", "-y", "vg0/a")
	h.noticed("lvremove", "-/"+old, func(s volumeStatus) bool { return s.sees("does not exist") && s.Device == "" })
	h.volume("vg0/a", 16*mib, nil)
	fresh := h.identity("vg0/a")
	h.noticed("lvcreate", "-/"+old, func(s volumeStatus) bool { return s.sees("is another volume by now", old, fresh) })
	if mounted(h.PodDir(p, v)) {
		t.Error("it was mounted again")
	}
	h.ok(h.unmount(v, p))
	if got := use(); got != fresh {
		t.Errorf("uuid %s, want %s", got, fresh)
	}
	h.ok(h.call("detach", v.Name, node))

	// It is removed while nothing uses it, and made again: only the new one is listed.
	h.state("a", "idle")
	h.lvm("lvremove", "-y", "vg0/a")
	h.volume("vg0/a", 16*mib, nil)
	fresh = use()
	var listed []string
	for _, l := range h.list().Volumes {
		if l.LV == "a" {
			listed = append(listed, l.UUID)
		}
	}
	if !slices.Equal(listed, []string{fresh}) {
		t.Errorf("listed are %q, want %q", listed, fresh)
	}
	h.ok(h.call("detach", v.Name, node))

	// The same, and kubelet does not come: an operator releases the claim.
	w, dead := h.vol("gone", "ext4"), podN(2)
	h.populated(dead, "1")
	h.ok(h.up(noAttach, w, dead))
	old = h.story("gone").UUID
	h.must(umount.Plain(h.PodDir(dead, w)))
	h.state("gone", "missing")
	h.deactivate("vg0/gone")
	h.lvm("lvremove", "-y", "vg0/gone")
	h.disagrees("claimed-missing", old, h.PodDir(dead, w))
	says := func(status int, args []string, words ...string) {
		t.Helper()
		out, code := h.release(args...)
		if code != status || slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(out, w) }) {
			t.Errorf("flexd release %q: exit status %d, want %d and %q:\n%s", args, code, status, words, out)
		}
	}
	says(1, []string{"--yes", old}, "vg0/gone", "claimed-missing", "its pod still runs")
	h.populated(dead, "0")
	says(0, []string{old}, "vg0/gone", "claimed-missing", "would forget the claim", "Nothing was done")
	says(0, []string{"--yes", old}, "vg0/gone", "released")
	if s := h.storyOf("-/" + old); len(s.Claims) != 0 {
		t.Errorf("its claims: %+v", s.Claims)
	}
	h.eventually("it is no orphan any more", func() string {
		if out, _ := h.release(); !strings.Contains(out, "No orphans on "+node) {
			return out
		}
		return ""
	})
	h.ok(h.unmount(w, dead)) // kubelet comes after all
	h.ok(h.call("detach", w.Name, node))
}
