//go:build !vm

package e2e

import (
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The filesystem with a volume's file is full, so the kernel cannot write a pod's last data. The last unmount
// succeeds, and flexd reports the loss.
func TestUnwritten(t *testing.T) {
	t.Parallel()
	var dir string
	h := newHost(t, func(h *host) {
		dir = h.Dir + "/disk"
		h.disk(dir, "size=24m")
		h.settings.groups = "  - {name: small, provider: loopdev, directory: " + dir + ", create: true, maxSize: 1GiB" + roomy + ", namespaces: ['*']}\n"
	})
	v := h.vol("data", "ext4").With("volumegroup", "small", "volumeID", "data", "size", "20Mi")
	p, q := podN(1), podN(2)
	lost := func() int {
		text, _ := h.client("events", "small/data")
		return strings.Count(text, "writes to it have failed")
	}
	h.ok(h.up(noAttach, v, p))
	h.ok(h.up(noAttach, v, q))
	hog := dir + "/.hog"
	if err := os.WriteFile(hog, make([]byte, 24*mib), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%s does not fill up: %v", dir, err)
	}
	data := make([]byte, 10*mib)
	rand.Read(data)
	h.must(os.WriteFile(h.PodDir(p, v)+"/f", data, 0o600))
	h.ok(h.unmount(v, p))
	if lost() != 0 {
		t.Error("reported while another pod has it mounted")
	}
	h.ok(h.unmount(v, q))
	if n := lost(); n != 1 {
		t.Errorf("reported %d times, want once", n)
	}
	if !strings.Contains(h.LogTail(100), "writes to it have failed") {
		t.Error("not in the log")
	}
	h.must(os.Remove(hog))
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "g", "x")
	h.ok(h.unmount(v, p))
	if n := lost(); n != 1 {
		t.Errorf("reported %d times, want once", n)
	}
}

// The loop driver of recent kernels reports a write as done of which only a part fits in the filesystem below. So no volume is
// mounted on a full one, a volume in use there is reported, and so is its last unmount, although the kernel reports no error.
func TestFullBelow(t *testing.T) {
	t.Parallel()
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		h := newHost(t, func(h *host) { h.disk(h.Dir+"/vg0", "size=128m") })
		h.volume("vg0/big", 400*mib, nil)
		v, p := h.vol("big", fs), podN(1)
		hog := h.Dir + "/vg0/.hog"
		fill := func() {
			t.Helper()
			for { // until no other write has taken the space
				var st unix.Statfs_t
				h.must(unix.Statfs(h.Dir+"/vg0", &st))
				err := os.WriteFile(hog, make([]byte, (int64(st.Bfree)-100)*st.Bsize), 0o600) // some writes still fit
				if err == nil {
					return
				}
				if !errors.Is(err, unix.ENOSPC) {
					h.must(err)
				}
				h.must(os.Remove(hog))
			}
		}
		h.ok(h.up(noAttach, v, p))
		fill()
		if wrong := h.within(10*time.Second, func() string {
			text, _ := h.client("check")
			if strings.Contains(text, "faulty") && strings.Contains(text, "the filesystem of "+h.Dir+"/vg0 is full: writes to the volume fail") {
				return ""
			}
			return text
		}); wrong != "" {
			t.Errorf("%s: %s", fs, wrong)
		}
		h.ok(h.unmount(v, p))
		if text, _ := h.client("events", "vg0/big"); strings.Count(text, "do not report every lost write") != 1 {
			t.Errorf("%s: %s", fs, text)
		}
		h.refused(h.up(noAttach, v, p), "vg0/big: mount:", "the filesystem of "+h.Dir+"/vg0/big is full: make room there")
		h.must(os.Remove(hog))
		h.ok(h.up(noAttach, v, p))
		h.ok(h.unmount(v, p))
		if text, _ := h.client("events", "vg0/big"); strings.Count(text, "do not report every lost write") != 1 {
			t.Errorf("%s, with room: %s", fs, text)
		}
		h.end(noAttach, v, podN(2))
	}
}

