//go:build !vm

package mount

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/umount"
)

// loop attaches a loop device to a file or device until detach is called.
func (r *rig) loop(to string) (path string, detach func()) {
	r.Helper()
	path = strings.TrimSpace(r.sh("losetup", "-f", "--show", to))
	detach = func() {
		r.Helper()
		r.sh("losetup", "-d", path)
		// While another process has it open, the kernel detaches it at the last close.
		end := time.Now().Add(10 * time.Second)
		for {
			_, err := os.Stat(filepath.Join("/sys/block", filepath.Base(path), "loop"))
			if errors.Is(err, os.ErrNotExist) {
				return
			}
			if err != nil || time.Now().After(end) {
				r.Fatalf("%s is still attached: %v", path, err)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return path, detach
}

// partition makes a partition of the device, as partx -a does. The kernel would keep it when the loop device is detached.
func (r *rig) partition() (path string, end func()) {
	r.Helper()
	need(r.T, "addpart", "delpart")
	r.sh("addpart", r.dev.Path, "1", "2048", "100000")
	end = func() { exec.Command("delpart", r.dev.Path, "1").Run() }
	r.Cleanup(end) // if the test fails
	return r.dev.Path + "p1", end
}

// A device with another user is not checked, formatted or mounted, and the error names the user.
func TestInUse(t *testing.T) {
	for _, row := range []struct {
		name string
		use  func(r *rig) (words []string, end func())
	}{
		{"process", func(r *rig) ([]string, func()) {
			f, err := os.OpenFile(r.dev.Path, os.O_RDWR, 0)
			if err != nil {
				r.Fatal(err)
			}
			return []string{fmt.Sprintf("pid %d (", os.Getpid()), "has it open as " + r.dev.Path}, func() { f.Close() }
		}},
		{"process with a node of its own", func(r *rig) ([]string, func()) {
			f, err := os.OpenFile(r.node(), os.O_RDWR, 0)
			if err != nil {
				r.Fatal(err)
			}
			return []string{fmt.Sprintf("pid %d (", os.Getpid()), "has it open as " + f.Name()}, func() { f.Close() }
		}},
		{"mapped", func(r *rig) ([]string, func()) {
			f, err := os.OpenFile(r.node(), os.O_RDWR, 0)
			if err != nil {
				r.Fatal(err)
			}
			defer f.Close()
			m, err := unix.Mmap(int(f.Fd()), 0, mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				r.Fatal(err)
			}
			return []string{fmt.Sprintf("pid %d (", os.Getpid()), "has it mapped as " + f.Name()}, func() { unix.Munmap(m) }
		}},
		{"thread with descriptors of its own", func(r *rig) ([]string, func()) {
			opened, end, closed := make(chan error), make(chan struct{}), make(chan struct{})
			go func() { // the thread ends with it
				defer close(closed)
				runtime.LockOSThread()
				// A table of its own, without the descriptors of other tests.
				err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_UNSHARE)
				var fd int
				if err == nil {
					fd, err = unix.Open(r.dev.Path, unix.O_RDWR|unix.O_CLOEXEC, 0)
				}
				opened <- err
				<-end
				unix.Close(fd)
			}()
			if err := <-opened; err != nil {
				r.Fatal(err)
			}
			return []string{fmt.Sprintf("pid %d (", os.Getpid()), "has it open as " + r.dev.Path}, func() { close(end); <-closed }
		}},
		{"descriptor in a socket", func(r *rig) ([]string, func()) {
			f, err := os.OpenFile(r.dev.Path, os.O_RDWR, 0)
			if err != nil {
				r.Fatal(err)
			}
			defer f.Close()
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				r.Fatal(err)
			}
			if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0); err != nil {
				r.Fatal(err)
			}
			return []string{"is busy"}, func() { unix.Close(pair[0]); unix.Close(pair[1]) }
		}},
		{"loop device on it", func(r *rig) ([]string, func()) {
			l, end := r.loop(r.dev.Path)
			return []string{l + " is a loop device on it"}, end
		}},
		{"loop device on the same file", func(r *rig) ([]string, func()) {
			l, end := r.loop(r.file)
			return []string{l + " is attached to the same file, " + r.file}, end
		}},
		{"loop device on the same file, covered", func(r *rig) ([]string, func()) {
			l, end := r.loop(r.file)
			r.sh("mount", "--bind", "/etc/passwd", r.file) // its path leads to another file now
			return []string{l + " is attached to the same file"}, func() {
				r.sh("umount", r.file)
				end()
			}
		}},
		{"loop device on the same file, without its node", func(r *rig) ([]string, func()) {
			other := filepath.Join(r.mkdir("alias"), "img")
			r.sh("touch", other)
			r.sh("mount", "--bind", r.file, other)
			l, end := r.loop(other)
			r.sh("umount", "-l", other) // its path leads nowhere now
			r.sh("mount", "--bind", os.DevNull, l)
			return []string{l + " is attached to the same file"}, func() {
				r.sh("umount", l)
				end()
			}
		}},
		{"partition, open", func(r *rig) ([]string, func()) {
			part, end := r.partition()
			f, err := os.OpenFile(part, os.O_RDWR, 0)
			if err != nil {
				r.Fatal(err)
			}
			return []string{fmt.Sprintf("pid %d (", os.Getpid()), "has the partition " + part + " open as " + part}, func() { f.Close(); end() }
		}},
		{"partition, mapped", func(r *rig) ([]string, func()) {
			part, end := r.partition()
			f, err := os.OpenFile(part, os.O_RDWR, 0)
			if err != nil {
				r.Fatal(err)
			}
			defer f.Close()
			m, err := unix.Mmap(int(f.Fd()), 0, mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				r.Fatal(err)
			}
			return []string{fmt.Sprintf("pid %d (", os.Getpid()), "has the partition " + part + " mapped as " + part}, func() { unix.Munmap(m); end() }
		}},
		{"partition, loop device on it", func(r *rig) ([]string, func()) {
			part, end := r.partition()
			l, detach := r.loop(part)
			return []string{l + " is a loop device on the partition " + part}, func() { detach(); end() }
		}},
		{"partition, mounted", func(r *rig) ([]string, func()) {
			part, end := r.partition()
			dir := r.mkdir("elsewhere")
			r.sh("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", part)
			r.sh("mount", part, dir)
			return []string{"the partition " + part + " is mounted in its mount namespace", dir}, func() {
				r.sh("umount", dir)
				end()
				r.write(make([]byte, 64*mib), 0)
			}
		}},
		{"mount", func(r *rig) ([]string, func()) {
			dir := r.mkdir("elsewhere")
			r.sh("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", r.dev.Path)
			r.sh("mount", r.dev.Path, dir)
			return []string{"mounted in its mount namespace", dir}, func() {
				r.sh("umount", dir)
				r.write(make([]byte, 64*mib), 0)
			}
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 64*mib)
			words, end := row.use(r)
			r.isUsed(volume.InUse, words...)
			end()
			if fs := r.probe(""); fs.Use != volume.Unused || fs.UsedBy != "" {
				t.Errorf("afterwards: %+v", fs)
			}
			r.format("ext4")
			l := firstOf(r.spec(r.mkdir("m")))
			r.mount(l)
		})
	}
}

