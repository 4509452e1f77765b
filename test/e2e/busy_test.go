package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// holder runs a program that keeps a directory in use until it is killed.
func (h *host) holder(dir string) *exec.Cmd {
	h.t.Helper()
	c := exec.Command("sleep", "1000")
	c.Dir = dir
	h.must(c.Start())
	h.t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// An unmount of a mount in use names the holder and removes nothing; it succeeds after the holder has ended.
func TestBusy(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, m := range []mode{noAttach, byKubelet} {
		v, p := h.vol(fmt.Sprintf("busy-%d", len(m)), "ext4"), podN(1)
		h.ok(h.up(m, v, p))
		dir, release := h.PodDir(p, v), func() answer { return h.unmount(v, p) }
		if m != noAttach {
			h.ok(h.unmount(v, p))
			dir, release = h.GlobalDir(v), func() answer { return h.down(m, v) }
		}
		h.must(os.WriteFile(dir+"/f", []byte("data"), 0o644))
		c := h.holder(dir)
		for range 2 {
			h.refused(release(), "vg0/"+v.Options["volumeID"], dir+" is busy", fmt.Sprintf("pid %d (sleep, working directory", c.Process.Pid))
		}
		if !mounted(dir) {
			t.Errorf("%s was detached", dir)
		}
		// The holder goes on where it is, and the next pod finds what it has written.
		h.must(os.WriteFile(fmt.Sprintf("/proc/%d/cwd/late", c.Process.Pid), []byte("more"), 0o644))
		s := h.settled(v.Options["volumeID"])
		if s.State != "mounted" || s.Error == nil || !strings.Contains(s.Error.Message, "is busy") {
			t.Errorf("status: %+v", s)
		}
		if c := s.Claims[len(s.Claims)-1]; c.Phase != "held" || !c.Mounted || !strings.Contains(c.Note, "release failed") || !strings.Contains(c.Note, "sleep") {
			t.Errorf("claim: %+v", c)
		}
		if text := h.show("vg0/" + v.Options["volumeID"]); !strings.Contains(text, "release failed") || !strings.Contains(text, "(sleep, working directory") {
			t.Errorf("status:\n%s", text)
		}
		c.Process.Kill()
		c.Wait()
		h.ok(release())
		if mounted(dir) {
			t.Errorf("%s is still mounted", dir)
		}
		h.ok(h.down(m, v))
		h.ok(h.up(m, v, p))
		h.reads(v, p, "f", "data")
		h.reads(v, p, "late", "more")
		h.end(m, v, p)
	}
}
