package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flexd/flexd/test/umount"
	"golang.org/x/sys/unix"
)

// An mkfs that was interrupted by a crash is repeated, unless the owner has written to the volume since. One
// that dies by itself leaves nothing.
func TestMkfsKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p, text := podN(1), bytes.Repeat([]byte("a row of the owner's; "), 100)
	begin := func(v vol) *begun {
		h.must(os.MkdirAll(h.PodDir(p, v), 0o750))
		return h.begin("mount", h.PodDir(p, v), v.Blob(&p))
	}
	raw := func(v vol) {
		h.open("vg0/"+v.Options["volumeID"], func(path string) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			h.must(err)
			defer f.Close()
			_, err = f.WriteAt(text, mib)
			h.must(err)
			h.must(f.Sync())
		})
	}
	kept := func(v vol, words ...string) {
		t.Helper()
		h.refused(h.mount(v, p), append(words, "vg0/"+v.Options["volumeID"], "never formats over data")...)
		got := make([]byte, len(text))
		h.open("vg0/"+v.Options["volumeID"], func(path string) {
			f, err := os.Open(path)
			h.must(err)
			defer f.Close()
			_, err = f.ReadAt(got, mib)
			h.must(err)
		})
		if !bytes.Equal(got, text) {
			t.Errorf("%s: the owner's data is gone", v.Options["volumeID"])
		}
		h.ok(h.unmount(v, p))
	}

	v := h.slow("cut")
	b := begin(v)
	mkfs := h.freeze("mkfs.ext4")
	h.kill()
	h.killWriting(mkfs, true)
	h.formatting(1)
	h.start()
	h.ok(b.wait(t))
	h.write(v, p, "f", "x")
	h.formatting(0)
	h.ok(h.unmount(v, p))

	v = h.slow("cut-2")
	b = begin(v)
	mkfs = h.freeze("mkfs.ext4")
	h.kill()
	h.killWriting(mkfs, true)
	b.cmd.Process.Kill()
	raw(v)
	h.start()
	h.formatting(1)
	kept(v, "another program has written to it")

	// mkfs alone: the call fails and says so, and the volume is as it was.
	v = h.slow("cut-3")
	b = begin(v)
	h.killWriting(h.freeze("mkfs.ext4"), false)
	h.refused(b.wait(t), "vg0/cut-3", "mkfs", "killed")
	h.state("cut-3", "failed")
	if s := h.story("cut-3"); s.Error == nil || s.Error.Step != "mkfs" {
		t.Errorf("status: %+v", s)
	}
	h.formatting(1) // cut-2's
	h.ok(h.mount(v, p))
	h.ok(h.unmount(v, p))

	// The same without flexd; then the owner takes the volume for something else.
	v = h.slow("cut-4")
	b = begin(v)
	mkfs = h.freeze("mkfs.ext4")
	h.kill()
	b.cmd.Process.Kill()
	h.killWriting(mkfs, false)
	h.eventually("the record goes", func() string {
		if n := len(h.standing()); n != 1 {
			return fmt.Sprint(n, " records")
		}
		return ""
	})
	raw(v)
	h.start()
	kept(v, "it is not blank")
	for _, name := range h.volumes() {
		h.ok(h.call("detach", "pv-"+strings.TrimPrefix(name, "vg0/"), node))
	}
}

// killWriting kills a stopped mkfs after it has written data other than zeros, and optionally first the child
// that started it.
func (h *host) killWriting(pid int, child bool) {
	h.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Thousands of system calls are traced, while a caller waits 20 s for flexd.
	for _, id := range []int{unix.Gettid(), pid} {
		_ = unix.Setpriority(unix.PRIO_PROCESS, id, -20)
	}
	defer unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 0)
	h.must(syscall.PtraceAttach(pid))
	var status syscall.WaitStatus
	for written, entry := 0, true; written < 3; entry = !entry {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		h.must(err)
		if status.Exited() || status.Signaled() {
			h.t.Fatal("mkfs has ended")
		}
		if status.StopSignal() == syscall.SIGSTOP {
			entry = false // it was stopped, or is being attached to
		} else if entry && h.writesData(pid) {
			written++
		}
		h.must(syscall.PtraceSyscall(pid, 0))
	}
	if child {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		h.must(err)
		var state string
		var parent int
		_, rest, _ := strings.Cut(string(stat), ") ")
		_, err = fmt.Sscan(rest, &state, &parent)
		h.must(err)
		h.must(syscall.Kill(parent, syscall.SIGKILL))
	}
	h.must(syscall.Kill(pid, syscall.SIGKILL))
	for !status.Signaled() && !status.Exited() {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		h.must(err)
	}
}