// A chrooted process does not see the mount of other processes in its mount namespace.
func TestInUse_chroot(t *testing.T) {
	need(t, "unshare", "chroot", "mkfs.ext4")
	r := newRig(t, 64*mib)
	r.format("ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0")
	dir, jail := r.mkdir("elsewhere"), r.mkdir("jail")
	c := exec.Command("unshare", "-m", "sh", "-ec", `mount "$0" "$1"; mount --bind / "$2"; sleep 60 & exec chroot "$2" sleep 60`, r.dev.Path, dir, jail)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		_ = c.Wait()
		waitFor(t, func() bool { return liveSuperblock(r.dev.Number) == "" }) // the kernel has removed the namespace
	}()
	waitFor(t, func() bool {
		root, _ := os.Readlink(fmt.Sprintf("/proc/%d/root", c.Process.Pid))
		return root == jail
	})
	r.isUsed(volume.InUse, "mounted in its mount namespace", dir)
}

// node makes another node of the device, such as the one in a jail of a VM.
func (r *rig) node() string {
	r.Helper()
	path := filepath.Join(r.TempDir(), "drive") // not below /dev, as r.dir may be
	major, minor, _ := sysfs.SplitNumber(r.dev.Number)
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(major, minor))); err != nil {
		r.Fatal(err)
	}
	return path
}

