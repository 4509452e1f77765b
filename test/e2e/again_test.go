package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/boottime"
)

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

// A detach while others ask for the volume does not affect them.
func TestDetachMeanwhile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v := h.vol("hint", "ext4")
	h.ok(h.call("waitforattach", "", v.Blob(nil)))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range times(25) {
				switch {
				case i%2 == 0:
					h.ok(h.call("detach", v.Name, node))
				default:
					h.ok(h.call("waitforattach", "", v.Blob(nil)))
				}
			}
		})
	}
	all.Wait()
}

// With attach:false pods come and go on one volume; each finds the data of the pods before it.
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
				b, err := os.ReadFile(filepath.Join(h.PodDir(p, v), name))
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
				h.ok(h.up(m, readOnly(v), reader))
				h.ok(h.up(m, v, writer))
			} else {
				h.ok(h.up(m, v, writer))
				h.ok(h.up(m, readOnly(v), reader))
			}
			h.write(v, writer, "f", "written")
			h.reads(v, reader, "f", "written")
			err := os.WriteFile(h.PodDir(reader, v)+"/g", nil, 0o644)
			if e, ok := err.(*os.PathError); !ok || e.Err != syscall.EROFS {
				t.Errorf("%s, read-only first %v: the reader writes: %v", m, roFirst, err)
			}
			if s := h.show(); !strings.Contains(s, "default/web-1 (ro)") || strings.Contains(s, "web-2 (ro)") {
				t.Errorf("status:\n%s", s)
			}
			// The pod's mode is not changed by asking again for another.
			h.refused(h.call("mount", h.PodDir(reader, v), v.Blob(&reader)), "read-only")
			h.end(m, v, reader, writer)
		}
	}
}

