//go:build !vm

package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flexd/flexd/test/umount"
	"golang.org/x/sys/unix"
)

// A swap file keeps a volume in use without a process.
func TestUnmountSwap(t *testing.T) {
	need(t, "mkswap", "swapon", "swapoff")
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m and m")
	r.mount(r.spec(dir))
	file := dir + "/swap"
	r.sh("dd", "if=/dev/zero", "of="+file, "bs=1M", "count=1", "conv=fsync", "status=none")
	r.sh("chmod", "600", file)
	r.sh("mkswap", "-q", file)
	r.sh("swapon", file)
	defer exec.Command("swapoff", file).Run() // if the test fails
	var busy *BusyError
	if err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number, true); !errors.As(err, &busy) || !strings.Contains(err.Error(), "swapoff "+file) {
		t.Errorf("got %v", err)
	}
	r.sh("swapoff", file)
	r.unmount(dir)
}

// Ensure that an unmount of a mount in use names the process, detaches nothing,
// and succeeds when the process has ended.
func TestUnmountBusy(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m")
	r.mount(r.spec(dir))
	r.sh("cp", "/bin/sleep", dir+"/prog")
	for _, row := range []struct {
		how  string
		argv []string
		dir  string
	}{
		{"open file", []string{"sh", "-c", "exec 7>" + dir + "/open; sleep 60"}, "/"},
		{"working directory", []string{"sleep", "60"}, dir},
		{"running program", []string{dir + "/prog", "60"}, "/"},
	} {
		c := exec.Command(row.argv[0], row.argv[1:]...)
		c.Dir = row.dir
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		stop := func() {
			unix.Kill(-c.Process.Pid, unix.SIGKILL)
			c.Wait()
		}
		if row.how == "open file" {
			waitFor(t, func() bool { _, err := os.Stat(dir + "/open"); return err == nil })
		}
		err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number, true)
		var busy *BusyError
		if !errors.As(err, &busy) || len(busy.Holders) == 0 {
			stop()
			t.Fatalf("%s: got %v", row.how, err)
		}
		found := false
		for _, h := range busy.Holders {
			found = found || (h.Pid == c.Process.Pid && strings.HasPrefix(h.How, row.how))
		}
		if !found {
			t.Errorf("%s of pid %d: got %v", row.how, c.Process.Pid, err)
		}
		if len(r.mounts()) != 1 {
			t.Errorf("%s: the mount is gone", row.how)
		}
		stop()
	}
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", sub, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number, true); err == nil || !strings.Contains(err.Error(), sub) {
		t.Errorf("a mount on it: got %v", err)
	}
	if err := umount.Plain(sub); err != nil {
		t.Fatal(err)
	}
	r.unmount(dir)
}

// A process that waits in mmap(2) for a hanging filesystem holds the lock of its list of mappings. The search
// for holders names it, and finds other holders without that list.
func TestUnmountBusyLocked(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m")
	r.mount(r.spec(dir))
	other := r.mkdir("other")
	r.mount(r.spec(other))
	file := other + "/file"
	r.sh("truncate", "-s", "4096", file)
	f := newFuse(r)
	f.noWrite.Store(true)
	f.cacheNext.Store(true)
	locked := exec.Command("/proc/self/exe", "map", file, f.file)
	if err := locked.Start(); err != nil {
		t.Fatal(err)
	}
	defer locked.Wait()
	defer f.abort() // every wait ends
	defer locked.Process.Kill()
	waitFor(t, f.waits.Load)
	holder := exec.Command("sleep", "60")
	holder.Dir = dir
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	stop := func() { holder.Process.Kill(); holder.Wait() }
	defer stop()
	limit := time.AfterFunc(40*time.Second, func() {
		t.Error("it hangs")
		f.abort()
	})
	defer limit.Stop()
	err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number, true)
	var busy *BusyError
	for _, want := range []string{fmt.Sprintf("pid %d (sleep, working directory %s)", holder.Process.Pid, dir), fmt.Sprintf("those of pid %d (exe) cannot be read", locked.Process.Pid)} {
		if !errors.As(err, &busy) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	stop()
	r.unmount(dir)
}

// The kernel also refuses an unmount that would remove a copy in use in another mount namespace, such as that
// of a container that receives the host's mounts.
func TestUnmountBusyCopy(t *testing.T) {
	if amongOurs(t) {
		return
	}
	for _, fsType := range []string{"ext4", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			need(t, "unshare", "mkfs."+fsType)
			r := newRig(t, 160*mib)
			r.format(fsType)
			dir := r.landedBelow(true)
			c := exec.Command("unshare", "-m", "--propagation", "slave", "sh", "-c", "exec 7>"+dir+"/open && exec sleep 60")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			stop := func() { c.Process.Kill(); c.Wait() }
			defer stop()
			waitFor(t, func() bool {
				comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.Process.Pid))
				return string(comm) == "sleep\n"
			})
			ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", c.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			err = r.Unmount(t.Context(), r.lock, dir, r.dev.Number, true)
			want := fmt.Sprintf("pid %d (sleep, open file %s/open in the mount namespace %s)", c.Process.Pid, dir, ns)
			var busy *BusyError
			if !errors.As(err, &busy) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
			stop()
			r.unmount(dir)
		})
	}
}