// isUsed requires every child that would write to refuse the device.
func (r *rig) isUsed(use volume.Use, words ...string) {
	r.Helper()
	fs := r.probe("")
	if fs.Use != use {
		r.Errorf("probe: use %d: %q", fs.Use, fs.UsedBy)
	}
	said := map[string]string{"probe": fs.UsedBy}
	before := r.written()
	for step, err := range map[string]error{
		"fsck":  r.Check(r.Context(), r.lock, r.dev, "ext4"),
		"mkfs":  r.Format(r.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4"}, yes),
		"mount": r.Mount(r.Context(), r.lock, MountSpec{Device: r.dev, FSType: "ext4", Dir: r.mkdir("m"), Root: r.dir, First: true}, yes),
	} {
		var busy *BusyError
		if !errors.As(err, &busy) {
			r.Errorf("%s: got %v", step, err)
			continue
		}
		said[step] = err.Error()
	}
	if now := r.written(); now != before {
		r.Errorf("the device was written: %s, then %s", before, now)
	}
	for step, text := range said {
		for _, w := range words {
			if !strings.Contains(text, w) {
				r.Errorf("%s says %q without %q", step, text, w)
			}
		}
	}
}

// A hanging filesystem below an unrelated loop device does not affect the volume, be it one without its
// server or a local one whose disk hangs.
func TestHungNeighbour(t *testing.T) {
	for _, row := range []struct {
		name string
		hang func(r *rig, f *fuse, dir string) (end func())
	}{
		{"server", func(r *rig, f *fuse, dir string) func() {
			_, detach := r.loop(f.file)
			r.sh("mount", "--bind", f.dir, dir)
			f.silent.Store(true)
			return func() {
				unix.Unmount(dir, unix.MNT_DETACH)
				detach()
			}
		}},
		{"disk", func(r *rig, f *fuse, dir string) func() {
			disk, detach := r.loop(f.file)
			r.sh("mkfs.ext4", "-q", disk)
			r.sh("mount", "-o", "ro", disk, dir) // no name in it is cached
			f.silent.Store(true)
			return func() {
				unix.Unmount(dir, unix.MNT_DETACH)
				detach()
			}
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			need(t, "mkfs.ext4")
			r := newRig(t, 64*mib)
			dir := r.mkdir("hung")
			r.sh("truncate", "-s", "1M", dir+"/img")
			_, detach := r.loop(dir + "/img")
			defer detach()
			f := newFuse(r)
			defer row.hang(r, f, dir)()
			defer f.abort() // every look ends
			defer time.AfterFunc(20*time.Second, func() {
				t.Error("it hangs")
				f.abort()
			}).Stop()
			for _, checked := range []uint64{0, math.MaxUint64} { // a logical volume's, and a file's: the daemon has asked for all others, or waits
				r.dev.Checked = checked
				r.format("ext4")
				l := firstOf(r.spec(r.mkdir("m")))
				r.mount(l)
				r.unmount(l.Dir)
				r.sh("wipefs", "-q", "-a", r.dev.Path)
				r.sh("blkdiscard", "-z", r.dev.Path)
			}
		})
	}
}

// A loop device on the volume is found even if its path leads to another device here, as that of a container
// with its own /dev.
func TestLoopOnNodeElsewhere(t *testing.T) {
	r := newRig(t, mib)
	dir, _ := r.tmpfs("dev", "")
	node, another := filepath.Join(dir, "node"), filepath.Join(dir, "another")
	major, minor, _ := sysfs.SplitNumber(r.dev.Number)
	for path, number := range map[string]uint64{node: unix.Mkdev(major, minor), another: unix.Mkdev(1, 0)} {
		if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(number)); err != nil {
			t.Fatal(err)
		}
	}
	on, detach := r.loop(node)
	defer detach()
	if err := unix.Mount(another, node, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(node, 0)
	r.dev.Checked = math.MaxUint64
	dev, err := os.Open(r.dev.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if got, err := loopsOn(dev, r.dev); err != nil || !slices.Equal(got, []string{on + " is a loop device on it"}) {
		t.Errorf("got %q, %v", got, err)
	}
}

// A process that has the device open for a moment, as udev's blkid does, causes no failure.
func TestInUse_transient(t *testing.T) {
	r := newRig(t, 64*mib)
	f, err := os.Open(r.dev.Path)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(300*time.Millisecond, func() { f.Close() })
	r.format("ext4")
}

// A process with an open file on an unmounted filesystem is named.
func TestInUse_openFile(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		r := newRig(t, 400*mib)
		r.format(fsType)
		l := r.spec(r.mkdir("m"))
		r.mount(l)
		f, err := os.Create(l.Dir + "/f")
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Unmount(l.Dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		want := fmt.Sprintf("pid %d (", os.Getpid())
		if fs := r.probe(""); fs.Use != volume.Unmounted || !strings.Contains(fs.UsedBy, want) || !strings.Contains(fs.UsedBy, "has /f of it open") {
			t.Errorf("%s: got %+v", fsType, fs)
		}
		f.Close()
		r.mount(l)
		r.unmount(l.Dir)
	}
}

// A filesystem that was frozen when it was unmounted is distinguished from other uses, and the remedy thaws
// it.
func TestInUse_frozen(t *testing.T) {
	need(t, "fsfreeze")
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 400*mib)
			r.format(fsType)
			l := firstOf(r.spec(r.mkdir("m")))
			r.mount(l)
			r.sh("fsfreeze", "-f", l.Dir)
			r.unmount(l.Dir)
			r.Cleanup(func() { // if the test fails
				exec.Command("sh", "-c", "mount "+r.dev.Path+" "+l.Dir+" && fsfreeze -u "+l.Dir+"; umount "+l.Dir).Run()
			})
			fs := r.probe("")
			advice := fmt.Sprintf("mount %s /mnt; fsfreeze -u /mnt; umount /mnt", r.dev.Path)
			if fs.Use != volume.Unmounted || !strings.Contains(fs.UsedBy, advice) || !strings.Contains(fs.UsedBy, "the "+fsType+" on it is active") {
				t.Fatalf("got %+v", fs)
			}
			var busy *BusyError
			if err := r.Mount(t.Context(), r.lock, l, yes); !errors.As(err, &busy) || !strings.Contains(err.Error(), advice) {
				t.Errorf("mount: got %v", err)
			}
			r.sh("sh", "-ec", strings.ReplaceAll(advice, "/mnt", l.Dir))
			r.mount(l)
			if err := os.WriteFile(l.Dir+"/f", []byte("x"), 0o600); err != nil {
				t.Error(err)
			}
			if err := umount.Plain(l.Dir); err != nil {
				t.Error(err)
			}
		})
	}
}