// Calls of all verbs are repeated, reordered and run concurrently with their opposites: each answer is right,
// and the mount table agrees with the last one.
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
		h.write(v, podN(100+i), "mark", v.Name)
		h.ok(h.unmount(v, podN(100+i)))
	}
	var all sync.WaitGroup
	for w, r := range seeds {
		all.Go(func() {
			p := podN(w)
			h.anything(r, 8, h.vol(fmt.Sprint("any-", w%volumes), "ext4"), p)
			for range times(24) {
				if t.Failed() {
					return
				}
				h.anything(r, r.IntN(9), h.vol(fmt.Sprint("any-", r.IntN(volumes)), "ext4"), p)
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

// A flexdriver that is stopped before its first instruction is as old as its process: its call does not win over
// those that were started and answered meanwhile.
func TestStoppedAtItsStart(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("a", "ext4"), podN(1)
	dir := h.PodDir(p, v)
	stopped := func(args ...string) *begun {
		c, out := h.command(nil, args...)
		c.Path, c.Args = "/bin/sh", append([]string{"sh", "-c", `kill -STOP $$; exec "$0" "$@"`}, c.Args...)
		h.must(c.Start())
		b := &begun{cmd: c, done: make(chan answer, 1)}
		go func() { b.done <- h.read(c, out, args) }()
		h.eventually("it has stopped", func() string {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
			if strings.Contains(string(stat), ") T ") {
				return ""
			}
			return string(stat)
		})
		time.Sleep(pace * 50 * time.Millisecond) // the clock of processes has ticks of 10 ms
		return b
	}
	proceed := func(b *begun) answer {
		h.must(b.cmd.Process.Signal(syscall.SIGCONT))
		return b.wait(t)
	}
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "x")
	late := stopped("unmount", dir)
	h.ok(h.call("mount", dir, v.Blob(&p)))
	proceed(late)
	h.reads(v, p, "f", "x")

	late = stopped("mount", dir, v.Blob(&p))
	h.ok(h.call("unmount", dir))
	h.must(os.MkdirAll(dir, 0o750))
	h.refused(proceed(late), "superseded")
	if mounted(dir) {
		t.Error("mounted")
	}
}

// A mount call that started before a successful unmount is refused, and an unmount call that started before a
// mount, even after kill -9 of flexd.
func TestLateAfterRestart(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("late", "ext4"), podN(1)
	dir := h.PodDir(p, v)
	h.ok(h.mount(v, p))
	late := boottime.Now()
	h.ok(h.unmount(v, p))
	h.restart()
	h.must(os.MkdirAll(dir, 0o750))
	h.refused(h.late(late, "mount", dir, v.Blob(&p)), "superseded")
	if mounted(dir) {
		t.Errorf("a late mount appeared at %s", dir)
	}
	late = boottime.Now()
	h.ok(h.mount(v, p))
	h.restart()
	h.refused(h.late(late, "unmount", dir), "superseded")
	h.refused(h.late(max(1, late-time.Hour), "unmount", dir), "superseded") // a boot may be younger
	if !mounted(dir) {
		t.Errorf("a late unmount took %s away", dir)
	}
	h.ok(h.unmount(v, p))
}

// late makes a call whose flexdriver started at that time and arrives only now.
func (h *host) late(started time.Duration, verb string, args ...string) answer {
	h.t.Helper()
	request, err := json.Marshal(map[string]any{"v": 1, "id": fmt.Sprint("late-", started), "verb": verb, "args": args, "started": started})
	h.must(err)
	var reply struct{ Answer answer }
	if text := h.raw(string(request)); json.Unmarshal([]byte(text), &reply) != nil {
		h.t.Errorf("late %s: %q", verb, text)
	}
	return reply.Answer
}

// anything makes one random call of a pod. Only this worker uses the pod's directory; all share the volume
// and its global directory.
func (h *host) anything(r *rand.Rand, act int, v vol, p pod) {
	h.t.Helper()
	dir, global := h.PodDir(p, v), h.GlobalDir(v)
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
	mount := func() answer { return h.call("mount", dir, v.Blob(&p)) }
	unmount := func() answer { return h.call("unmount", dir) }
	n := 1 + r.IntN(3)
	switch act {
	case 8: // late calls: older than the last unmount, and than the last mount
		first := boottime.Now()
		h.ok(mount())
		second := boottime.Now()
		h.ok(unmount())
		h.refused(h.late(first, "mount", dir, v.Blob(&p)), "superseded")
		h.refused(h.late(second, "mount", dir, v.Blob(&p)), "superseded")
		h.refused(h.late(first, "unmount", dir), "superseded")
		if mounted(dir) {
			h.t.Errorf("a late mount appeared at %s", dir)
		}
		h.ok(mount())
		h.refused(h.late(second, "mount", dir, v.Blob(&p)), "superseded")
		h.refused(h.late(second, "unmount", dir), "superseded")
		if !mounted(dir) {
			h.t.Errorf("a late unmount took %s away", dir)
		}
	case 0, 1, 2:
		for _, a := range overlap(n, mount) {
			h.ok(a)
		}
		if !mounted(dir) {
			h.t.Errorf("mount said Success, but nothing is at %s", dir)
			return
		}
		h.reads(v, p, "mark", v.Name)
	case 3, 4:
		for _, a := range overlap(n, unmount) {
			h.ok(a)
		}
		if mounted(dir) {
			h.t.Errorf("unmount said Success, but %s is mounted", dir)
		}
	case 5: // both at once: the newer wins, the older may be superseded
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
		for _, a := range []answer{h.call("waitforattach", "", v.Blob(nil)), h.call("mountdevice", global, "", v.Blob(nil))} {
			if !a.ok() && !strings.Contains(a.Message, "superseded") {
				h.t.Errorf("%s", a)
			}
		}
		h.ok(h.call("detach", v.Name, node))
	case 7:
		for _, a := range overlap(n, func() answer { return h.call("unmountdevice", global) }) {
			if !a.ok() && !strings.Contains(a.Message, "superseded") {
				h.t.Errorf("%s", a)
			}
		}
		h.ok(h.call("attach", v.Blob(nil), node))
	}
}
