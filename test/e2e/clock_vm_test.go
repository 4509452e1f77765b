//go:build vm

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The wall clock jumps a day forwards and two backwards, during a call, during a lease, and while flexd is
// down. Nothing ends early or late.
func TestClockJumps(t *testing.T) {
	const lease = 12 * time.Second
	h := newHost(t, func(h *host) { h.settings.lease = lease })
	var clock time.Duration // how far it is off
	jump := func(d time.Duration) {
		t.Helper()
		now := unix.NsecToTimeval(time.Now().Add(d).UnixNano())
		h.must(unix.Settimeofday(&now))
		clock += d
	}
	defer func() { jump(-clock) }()
	const day = 24 * time.Hour
	v, fresh, p, q := h.vol("a", "ext4"), h.vol("fresh", "ext4"), podN(1), podN(2)
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "x")

	// Under a first mount, forwards; under an unmount, backwards: no deadline has
	// passed. What comes next finds a filesystem that was used in the future.
	h.sh("mkdir", "-p", h.PodDir(q, fresh))
	b := h.begin("mount", h.PodDir(q, fresh), fresh.Blob(&q))
	waits := func(child int) {
		t.Helper()
		time.Sleep(2 * time.Second) // for what thinks that its time has come
		if len(b.done) != 0 {
			t.Errorf("it does not wait any more: %s", <-b.done)
		}
		thaw(child)
		h.ok(b.wait(t))
	}
	mkfs := h.freeze("mkfs.ext4")
	jump(day)
	waits(mkfs)
	b = h.begin("unmount", h.PodDir(q, fresh))
	umount := h.freeze("umount")
	jump(-2 * day)
	waits(umount)
	ended := time.Now() // the lease began before it, and time.Since is not about the wall clock
	h.ok(h.mount(v, q))
	h.reads(v, q, "f", "x")

	// The lease of what was unmounted is not over, for this flexd or the next.
	h.kill()
	jump(2 * day)
	h.start()
	s := h.settled("fresh")
	t.Logf("%v after the last unmount, the lease: %+v", time.Since(ended), s.Lease)
	if s.Lease == nil || !s.Lease.Live {
		t.Error("it has ended")
	}
	jump(-2 * day)
	h.ok(h.unmount(v, q))
	h.ok(h.unmount(v, p))
	wrong := h.within(lease+soon, func() string {
		if slices.Contains(h.Active(), "vg0/fresh") {
			return "active"
		}
		return ""
	})
	took := time.Since(ended)
	t.Logf("it was active for %v", took)
	if wrong != "" || took < lease-5*time.Second {
		t.Errorf("%s after %v, and its lease was %v", wrong, took, lease)
	}
	h.ok(h.up(noAttach, fresh, q)) // last mounted tomorrow, says its superblock
	h.end(noAttach, fresh, q)
	if problems := h.list().Problems; len(problems) != 0 {
		t.Errorf("problems: %s", strings.Join(problems, "; "))
	}
	for _, v := range []vol{v, fresh} {
		h.ok(h.call("detach", v.Name, node))
	}
}