// A thread may have its own working directory.
func TestUnmountBusyThread(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m")
	r.mount(r.spec(dir))
	there, leave, left := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		runtime.LockOSThread() // to the end of the thread
		there <- errors.Join(unix.Unshare(unix.CLONE_FS), unix.Chdir(dir))
		<-leave
		_ = unix.Chdir("/")
	}()
	if err := <-there; err != nil {
		t.Fatal(err)
	}
	err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number, true)
	if want := fmt.Sprintf("pid %d (", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "working directory "+dir) {
		t.Errorf("got %v, want %s", err, want)
	}
	close(leave)
	<-left
	r.unmount(dir)
}

// Ensure that a foreign mount, over flexd's or in place of it, is named and not unmounted.
func TestUnmountForeign(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m")
	if err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number, true); !errors.Is(err, ErrNone) {
		t.Errorf("nothing there: got %v", err)
	}
	r.mount(r.spec(dir))
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number, true)
	if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "tmpfs") {
		t.Errorf("got %v", err)
	}
	if err := umount.Plain(dir); err != nil {
		t.Fatal(err)
	}
	r.unmount(dir)
}

// The root of an xfs that has shut down cannot be opened, so syncfs(2) cannot tell whether all data was
// written. This is reported, and the mount is gone.
func TestUnmountShutDown(t *testing.T) {
	need(t, "mkfs.xfs", "xfs_io")
	r := newRig(t, 320*mib)
	r.format("xfs")
	dir := r.mkdir("m")
	r.mount(r.spec(dir))
	open, err := os.Create(dir + "/file")
	if err != nil {
		t.Fatal(err)
	}
	r.sh("xfs_io", "-x", "-c", "shutdown", dir)
	err = r.Unmount(t.Context(), r.lock, dir, r.dev.Number, true)
	open.Close()
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d (", os.Getpid())) {
		t.Errorf("with an open file: %v", err)
	}
	err = r.Unmount(t.Context(), r.lock, dir, r.dev.Number, true)
	if !errors.Is(err, ErrUnwritten) || !strings.Contains(err.Error(), "unknown") {
		t.Errorf("got %v", err)
	}
	fifo := r.lock + ".fifo" // of another program
	r.sh("mkfifo", fifo)
	if err := Unreported(fifo); err != nil {
		t.Errorf("a FIFO: got %v", err)
	}
	left := Unreported(r.lock) // for the next flexd, if this one had ended
	if !errors.Is(left, ErrUnwritten) || !strings.HasSuffix(err.Error(), left.Error()) {
		t.Errorf("left: %v", left)
	}
	if left := Unreported(r.lock); left != nil {
		t.Errorf("left again: %v", left)
	}
	if n := len(r.mounts()); n != 0 {
		t.Errorf("%d mounts are left", n)
	}
}

// A search that ended early has not seen every mount: it does not report the filesystem as frozen and mounted
// nowhere.
func TestHoldersCut(t *testing.T) {
	need(t)
	defer func(n int) { MaxSearch = n }(MaxSearch)
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m")
	r.mount(r.spec(dir))
	MaxSearch = 0
	all := DeviceHolders(r.dev)
	if len(all) != 1 || !all[0].Cut || all[0].Unmounted {
		t.Errorf("got %+v", all)
	}
	MaxSearch = 1 << 30
	defer func(n int) { maxTable = n }(maxTable)
	maxTable = 1 // a tenant's mount table has more
	if all := DeviceHolders(r.dev); len(all) == 0 || !all[len(all)-1].Cut {
		t.Errorf("got %+v", all)
	}
	r.unmount(dir)
}

// An unbindable mount has no copy that shows whether all data was written.
func TestUnmountUnbindable(t *testing.T) {
	need(t)
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m")
	r.mount(r.spec(dir))
	if err := unix.Mount("", dir, "", unix.MS_UNBINDABLE, ""); err != nil {
		t.Fatal(err)
	}
	if err := r.Unmount(t.Context(), r.lock, dir, r.dev.Number, true); err != nil {
		t.Error(err)
	}
	if n := len(r.mounts()); n != 0 {
		t.Errorf("%d mounts are left", n)
	}
}
