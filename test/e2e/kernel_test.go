package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func readsKernelLog(t *testing.T) {
	t.Helper()
	f, err := os.Open("/dev/kmsg")
	if err != nil {
		t.Skipf("needs /dev/kmsg: %v", err)
	}
	f.Close()
}

// An xfs that shut down while flexd was down is reported after flexd's start, and an earlier xfs on the same
// device is not.
func TestErrorWhileStopped(t *testing.T) {
	t.Parallel()
	readsKernelLog(t)
	need(t, "mkfs.xfs", "xfs_io")
	h := newHost(t)
	p, v := podN(1), h.vol("down", "xfs")
	faulty := func() string {
		if s := h.story("down"); s.State != "faulty" {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	}
	h.ok(h.up(noAttach, v, p))
	h.stop()
	h.sh("xfs_io", "-x", "-c", "shutdown", h.PodDir(p, v))
	h.start()
	if wrong := h.within(30*time.Second, faulty); wrong != "" {
		t.Errorf("status does not show it: %s", wrong)
	}
	h.end(noAttach, v, p)
	h.ok(h.up(noAttach, v, p))
	h.stop()
	h.start()
	if s := h.settled("down"); len(s.Refused) != 0 || s.State == "faulty" {
		t.Errorf("after the way out: %+v", s)
	}
	h.end(noAttach, v, p)
}

// Data that an unmount could not write is reported even if flexd ends during the unmount.
func TestUnwrittenReportedByNextFlexd(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs", "xfs_io")
	h := newHost(t)
	for i := range 5 { // an unmount may be faster than the test
		p, v := podN(1), h.vol(fmt.Sprint("down", i), "xfs")
		h.ok(h.up(noAttach, v, p))
		h.sh("xfs_io", "-x", "-c", "shutdown", h.PodDir(p, v))
		done := make(chan struct{}, 1)
		go func() { h.unmount(v, p); done <- struct{}{} }()
		pid := h.Freeze(func() bool { return len(done) > 0 }, "umount")
		if pid == 0 {
			<-done
			continue
		}
		h.kill()
		h.must(unix.Kill(pid, unix.SIGCONT))
		h.start()
		<-done
		h.ok(h.unmount(v, p))
		if text, _ := h.client("events", "vg0/"+v.Options["volumeID"]); strings.Count(text, "data of it may be lost") != 1 {
			t.Errorf("events: %s", text)
		}
		return
	}
	t.Error("no unmount could be stopped")
}

// Errors of a mounted filesystem in the kernel's log are reported without a call.
func TestErrorReportedWithoutCall(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs", "xfs_io")
	readsKernelLog(t)
	h := newHost(t)
	p := podN(1)
	reports := func(lv, fs, class string) {
		t.Helper()
		h.disagrees(class, h.story(lv).UUID, "", "dmesg")
		is := func(text string) bool { return strings.Contains(text, "in error") }
		if wrong := h.within(30*time.Second, func() string {
			s := h.story(lv)
			if s.State == "faulty" && len(s.Pods) == 1 &&
				slices.ContainsFunc(s.Observed, func(f struct{ Name, Value string }) bool { return f.Name == "filesystem" && is(f.Value) }) &&
				slices.ContainsFunc(s.Refused, func(r string) bool { return is(r) && strings.Contains(r, fs) }) {
				return ""
			}
			return fmt.Sprintf("%+v", s)
		}); wrong != "" {
			t.Errorf("%s: status does not show it: %s", fs, wrong)
		}
	}
	bad, down, fine := h.vol("bad", "ext4").With("mountOptions", "errors=continue"), h.vol("down", "xfs"), h.vol("fine", "ext4")
	forced, stopped := h.vol("forced", "btrfs"), h.vol("stopped", "ext4").With("mountOptions", "errors=remount-ro")
	all := []vol{bad, down, fine, forced, stopped}
	for _, v := range all {
		h.ok(h.up(noAttach, v, p))
	}
	h.must(os.WriteFile("/sys/fs/ext4/"+filepath.Base(h.story("bad").Device)+"/trigger_fs_error", []byte("1"), 0))
	reports("bad", "ext4", "faulty")
	h.sh("xfs_io", "-x", "-c", "shutdown", h.PodDir(p, down))
	reports("down", "xfs", "faulty")
	h.must(os.WriteFile("/sys/fs/ext4/"+filepath.Base(h.story("stopped").Device)+"/trigger_fs_error", []byte("1"), 0))
	reports("stopped", "ext4", "faulty")
	if err := os.WriteFile(h.PodDir(p, stopped)+"/more", nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("errors=remount-ro: a pod that writes gets %v", err)
	}
	h.sh("mount", "-o", "remount,ro", h.PodDir(p, forced)) // what btrfs does by itself looks the same
	reports("forced", "btrfs", "read-only")
	if s := h.story("fine"); len(s.Refused) != 0 || strings.Contains(fmt.Sprint(s.Observed), "in error") {
		t.Errorf("its neighbour: %+v", s)
	}
	for _, v := range all {
		h.end(noAttach, v, p)
		h.ok(h.up(noAttach, v, p)) // fsck and the log have mended it
		if s := h.settled(v.Options["volumeID"]); len(s.Refused) != 0 {
			t.Errorf("after the way out: %+v", s)
		}
		h.end(noAttach, v, p)
	}
}

// A filesystem in error is given to no further pod, and status says so.
func TestFilesystemInError(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs", "xfs_io")
	h := newHost(t)
	p, q := podN(1), podN(2)
	for _, m := range []mode{noAttach, byKubelet} {
		v := h.vol(fmt.Sprintf("bad-%d", len(m)), "ext4").With("mountOptions", "errors=continue")
		lv := v.Options["volumeID"]
		h.ok(h.up(m, v, p))
		sys := "/sys/fs/ext4/" + filepath.Base(h.story(lv).Device)
		h.must(os.WriteFile(sys+"/trigger_fs_error", []byte("1"), 0))
		h.eventually("ext4 counts it", func() string {
			if number(sys+"/errors_count") == 0 {
				return "not yet"
			}
			return ""
		})
		h.refused(h.up(m, v, q), "vg0/"+lv+": mount", "in error", "ext4", "1 errors", "fsck")
		if mounted(h.PodDir(q, v)) {
			t.Error("it was mounted")
		}
		s := h.story(lv)
		if !slices.ContainsFunc(s.Refused, func(r string) bool { return strings.Contains(r, "in error") }) ||
			!slices.ContainsFunc(s.Observed, func(f struct{ Name, Value string }) bool { return strings.Contains(f.Value, "in error") }) {
			t.Errorf("status: %+v", s)
		}
		if text := h.show("vg0/" + lv); strings.Count(text, "in error") < 2 {
			t.Errorf("status:\n%s", text)
		}
		if len(s.Pods) != 1 {
			t.Errorf("the pod that has it: %+v", s.Pods)
		}
		// The way out: unmounted everywhere, checked at the next mount.
		h.end(m, v, p)
		h.ok(h.up(m, v, q))
		h.end(m, v, q)

		// xfs that was shut down.
		w := h.vol(fmt.Sprintf("down-%d", len(m)), "xfs")
		h.ok(h.up(m, w, p))
		h.write(w, p, "f", "x")
		h.sh("sync", "-f", h.PodDir(p, w))
		h.sh("xfs_io", "-x", "-c", "shutdown", h.PodDir(p, w))
		h.refused(h.up(m, w, q), "vg0/"+w.Options["volumeID"]+": mount", "in error", "xfs")
		h.end(m, w, p)
		h.ok(h.up(m, w, q))
		h.reads(w, q, "f", "x")
		h.end(m, w, q)
	}
}
