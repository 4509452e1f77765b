package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Each way of kubelet's with each filesystem: two pods share a volume, it
// survives them, and nothing is left.
func TestWholeLife(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs", "mkfs.btrfs")
	h := newHost(t)
	for _, m := range modes {
		for _, fs := range []string{"ext4", "xfs", "btrfs"} {
			v := h.vol(strings.Fields(strings.ReplaceAll(string(m), ":", " "))[0]+"-"+fs, fs)
			a, b := podN(1), podN(2)
			h.ok(h.up(m, v, a))
			h.write(v, a, "greeting", "hello from a")
			h.ok(h.up(m, v, b))
			h.reads(v, b, "greeting", "hello from a")
			h.write(v, b, "greeting", "hello from b")
			if s := h.story(v.opts["volumeID"]); s.State != "mounted" || len(s.Pods) != 2 || s.Filesystem != fs || s.Pods[0].Name != "web-1" {
				t.Errorf("%s, %s: status: %+v", m, fs, s)
			}
			h.ok(h.unmount(v, a))
			h.reads(v, b, "greeting", "hello from b")
			h.end(m, v, b)
			h.ok(h.up(m, v, a)) // within the lease
			h.reads(v, a, "greeting", "hello from b")
			h.end(m, v, a)
		}
	}
	// What the controller asks meanwhile.
	v := h.vol("controller-ext4", "ext4")
	if a := h.call("isattached", v.blob(nil), node); a.Attached == nil || !*a.Attached {
		t.Errorf("%s: attached %v", a, a.Attached)
	}
	h.quiet() // the leases end
	h.ok(h.up(noAttach, v, podN(3)))
	h.reads(v, podN(3), "greeting", "hello from b")
	h.end(noAttach, v, podN(3))
	// A volume that is not here is not attached, but on another machine nobody knows.
	gone := h.vol("nobody", "ext4")
	if a := h.call("isattached", gone.blob(nil), node); a.Attached == nil || *a.Attached {
		t.Errorf("of a volume that does not exist: %s: attached %v", a, a.Attached)
	}
	if a := h.call("isattached", gone.blob(nil), "node-2"); a.Attached == nil || !*a.Attached {
		t.Errorf("of another node's: %s: attached %v", a, a.Attached)
	}
}

func TestHundredTimes(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs", "mkfs.btrfs")
	h := newHost(t)
	var all sync.WaitGroup
	for i, fs := range []string{"ext4", "xfs", "btrfs"} {
		all.Go(func() {
			v, p := h.vol("again-"+fs, fs), podN(i)
			h.ok(h.up(noAttach, v, p))
			for n := range times(100) {
				text := fmt.Sprintf("round %d", n)
				h.write(v, p, "round", text)
				h.ok(h.unmount(v, p))
				h.ok(h.up(noAttach, v, p))
				h.reads(v, p, "round", text)
				if t.Failed() {
					return
				}
			}
			h.end(noAttach, v, p)
		})
	}
	all.Wait()
}

// 64 callers at once, on one volume and on one for each four.
func TestCrowd(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	callers := max(8, times(64))
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
		if n := len(h.active()); n != volumes {
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
		os.MkdirAll(h.podDir(v, p), 0o750)
		h.ok(h.call("mount", h.podDir(v, p), v.blob(&p)))
	})
	if n := len(mounts(h.podDir(v, p))); n != 1 {
		t.Errorf("mounted %d times", n)
	}
	together(func(int) { h.ok(h.call("unmount", h.podDir(v, p))) })
	if mounted(h.podDir(v, p)) {
		t.Error("still mounted")
	}
	h.unmount(v, p)
}

// Every verb repeated, reordered and overlapping itself and its opposite: each
// answer is right, and the mount table agrees with the last of them.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	r := seeded(t)
	const workers, volumes = 8, 3
	seeds := make([]*rand.Rand, workers)
	for i := range seeds {
		seeds[i] = rand.New(rand.NewPCG(r.Uint64(), 0))
	}
	for i := range volumes { // so that every order finds them
		v := h.vol(fmt.Sprint("any-", i), "ext4")
		h.ok(h.up(noAttach, v, podN(100+i)))
		h.write(v, podN(100+i), "mark", v.name)
		h.ok(h.unmount(v, podN(100+i)))
	}
	var all sync.WaitGroup
	for w, r := range seeds {
		all.Go(func() {
			p := podN(w)
			for range times(24) {
				if t.Failed() {
					return
				}
				h.anything(r, h.vol(fmt.Sprint("any-", r.IntN(volumes)), "ext4"), p)
			}
		})
	}
	all.Wait()
	for i := range volumes {
		v := h.vol(fmt.Sprint("any-", i), "ext4")
		for w := range workers {
			h.ok(h.unmount(v, podN(w)))
		}
		h.ok(h.down(byKubelet, v))
	}
}

