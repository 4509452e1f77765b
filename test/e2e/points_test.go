package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// visible are the system calls by which the rest of the world sees flexdriver.
var visible = []string{"execve", "socket", "connect", "write", "ppoll", "read", "close", "exit_group"}

// struck makes a call whose flexdriver is killed as it enters a system call for
// the k-th time, and says whether it came to that; want is the answer else.
func (h *host) struck(call string, k int, want string, args ...string) bool {
	h.t.Helper()
	c, out := h.command(nil, args...)
	strace, err := exec.LookPath("strace")
	h.must(err)
	c.Path = strace
	c.Args = append([]string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=" + call, "-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", call, k)}, append([]string{h.driver}, args...)...)
	begun := time.Now()
	h.must(c.Start())
	a := h.read(c, out, begun, args) // strace ends as it did
	if !a.killed && a.Status != want {
		h.t.Errorf("%s, want %s", a, want)
	}
	return a.killed
}

// flexdriver is killed at each of its system calls that anybody sees, in each
// verb. What it asked for is done or not, never half; kubelet asks again, and
// gets what it wants.
func TestFlexdriverKilledAtEachCall(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	h := newHost(t)
	r := seeded(t)
	p, q := podN(1), podN(2)
	v := h.vol("a", "ext4")
	h.ok(h.up(byKubelet, v, q)) // a pod beside, whose mount stays all the time
	h.write(v, q, "f", "x")
	dir, solo := h.podDir(v, p), h.vol("solo", "ext4")
	global := h.globalDir(solo)
	mount := []string{"mount", dir, v.blob(&p)}
	stage := []string{"mountdevice", global, "", solo.blob(nil)}
	struck := 0
	for _, verb := range []struct {
		args   []string
		dir    string   // where it mounts or unmounts, "" = nowhere
		before []string // what the point begins with
		mounts bool
	}{
		{[]string{"init"}, "", nil, false},
		{[]string{"getvolumename", v.blob(nil)}, "", nil, false},
		{[]string{"attach", v.blob(nil), node}, "", nil, false},
		{[]string{"isattached", v.blob(nil), node}, "", nil, false},
		{[]string{"waitforattach", "", solo.blob(nil)}, "", []string{"detach", solo.name, node}, false},
		{stage, global, []string{"unmountdevice", global}, true},
		{[]string{"unmountdevice", global}, global, stage, false},
		{mount, dir, []string{"unmount", dir}, true},
		{[]string{"expandfs", v.blob(nil), "", h.podDir(v, q), fmt.Sprint(16 * mib), "0"}, "", nil, false},
		{[]string{"expandvolume", v.blob(nil), h.globalDir(v), fmt.Sprint(16 * mib), "0"}, "", nil, false},
		{[]string{"unmount", dir}, dir, mount, false},
		{[]string{"detach", solo.name, node}, "", nil, false},
	} {
		want := "Success"
		if verb.args[0] == "getvolumename" { // kubelet is to name volumes itself
			want = "Not supported"
		}
		for _, call := range visible {
			for k := 1; ; k++ {
				if !soak && r.IntN(4) > 0 {
					if k > 3 {
						break
					}
					continue
				}
				if verb.dir != "" {
					h.must(os.MkdirAll(verb.dir, 0o750))
				}
				if verb.before != nil {
					h.ok(h.call(verb.before...))
				}
				if !h.struck(call, k, want, verb.args...) {
					break
				}
				struck++
				about := fmt.Sprintf("%s, killed at %s %d", verb.args[0], call, k)
				lv := "a"
				if verb.dir == global {
					lv = "solo"
				}
				s := h.settled(lv)
				if verb.dir != "" && slicesHave(s.Claims, func(c claimStatus) bool { return c.Dir == verb.dir }) != mounted(verb.dir) {
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
			}
		}
	}
	h.ok(h.call("unmount", dir))
	h.ok(h.call("unmountdevice", global))
	h.end(byKubelet, v, q)
	t.Logf("flexdriver was killed at %d points", struck)
	if struck < 10 {
		t.Error("that is none")
	}
}