// The remedy for a frozen filesystem of a partition names the partition.
func TestInUse_frozenPartition(t *testing.T) {
	need(t, "fsfreeze")
	r := newRig(t, 64*mib)
	part, end := r.partition()
	dir := r.mkdir("m")
	r.sh("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", part)
	r.sh("mount", part, dir)
	r.sh("fsfreeze", "-f", dir)
	r.sh("umount", dir)
	remedy := "mount " + part + " /mnt; fsfreeze -u /mnt; umount /mnt"
	r.isUsed(volume.Unmounted, "the ext4 on the partition "+part+" is active", remedy)
	r.sh("sh", "-ec", strings.ReplaceAll(remedy, "/mnt", dir))
	end()
	if fs := r.probe(""); fs.Use != volume.Unused {
		t.Errorf("afterwards: %+v", fs)
	}
}

// A loop device can keep an unmounted filesystem active.
func TestInUse_loopInside(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		r := newRig(t, 400*mib)
		r.format(fsType)
		l := firstOf(r.spec(r.mkdir("m")))
		r.mount(l)
		r.sh("truncate", "-s", "1M", l.Dir+"/img")
		inside, detach := r.loop(l.Dir + "/img")
		r.sh("umount", "-l", l.Dir) // as the last process of a mount namespace does
		r.dev.Checked = math.MaxUint64
		fs := r.probe("")
		if fs.Use != volume.Unmounted || !strings.Contains(fs.UsedBy, "losetup -d "+inside) || strings.Contains(fs.UsedBy, "thaw") {
			t.Errorf("got %+v", fs)
		}
		detach()
		r.mount(l)
	}
}

// The first mount of a volume does not reuse a superblock, which may have other options.
func TestFirstMount(t *testing.T) {
	need(t, "mkfs.xfs")
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		r := newRig(t, 400*mib)
		r.format(fsType)
		l := r.spec(r.mkdir("m"))
		r.mount(l)
		dev, err := openDevice(r.dev, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		for _, l.First = range []bool{false, true} {
			mnt, err := build(dev, l)
			if err == nil {
				unix.Close(mnt)
			}
			var busy *BusyError
			if first := errors.As(err, &busy); first != l.First || !first && err != nil {
				t.Errorf("%s, first %v: got %v", fsType, l.First, err)
			}
		}
	}
}

