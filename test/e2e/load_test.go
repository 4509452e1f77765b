package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// soak reports whether to run all cases, not a sample.
var soak = os.Getenv("FLEXD_SOAK") != ""

// resident is how much memory a process has, in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var size, pages int64
	if err == nil {
		_, err = fmt.Sscan(string(b), &size, &pages)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// 64 callers make calls for 100 volumes, with mixed verbs, and every fourth flexdriver is killed at some
// moment. No call fails, nothing remains, and flexd's memory is small. In the soak more calls fill flexd's
// caches, and then further calls must not enlarge it: at few directories, since flexd remembers each for ten
// minutes.
func TestLoad(t *testing.T) {
	t.Parallel()
	const volumes, most, leak = 100, 25 * mib, 3 * mib / 2
	callers, calls := max(8, times(64)), max(300, times(1000))
	h := newHost(t)
	r := seeded(t)
	begun := time.Now()
	start := resident(t, h.Pid())
	var all sync.WaitGroup
	for i := range callers { // once for each volume, so that flexd knows them and has made them
		all.Go(func() {
			for n := i; n < volumes && !t.Failed(); n += callers {
				h.ok(h.call("waitforattach", "", h.vol(fmt.Sprint("load-", n), "ext4").Blob(nil)))
			}
		})
	}
	all.Wait()
	h.quiet()
	known, files := resident(t, h.Pid()), len(descriptors(t, h.Pid()))
	load := func(volumes, calls int) {
		t.Helper()
		killed := h.load(r.Uint64(), callers, volumes, calls)
		h.quiet()
		if killed < calls/10 && !t.Failed() {
			t.Errorf("only %d of %d calls were killed", killed, calls)
		}
	}
	// It gives back what it needed when it comes to rest.
	small := func(limit int64) (now int64) {
		t.Helper()
		if grown := h.within(soon, func() string {
			if now = resident(t, h.Pid()); now > limit {
				return fmt.Sprintf("flexd has %d bytes; the limit is %d, and it had %d when it had started", now, limit, start)
			}
			return ""
		}); grown != "" && !t.Failed() {
			t.Error(grown)
		}
		return now
	}
	load(volumes, calls)
	peak := resident(t, h.Pid())
	now := small(most)
	t.Logf("%d calls in %v; resident: %.1f MiB after the start, %.1f when it knew %d volumes, %.1f after the load, %.1f in the end",
		calls, time.Since(begun).Round(time.Millisecond), float64(start)/mib, float64(known)/mib, volumes, float64(peak)/mib, float64(now)/mib)
	if soak {
		load(volumes/10, 2_000/pace)
		time.Sleep(pace * 15 * time.Second)
		full := resident(t, h.Pid())
		load(volumes/10, 7_000/pace)
		t.Logf("resident: %.1f MiB, and %.1f after many more calls", float64(full)/mib, float64(small(full+leak))/mib)
	}
	if t.Failed() {
		return
	}
	h.eventually("no descriptor is left", func() string { // one of them may be of a look that just goes on
		if n := descriptors(t, h.Pid()); len(n) > files {
			return fmt.Sprintf("%d descriptors, and there were %d: %q", len(n), files, n)
		}
		return ""
	})
}

// descriptors are what a process has open.
func descriptors(t *testing.T, pid int) (all []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		to, _ := os.Readlink(dir + "/" + n.Name())
		all = append(all, to)
	}
	return all
}

// load makes that many calls, unmounts everything, and returns how many flexdrivers were killed before their
// answer.
func (h *host) load(seed uint64, callers, volumes, calls int) int {
	h.t.Helper()
	var all sync.WaitGroup
	var killed, made atomic.Int64
	for i := range callers {
		all.Go(func() {
			c := loader{host: h, r: rand.New(rand.NewPCG(seed, uint64(i))), p: podN(i), used: map[string]vol{}, killed: &killed}
			for made.Add(1) <= int64(calls) && !h.t.Failed() {
				c.act(h.vol(fmt.Sprint("load-", c.r.IntN(volumes)), "ext4"))
			}
			for _, v := range c.used {
				h.ok(h.unmount(v, c.p))
			}
		})
	}
	all.Wait()
	return int(killed.Load())
}

// A loader is one caller: a pod that uses one volume after the other, a few at
// a time.
type loader struct {
	*host
	r      *rand.Rand
	p      pod
	used   map[string]vol // by name: may be mounted
	killed *atomic.Int64
}

// act makes one call.
func (c *loader) act(v vol) {
	switch n := c.r.IntN(100); {
	case n < 40 && len(c.used) > 0 || len(c.used) > 4: // any of them goes
		for _, v := range c.used {
			if a := c.once("unmount", c.PodDir(c.p, v)); a.ok() {
				os.Remove(c.PodDir(c.p, v))
				delete(c.used, v.Name)
			}
			return
		}
	case n < 45: // what was never there
		if _, used := c.used[v.Name]; !used {
			c.once("unmount", c.PodDir(c.p, v))
		}
	case n < 55:
		c.once("waitforattach", "", v.Blob(nil))
	case n < 60:
		c.once("detach", v.Name, node)
	case n < 65:
		c.once("isattached", v.Blob(nil), node)
	default:
		c.used[v.Name] = v
		os.MkdirAll(c.PodDir(c.p, v), 0o750)
		c.once("mount", c.PodDir(c.p, v), v.Blob(&c.p))
	}
}

// once makes a call, and kills every fourth.
func (c *loader) once(args ...string) answer {
	b := c.begin(args...)
	if c.r.IntN(4) == 0 {
		time.Sleep(time.Duration(c.r.Int64N(int64(100 * time.Millisecond))))
		b.cmd.Process.Kill()
	}
	a := <-b.done
	if a.killed {
		c.killed.Add(1)
	} else if !a.ok() && !strings.Contains(a.Message, "superseded") {
		c.t.Errorf("%s", a)
	}
	return a
}
