package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// struck makes a call whose flexdriver is killed right before its k-th visible system call; 0 = never. want
// is the answer otherwise. It returns the point of the kill, if it was reached, and the number of points.
func (h *host) struck(k int, want string, args ...string) (at point, all int) {
	h.t.Helper()
	c, out := h.command(nil, args...)
	c.Path, c.Args = "/bin/sh", append([]string{"sh", "-c", `kill -STOP $$; exec "$0" "$@"`, h.Driver}, args...)
	h.must(c.Start())
	h.eventually("flexdriver has stopped", func() string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
		if err != nil || !strings.Contains(string(b), ") T ") {
			return fmt.Sprint(string(b), err)
		}
		return ""
	})
	t := h.trace(c.Process.Pid, k)
	h.must(c.Process.Signal(syscall.SIGCONT))
	a := h.read(c, out, args)
	if at, all = t.end(); a.killed != (at.n > 0) || !a.killed && a.Status != want {
		h.t.Errorf("%s, want %s; killed at %s", a, want, at)
	}
	return at, all
}

// flexdriver is killed at each of its visible system calls, in each verb. The call is done or not done, never
// half; kubelet's retry succeeds.
func TestFlexdriverKilledAtEachCall(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	r := seeded(t)
	p, q := podN(1), podN(2)
	v := h.vol("a", "ext4")
	h.ok(h.up(byKubelet, v, q)) // a pod beside, whose mount stays all the time
	h.write(v, q, "f", "x")
	dir, solo := h.PodDir(p, v), h.vol("solo", "ext4")
	global := h.GlobalDir(solo)
	mount := []string{"mount", dir, v.Blob(&p)}
	stage := []string{"mountdevice", global, "", solo.Blob(nil)}
	struck, total := 0, 0
	type verb struct {
		args   []string
		dir    string   // where it mounts or unmounts, "" = nowhere
		before []string // what the point begins with
		mounts bool
	}
	try := func(verb verb, want string, k int) (all int) {
		if verb.dir != "" {
			h.must(os.MkdirAll(verb.dir, 0o750))
		}
		if verb.before != nil {
			h.ok(h.call(verb.before...))
		}
		at, all := h.struck(k, want, verb.args...)
		if at.n > 0 {
			struck++
		}
		about := fmt.Sprintf("%s, killed at %s", verb.args[0], at)
		lv := "a"
		if verb.dir == global {
			lv = "solo"
		}
		s := h.settled(lv)
		if verb.dir != "" && slices.ContainsFunc(s.Claims, func(c claimStatus) bool { return c.Dir == verb.dir }) != mounted(verb.dir) {
			t.Errorf("%s: mounted %v, status %+v", about, mounted(verb.dir), s)
		}
		if a := h.call(verb.args...); a.Status != want { // kubelet asks again
			t.Errorf("%s: asked again: %s, want %s", about, a, want)
		}
		if verb.dir != "" && mounted(verb.dir) != verb.mounts {
			t.Errorf("%s: asked again: mounted %v", about, mounted(verb.dir))
		}
		h.reads(v, q, "f", "x")
		if t.Failed() {
			t.Fatal(about)
		}
		return all
	}
	for _, verb := range []verb{
		{[]string{"init"}, "", nil, false},
		{[]string{"getvolumename", v.Blob(nil)}, "", nil, false},
		{[]string{"attach", v.Blob(nil), node}, "", nil, false},
		{[]string{"isattached", v.Blob(nil), node}, "", nil, false},
		{[]string{"waitforattach", "", solo.Blob(nil)}, "", []string{"detach", solo.Name, node}, false},
		{stage, global, []string{"unmountdevice", global}, true},
		{[]string{"unmountdevice", global}, global, stage, false},
		{mount, dir, []string{"unmount", dir}, true},
		{[]string{"expandfs", v.Blob(nil), "", h.PodDir(q, v), fmt.Sprint(16 * mib), "0"}, "", nil, false},
		{[]string{"expandvolume", v.Blob(nil), h.GlobalDir(v), fmt.Sprint(16 * mib), "0"}, "", nil, false},
		{[]string{"unmount", dir}, dir, mount, false},
		{[]string{"detach", solo.Name, node}, "", nil, false},
	} {
		want := "Success"
		if verb.args[0] == "getvolumename" { // kubelet is to name volumes itself
			want = "Not supported"
		}
		all := try(verb, want, 0)
		if total += all; all == 0 {
			t.Fatalf("%s: it has no visible effect", verb.args[0])
		}
		for k := 1; k <= all; k++ {
			if soak || r.IntN(all) < 3 {
				try(verb, want, k)
			}
		}
	}
	h.ok(h.call("unmount", dir))
	h.ok(h.call("unmountdevice", global))
	h.end(byKubelet, v, q)
	t.Logf("flexdriver was killed at %d points of %d", struck, total)
	if struck < 10 {
		t.Error("that is none")
	}
}
