package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// flexdriver is killed: a mount that is not committed is not made, and a committed one stays.
func TestFlexdriverKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.slow("slow"), podN(1)
	dir := h.PodDir(p, v)
	h.must(os.MkdirAll(dir, 0o750))
	b := h.begin("mount", dir, v.Blob(&p))
	mkfs := h.freeze("mkfs.ext4")
	b.cmd.Process.Kill()
	if a := b.wait(t); !a.killed {
		t.Errorf("%s", a)
	}
	thaw(mkfs)
	h.quiet()
	if s := h.story("slow"); s.State != "idle" || len(s.Claims) != 0 {
		t.Errorf("status: %+v", s)
	}
	h.ok(h.mount(v, p)) // the preparation was not in vain, nor in the way
	h.end(noAttach, v, p)

	r := seeded(t)
	v = h.vol("quick", "ext4")
	h.ok(h.up(noAttach, v, podN(2)))
	dir = h.PodDir(p, v)
	landed := 0
	for range times(20) {
		h.must(os.MkdirAll(dir, 0o750))
		b := h.begin("mount", dir, v.Blob(&p))
		time.Sleep(time.Duration(r.Int64N(int64(pace * 30 * time.Millisecond))))
		b.cmd.Process.Kill()
		b.wait(t)
		s := h.settled("quick")
		claimed := slices.ContainsFunc(s.Claims, func(c claimStatus) bool { return c.Dir == dir })
		if claimed != mounted(dir) {
			t.Errorf("claimed %v, mounted %v: %+v", claimed, mounted(dir), s)
		}
		if claimed {
			landed++
		}
		h.ok(h.unmount(v, p))
	}
	t.Logf("%d of %d had landed", landed, times(20))
	h.end(noAttach, v, podN(2))
}

// The kubelet that made a call is gone: flexdriver closes the connection, and nothing is mounted.
func TestKubeletDies(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.slow("orphan"), podN(1)
	dir := h.PodDir(p, v)
	h.must(os.MkdirAll(dir, 0o750))
	c, _ := h.command(nil)
	kubelet := exec.Command("sh", "-c", `"$@" >"$0"; exit 0`, h.Dir+"/answer", h.Driver, "mount", dir, v.Blob(&p))
	kubelet.Env = c.Env
	h.must(kubelet.Start())
	mkfs := h.freeze("mkfs.ext4")
	kubelet.Process.Kill()
	kubelet.Wait()
	h.eventually("flexdriver ends", func() string {
		for _, p := range h.Processes() {
			if strings.HasPrefix(p, h.Driver) {
				return p
			}
		}
		return ""
	})
	thaw(mkfs)
	h.quiet()
	if mounted(dir) {
		t.Error("it landed")
	}
	// The same, with a flexd that is killed, too, and never noticed the closed connection.
	v = h.slow("orphan-2")
	h.must(os.MkdirAll(h.PodDir(p, v), 0o750))
	kubelet = exec.Command("sh", "-c", `"$@" >"$0"; exit 0`, h.Dir+"/answer", h.Driver, "mount", h.PodDir(p, v), v.Blob(&p))
	kubelet.Env = c.Env
	h.must(kubelet.Start())
	mkfs = h.freeze("mkfs.ext4")
	h.kill()
	kubelet.Process.Kill()
	kubelet.Wait()
	h.start()
	h.state("orphan-2", "stuck")
	thaw(mkfs)
	h.quiet()
}

// SIGTERM ends flexd within a second, even while calls wait; the next flexd answers these.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p, q := h.slow("term"), podN(1), podN(2)
	h.must(os.MkdirAll(h.PodDir(p, v), 0o750))
	h.must(os.MkdirAll(h.PodDir(q, v), 0o750))
	one := h.begin("mount", h.PodDir(p, v), v.Blob(&p))
	mkfs := h.freeze("mkfs.ext4")
	two := h.begin("mount", h.PodDir(q, v), v.Blob(&q))
	time.Sleep(pace * 100 * time.Millisecond)
	if took := h.stop(); took > 10*time.Second {
		t.Errorf("flexd took %v to end", took)
	}
	h.start()
	h.state("term", "stuck")
	if s := h.show("vg0/term"); !strings.Contains(s, "a child of an earlier flexd") || !strings.Contains(s, "pid ") || !strings.Contains(s, "what to do") {
		t.Errorf("status:\n%s", s)
	}
	thaw(mkfs)
	h.ok(one.wait(t))
	h.ok(two.wait(t))
	h.end(noAttach, v, p, q)
}

func TestSecondFlexd(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := exec.Command(h.Flexd(), "serve", "--config", h.Config())
	out, err := c.CombinedOutput()
	if err == nil || c.ProcessState.ExitCode() != 1 {
		t.Errorf("exit: %v", err)
	}
	if want := fmt.Sprintf("another flexd is running (pid %d", h.Pid()); !strings.Contains(string(out), want) {
		t.Errorf("%q, want %q", out, want)
	}
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(noAttach, v, p)) // the first is unharmed
	h.end(noAttach, v, p)
}

// slow returns a volume whose mkfs takes long enough to be interrupted.
func (h *host) slow(lv string) vol {
	return h.vol(lv, "ext4").With("size", slowSize, "mkfsOptions", "-b 1024 -E lazy_itable_init=0")
}

func thaw(pid int) { syscall.Kill(pid, syscall.SIGCONT) }