// nouuid disables the kernel's only check against an xfs that is mounted from two devices with the same
// bytes.
func TestTwins_sameBytes(t *testing.T) {
	r := newRig(t, 400*mib)
	r.format("xfs")
	at := r.mkdir("m")
	for _, row := range []struct{ name, to string }{{"same file", r.file}, {"loop device on it", r.dev.Path}} {
		other, detach := r.loop(row.to)
		r.sh("mount", other, at)
		dev, err := openDevice(r.dev, 0)
		if err != nil {
			t.Fatal(err)
		}
		number, err := sysfs.Line("/sys/block/" + filepath.Base(other) + "/dev")
		if err != nil {
			t.Fatal(err)
		}
		want, err := xfsUUID(dev)
		if got := mountedXFS(map[string]string{number: ""})[number]; err != nil || got != want { // without a read of the device, which may hang
			t.Errorf("%s: the mounted xfs is %q, want %q", row.name, got, want)
		}
		l := r.spec(r.mkdir("x"))
		mnt, err := build(dev, l) // as if the look at its users had seen none
		if err == nil {
			unix.Close(mnt)
		}
		var refusal *Refusal
		if !errors.As(err, &refusal) || !strings.Contains(err.Error(), other+" ("+row.to+")") {
			t.Errorf("%s: got %v", row.name, err)
		}
		dev.Close()
		r.sh("umount", at)
		detach()
	}
}

// An unrelated xfs does not delay the mount of a copy, even if its disk hangs or fails: its UUID is read from
// a mount of it in any mount namespace. If its UUID is unknown because the kernel shut it down, a copy is
// refused unless the two are known to be different.
func TestTwins_unrelated(t *testing.T) {
	need(t, "mkfs.xfs", "xfs_io", "unshare", "blockdev")
	for _, row := range []struct {
		name     string
		server   bool // its file is on a filesystem with a server
		fail     func(f *fuse, file string) error
		shutdown bool
		refused  bool
	}{
		{"hangs", true, func(f *fuse, _ string) error { f.silent.Store(true); return nil }, false, false},
		{"fails", true, func(f *fuse, _ string) error { f.abort(); return nil }, false, false},
		{"was shut down", true, func(f *fuse, _ string) error { f.abort(); return nil }, true, true},
		{"was shut down, another file", false, func(_ *fuse, file string) error { return os.Truncate(file, 0) }, true, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t, 400*mib)
			r.format("xfs")
			r.mount(r.spec(r.mkdir("m")))
			c := r.twin()
			f := newFuse(r)
			file := filepath.Join(r.dir, "unrelated")
			if row.server {
				f.data = make([]byte, 400*mib)
				file = f.file
			} else {
				r.sh("truncate", "-s", "400M", file)
			}
			other, detach := r.loop(file)
			defer detach()
			r.sh("mkfs.xfs", "-q", "-K", other)
			elsewhere := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-ec", `mount "$1" "$2"; echo; read x; if "$3"; then xfs_io -x -c shutdown "$2"; fi; echo; read x || :`,
				"sh", other, r.mkdir("elsewhere"), strconv.FormatBool(row.shutdown))
			end, err := elsewhere.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			said, err := elsewhere.StdoutPipe()
			if err == nil {
				err = elsewhere.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			defer elsewhere.Wait()
			defer end.Close()
			defer f.abort()
			line := make([]byte, 1)
			if _, err := said.Read(line); err != nil {
				t.Fatal(err)
			}
			r.sh("blockdev", "--flushbufs", other) // nothing of it is cached
			l := firstOf(c.spec(c.mkdir("m")))
			if err := row.fail(f, file); err != nil {
				t.Fatal(err)
			}
			end.Write([]byte("\n"))
			if _, err := said.Read(line); err != nil {
				t.Fatal(err)
			}
			defer time.AfterFunc(20*time.Second, func() {
				t.Error("it hangs")
				f.abort()
			}).Stop()
			var refusal *Refusal
			err = c.Mount(t.Context(), c.lock, l, yes)
			if refused := errors.As(err, &refusal) && strings.Contains(err.Error(), other+" (") && strings.Contains(err.Error(), "which may show the same bytes; its UUID is unknown"); refused != row.refused || !refused && err != nil {
				t.Errorf("got %v", err)
			}
			if err == nil {
				c.unmount(l.Dir)
			}
		})
	}
}