// anything is one random act of a pod on a volume. Only this worker uses the
// pod's directory; the volume and its global directory are everybody's.
func (h *host) anything(r *rand.Rand, v vol, p pod) {
	h.t.Helper()
	dir, global := h.podDir(v, p), h.globalDir(v)
	h.must(os.MkdirAll(dir, 0o750))
	h.must(os.MkdirAll(global, 0o750))
	overlap := func(n int, f func() answer) (answers []answer) {
		var mu sync.Mutex
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				a := f()
				mu.Lock()
				defer mu.Unlock()
				answers = append(answers, a)
			})
		}
		all.Wait()
		return answers
	}
	mount := func() answer { return h.call("mount", dir, v.blob(&p)) }
	unmount := func() answer { return h.call("unmount", dir) }
	n := 1 + r.IntN(3)
	switch r.IntN(8) {
	case 0, 1, 2:
		for _, a := range overlap(n, mount) {
			h.ok(a)
		}
		if !mounted(dir) {
			h.t.Errorf("mount said Success, but nothing is at %s", dir)
			return
		}
		h.reads(v, p, "mark", v.name)
	case 3, 4:
		for _, a := range overlap(n, unmount) {
			h.ok(a)
		}
		if mounted(dir) {
			h.t.Errorf("unmount said Success, but %s is mounted", dir)
		}
	case 5: // both at once: the newer wins, the older may be told so
		var other []answer
		var both sync.WaitGroup
		both.Go(func() { other = overlap(n, mount) })
		answers := overlap(n, unmount)
		both.Wait()
		for _, a := range append(answers, other...) {
			if !a.ok() && !strings.Contains(a.Message, "superseded") {
				h.t.Errorf("%s", a)
			}
		}
		h.ok(unmount())
		if mounted(dir) {
			h.t.Errorf("unmount said Success, but %s is mounted", dir)
		}
	case 6: // the global mount is everybody's: opposite wishes meet there
		for _, a := range []answer{h.call("waitforattach", "", v.blob(nil)), h.call("mountdevice", global, "", v.blob(nil))} {
			if !a.ok() && !strings.Contains(a.Message, "superseded") {
				h.t.Errorf("%s", a)
			}
		}
		h.ok(h.call("detach", v.name, node))
	case 7:
		for _, a := range overlap(n, func() answer { return h.call("unmountdevice", global) }) {
			if !a.ok() && !strings.Contains(a.Message, "superseded") {
				h.t.Errorf("%s", a)
			}
		}
		h.ok(h.call("attach", v.blob(nil), node))
	}
}

// A detach that comes while others ask for the volume takes it from none of
// them.
func TestDetachMeanwhile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v := h.vol("hint", "ext4")
	h.ok(h.call("waitforattach", "", v.blob(nil)))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range times(25) {
				switch {
				case i%2 == 0:
					h.ok(h.call("detach", v.name, node))
				default:
					h.ok(h.call("waitforattach", "", v.blob(nil)))
				}
			}
		})
	}
	all.Wait()
}

// attach:false pods come and go on one volume; each finds all it wrote.
func TestPodsComeAndGo(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v := h.vol("shared", "ext4")
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			p := podN(i)
			for n := range times(8) {
				if h.ok(h.up(noAttach, v, p)); t.Failed() {
					return
				}
				name := fmt.Sprint("diary-", i)
				b, err := os.ReadFile(filepath.Join(h.podDir(v, p), name))
				if len(b) != n || err != nil && n > 0 {
					t.Errorf("pod %d finds %d of %d entries: %v", i, len(b), n, err)
				}
				h.write(v, p, name, string(b)+"x")
				h.ok(h.unmount(v, p))
			}
		})
	}
	all.Wait()
}

// A read-only pod beside a read-write one, in both orders, in each way.
func TestReadOnlyBesideReadWrite(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, m := range modes {
		for _, roFirst := range []bool{true, false} {
			v := h.vol(fmt.Sprintf("ro-%d-%v", len(m), roFirst), "ext4")
			reader, writer := podN(1), podN(2)
			if roFirst {
				h.ok(h.up(m, v.readOnly(), reader))
				h.ok(h.up(m, v, writer))
			} else {
				h.ok(h.up(m, v, writer))
				h.ok(h.up(m, v.readOnly(), reader))
			}
			h.write(v, writer, "f", "written")
			h.reads(v, reader, "f", "written")
			err := os.WriteFile(h.podDir(v, reader)+"/g", nil, 0o644)
			if e, ok := err.(*os.PathError); !ok || e.Err != syscall.EROFS {
				t.Errorf("%s, read-only first %v: the reader writes: %v", m, roFirst, err)
			}
			if s := h.show(); !strings.Contains(s, "default/web-1 (ro)") || strings.Contains(s, "web-2 (ro)") {
				t.Errorf("status:\n%s", s)
			}
			// The pod's mode is not changed by asking again for another.
			h.refused(h.call("mount", h.podDir(v, reader), v.blob(&reader)), "read-only")
			h.end(m, v, reader, writer)
		}
	}
}

// How long a volume stays active: its lease, unless detach ends it, or for ever
// where the configuration says so.
func TestLease(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(h *host) {
		h.settings.lease = time.Hour
		h.settings.groups = "  - {name: vg1, " + h.group("vg1") + ", create: true, maxSize: 1GiB, deactivate: never}\n"
	})
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(byKubelet, v, p))
	h.ok(h.unmount(v, p))
	h.ok(h.call("unmountdevice", h.globalDir(v)))
	h.state("a", "active")
	if s := h.story("a"); s.Lease == nil || !s.Lease.Live || len(h.active()) != 1 {
		t.Errorf("status: %+v", s)
	}
	h.ok(h.call("detach", "another-volume", node))
	h.ok(h.call("detach", v.name, "another-node"))
	h.kill()
	h.start()
	h.state("a", "active") // the lease outlives flexd
	h.ok(h.up(byKubelet, v, p))
	h.ok(h.call("detach", v.name, node)) // late, of an older life: the volume is in use
	h.write(v, p, "f", "x")
	h.end(byKubelet, v, p)
	h.quiet()

	w := v.with("volumegroup", "vg1")
	h.ok(h.up(byKubelet, w, p))
	h.end(byKubelet, w, p)
	h.eventually("the notes go", func() string { return strings.Join(h.notes(), " ") })
	if len(h.active()) != 1 {
		t.Errorf("deactivate: never: %q", h.active())
	}
	h.stop()
	h.deactivate("vg1/a")
}