// The kernel stops the filesystem of a group's directory after an error: at once check reports the volume that is mounted
// read-write, also after a restart, and not those that are mounted read-only, and no further pod can write. The reported
// remedy works.
func TestStoppedBelow(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.ext4")
	image := t.TempDir() + "/image"
	h := newHost(t, func(h *host) {
		h.sh("truncate", "-s", "320M", image)
		h.sh("mkfs.ext4", "-q", image)
		h.must(os.MkdirAll(h.Dir+"/vg0", 0o700))
		h.sh("mount", "-o", "loop,errors=remount-ro", image, h.Dir+"/vg0")
		h.disks = append(h.disks, h.Dir+"/vg0")
	})
	dir := h.Dir + "/vg0"
	h.volume("vg0/a", 32*mib, nil)
	h.volume("vg0/b", 32*mib, nil)
	a, b, p, q := h.vol("a", "ext4"), h.vol("b", "ext4"), podN(1), podN(2)
	h.volume("vg0/c", 32*mib, nil)
	c := h.vol("c", "ext4")
	h.ok(h.up(noAttach, a, p))
	for _, v := range []vol{b, c} {
		h.ok(h.up(noAttach, v, p))
		h.end(noAttach, v, p)
	}
	h.eventually("c is inactive", func() string { return h.story("c").Device })
	h.must(os.Chmod(dir+"/c", 0o400))
	h.ok(h.up(noAttach, readOnly(b), p))
	h.sh("sh", "-c", "echo x > /sys/fs/ext4/$(basename $(findmnt -no SOURCE $0))/trigger_fs_error", dir)
	says := "its file is on the ext4 at " + dir + ", which accepts no writes ("
	check := func() {
		t.Helper()
		if text, _ := h.client("check"); !strings.Contains(text, "vg0/a  faulty") || strings.Contains(text, "vg0/b") || strings.Contains(text, "vg0/c") || !strings.Contains(text, says) {
			t.Errorf("check: %s", text)
		}
	}
	h.ok(h.up(noAttach, readOnly(c), p))
	check()
	h.refused(h.up(noAttach, a, q), "vg0/a: mount:", says, "umount, fsck and mount it")
	h.ok(h.up(noAttach, readOnly(a), q))
	h.ok(h.unmount(a, q))
	h.restart()
	check()
	h.ok(h.unmount(a, p))
	if text, _ := h.client("events", "vg0/a"); strings.Count(text, "data of it may be lost") != 1 {
		t.Errorf("events: %s", text)
	}
	h.ok(h.unmount(b, p))
	h.ok(h.unmount(c, p))
	h.eventually("the devices are detached", func() string {
		if err := unix.Unmount(dir, 0); err != nil {
			return err.Error()
		}
		return ""
	})
	h.sh("sh", "-c", "e2fsck -fp $0 || [ $? = 1 ]", image)
	h.sh("mount", "-o", "loop", image, dir)
	h.ok(h.up(noAttach, a, q))
	h.write(a, q, "f", "x")
	if text, _ := h.client("check"); !strings.Contains(text, "All agree") {
		t.Errorf("after the repair: %s", text)
	}
	h.end(noAttach, a, q)
}

// The last write of a filesystem, that of the unmount itself, fails.
func TestLostAtUnmount(t *testing.T) {
	t.Parallel()
	readsKernelLog(t)
	h := newHost(t)
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "x")
	h.sh("sync", "-f", h.PodDir(p, v))
	h.must(os.Truncate(h.Dir+"/vg0/a", mib))
	h.sh("losetup", "-c", h.story("a").Device)
	h.ok(h.unmount(v, p))
	if text, _ := h.client("events", "vg0/a"); strings.Count(text, "the kernel logged") != 1 {
		t.Errorf("events: %s", text)
	}
}

// A pod's syncfs(2) consumes the error of a write. flexd reads it in the kernel's log, and reports it until
// the last unmount.
func TestLostWrite(t *testing.T) {
	t.Parallel()
	readsKernelLog(t)
	var dir string
	h := newHost(t, func(h *host) {
		dir = h.Dir + "/disk"
		h.disk(dir, "size=24m")
		h.settings.groups = "  - {name: small, provider: loopdev, directory: " + dir + ", create: true, maxSize: 1GiB" + roomy + ", namespaces: ['*']}\n"
	})
	v, p := h.vol("data", "ext4").With("volumegroup", "small", "volumeID", "data", "size", "20Mi"), podN(1)
	h.ok(h.up(noAttach, v, p))
	hog := dir + "/.hog"
	if err := os.WriteFile(hog, make([]byte, 24*mib), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%s does not fill up: %v", dir, err)
	}
	data := make([]byte, 10*mib)
	rand.Read(data)
	f, err := os.Create(h.PodDir(p, v) + "/f")
	h.must(err)
	_, err = f.Write(data)
	h.must(err)
	if err := unix.Syncfs(int(f.Fd())); err == nil {
		t.Fatal("it was written: the test proves nothing")
	}
	f.Close()
	h.must(os.Remove(hog))
	if wrong := h.within(30*time.Second, func() string {
		if text, _ := h.client("check"); !strings.Contains(text, "a write to it has failed since it was mounted") {
			return text
		}
		return ""
	}); wrong != "" {
		t.Error(wrong)
	}
	h.ok(h.up(noAttach, v, podN(2))) // the filesystem can be used
	h.ok(h.unmount(v, podN(2)))
	h.ok(h.unmount(v, p))
	if text, _ := h.client("events", "small/data"); strings.Count(text, "the kernel logged") != 2 { // found, and the unmount
		t.Errorf("events: %s", text)
	}
	h.ok(h.up(noAttach, v, p))
	if text, _ := h.client("check"); strings.Contains(text, "a write to it has failed") {
		t.Errorf("of the next mount: %s", text)
	}
	h.ok(h.unmount(v, p))
}
