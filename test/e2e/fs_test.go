package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// expandfs grows the volume and its filesystem online, repeatedly.
func TestExpand(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs", "mkfs.btrfs")
	h := newHost(t)
	p, q := podN(1), podN(2)
	kinds := []string{"ext4", "xfs", "btrfs"}
	const grown = 74 * mib // of 80 and 100: ext4's tables take the rest
	for i := range min(max(3, times(6)), 6) {
		fs, m := kinds[i%3], []mode{noAttach, byController}[i%2]
		lv := fmt.Sprintf("%s-%d", fs, len(m))
		v := h.vol(lv, fs).With("size", "320Mi")
		h.ok(h.up(m, v, p))
		h.ok(h.up(m, readOnly(v), q))
		h.write(v, p, "f", "x")
		expand := func(p pod, size int64) answer {
			return h.call("expandfs", v.Blob(nil), "", h.PodDir(p, v), fmt.Sprint(size), fmt.Sprint(320*mib))
		}
		if fs == "ext4" && !growsExt4() {
			// Nothing but the kernel's own word can be seen here.
			h.ok(expand(p, 320*mib))
			h.ok(expand(q, 100*mib))
			h.refused(expand(p, 400*mib), "vg0/"+lv+": expandfs", "CAP_SYS_RESOURCE")
			h.ok(expand(p, 320*mib)) // the capacity is lowered
			if s := h.story(lv); s.Size != 320*mib {
				t.Errorf("the failed expansion has left %d bytes", s.Size)
			}
			h.end(m, v, p, q)
			continue
		}
		was := capacity(t, h.PodDir(p, v))
		h.ok(expand(p, 400*mib))
		now := capacity(t, h.PodDir(p, v))
		if now < was+grown {
			t.Errorf("%s, %s: grew from %d to %d", fs, m, was, now)
		}
		h.ok(expand(p, 400*mib))
		h.ok(expand(q, 400*mib)) // the read-only pod's call, after the fact
		h.ok(expand(p, 100*mib)) // smaller is never done
		if c := capacity(t, h.PodDir(p, v)); c != now {
			t.Errorf("%s, %s: %d became %d", fs, m, now, c)
		}
		h.ok(expand(q, 500*mib)) // through a read-only mount
		if c := capacity(t, h.PodDir(p, v)); c < now+grown {
			t.Errorf("%s, %s: grew from %d to %d through the read-only pod", fs, m, now, c)
		}
		h.reads(v, p, "f", "x")
		if s := h.story(lv); s.Size != 500*mib {
			t.Errorf("%s, %s: status: size %d", fs, m, s.Size)
		}
		h.end(m, v, p, q)
		h.refused(expand(p, 600*mib), "vg0/"+lv+": expandfs", "not mounted")
		h.ok(h.up(m, v, p))
		h.reads(v, p, "f", "x")
		h.end(m, v, p)
	}
}

// The kernel does not extend a btrfs to less than 256 MiB, and a failed expansion takes no space. Both remedies of its
// message work, also for the next pod, and also if an operator has extended the volume.
func TestImpossibleExpansion(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.btrfs")
	h := newHost(t)
	v, p, q := h.vol("small", "btrfs").With("size", "128Mi"), podN(1), podN(2)
	expand := func(p pod, size int64) answer {
		return h.call("expandfs", v.Blob(nil), "", h.PodDir(p, v), fmt.Sprint(size), "0")
	}
	fails := func(p pod, volume int64) {
		t.Helper()
		h.refused(expand(p, 192*mib), "vg0/small: expandfs", "ask for at least 257 MiB; if that size is not possible, or not needed, lower spec.capacity.storage")
		if size := h.story("small").Size; size != volume {
			t.Errorf("the volume has %d bytes", size)
		}
		for _, size := range []int64{128 * mib, 120 * mib} { // the capacity is lowered
			h.ok(expand(p, size))
		}
	}
	h.ok(h.up(noAttach, v, p))
	fails(p, 128*mib)
	h.extend("vg0/small", 192*mib)
	fails(p, 192*mib)
	h.end(noAttach, v, p)
	h.ok(h.up(noAttach, v, q))
	fails(q, 192*mib)
	h.ok(expand(q, 257*mib))
	if c := capacity(t, h.PodDir(q, v)); c < 250*mib {
		t.Errorf("%d bytes after expandfs to 257 MiB", c)
	}
	h.ok(expand(q, 128*mib))
	h.end(noAttach, v, q)
	v = h.vol("missing", "ext4")
	h.refused(expand(q, 192*mib), "it does not exist in volume group vg0; if that size is not possible, or not needed, lower spec.capacity.storage")
}

// A filesystem that is smaller than its device is grown after the answer.
func TestGrowsAfterMount(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs", "mkfs.btrfs")
	h := newHost(t)
	p := podN(1)
	for _, fs := range some(seeded(t), []string{"ext4", "xfs", "btrfs"}, 1) {
		v := h.vol("late-"+fs, fs).With("size", "320Mi")
		h.ok(h.up(noAttach, v, p))
		h.write(v, p, "f", "x")
		was := capacity(t, h.PodDir(p, v))
		h.end(noAttach, v, p)
		h.quiet()
		h.extend("vg0/late-"+fs, 500*mib)
		h.ok(h.up(noAttach, v, p))
		h.reads(v, p, "f", "x")
		if fs == "ext4" && !growsExt4() {
			h.eventually("its extension fails and is reported", func() string {
				if s := h.story("late-ext4"); s.Error != nil && strings.Contains(s.Error.Message, "CAP_SYS_RESOURCE") && s.State == "mounted" {
					return ""
				} else {
					return fmt.Sprintf("%+v", s)
				}
			})
		} else {
			h.eventually(fs+" grows", func() string {
				if now := capacity(t, h.PodDir(p, v)); now < was+150*mib {
					return fmt.Sprintf("%d, then %d", was, now)
				}
				return ""
			})
		}
		h.end(noAttach, v, p)
	}
}