// writesData reports whether a process that is stopped at a system call writes data other than zeros.
func (h *host) writesData(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	h.must(err)
	var number, fd, buf, n uint64
	if _, err := fmt.Sscanf(string(text), "%d 0x%x 0x%x 0x%x", &number, &fd, &buf, &n); err != nil || number != unix.SYS_PWRITE64 && number != unix.SYS_WRITE {
		return false
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	h.must(err)
	defer mem.Close()
	b := make([]byte, min(n, mib))
	_, err = mem.ReadAt(b, int64(buf))
	return err == nil && len(bytes.Trim(b, "\x00")) > 0
}

// standing returns the records of an mkfs that has not ended.
func (h *host) standing() (files []string) {
	all, err := filepath.Glob(h.State + "/formats/*.json")
	h.must(err)
	for _, file := range all {
		if b, err := os.ReadFile(file); err == nil && bytes.Contains(b, []byte(`"formatting"`)) {
			files = append(files, file)
		}
	}
	return files
}

func (h *host) formatting(n int) {
	h.t.Helper()
	if files := h.standing(); len(files) != n {
		h.t.Errorf("%d records of an mkfs stand, not %d: %q", len(files), n, files)
	}
}

// The format record of a mounted volume returns after a loss of stateDir, without a call for it.
func TestRecordReturns(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]mode{"attach": byKubelet, "no attach": noAttach} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			v, p := h.vol("a", "ext4"), podN(1)
			h.ok(h.up(m, v, p))
			records := func() []string { return h.files(h.State + "/formats/*.json") }
			former := records()
			h.kill()
			h.must(os.RemoveAll(h.State + "/formats"))
			h.start()
			h.eventually("its record returns", func() string {
				if now := records(); !slices.Equal(now, former) {
					return fmt.Sprintf("%q, before %q", now, former)
				}
				return ""
			})
			h.end(m, v, p)
		})
	}
}

// After a crash claims stay, a mount that was unmounted by hand is reported and not repeated, and a mount
// without a pod is reported and stays.
func TestRecoveryAsSeen(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, w, p := h.vol("kept", "ext4"), h.vol("taken", "ext4"), podN(1)
	h.ok(h.up(byKubelet, v, p))
	h.ok(h.up(noAttach, w, p))
	h.restart()
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
	h.must(umount.Plain(h.PodDir(p, w)))
	taken("while it runs")
	h.restart()
	taken("after a restart")
	// It does not hold the device forever.
	h.eventually("the lease ends", func() string {
		if slices.Contains(h.Active(), "vg0/taken") {
			return "it is active"
		}
		return ""
	})
	taken("after the lease")
	if mounted(h.PodDir(p, w)) {
		t.Error("it was mounted again")
	}
	h.ok(h.unmount(w, p))
	h.state("taken", "idle")

	// The pod died while kubelet was down.
	h.ok(h.unmount(v, p))
	h.stop()
	h.must(os.WriteFile(h.Run+"/notes/staged-torn-0.json", []byte(`{"version": 1, "kind": "sta`), 0o600))
	h.start()
	h.state("kept", "mounted") // and an orphan after a while, see TestOrphans
	time.Sleep(2 * lease)
	if !mounted(h.GlobalDir(v)) {
		t.Error("the orphan was taken away")
	}
	if text := h.show(); !strings.Contains(text, "Problem: ") || !strings.Contains(text, "staged-torn-0.json") {
		t.Errorf("status:\n%s", text)
	}
	os.Remove(h.Run + "/notes/staged-torn-0.json.damaged") // the operator's
	h.end(byKubelet, v)
}
