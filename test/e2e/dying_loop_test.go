//go:build !vm

package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
)

// hangs mounts a filesystem that answers nothing, not even to a killed process, until end unmounts it. The
// channel gets a value when a process waits for it.
func (h *host) hangs(dir string) (waits <-chan bool, end func()) {
	h.t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	h.must(err)
	h.must(os.MkdirAll(dir, 0o700))
	h.must(unix.Mount("hangs", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
	request := make([]byte, 1<<16)
	_, err = unix.Read(fd, request) // FUSE_INIT
	h.must(err)
	// struct fuse_out_header, and struct fuse_init_out of version 7.12
	answer := make([]byte, 16+24)
	binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
	copy(answer[8:16], request[8:16])
	binary.NativeEndian.PutUint32(answer[16:], 7)
	binary.NativeEndian.PutUint32(answer[20:], 12)
	binary.NativeEndian.PutUint32(answer[36:], 4096)
	_, err = unix.Write(fd, answer)
	h.must(err)
	read := make(chan bool)
	go func() {
		if _, err := unix.Read(fd, request); err == nil { // a process waits uninterruptibly only for what was read
			close(read)
		}
	}()
	return read, func() {
		h.t.Helper()
		h.must(unix.Close(fd))
		h.must(unix.Unmount(dir, unix.MNT_DETACH))
	}
}

// A flexd ends while the directory of one group hangs: a thread waits for the disk, so the process remains
// and, if it was killed, keeps the lock and the sockets. The next flexd starts, and gets the calls that were
// made meanwhile. Volumes of the other group are mounted and unmounted.
func TestEndsWhileADirectoryHangs(t *testing.T) {
	t.Parallel()
	for _, signal := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			var dir string
			h := newHost(t, func(h *host) {
				dir = h.Dir + "/hangs"
				h.must(os.MkdirAll(dir, 0o700))
				h.settings.groups = "  - {name: hangs, provider: loopdev, directory: " + dir + ", maxSize: 1GiB" + everyNamespace + "}\n"
			})
			v, p, q, r := h.vol("a", "ext4"), podN(1), podN(2), podN(3)
			h.ok(h.up(noAttach, v, p))
			h.write(v, p, "f", "x")
			waits, end := h.hangs(dir)
			defer func() { end() }()
			check := h.Client("check")
			h.must(check.Start())
			<-waits
			h.must(check.Process.Kill())
			check.Wait()

			old := h.Pid()
			h.must(unix.Kill(old, signal))
			h.eventually("flexd is dying", func() string {
				if !procfs.Process(old).Dying() {
					return "it runs"
				}
				return ""
			})
			h.must(os.MkdirAll(h.PodDir(q, v), 0o750))
			meanwhile := make(chan answer, 1)
			go func() {
				meanwhile <- h.callWith([]string{"FLEXD_CONNECT_TIMEOUT=3s"}, "mount", h.PodDir(q, v), v.Blob(&q))
			}()
			time.Sleep(pace * 100 * time.Millisecond)
			h.start()
			h.ok(<-meanwhile)
			h.reads(v, q, "f", "x")
			h.ok(h.unmount(v, p))
			h.ok(h.mount(v, r))
			if !procfs.Process(old).Dying() {
				t.Error("the first flexd has ended")
			}
			end()
			end = func() {}
			h.eventually("the first flexd has ended", func() string {
				if unix.Kill(old, 0) == nil {
					return "it has not"
				}
				return ""
			})
			h.end(noAttach, v, q, r)
		})
	}
}

// A backup has frozen a pod's filesystem, and an expansion waits for it, and so does the pod's unmount: flexd check
// names fsfreeze -u, also after a restart of flexd. With it everything ends well.
func TestExpandFrozen(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs")
	h := newHost(t)
	v, p := h.vol("a", "xfs").With("size", "320Mi"), podN(1)
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "x")
	dir := h.PodDir(p, v)
	h.sh("fsfreeze", "-f", dir)
	defer func() { _ = exec.Command("fsfreeze", "-u", dir).Run() }()
	expand := make(chan answer, 1)
	go func() { expand <- h.call("expandfs", v.Blob(nil), "", dir, fmt.Sprint(400*mib), "0") }()
	found := func() string {
		out, code := h.check()
		if code == 1 && strings.Contains(out, "vg0/a  stuck") && strings.Contains(out, "percpu_rwsem_wait") && strings.Contains(out, "fsfreeze -u "+dir) {
			return ""
		}
		return out
	}
	h.eventually("check reports the frozen filesystem", found)
	unmount := make(chan answer, 1)
	go func() { unmount <- h.unmount(v, p) }()
	h.restart()
	h.eventually("check reports it after a restart", found)
	h.sh("fsfreeze", "-u", dir)
	h.ok(<-unmount)
	if a := <-expand; a.Status != "Success" && !strings.Contains(a.Message, "not mounted") {
		t.Errorf("got %+v", a)
	}
	h.ok(h.mount(v, p))
	h.reads(v, p, "f", "x")
	h.end(noAttach, v, p)
	if out, code := h.check(); code != 0 {
		t.Error(out)
	}
}
