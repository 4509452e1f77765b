package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// In each mode and with each filesystem two pods share a volume, its data survives them, and nothing remains.
func TestWholeLife(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs", "mkfs.btrfs")
	h := newHost(t)
	kinds := []string{"ext4", "xfs", "btrfs"}
	for i := range min(max(3, times(9)), 9) { // the first three have each way and each filesystem
		m, fs := modes[i%3], kinds[(i+i/3)%3]
		v := h.vol(strings.Fields(strings.ReplaceAll(string(m), ":", " "))[0]+"-"+fs, fs)
		a, b := podN(1), podN(2)
		h.ok(h.up(m, v, a))
		h.write(v, a, "greeting", "hello from a")
		h.ok(h.up(m, v, b))
		h.reads(v, b, "greeting", "hello from a")
		h.write(v, b, "greeting", "hello from b")
		if s := h.story(v.Options["volumeID"]); s.State != "mounted" || len(s.Pods) != 2 || s.Filesystem != fs || s.Pods[0].Name != "web-1" {
			t.Errorf("%s, %s: status: %+v", m, fs, s)
		}
		h.ok(h.unmount(v, a))
		h.reads(v, b, "greeting", "hello from b")
		h.end(m, v, b)
		h.ok(h.up(m, v, a)) // within the lease
		h.reads(v, a, "greeting", "hello from b")
		h.end(m, v, a)
	}
	// What the controller asks meanwhile.
	v := h.vol("controller-ext4", "ext4")
	if a := h.call("isattached", v.Blob(nil), node); a.Attached == nil || !*a.Attached {
		t.Errorf("%s: attached %v", a, a.Attached)
	}
	h.quiet() // the leases end
	h.ok(h.up(noAttach, v, podN(3)))
	h.reads(v, podN(3), "greeting", "hello from b")
	h.end(noAttach, v, podN(3))
	// A volume that does not exist here is not attached; for another machine that is
	// unknown.
	gone := h.vol("unknown", "ext4")
	if a := h.call("isattached", gone.Blob(nil), node); a.Attached == nil || *a.Attached {
		t.Errorf("of a volume that does not exist: %s: attached %v", a, a.Attached)
	}
	if a := h.call("isattached", gone.Blob(nil), "node-2"); a.Attached == nil || !*a.Attached {
		t.Errorf("of another node's: %s: attached %v", a, a.Attached)
	}
}

// 64 callers at once use one volume, or one volume for each four.
func TestCrowd(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	callers := 4 * max(2, times(16))
	together := func(f func(i int)) {
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() { f(i) })
		}
		all.Wait()
	}
	for _, volumes := range []int{1, callers / 4} {
		v := func(i int) vol { return h.vol(fmt.Sprintf("of%d-%d", volumes, i%volumes), "ext4") }
		together(func(i int) { h.ok(h.up(noAttach, v(i), podN(i))) })
		for i := range callers {
			h.write(v(i), podN(i), fmt.Sprint("by-", i), "x")
			h.reads(v(i), podN((i+volumes)%callers), fmt.Sprint("by-", i), "x")
		}
		if n := len(h.Active()); n != volumes {
			t.Errorf("%d devices for %d volumes", n, volumes)
		}
		if volumes == 1 {
			if s := h.story("of1-0"); len(s.Pods) != callers {
				t.Errorf("status shows %d pods", len(s.Pods))
			}
			mkfs := 0
			for _, op := range h.story("of1-0").History {
				if strings.HasPrefix(op.Step, "mkfs") {
					mkfs++
				}
			}
			if mkfs > 1 {
				t.Errorf("mkfs ran %d times", mkfs)
			}
		}
		together(func(i int) { h.ok(h.unmount(v(i), podN(i))) })
		h.quiet()
	}
	// All of them ask for the very same.
	v, p := h.vol("same", "ext4"), podN(0)
	together(func(int) {
		os.MkdirAll(h.PodDir(p, v), 0o750)
		h.ok(h.call("mount", h.PodDir(p, v), v.Blob(&p)))
	})
	if n := len(mounts(h.PodDir(p, v))); n != 1 {
		t.Errorf("mounted %d times", n)
	}
	together(func(int) { h.ok(h.call("unmount", h.PodDir(p, v))) })
	if mounted(h.PodDir(p, v)) {
		t.Error("still mounted")
	}
	h.unmount(v, p)
}

// A volume stays active for its lease, unless detach ends it, or forever if the configuration says so.
func TestLease(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(h *host) {
		h.settings.lease = time.Hour
		h.settings.groups = "  - {name: vg1, " + h.group("vg1") + ", create: true, maxSize: 1GiB, deactivate: never}\n"
	})
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(byKubelet, v, p))
	h.ok(h.unmount(v, p))
	h.ok(h.call("unmountdevice", h.GlobalDir(v)))
	h.state("a", "active")
	if s := h.story("a"); s.Lease == nil || !s.Lease.Live || len(h.Active()) != 1 {
		t.Errorf("status: %+v", s)
	}
	h.ok(h.call("detach", "another-volume", node))
	h.ok(h.call("detach", v.Name, "another-node"))
	h.restart()
	h.state("a", "active") // the lease outlives flexd
	h.ok(h.up(byKubelet, v, p))
	h.ok(h.call("detach", v.Name, node)) // late, of an older life: the volume is in use
	h.write(v, p, "f", "x")
	h.end(byKubelet, v, p)
	h.quiet()

	w := v.With("volumegroup", "vg1")
	h.ok(h.up(byKubelet, w, p))
	h.end(byKubelet, w, p)
	h.eventually("the notes go", func() string { return strings.Join(h.Notes(), " ") })
	if len(h.Active()) != 1 {
		t.Errorf("deactivate: never: %q", h.Active())
	}
	h.stop()
	h.deactivate("vg1/a")
}