// A filesystem that is larger than its device is given to no further pod, and no fsck runs on it.
func TestTruncated(t *testing.T) {
	need(t, "mkfs.xfs", "mkfs.btrfs")
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 400*mib)
			r.format(fsType)
			l := r.spec(r.mkdir("m"))
			r.mount(l)
			r.resize(384 * mib)
			if fs := r.probe(l.Dir); fs.Content != volume.Truncated || fs.Size <= 384*mib {
				t.Errorf("mounted: %+v", fs)
			}
			more := l
			more.Dir, more.Device = r.mkdir("more"), r.dev
			var refusal *Refusal
			if err := r.Mount(t.Context(), r.lock, more, yes); !errors.As(err, &refusal) || !strings.Contains(err.Error(), "truncate -s ") && !strings.Contains(err.Error(), "lvextend") {
				t.Errorf("a further mount: got %v", err)
			}
			r.unmount(l.Dir)
			if fs := r.probe(""); fs.Content != volume.Truncated {
				t.Errorf("unmounted: %+v", fs)
			}
			before := r.written()
			if err := r.Check(t.Context(), r.lock, r.dev, fsType); (fsType == "ext4") != errors.As(err, &refusal) {
				t.Errorf("fsck: got %v", err)
			}
			if now := r.written(); now != before {
				t.Errorf("%s, before: %s", now, before)
			}
			r.resize(400 * mib)
			r.mount(r.spec(l.Dir))
		})
	}
}

// Ensure that a loop device with an unknown backing file is not taken for a device of another kind.
func TestLoopsOnUnknown(t *testing.T) {
	r := newRig(t, mib)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if on, err := loopsOn(null, r.dev); err == nil {
		t.Errorf("got %q", on)
	}
	if _, err := loopsOn(null, volume.Device{Number: "1:3"}); err != nil { // no loop device
		t.Error(err)
	}
}

// Ensure that a loop device is opened without its node in /dev, and that no temporary node remains after a
// kill.
func TestOpenLoop(t *testing.T) {
	r := newRig(t, mib)
	r.sh("mount", "--bind", os.DevNull, r.dev.Path)
	defer r.sh("umount", r.dev.Path)
	dev, err := OpenLoop(filepath.Base(r.dev.Path))
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if _, err := backingOf(dev); err != nil {
		t.Error(err)
	}
	if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dev.Fd())); err != nil || strings.HasPrefix(to, "/dev/") {
		t.Errorf("it was opened as %q: %v", to, err)
	}
}

// A program that writes directly to the start of a device drops the cached pages there; this shows flexd that
// the device is open.
func TestDirectWrites(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	fd, err := unix.Open(r.dev.Path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	same, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		_, err = unix.Pread(fd, same, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	defer func() { close(stop); <-ended }()
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				unix.Pwrite(fd, same, 0)
				unix.Nanosleep(&unix.Timespec{Nsec: 20_000}, nil)
			}
		}
	}()
	for range 5 {
		fs, err := r.Probe(t.Context(), r.lock, r.dev, "", created, "")
		if err != nil || fs.Use != volume.InUse {
			t.Fatalf("got %v, %v", fs.Use, err)
		}
	}
}

// A volume does not depend on a loop device of another file on a filesystem that has shut down.
func TestDeadLoop(t *testing.T) {
	need(t, "mkfs.xfs")
	dead, r := newRig(t, 400*mib), newRig(t, mib)
	dead.format("xfs")
	l := dead.spec(dead.mkdir("m"))
	dead.mount(l)
	dead.sh("truncate", "-s", "1M", l.Dir+"/file")
	_, detach := dead.loop(l.Dir + "/file")
	defer detach()
	f, err := os.Open(l.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), 0x8004587d, 2); err != nil { // XFS_IOC_GOINGDOWN
		t.Fatal(err)
	}
	f.Close()
	if fs := r.probe(""); fs.Use != volume.Unused {
		t.Errorf("got %+v", fs)
	}
}

// A loop device whose file is in another mount namespace is not opened if the last look has compared it: a
// child could wait for that filesystem forever.
func TestLoopElsewhere(t *testing.T) {
	r := newRig(t, mib)
	dir, _ := r.tmpfs("elsewhere", "")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	other, detach := r.loop(file)
	defer detach()
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil { // its path is /file now
		t.Fatal(err)
	}
	seq, err := sysfs.Line("/sys/block/" + filepath.Base(other) + "/diskseq")
	if err != nil {
		t.Fatal(err)
	}
	newest, err := strconv.ParseUint(seq, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for checked, want := range map[uint64]bool{0: true, newest - 1: true, newest: false} {
		asked, d := false, r.dev
		d.Checked = checked
		err := askLoops(d, func(string, backing) bool { return true }, func(name, _ string, _ backing) {
			asked = asked || name == filepath.Base(other)
		})
		if err != nil || asked != want {
			t.Errorf("checked up to %d, and it has %d: asked %v, %v", checked, newest, asked, err)
		}
	}
}
