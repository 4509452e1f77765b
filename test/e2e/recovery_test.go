package e2e

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mkfs is killed in the middle, and so is flexd; the same call ends well.
func TestMkfsKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.slow("cut"), podN(1)
	h.must(os.MkdirAll(h.podDir(v, p), 0o750))
	b := h.begin("mount", h.podDir(v, p), v.blob(&p))
	mkfs := h.freeze("mkfs.ext4")
	h.kill()
	syscall.Kill(mkfs, syscall.SIGKILL)
	h.start()
	h.ok(b.wait(t))
	h.write(v, p, "f", "x")
	h.ok(h.unmount(v, p))

	// mkfs alone: the call fails and says so; the next one makes it again.
	v = h.slow("cut-2")
	h.must(os.MkdirAll(h.podDir(v, p), 0o750))
	b = h.begin("mount", h.podDir(v, p), v.blob(&p))
	syscall.Kill(h.freeze("mkfs.ext4"), syscall.SIGKILL)
	h.refused(b.wait(t), "vg0/cut-2", "mkfs")
	h.state("cut-2", "failed")
	if s := h.story("cut-2"); s.Error == nil || s.Error.Step != "mkfs" {
		t.Errorf("status: %+v", s)
	}
	h.ok(h.mount(v, p))
	h.end(noAttach, v, p)
}

// What an operator sees after a crash: claims stay, a mount that somebody took
// is told and not made again, and what has no pod is told and not taken.
func TestRecoveryAsSeen(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, w, p := h.vol("kept", "ext4"), h.vol("taken", "ext4"), podN(1)
	h.ok(h.up(byKubelet, v, p))
	h.ok(h.up(noAttach, w, p))
	h.kill()
	h.start()
	h.state("kept", "mounted")
	if s := h.story("kept"); len(s.Pods) != 1 || s.Pods[0].Name != "web-1" || s.Pods[0].Namespace != "default" {
		t.Errorf("pods: %+v", s.Pods)
	}

	taken := func(when string) {
		t.Helper()
		h.state("taken", "missing")
		s := h.story("taken")
		if len(s.Claims) != 1 || s.Claims[0].Mounted || !strings.Contains(s.Claims[0].Note, "claimed-missing") {
			t.Errorf("%s: %+v", when, s)
		}
		if text := h.show("vg0/taken"); !strings.Contains(text, "claimed-missing") {
			t.Errorf("%s: status:\n%s", when, text)
		}
	}
	h.must(unix.Unmount(h.podDir(w, p), 0))
	taken("while it runs")
	h.kill()
	h.start()
	taken("after a restart")
	// It does not hold the device for ever.
	h.eventually("the lease ends", func() string {
		if slices.Contains(h.active(), "vg0/taken") {
			return "it is active"
		}
		return ""
	})
	taken("after the lease")
	if mounted(h.podDir(w, p)) {
		t.Error("it was mounted again")
	}
	h.ok(h.unmount(w, p))
	h.state("taken", "idle")

	// The pod died while kubelet was down.
	h.ok(h.unmount(v, p))
	h.stop()
	h.must(os.WriteFile(h.runDir+"/notes/staged-torn-0.json", []byte(`{"version": 1, "kind": "sta`), 0o600))
	h.start()
	h.state("kept", "mounted") // and an orphan after a while, see TestOrphans
	time.Sleep(2 * lease)
	if !mounted(h.globalDir(v)) {
		t.Error("the orphan was taken away")
	}
	if text := h.show(); !strings.Contains(text, "Problem: ") || !strings.Contains(text, "staged-torn-0.json") {
		t.Errorf("status:\n%s", text)
	}
	os.Remove(h.runDir + "/notes/staged-torn-0.json.damaged") // the operator's
	h.end(byKubelet, v)
}
