//go:build !vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// byFlexd are the system calls by which the rest of the world sees flexd and its
// children: files and notes, locks, processes, devices, mounts, answers.
var byFlexd = []string{
	"renameat", "unlinkat", "fsync", "write", "flock", "fcntl", "clone", "clone3", "execve", "waitid", "wait4", "exit_group",
	"ftruncate", "fallocate", "fsetxattr", "ioctl", "symlinkat", "move_mount", "fsmount", "umount2", "accept4", "close",
}

// strike makes a call during which the k-th of those system calls of any thread
// of flexd, or of a child of its, is its last. It says whether it came to that.
func (h *host) strike(call string, k int, args ...string) bool {
	h.t.Helper()
	pid, told := h.flexd.Process.Pid, filepath.Join(h.dir, "strace")
	strace := exec.Command("strace", "-f", "-qq", "-p", fmt.Sprint(pid), "-o", told, "-e", "trace="+call, "-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", call, k))
	h.must(strace.Start())
	h.eventually("strace follows flexd", func() string {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		for _, thread := range threads {
			if b, err := os.ReadFile(thread); err == nil && strings.Contains(string(b), "TracerPid:\t0\n") {
				return thread
			}
		}
		return ""
	})
	b := h.begin(args...)
	died := false
	select {
	case <-h.ended:
		died = true
	case a := <-b.done:
		b.done <- a
	}
	strace.Process.Signal(syscall.SIGTERM)                                  // it lets go of who lives
	late := time.AfterFunc(5*time.Second, func() { strace.Process.Kill() }) // and may wait for ever for who dies just now
	strace.Wait()
	late.Stop()
	text, err := os.ReadFile(told)
	h.must(err)
	killed := strings.Contains(string(text), "killed by SIGKILL")
	if !died && killed {
		select {
		case <-h.ended:
			died = true
		case <-time.After(time.Second): // it was a child
		}
	}
	if died {
		h.mu.Lock()
		h.flexd = nil
		h.mu.Unlock()
		h.start()
	}
	b.wait(h.t) // a killed child is a Failure, and kubelet asks again
	return died || killed
}

// flexd, or a child of its, is killed at each of its system calls that anybody
// sees, in each verb. The next flexd and kubelet's retry get there, nothing is
// done twice or half, and the pod beside does not notice.
func TestFlexdKilledAtEachCall(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	h := newHost(t)
	r := seeded(t)
	p, q := podN(1), podN(2)
	beside := h.vol("beside", "ext4")
	h.ok(h.up(byKubelet, beside, q))
	h.write(beside, q, "f", "x")

	v := h.vol("a", "btrfs").with("size", "300Mi") // less than 256 cannot be grown
	dir, global := h.podDir(v, p), h.globalDir(v)
	mount := []string{"mount", dir, v.blob(&p)}
	stage := []string{"mountdevice", global, "", v.blob(nil)}
	const mark = "what the pod wrote"
	h.must(os.MkdirAll(dir, 0o750))
	h.ok(h.call(mount...))
	h.write(v, p, "mark", mark)
	h.ok(h.call("unmount", dir))

	fresh, size, struck := 0, int64(300*mib), 0
	for _, verb := range []struct {
		name   string
		before [][]string
		args   func() []string
		mounts string // what is mounted afterwards
	}{
		{"waitforattach", nil, func() []string { return []string{"waitforattach", "", v.blob(nil)} }, ""},
		{"mountdevice", nil, func() []string { return stage }, global},
		{"unmountdevice", [][]string{stage}, func() []string { return []string{"unmountdevice", global} }, ""},
		{"mount", nil, func() []string { return mount }, dir},
		{"expandfs", [][]string{mount}, func() []string {
			size += 8 * mib
			return []string{"expandfs", v.blob(nil), "", dir, fmt.Sprint(size), "0"}
		}, dir},
		{"unmount", [][]string{mount}, func() []string { return []string{"unmount", dir} }, ""},
		{"mount of a new volume", nil, func() []string {
			fresh++
			w := h.vol(fmt.Sprint("new-", fresh), "ext4")
			h.must(os.MkdirAll(h.podDir(w, p), 0o750))
			return []string{"mount", h.podDir(w, p), w.blob(&p)}
		}, "new"},
	} {
		for _, call := range byFlexd {
			for k := 1; ; k++ {
				if !soak && r.IntN(12) > 0 {
					if k > 2 {
						break
					}
					continue
				}
				for _, dir := range []string{dir, global} {
					h.must(os.MkdirAll(dir, 0o750))
				}
				for _, args := range verb.before {
					h.ok(h.call(args...))
				}
				args := verb.args()
				about := fmt.Sprintf("%s, killed at %s %d", verb.name, call, k)
				wanted := verb.mounts
				if wanted == "new" {
					wanted = args[1]
				}
				hit := h.strike(call, k, args...)
				h.eventually(about+": kubelet's retry works", func() string {
					if a := h.call(args...); !a.ok() {
						return a.String()
					}
					return ""
				})
				if got := strings.Join(mounts(h.dir+"/kubelet/pods/"+p.uid), " ") + strings.Join(mounts(global), " "); got != wanted {
					t.Errorf("%s: mounted: %q, want %q", about, got, wanted)
				}
				h.reads(beside, q, "f", "x")
				switch verb.mounts {
				case dir:
					h.reads(v, p, "mark", mark)
					h.ok(h.call("unmount", dir))
				case global:
					h.ok(h.call("unmountdevice", global))
				case "new":
					w := h.vol(fmt.Sprint("new-", fresh), "ext4")
					h.write(w, p, "f", about)
					h.ok(h.call("unmount", wanted))
					// It goes altogether: each that stays is some calls more for those to come.
					h.ok(h.call("detach", w.name, node))
					lv := "vg0/" + w.opts["volumeID"]
					h.eventually("its device goes", func() string {
						if slices.Contains(h.active(), lv) {
							return lv
						}
						return ""
					})
					var uuid [64]byte
					n, err := unix.Getxattr(h.dir+"/"+lv, "trusted.flexd.uuid", uuid[:])
					h.must(err)
					for _, left := range []string{h.dir + "/" + lv, h.dir + "/state/formats/" + string(uuid[:n]) + ".json", wanted} {
						h.must(os.Remove(left))
					}
				}
				if t.Failed() {
					t.Fatal(about)
				}
				if !hit {
					break
				}
				struck++
			}
		}
	}
	h.end(byKubelet, beside, q)
	t.Logf("flexd or a child of its was killed at %d points", struck)
	if struck < 10 {
		t.Error("that is none")
	}
}
