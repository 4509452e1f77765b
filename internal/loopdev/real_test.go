package loopdev

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/umount"
)

const mib = 1 << 20

// The test binary is also the provider's child. Remaining loop devices fail the tests as a whole.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "child" {
		if _, err := os.Stat(noSearch(os.Getppid())); err == nil {
			mount.MaxSearch = 0
		}
		code, ok := Child(os.Args[2], []byte(os.Args[3]))
		if !ok {
			code = 2
		}
		syscall.Exit(code) // not os.Exit: the race detector would sleep for a second
	}
	if code, done := inOwnNamespace(); done {
		os.Exit(code)
	}
	code := m.Run()
	loops, _ := kernel{}.Loops()
	for _, l := range loops {
		if strings.HasPrefix(l.BackingFile, scratch+"/") {
			fmt.Printf("left behind: /dev/%s of %s\n", l.Name, l.BackingFile)
			code = 1
		}
	}
	os.Exit(code)
}

var scratch = filepath.Join(os.TempDir(), fmt.Sprintf("flexd-loopdev-test-%d", os.Getpid()))

// inOwnNamespace runs the tests in their own mount namespace: a namespace of another test would otherwise
// copy their mounts, and keep their devices busy.
func inOwnNamespace() (code int, done bool) {
	if os.Getuid() != 0 || os.Getenv("FLEXD_TEST_NAMESPACE") != "" {
		return 0, false
	}
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), "FLEXD_TEST_NAMESPACE=1")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return 0, false // no right to: then without
	}
	c.Wait()
	return c.ProcessState.ExitCode(), true
}

// A node is a provider with one volume group on this machine.
type node struct {
	*testing.T
	*Provider
	dir, lock string
}

func newNode(t *testing.T) *node {
	t.Helper()
	skip := t.Skipf
	if os.Getenv("CI") == "true" {
		skip = t.Fatalf
	}
	if os.Getuid() != 0 {
		skip("needs root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		skip("needs loop devices: %v", err)
	}
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(scratch, "t")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{T: t, dir: filepath.Join(dir, "vg0"), lock: filepath.Join(dir, "lock")}
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	n.restart()
	t.Cleanup(func() {
		loops, _ := kernel{}.Loops()
		for _, l := range loops {
			if strings.HasPrefix(l.BackingFile, dir+"/") {
				exec.Command("losetup", "-d", "/dev/"+l.Name).Run()
				for i := 0; i < 100 && !gone(l.Name, 0); i++ {
					time.Sleep(10 * time.Millisecond)
				}
			}
		}
		os.RemoveAll(dir)
		os.Remove(scratch)
	})
	return n
}

// restart makes the provider forget its state.
func (n *node) restart() {
	n.Provider = New(map[string]string{"vg0": n.dir}, filepath.Join(filepath.Dir(n.dir), "links"), run.NewExec(), NewKernel())
}

func (n *node) lookUp(lv string) volume.LV {
	n.Helper()
	got, err := n.LookUp(n.Context(), volume.Name{VG: "vg0", LV: lv})
	if err != nil {
		n.Fatal(err)
	}
	return got
}

func (n *node) create(lv string, size int64) volume.LV {
	n.Helper()
	if err := n.Create(n.Context(), n.lock, volume.Name{VG: "vg0", LV: lv}, size, ""); err != nil {
		n.Fatal(err)
	}
	return n.lookUp(lv)
}

// restore makes another volume at the name of one that may have a device.
func (n *node) restore(lv string) volume.LV {
	n.Helper()
	n.create("restored", 16*mib)
	n.sh("mv", n.dir+"/restored", n.dir+"/"+lv)
	return n.lookUp(lv)
}

func (n *node) device(lv volume.LV) volume.Device {
	n.Helper()
	d, err := n.Device(n.Context(), lv)
	if err != nil {
		n.Fatal(err)
	}
	return d
}

func (n *node) activate(lv volume.LV) volume.Device {
	n.Helper()
	if err := n.Activate(n.Context(), n.lock, lv); err != nil {
		n.Fatal(err)
	}
	return n.device(lv)
}

func (n *node) deactivate(lv volume.LV, d volume.Device) {
	n.Helper()
	if err := n.Deactivate(n.Context(), n.lock, lv, d); err != nil {
		n.Fatal(err)
	}
}

// Ensure that a volume is created, activated, extended and deactivated, that each step may be repeated, and
// that a restarted provider has the same state.
func TestWholeWay(t *testing.T) {
	n := newNode(t)
	if got := n.lookUp("a"); got.Presence != volume.Absent {
		t.Fatalf("got %+v", got)
	}
	if err := os.WriteFile(filepath.Join(n.dir, ".flexd-new-a"), []byte("of a create that was cut"), 0o600); err != nil {
		t.Fatal(err)
	}
	lv := n.create("a", 16*mib-1)
	if lv.Presence != volume.Present || lv.Size != 16*mib || !lv.Created || lv.ReadOnly || !isUUID(string(lv.UUID)) {
		t.Fatalf("got %+v", lv)
	}
	if entries, _ := os.ReadDir(n.dir); len(entries) != 1 {
		t.Errorf("files: %v", entries)
	}
	if err := n.Create(t.Context(), n.lock, lv.Name, 16*mib, ""); err == nil {
		t.Error("created twice")
	}
	if got := n.device(lv); got.Activity != volume.Inactive {
		t.Fatalf("got %+v", got)
	}
	d := n.activate(lv)
	if d.Activity != volume.Active || d.Size != 16*mib || d.ReadOnly || d.Seq == 0 {
		t.Fatalf("got %+v", d)
	}
	if to, err := os.Readlink(d.Link); err != nil || to != d.Path {
		t.Errorf("link: %s, %v", to, err)
	}
	for range 2 {
		got := n.device(lv)
		got.Checked = d.Checked // of another scan, and other processes have loop devices, too
		if !reflect.DeepEqual(got, d) {
			t.Errorf("got %+v, want %+v", got, d)
		}
		got = n.activate(lv)
		got.Checked = d.Checked
		if !reflect.DeepEqual(got, d) {
			t.Errorf("again: got %+v, want %+v", got, d)
		}
		id, err := n.Identify(t.Context(), d.Number)
		if id != (volume.Identity{UUID: lv.UUID, Name: lv.Name}) || err != nil {
			t.Errorf("got %+v, %v", id, err)
		}
		n.restart()
		if err := os.Remove(d.Link); err != nil {
			t.Fatal(err)
		}
		if got := n.device(lv); got.Link != "" {
			t.Errorf("link: got %q", got.Link)
		}
		n.activate(lv)
	}
	for range 2 {
		if err := n.Extend(t.Context(), n.lock, lv, d, 32*mib); err != nil {
			t.Fatal(err)
		}
		if got := n.device(lv); got.Size != 32*mib || got.Seq != d.Seq {
			t.Errorf("got %+v", got)
		}
	}
	if err := n.Extend(t.Context(), n.lock, lv, d, 8*mib); err != nil || n.lookUp("a").Size != 32*mib {
		t.Errorf("smaller: %v, %+v", err, n.lookUp("a"))
	}
	n.deactivate(lv, d)
	n.deactivate(lv, d)
	if got := n.device(lv); got.Activity != volume.Inactive {
		t.Errorf("got %+v", got)
	}
	if _, err := os.Lstat(d.Link); err == nil {
		t.Error("the link is still there")
	}
	if err := n.Extend(t.Context(), n.lock, lv, n.device(lv), 64*mib); err != nil || n.lookUp("a").Size != 64*mib {
		t.Errorf("inactive: %v", err)
	}
}

// Ensure that an extension that was interrupted between the file and the device continues.
func TestExtendResumes(t *testing.T) {
	n := newNode(t)
	lv := n.create("a", 16*mib)
	d := n.activate(lv)
	if err := os.Truncate(filepath.Join(n.dir, "a"), 32*mib); err != nil {
		t.Fatal(err)
	}
	if err := n.Extend(t.Context(), n.lock, lv, d, 32*mib); err != nil {
		t.Fatal(err)
	}
	if got := n.device(lv); got.Size != 32*mib {
		t.Errorf("got %+v", got)
	}
	n.deactivate(lv, d)
}

// Ensure that the device of a truncated file is not used: kernels before 6.2 or so read zeros beyond the end,
// which would count as blank.
func TestCutFile(t *testing.T) {
	n := newNode(t)
	lv := n.create("a", 16*mib)
	d := n.activate(lv)
	file := filepath.Join(n.dir, "a")
	if err := os.Truncate(file, 8*mib); err != nil {
		t.Fatal(err)
	}
	for _, again := range []string{"at once", "after a restart"} {
		lv, err := n.LookUp(t.Context(), lv.Name)
		if err != nil {
			t.Fatal(err)
		}
		if got := n.device(lv); !got.Unusable || !strings.Contains(got.Reason, "8 MiB") || got.Activity != volume.Active {
			t.Errorf("%s: got %+v", again, got)
		}
		n.restart()
	}
	n.deactivate(lv, d) // it can be deactivated all the same
}

// Ensure that a volume keeps its device when a hard link to the same file replaces its deleted name, as some
// backups restore it.
func TestMovedHardLink(t *testing.T) {
	n := newNode(t)
	lv := n.create("a", 16*mib)
	d := n.activate(lv)
	n.sh("ln", n.dir+"/a", n.dir+"/keep")
	n.sh("rm", n.dir+"/a")
	n.sh("mv", n.dir+"/keep", n.dir+"/a")
	for range 2 {
		got := n.device(n.lookUp("a"))
		got.Checked = d.Checked // of another scan
		if !reflect.DeepEqual(got, d) {
			t.Errorf("got %+v, want %+v", got, d)
		}
		s := n.Survey(t.Context(), "vg0", true)
		if len(s.Devices) != 1 || s.Devices[0].UUID != lv.UUID || len(s.Devices[0].Rivals) > 0 {
			t.Errorf("survey: %+v", s)
		}
		n.restart()
	}
	n.deactivate(lv, d)
}

// Ensure that no link to the device of a renamed volume remains: another volume gets the device's number.
func TestRenamedLink(t *testing.T) {
	n := newNode(t)
	a, b := n.create("a", mib), n.create("b", mib)
	da, db := n.activate(a), n.activate(b)
	n.sh("mv", n.dir+"/a", n.dir+"/x")
	n.sh("mv", n.dir+"/b", n.dir+"/a")
	n.deactivate(n.lookUp("x"), da)
	if _, err := os.Lstat(da.Link); err == nil {
		t.Errorf("%s is left", da.Link)
	}
	if !leadsTo(db.Link, db.Path) {
		t.Error("the link of another volume was removed")
	}
	n.deactivate(n.lookUp("a"), db)
	if _, err := os.Lstat(db.Link); err == nil {
		t.Errorf("%s is left", db.Link)
	}
}

// mountNew mounts a new filesystem of 400 MiB at dir.
func (n *node) mountNew(fs, dir string) {
	n.Helper()
	image := n.TempDir() + "/image"
	n.sh("truncate", "-s", "400M", image)
	n.sh("mkfs."+fs, "-q", image)
	n.sh("mount", "-o", "loop", image, dir)
	n.Cleanup(func() { exec.Command("umount", "-l", dir).Run() })
}

// mountXFS mounts a new xfs at dir. shutDown shuts it down, as a failing disk does: then attributes of its
// files cannot be read.
func (n *node) mountXFS(dir string) (shutDown func()) {
	n.Helper()
	n.mountNew("xfs", dir)
	return func() {
		f, err := os.Open(dir)
		if err != nil {
			n.Fatal(err)
		}
		defer f.Close()
		if err := unix.IoctlSetPointerInt(int(f.Fd()), 0x8004587d, 2); err != nil { // XFS_IOC_GOINGDOWN
			n.Fatal(err)
		}
	}
}

// On a full filesystem the survey reports a volume whose allocated file shares its blocks, and one with a hole
// that blocks beyond its end hide, but not one that has its own blocks.
func TestFullXFS(t *testing.T) {
	n := newNode(t)
	n.mountNew("xfs", n.dir)
	const size = 16 * mib
	for _, name := range []string{"own", "shared", "hole"} {
		lv := n.create(name, size)
		n.sh("dd", "if=/dev/zero", "of="+n.dir+"/"+name, "bs=1M", "count=16", "conv=notrunc")
		defer n.deactivate(lv, n.activate(lv))
	}
	n.sh("cp", "--reflink=always", n.dir+"/shared", n.dir+"/.copy")
	n.sh("fallocate", "-p", "-o", "1M", "-l", "4K", n.dir+"/hole")
	n.sh("fallocate", "-n", "-o", fmt.Sprint(size), "-l", "1M", n.dir+"/hole")
	if f, err := n.kernel.File(n.dir + "/hole"); err != nil || f.Blocks < f.Size {
		t.Fatalf("the hole is not hidden: %+v, %v", f, err)
	}
	failed := func() (names []string) {
		for _, d := range n.Survey(t.Context(), "vg0", true).Devices {
			if strings.Contains(d.Failed, "the filesystem of "+n.dir+" is full") {
				names = append(names, d.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	if got := failed(); len(got) > 0 {
		t.Errorf("with room: %v", got)
	}
	n.sh("sh", "-c", "cd $0; for s in 16M 1M 64K 4K; do while fallocate -l $s .hog.$((i=i+1)); do :; done; done", n.dir)
	if got := failed(); !slices.Equal(got, []string{"hole", "shared"}) {
		t.Errorf("full: %v", got)
	}
}

// A file in use that is moved over another one in use is not the other volume, also within the second in which its
// device counts as the only one: the newest data of the other volume is in its own device.
func TestMovedOver(t *testing.T) {
	n := newNode(t)
	a, b := n.create("a", 16*mib), n.create("b", 16*mib)
	n.activate(b)
	n.activate(a)
	n.device(a)
	n.sh("mv", n.dir+"/a", n.dir+"/b")
	if d := n.device(n.lookUp("b")); !d.Unusable || !strings.Contains(d.Reason, "still has a deleted file") {
		t.Errorf("got %+v", d)
	}
}

// A btrfs is full when data has no space, although statfs counts the free space of its metadata.
func TestFullBtrfs(t *testing.T) {
	n := newNode(t)
	n.mountNew("btrfs", n.dir)
	lv := n.create("a", 16*mib)
	defer n.deactivate(lv, n.activate(lv))
	full := func() bool {
		return slices.ContainsFunc(n.Survey(t.Context(), "vg0", true).Devices, func(d join.Device) bool {
			return strings.Contains(d.Failed, "the filesystem of "+n.dir+" is full")
		})
	}
	if full() {
		t.Error("full, with room")
	}
	n.sh("sh", "-c", "dd if=/dev/zero of=$0/.hog bs=64k 2>/dev/null || sync $0", n.dir)
	if !full() {
		t.Error("not full")
	}
}

// After a restart the device of a file on a filesystem that has shut down is still known, and can be
// detached; only then the filesystem can be unmounted and repaired.
func TestDeadDirectory(t *testing.T) {
	n := newNode(t)
	shutDown := n.mountXFS(n.dir)
	lv := n.create("a", 16*mib)
	d := n.activate(lv)
	defer func() {
		if t.Failed() { // a device that does not answer would make other tests fail
			_ = exec.Command("losetup", "-d", d.Path).Run()
		}
	}()
	shutDown()
	n.restart()
	id, err := n.Identify(t.Context(), d.Number)
	if err != nil || id.UUID != lv.UUID {
		t.Errorf("got %+v, %v", id, err)
	}
	if s := n.Survey(t.Context(), "vg0", true); !strings.Contains(s.Metadata, "umount, fsck, mount") {
		t.Errorf("without the remedy: %q", s.Metadata)
	}
	n.deactivate(lv, d)
	n.sh("umount", n.dir)
	if links, _ := filepath.Glob(filepath.Dir(n.saved(1)) + "/*"); len(links) > 0 {
		t.Errorf("left: %q", links)
	}
}

// A volume does not depend on a device of another file with the same name on a filesystem that has shut down.
func TestDeadDevice(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	shutDown := n.mountXFS(dir)
	n.sh("truncate", "-s", "16M", dir+"/a")
	dead := n.losetup(dir + "/a")
	shutDown()
	lv := n.create("a", 16*mib)
	d := n.activate(lv)
	if d.Unusable || d.Path == dead {
		t.Errorf("got %+v", d)
	}
	n.deactivate(lv, d)
}

// A filesystem with a copy of the file and its attributes is mounted over the directory of a volume in use.
func TestMountedOver(t *testing.T) {
	n := newNode(t)
	lv := n.create("a", 16*mib)
	d := n.activate(lv)
	upper := t.TempDir()
	n.sh("cp", "-a", "--sparse=always", n.dir+"/a", upper)
	n.sh("mount", "--bind", upper, n.dir)
	t.Cleanup(func() { exec.Command("umount", n.dir).Run() })
	for range 2 {
		n.restart()
		if got := n.device(n.lookUp("a")); !got.Unusable || got.Path != d.Path || !strings.Contains(got.Reason, "mounted over") || !strings.Contains(got.Reason, "the volume: losetup -d "+d.Path) || !strings.Contains(got.Reason, fmt.Sprintf("cp --sparse=always %s %s/a-rescued-%d && flexd", d.Path, n.dir, d.Seq)) {
			t.Errorf("got %+v", got)
		}
		s := n.Survey(t.Context(), "vg0", true)
		if len(s.Devices) != 1 || len(s.Devices[0].Rivals) != 1 || !strings.Contains(s.Devices[0].Rivals[0].Text, "mounted over") || !strings.Contains(s.Devices[0].Rivals[0].Hint, "has 16 MiB of space for a copy") {
			t.Errorf("survey: %+v", s)
		}
	}
	if err := n.Deactivate(t.Context(), n.lock, n.lookUp("a"), n.device(n.lookUp("a"))); err == nil || !strings.Contains(err.Error(), "it stays active") {
		t.Errorf("deactivate: got %v", err)
	}
	n.sh("umount", n.dir)
	if got := n.device(n.lookUp("a")); got.Unusable {
		t.Errorf("unmounted: %+v", got)
	}
	n.deactivate(lv, d)
}

// Ensure that a device that shows only a part of its file is not used: a filesystem made there would be lost
// at the next activation.
func TestPartOfFile(t *testing.T) {
	for _, info := range []unix.LoopInfo64{{Offset: mib}, {Sizelimit: 8 * mib}} {
		n := newNode(t)
		lv := n.create("a", 16*mib)
		d := n.activate(lv)
		dev, err := os.OpenFile(d.Path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		copy(info.File_name[:], mark+string(lv.UUID))
		if err := unix.IoctlLoopSetStatus64(int(dev.Fd()), &info); err != nil {
			t.Fatal(err)
		}
		dev.Close()
		for range 2 {
			if got := n.device(lv); !got.Unusable || !strings.Contains(got.Reason, "only a part of "+n.dir+"/a") || !strings.Contains(got.Reason, "losetup -d "+d.Path) || got.Path != d.Path {
				t.Errorf("got %+v", got)
			}
			if s := n.Survey(t.Context(), "vg0", true); len(s.Devices) != 1 || !s.Devices[0].Part {
				t.Errorf("survey: %+v", s)
			}
			n.restart()
		}
		n.deactivate(lv, d)
		if got := n.activate(lv); got.Unusable || got.Size != 16*mib {
			t.Errorf("activated anew: %+v", got)
		} else {
			n.deactivate(lv, got)
		}
	}
}

// Ensure that an empty file is not attached: its device would stay empty.
func TestEmptyFile(t *testing.T) {
	for _, size := range []int64{0, 511} {
		n := newNode(t)
		n.create("a", mib)
		if err := os.Truncate(n.dir+"/a", size); err != nil {
			t.Fatal(err)
		}
		lv := n.lookUp("a")
		if err := n.Activate(t.Context(), "", lv); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("only %d bytes", size)) {
			t.Errorf("got %v", err)
		}
		if d := n.device(lv); d.Activity != volume.Inactive {
			t.Errorf("got %+v", d)
		}
	}
}

// Ensure that a file that was deleted and created again is another volume, and that the former device still
// belongs to the former one.
func TestRecreatedFile(t *testing.T) {
	n := newNode(t)
	old := n.create("a", 16*mib)
	d := n.activate(old)
	if err := os.Remove(filepath.Join(n.dir, "a")); err != nil {
		t.Fatal(err)
	}
	lv := n.restore("a")
	if lv.UUID == old.UUID {
		t.Fatal("the uuid was inherited")
	}
	n.restart()
	if got := n.device(lv); got.Activity != volume.Inactive || !got.Unusable || !strings.Contains(got.Reason, d.Path+" still has a deleted file") {
		t.Errorf("got %+v", got)
	}
	id, err := n.Identify(t.Context(), d.Number)
	if id.UUID != old.UUID || id.Name.LV != "a" || err != nil {
		t.Errorf("got %+v, %v", id, err)
	}
	if err := n.Deactivate(t.Context(), n.lock, lv, d); !errors.Is(err, mount.ErrChanged) {
		t.Errorf("the new volume took the old one's device: %v", err)
	}
	if err := n.Extend(t.Context(), n.lock, old, d, 32*mib); err == nil {
		t.Error("the old volume was extended in the new one's file")
	}
	n.detach(d)
	n.deactivate(lv, n.activate(lv))
}

// Ensure that the device of a deleted file stays attached until an operator decides, even if another file
// replaces it.
func TestReplaced(t *testing.T) {
	for name, replace := range map[string]func(n *node, file string){
		"a volume": func(n *node, file string) { n.sh("mv", n.dir+"/b", file) },
		"a file":   func(n *node, file string) { n.sh("sh", "-c", `cp "$0" "$0.new" && mv "$0.new" "$0"`, file) },
		"hard links": func(n *node, file string) {
			n.sh("sh", "-c", `cp -a "$0" "$0.new" && ln "$0.new" "$0.too" && mv "$0.new" "$0"`, file)
		},
		"a directory": func(n *node, file string) { n.sh("sh", "-c", `rm "$0" && mkdir "$0"`, file) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			lv := n.create("a", 16*mib)
			n.create("b", 16*mib)
			d := n.activate(lv)
			replace(n, n.dir+"/a")
			gone := lv
			gone.Presence = volume.Absent
			for i := range 3 {
				if i == 2 {
					n.sh("rm", "-rf", n.dir+"/a")
				}
				if err := n.Deactivate(t.Context(), n.lock, gone, d); err == nil || !strings.Contains(err.Error(), "it stays active") {
					t.Errorf("got %v", err)
				}
				switch now, err := n.LookUp(t.Context(), lv.Name); {
				case err == nil && now.Presence == volume.Present && !n.device(now).Unusable,
					err == nil && now.Presence == volume.Foreign && !strings.Contains(now.Reason, "newest data may be only in "+d.Path):
					t.Errorf("got %+v", now)
				}
				n.restart()
				n.device(gone)
			}
			n.detach(d)
			n.deactivate(gone, d)
		})
	}
}

// Ensure that the device of a file that was moved away, while a copy has its name, is kept until an operator has
// decided, also if the copy is not found any more, or is no volume, or another one. No printed command overwrites
// another file than the copy.
func TestKeptWithoutCopy(t *testing.T) {
	for name, change := range map[string]func(n *node, file string){
		"hard link":      func(n *node, file string) { n.sh("ln", file, file+".too") },
		"no uuid":        func(_ *node, file string) { _ = unix.Removexattr(file, uuidAttr) },
		"moved":          func(n *node, file string) { n.sh("mv", file, n.dir+"/../elsewhere") },
		"no directory":   func(n *node, file string) { n.sh("mv", n.dir, n.dir+".off") },
		"no group":       func(n *node, file string) { delete(n.dirs, "vg0") },
		"another uuid":   func(n *node, file string) { _, _, _ = Mark(file) },
		"another volume": func(n *node, file string) { n.sh("mv", n.dir+"/b", file) },
		"hidden":         func(n *node, _ string) { n.sh("mount", "--bind", n.dir+"/b", filepath.Dir(n.dir)+"/away") },
		"renamed": func(n *node, file string) {
			n.sh("mv", file, n.dir+"/c")
			n.device(n.lookUp("c"))
			n.sh("mv", n.dir+"/c", n.dir+"/../elsewhere")
		},
	} {
		for _, noticed := range []bool{true, false} {
			if !noticed && name != "hard link" {
				continue // such a file is no rival
			}
			n := newNode(t)
			lv := n.create("a", 16*mib)
			n.create("b", 16*mib)
			d := n.activate(lv)
			file, away := n.dir+"/a", filepath.Dir(n.dir)+"/away"
			n.sh("mv", file, away)
			n.sh("cp", "-a", away, file)
			if noticed {
				if got := n.device(n.lookUp("a")); !got.Unusable {
					t.Fatalf("%s: got %+v", name, got)
				}
			}
			change(n, file)
			if renamed := n.notedRival(d.Seq).LV == "c"; renamed != (name == "renamed") {
				t.Errorf("%s: noted: %v", name, n.notedRival(d.Seq))
			}
			for range 2 {
				now, err := n.LookUp(t.Context(), lv.Name)
				if other := now; err == nil && now.Presence == volume.Present && now.UUID != lv.UUID {
					now.Presence = volume.Absent
					n.deactivate(other, n.activate(other)) // it takes the name of the link
				}
				if now.UUID = lv.UUID; err != nil {
					now = volume.LV{Name: lv.Name, UUID: lv.UUID}
				}
				d = n.device(now)
				err = n.Deactivate(t.Context(), n.lock, now, d)
				if err == nil || !strings.Contains(err.Error(), "it stays active") || !strings.Contains(err.Error(), away) || !strings.Contains(err.Error(), "losetup -d "+d.Path) {
					t.Errorf("%s, noticed %v: %v", name, noticed, err)
				}
				if err != nil && name != "hard link" && strings.Contains(err.Error(), "mv ") && !strings.Contains(err.Error(), "[ ! -e ") {
					t.Errorf("%s: it overwrites a file: %v", name, err)
				}
				if err != nil && name == "hidden" && (strings.Contains(err.Error(), "mv ") || !strings.Contains(err.Error(), "a-rescued-")) {
					t.Errorf("%s: its path shows another file: %v", name, err)
				}
				if _, there := n.dirs["vg0"]; there {
					n.restart()
					n.look(t.Context())
				}
				if s := n.Survey(t.Context(), "vg0", true); noticed && s.Metadata == "" && name != "no group" && (len(s.Devices) != 1 || len(s.Devices[0].Rivals) != 1) {
					t.Errorf("%s: survey: %+v", name, s)
				}
			}
			// The operator decides for the newer file.
			n.restart()
			_ = umount.Plain(away)
			_ = os.Rename(n.dir+".off", n.dir)
			n.sh("mv", away, file)
			n.sh("ln", file, away) // it has the name, and is no volume yet
			n.look(t.Context())
			// In the case "hard link" the copy is still there, under another name.
			if s := n.Survey(t.Context(), "vg0", true); name != "hard link" && (len(s.Devices) != 1 || len(s.Devices[0].Rivals) > 0) {
				t.Errorf("%s: survey: %+v", name, s)
			}
			n.sh("rm", away)
			lv = n.lookUp("a")
			if d = n.device(lv); d.Unusable {
				t.Errorf("%s: got %+v", name, d)
			}
			n.sh("rm", "-f", file+".too")
			n.sh("mv", file, away) // without a copy it is detached as always
			lv.Presence, lv.File = volume.Absent, volume.File{}
			n.deactivate(lv, d)
		}
	}
}

// Ensure that the device of a file that was moved away is kept, although no call has found the copy: a survey has, or
// the search of the deactivation does, also under another name than that from the set-up.
func TestKeptWithoutCall(t *testing.T) {
	moved := func(n *node, name string) {
		n.sh("mv", n.dir+"/"+name, n.dir+"/../away")
		n.sh("cp", "-a", n.dir+"/../away", n.dir+"/"+name)
	}
	rename := func(n *node, _ string) { n.sh("mv", n.dir+"/a", n.dir+"/c") }
	missing := func(n *node, name string) { n.sh("mv", n.dir+"/"+name, n.dir+"/../copy") }
	survey := func(n *node, _ string) {
		if s := n.Survey(n.Context(), "vg0", false); s.Metadata+s.Kernel != "" {
			n.Errorf("survey: %+v", s)
		}
	}
	deactivate := func(n *node, _ string) { // a deactivation that finds the copy notes it
		lv := volume.LV{Name: volume.Name{VG: "vg0", LV: "a"}, UUID: n.lookUp("c").UUID}
		if err := n.Deactivate(n.Context(), n.lock, lv, n.device(lv)); err == nil {
			n.Error("it was detached")
		}
	}
	otherGroup := func(n *node, _ string) {
		n.sh("mkdir", n.dir+"1")
		n.dirs["vg1"] = n.dir + "1"
	}
	for name, row := range map[string]struct {
		copied string // the name of the copy, or another part of the error
		do     []func(n *node, copied string)
	}{
		"missing":               {"a", []func(*node, string){moved, survey, missing}},
		"no directory":          {"a", []func(*node, string){moved, survey, func(n *node, _ string) { n.sh("mv", n.dir, n.dir+".off") }}},
		"mounted over":          {"a", []func(*node, string){moved, survey, func(n *node, _ string) { n.sh("mount", "-t", "tmpfs", "flexd-test", n.dir) }}},
		"no group":              {"a", []func(*node, string){moved, survey, func(n *node, _ string) { delete(n.dirs, "vg0") }}},
		"renamed":               {"c", []func(*node, string){rename, moved, survey, missing}},
		"renamed, not surveyed": {"c", []func(*node, string){rename, moved}},
		"renamed, found once":   {"c", []func(*node, string){rename, moved, deactivate, missing}},
		"copied back":           {"a", []func(*node, string){rename, func(n *node, _ string) { n.sh("cp", "-a", n.dir+"/c", n.dir+"/a") }, survey, missing}},
		"in another group": {"a", []func(*node, string){otherGroup, func(n *node, _ string) {
			n.sh("mv", n.dir+"/a", n.dir+"1/a")
			n.sh("cp", "-a", n.dir+"1/a", n.dir+"/a")
		}, survey, missing}},
		"not known": {"is unknown: volume group vg1", []func(*node, string){func(n *node, _ string) {
			n.dirs["vg1"] = n.dir + "/../circle"
			n.sh("ln", "-s", "circle", n.dirs["vg1"])
			n.sh("mv", n.dir+"/a", n.dir+"/../away")
		}}},
		"two copies, one left": {"a", []func(*node, string){moved, func(n *node, _ string) { n.sh("cp", "-a", n.dir+"/a", n.dir+"/b") }, survey, missing}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			lv := n.create("a", 16*mib)
			d := n.activate(lv)
			dirs := n.dirs
			n.Cleanup(func() { _ = umount.Plain(n.dir) })
			for _, do := range row.do {
				do(n, row.copied)
			}
			for range 2 {
				n.Provider = New(n.dirs, n.linkDir, n.runner, NewKernel())
				now := volume.LV{Name: lv.Name, UUID: lv.UUID}
				if found, err := n.LookUp(t.Context(), lv.Name); err == nil {
					now.Presence = found.Presence
				}
				d = n.device(now)
				err := n.Deactivate(t.Context(), n.lock, now, d)
				if err == nil || !strings.Contains(err.Error(), "it stays active") || !strings.Contains(err.Error(), row.copied) || !strings.Contains(err.Error(), "losetup -d "+d.Path) {
					t.Errorf("got %v", err)
				}
			}
			n.dirs = dirs
			n.detach(d)
		})
	}
}

// A file is in the place of a directory: what is below it is absent, and not unreadable. The group is missing, and the
// device of a file that its path does not show is kept, since a copy is in another group.
func TestFileForDirectory(t *testing.T) {
	n := newNode(t)
	above := n.dir + "1"
	n.dirs["vg1"] = above + "/sub"
	n.sh("mkdir", "-p", n.dirs["vg1"])
	name := volume.Name{VG: "vg1", LV: "a"}
	if err := n.Create(t.Context(), n.lock, name, 16*mib, ""); err != nil {
		t.Fatal(err)
	}
	lv, err := n.LookUp(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	d := n.activate(lv)
	n.sh("cp", "-a", n.dirs["vg1"]+"/a", n.dir+"/copy")
	n.sh("mount", "-t", "tmpfs", "flexd-test", above)
	n.Cleanup(func() { _ = umount.Plain(above) })
	n.sh("touch", n.dirs["vg1"])
	if _, err := n.LookUp(t.Context(), name); volume.CodeOf(err) != volume.NotFound {
		t.Errorf("got %v", err)
	}
	if s := n.Survey(t.Context(), "vg1", true); !s.Gone || !strings.Contains(s.Metadata, "there is no directory") {
		t.Errorf("survey: %+v", s)
	}
	lost := volume.LV{Name: name, UUID: lv.UUID}
	if err := n.Deactivate(t.Context(), n.lock, lost, d); err == nil || !strings.Contains(err.Error(), "it stays active") || !strings.Contains(err.Error(), n.dir+"/copy") {
		t.Errorf("got %v", err)
	}
	n.sh("rm", n.dir+"/copy")
	n.noteRival(d.Seq, volume.Name{}) // an operator has decided
	n.dirs["vg2"] = n.lock            // a file, with nothing below it
	n.sh("touch", n.lock)
	n.deactivate(lost, d)
}

// A missing volume is not created while a device has its data, also if flexd has lost the record of its filesystem, which
// only the reconciler has, and its saved identities and links.
func TestCreateBesideKept(t *testing.T) {
	for name, row := range map[string]struct {
		lose   string // what happens to the file of the volume "a"
		want   string
		noNote bool // also without runDir
	}{
		"removed":       {`rm "$0"`, "has a deleted file with that name", true},
		"replaced":      {`mv "${0%a}b" "$0" && rm "$0"`, "has a deleted file with that name", true},
		"renamed first": {`mv "$0" "${0%a}c" && rm "${0%a}c"`, "has a deleted file with that name", false},
		"moved, copied": {`mv "$0" "${0%/*}/../away" && cp -a "${0%/*}/../away" "$0"`, "had the name vg0/a", false},
		"mounted over":  {`mount -t tmpfs flexd-test "${0%/a}"`, "below a later mount", false},
	} {
		for _, runDir := range []bool{true, false} {
			if !runDir && !row.noNote {
				continue // nothing shows the name
			}
			n := newNode(t)
			n.Cleanup(func() { _ = umount.Plain(n.dir) })
			lv := n.create("a", 16*mib)
			n.create("b", 16*mib)
			d := n.activate(lv)
			n.sh("sh", "-c", row.lose, n.dir+"/a")
			if name == "moved, copied" {
				n.Survey(t.Context(), "vg0", true)
				n.sh("rm", n.dir+"/a")
			}
			if !runDir {
				n.sh("rm", "-r", n.linkDir)
			}
			n.restart()
			err := n.CheckVacant(t.Context(), lv.Name)
			if err == nil || volume.CodeOf(err) != volume.DataMissing || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), "losetup -d "+d.Path) {
				t.Errorf("%s, runDir %v: %v", name, runDir, err)
			}
			if err != nil && strings.Contains(err.Error(), "flexd in another container") == runDir {
				t.Errorf("%s, runDir %v: %v", name, runDir, err)
			}
			if can := n.CanCreate(t.Context(), lv.Name, 16*mib, ""); err != nil && (can == nil || can.Error() != err.Error()) {
				t.Errorf("%s, runDir %v: CanCreate: %v", name, runDir, can)
			}
			n.detach(d)
			n.create("a", 16*mib)
		}
	}
}

// The device of a replaced file is kept, also if its note cannot be written, and the refusal of a file without a uuid
// at its name begins with that device.
func TestKeptWithoutNote(t *testing.T) {
	n := newNode(t)
	lv := n.create("a", 16*mib)
	d := n.activate(lv)
	n.sh("mv", n.dir+"/a", n.dir+"/../away")
	n.sh("cp", "-a", n.dir+"/../away", n.dir+"/a")
	note := n.saved(d.Seq) + "-rival"
	n.sh("mkdir", "-p", filepath.Dir(note)+"/.new-"+filepath.Base(note)+"/x") // in the place of its temporary link
	n.Survey(t.Context(), "vg0", true)
	if _, err := os.Lstat(note); err == nil {
		t.Fatal("it was written")
	}
	n.sh("mv", n.dir+"/a", n.dir+"/../copy")
	lv.Presence, lv.File = volume.Absent, volume.File{}
	if err := n.Deactivate(t.Context(), n.lock, lv, n.device(lv)); err == nil || !strings.Contains(err.Error(), "it stays active") {
		t.Errorf("got %v", err)
	}
	n.sh("truncate", "-s", "16M", n.dir+"/a") // the copy, restored without its attributes
	if now := n.lookUp("a"); now.Presence != volume.Foreign || !strings.HasPrefix(now.Reason, d.Path) || !strings.Contains(now.Reason, "which a third file has now") {
		t.Errorf("got %+v", now)
	}
	n.detach(d)
}

// A copy of a volume's file prevents no deactivation while that file itself has its name, or another one in a group.
func TestCopyOfFoundFile(t *testing.T) {
	for name, change := range map[string]func(n *node){
		"in place": func(*node) {},
		"renamed":  func(n *node) { n.sh("mv", n.dir+"/a", n.dir+"/c") },
		"moved": func(n *node) {
			n.sh("mkdir", n.dir+"1")
			n.dirs["vg1"] = n.dir + "1"
			n.sh("mv", n.dir+"/a", n.dir+"1/c")
		},
		"under another path": func(n *node) {
			n.dirs["vg0"] = n.dir + ".too"
			n.sh("mkdir", n.dirs["vg0"])
			n.sh("mount", "--bind", n.dir, n.dirs["vg0"])
			n.Cleanup(func() { n.sh("umount", n.dir+".too") })
			n.sh("mv", n.dir+"/a", n.dir+"/c")
		},
		"renamed and back": func(n *node) {
			n.sh("mv", n.dir+"/a", n.dir+"/../away")
			n.Survey(n.Context(), "vg0", false)
			n.sh("mv", n.dir+"/../away", n.dir+"/a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			lv := n.create("a", 16*mib)
			d := n.activate(lv)
			n.sh("cp", "-a", n.dir+"/a", n.dir+"/b")
			change(n)
			n.Survey(t.Context(), "vg0", false)
			lv = n.lookUp("a")
			lv.UUID = n.lookUp("b").UUID
			n.deactivate(lv, d)
		})
	}
}

// A file that is renamed between the look-up of its volume and that of its device is not another file with its uuid:
// its device is detached.
func TestRenamedSinceLookUp(t *testing.T) {
	n := newNode(t)
	n.create("a", 16*mib)
	lv := n.lookUp("a")
	n.activate(lv)
	n.sh("mv", n.dir+"/a", filepath.Dir(n.dir)+"/away")
	d := n.device(lv)
	if noted := n.notedRival(d.Seq); noted.LV != "" {
		t.Errorf("noted: %s", noted)
	}
	lv.Presence = volume.Absent
	n.deactivate(lv, n.device(lv))
}

// Ensure that a file at the path of a deleted one is refused, even if the device's link is missing or has
// another name.
func TestReplacedWithoutLink(t *testing.T) {
	for name, change := range map[string]func(n *node, lv *volume.LV){
		"runDir lost": func(n *node, lv *volume.LV) {
			n.sh("rm", "-r", n.linkDir)
			n.restart()
		},
		"renamed": func(n *node, lv *volume.LV) {
			n.sh("mv", n.dir+"/a", n.dir+"/b")
			lv.Name.LV = "b"
		},
		"moved away": func(n *node, lv *volume.LV) {
			away := filepath.Dir(n.dir) + "/b"
			n.sh("mv", n.dir+"/a", away)
			n.sh("rm", away)
			lv.Presence = volume.Absent
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			lv := n.create("a", 16*mib)
			d := n.activate(lv)
			change(n, &lv)
			lv.File = volume.File{}
			if got := n.device(lv); got.Path != d.Path || got.Unusable {
				t.Fatalf("got %+v", got)
			}
			n.sh("rm", "-f", n.dir+"/"+lv.Name.LV)
			restored := n.restore(lv.Name.LV)
			n.restart()
			if got := n.device(restored); !got.Unusable || !strings.Contains(got.Reason, d.Path+" still has a deleted file") || !strings.Contains(got.Reason, n.dir+"/"+lv.Name.LV+"-rescued") {
				t.Errorf("got %+v", got)
			}
			if s := n.Survey(t.Context(), "vg0", true); len(s.Devices) != 1 || s.Devices[0].UUID != lv.UUID {
				t.Errorf("survey: %+v", s)
			}
			if name == "renamed" { // the link of another volume is of an earlier device with that number
				other := n.create("other", 16*mib)
				n.sh("ln", "-sf", d.Path, n.link(lv.Name))
				n.sh("ln", "-s", d.Path, n.link(other.Name))
				if got := n.device(other); got.Unusable {
					t.Errorf("other: got %+v", got)
				}
			}
			n.detach(d)
		})
	}
}

// The kernel does not say that the file of a device was deleted with its btrfs subvolume, and gives its numbers
// to the file of a snapshot. As for any deleted file, no pod gets the volume, or another with its name, and
// flexd check reports the device.
func TestDeletedSubvolume(t *testing.T) {
	for name, restore := range map[string]func(n *node, file string){
		"not restored":   nil,
		"the volume":     func(*node, string) {},
		"another volume": func(_ *node, file string) { _, _, _ = Mark(file) },
		"a file":         func(_ *node, file string) { _ = unix.Removexattr(file, uuidAttr) },
		"nothing":        func(n *node, file string) { n.sh("rm", file) },
		"mounted again": func(n *node, file string) {
			n.sh("umount", "-l", n.dir)
			n.sh("mount", "--bind", filepath.Dir(n.dir)+"/sub", n.dir)
			_, _, _ = Mark(file)
		},
	} {
		for _, vg := range []string{"/sub", "/sub/vg0", "/mount"} {
			for _, checked := range []bool{false, true} { // before a pod wants the volume
				if (vg == "/mount") != (name == "mounted again") || checked && vg == "/mount" { // its path leads nowhere
					continue
				}
				t.Run(fmt.Sprint(name, vg, checked), func(t *testing.T) {
					n := newNode(t)
					top := t.TempDir()
					n.mountNew("btrfs", top)
					n.sh("btrfs", "-q", "subvolume", "create", top+"/sub")
					n.dir = top + vg
					n.sh("mkdir", "-p", n.dir)
					if vg == "/mount" {
						n.sh("mount", "--bind", top+"/sub", n.dir)
					}
					n.restart()
					lv := n.create("a", 16*mib)
					d := n.activate(lv)
					defer n.detach(d)
					n.sh("btrfs", "-q", "subvolume", "snapshot", top+"/sub", top+"/snapshot")
					n.sh("btrfs", "-q", "subvolume", "delete", top+"/sub")
					if restore != nil {
						n.sh("mv", top+"/snapshot", top+"/sub")
						restore(n, n.dir+"/a")
					}
					check := func() {
						s := n.Survey(t.Context(), "vg0", true)
						if found := fmt.Sprint(join.Findings(join.Group{Name: "vg0", Survey: s})); restore != nil && (!strings.Contains(found, d.Path) || strings.Contains(found, "later mount")) {
							t.Errorf("check: %s", found)
						}
					}
					for range 2 {
						if checked {
							check()
						}
						now, err := n.LookUp(t.Context(), lv.Name)
						if err == nil {
							got := n.device(now)
							if reason := now.Reason + got.Reason; now.Presence != volume.Absent && !strings.Contains(reason, d.Path+" still has a deleted file") {
								t.Errorf("got %+v, %+v", now, got)
							}
							check()
						}
						if now.UUID != lv.UUID {
							now = volume.LV{Presence: volume.Absent, Name: lv.Name, UUID: lv.UUID}
							n.device(now)
						}
						if err := n.Deactivate(t.Context(), n.lock, now, d); err == nil || !strings.Contains(err.Error(), "of "+d.Path+" was deleted") {
							t.Errorf("deactivate: %v", err)
						}
						n.restart()
					}
				})
			}
		}
	}
}

// The group's directory is a btrfs subvolume, which was moved away and deleted, and perhaps restored from a snapshot.
// The first check says that the device's file was deleted.
func TestDeletedGroup(t *testing.T) {
	for name, restore := range map[string][]string{
		"from a snapshot": {"btrfs", "-q", "subvolume", "snapshot"},
		"empty":           {"mkdir", "-p"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			top := t.TempDir()
			n.mountNew("btrfs", top)
			n.dir = top + "/vg0"
			n.sh("btrfs", "-q", "subvolume", "create", n.dir)
			n.restart()
			lv := n.create("a", 16*mib)
			d := n.activate(lv)
			defer n.detach(d)
			n.sh("btrfs", "-q", "subvolume", "snapshot", n.dir, top+"/snapshot")
			n.sh("mv", n.dir, top+"/bad")
			n.sh(append(restore, top+"/snapshot", n.dir)...)
			n.sh("btrfs", "-q", "subvolume", "delete", top+"/bad")
			s := n.Survey(t.Context(), "vg0", true)
			g := join.Group{Name: "vg0", Survey: s, Claims: []join.Claim{{UUID: lv.UUID, LV: "a", Dir: "/pod", Phase: volume.Held, For: "a pod"}},
				Mounts: []join.Mount{{Dir: "/pod", UUID: lv.UUID, Device: d.Number, What: "ext4 from " + d.Path, Owner: volume.Ours}}}
			if found := fmt.Sprint(join.Findings(g)); !strings.Contains(found, "its newest data may be only in "+d.Path) && !strings.Contains(found, "only "+d.Path+" has its data") || strings.Contains(found, "later mount") {
				t.Errorf("check: %s", found)
			}
		})
	}
}

// A loop device was attached in another mount namespace, in which the file has another path: on a btrfs, too, it
// is of the same file.
func TestOtherPathOfSubvolume(t *testing.T) {
	n := newNode(t)
	top := t.TempDir()
	n.mountNew("btrfs", top)
	n.dir = top + "/vg0"
	n.sh("btrfs", "-q", "subvolume", "create", n.dir)
	n.restart()
	lv := n.create("a", 16*mib)
	d := n.activate(lv)
	other := n.sh("unshare", "-m", "--propagation", "private", "sh", "-c", `mount --bind "$0" /mnt && losetup -f --show /mnt/a`, n.dir)
	n.restart()
	if got := n.device(lv); !got.Unusable || !strings.Contains(got.Reason, other+" is attached to the same file") {
		t.Errorf("got %+v", got)
	}
	n.sh("losetup", "-d", other)
	n.device(lv)
	n.detach(d)
}

// Ensure that neither an exclusive open of the first free device, nor settings from its earlier use, affect
// an activation.
func TestOccupiedDevice(t *testing.T) {
	n := newNode(t)
	lv := n.create("a", mib)
	path := n.sh("losetup", "-f")
	dev, err := os.OpenFile(path, os.O_RDONLY|unix.O_EXCL, 0)
	if err != nil {
		t.Skip(err) // of another test by now
	}
	d := n.activate(lv)
	dev.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	for tries := range 20 { // each attempt makes no further device, unless another test takes it
		one, err1 := freeAfter(control, 300)
		two, err2 := freeAfter(control, 300)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if one == two && one > 300 {
			_ = unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, one)
			break
		} else if tries == 19 {
			t.Errorf("%d, then %d", one, two)
		}
	}
	n.sh("blockdev", "--setro", d.Path)
	cache := "/sys/block/" + filepath.Base(d.Path) + "/queue/write_cache"
	if err := os.WriteFile(cache, []byte("write through"), 0); err != nil {
		t.Fatal(err)
	}
	n.deactivate(lv, d)
	for range 20 { // another test may take it
		again := n.activate(lv)
		if again.ReadOnly {
			t.Errorf("got %+v", again)
		}
		if mode, err := sysfs.Line("/sys/block/" + filepath.Base(again.Path) + "/queue/write_cache"); mode != "write back" {
			t.Errorf("the cache is %s, %v", mode, err)
		}
		if n.deactivate(lv, again); again.Path == d.Path {
			break
		}
	}
	n.sh("blockdev", "--setrw", d.Path)
}

// Something else is at /dev/loopN: a file or a directory was there when the kernel made that device. It is not opened,
// and another device is used. If none has its node, the error has the remedy.
func TestNodeOfLoopDevice(t *testing.T) {
	n := newNode(t)
	lv := n.create("a", mib)
	n.ownDev()
	for name, occupy := range map[string]func(path string){
		"file":           func(path string) { n.sh("sh", "-c", `echo data >"$0"`, path) },
		"directory":      func(path string) { n.sh("mkdir", path) },
		"fifo":           func(path string) { n.sh("mkfifo", path) },
		"another device": func(path string) { n.sh("mknod", path, "b", "1", "511") },
		"nothing":        func(string) {},
	} {
		free := n.sh("losetup", "-f")
		n.sh("mv", free, free+".node")
		occupy(free)
		d := n.activate(lv)
		if d.Unusable || d.Path == free {
			t.Errorf("%s at %s: got %+v", name, free, d)
		}
		n.deactivate(lv, d)
		if name == "file" && n.sh("cat", free) != "data" {
			t.Errorf("%s was changed", free)
		}
		n.sh("rm", "-rf", free)
		n.sh("mv", free+".node", free)
	}

	n.sh("sh", "-c", "rm /dev/loop[0-9]*; cd /dev; for i in $(seq 0 511); do mkdir loop$i; done")
	want := regexp.MustCompile(`^mv --backup=numbered -T /dev/loop(\d+) /dev/loop\d+\.moved && mknod -m 660 /dev/loop\d+ b 7 \d+$`)
	err := n.Activate(t.Context(), n.lock, lv)
	if err == nil {
		t.Fatal("activated without a node")
	}
	for tries := 0; err != nil; tries++ { // other programs use that device, too
		_, remedy, _ := strings.Cut(err.Error(), "make the node: ")
		if !want.MatchString(remedy) || tries == 20 {
			t.Fatalf("got %v", err)
		}
		n.sh("sh", "-c", remedy)
		err = n.Activate(t.Context(), n.lock, lv)
	}
	n.deactivate(lv, n.device(lv))
}

// The node of an attached device was replaced or removed: nothing is set up on the other file there, and the error and the
// check have the remedy of a deactivation.
func TestNodeReplaced(t *testing.T) {
	n := newNode(t)
	lv := n.create("a", mib)
	n.ownDev()
	d := n.activate(lv)
	for name, replace := range map[string]string{
		"another device": `rm "$0" && mknod "$0" b 1 511`,
		"a file":         `rm "$0" && echo data >"$0"`,
		"missing":        `rm "$0"`,
		"hidden":         `mount --bind /dev/null "$0"`,
		"nodev":          `mount -o remount,nodev /dev`,
	} {
		n.device(lv) // now it is known as the only device
		n.sh("sh", "-c", replace, d.Path)
		got := n.device(lv)
		remedy := got.Reason[strings.LastIndex(got.Reason, ": ")+1:]
		want := map[string]string{"hidden": "umount " + d.Path, "nodev": "mount -o remount,dev /dev"}[name]
		if !got.Unusable || !strings.Contains(remedy, cmp.Or(want, "mknod -m 660 "+d.Path+" b 7 ")) {
			t.Fatalf("%s: got %+v", name, got)
		}
		if err := n.Activate(t.Context(), n.lock, lv); err == nil || !strings.Contains(err.Error(), got.Reason) {
			t.Errorf("%s: activate: %v", name, err)
		}
		if err := n.Deactivate(t.Context(), n.lock, lv, d); err == nil || !strings.Contains(err.Error(), got.Reason) {
			t.Errorf("%s: deactivate: %v", name, err)
		}
		if s := n.Survey(t.Context(), "vg0", true); s.Kernel != "" || len(s.Devices) != 1 || s.Devices[0].NoNode+": "+s.Devices[0].MakeNode != got.Reason {
			t.Errorf("%s: survey: %+v", name, s)
		}
		n.sh("sh", "-c", remedy)
		if got := n.device(lv); got.Unusable {
			t.Fatalf("%s, after the remedy: got %+v", name, got)
		}
	}
	n.deactivate(lv, d)
}

// ownDev mounts another /dev for this test, with the nodes of loop devices only.
func (n *node) ownDev() {
	n.Helper()
	if os.Getenv("FLEXD_TEST_NAMESPACE") == "" {
		n.Skip("needs its own mount namespace")
	}
	n.sh("sh", "-c", `mount -t tmpfs dev "$0" && cd "$0" && cp -a /dev/null /dev/loop-control . &&
		for i in $(seq 0 511); do mknod loop$i b 7 $i || exit; done && mount --move "$0" /dev`, n.TempDir())
	n.Cleanup(func() { n.sh("umount", "-l", "/dev") })
}

// Ensure that files and devices that are not flexd's are not changed.
func TestForeign(t *testing.T) {
	n := newNode(t)
	file := filepath.Join(n.dir, "a")
	if err := os.WriteFile(file, make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	lv := n.lookUp("a")
	if lv.Presence != volume.Foreign {
		t.Fatalf("got %+v", lv)
	}
	lv.UUID = uuidA
	if err := n.Activate(t.Context(), n.lock, lv); err == nil {
		t.Error("a foreign file was activated")
	}
	if err := n.Create(t.Context(), n.lock, lv.Name, mib, ""); err == nil {
		t.Error("a foreign file was replaced")
	}
	if err := n.Extend(t.Context(), n.lock, lv, volume.Device{}, 2*mib); err == nil {
		t.Error("a foreign file was extended")
	}
	if fi, err := os.Stat(file); err != nil || fi.Size() != mib {
		t.Errorf("%v, %v", fi.Size(), err)
	}

	// An operator's device on a volume of ours.
	ours := n.create("b", 16*mib)
	out, err := exec.Command("losetup", "--show", "-f", filepath.Join(n.dir, "b")).Output()
	if err != nil {
		t.Fatal(err)
	}
	path := strings.TrimSpace(string(out))
	d := n.device(ours)
	if !d.Unusable || !strings.Contains(d.Reason, path) {
		t.Fatalf("got %+v", d)
	}
	if err := n.Activate(t.Context(), n.lock, ours); err == nil {
		t.Error("a second device was attached")
	}
	l, err := NewKernel().Loop(filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	theirs := volume.Device{Activity: volume.Active, Path: path, Number: l.Number, Seq: l.Seq}
	if err := n.Deactivate(t.Context(), n.lock, ours, theirs); !errors.Is(err, mount.ErrChanged) {
		t.Errorf("got %v", err)
	}
	if id, err := n.Identify(t.Context(), l.Number); id.UUID != "" || err != nil {
		t.Errorf("got %v, %v", id, err)
	}
	if again, err := NewKernel().Loop(l.Name); err != nil || again != l {
		t.Errorf("got %+v, %v", again, err)
	}
}

// Ensure that a device in use stays, with any kind of user, and that the user is named.
func TestDeactivateBusy(t *testing.T) {
	n := newNode(t)
	lv := n.create("a", 64*mib)
	d := n.activate(lv)
	user, err := os.Open(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	err = n.Deactivate(t.Context(), n.lock, lv, d)
	var busy *mount.BusyError
	if !errors.As(err, &busy) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("open: got %v", err)
	}
	user.Close()
	if out, err := exec.Command("mkfs.ext4", "-q", d.Path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := filepath.Join(filepath.Dir(n.dir), "m")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(d.Path, dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	err = n.Deactivate(t.Context(), n.lock, lv, d)
	if !errors.As(err, &busy) || !strings.Contains(err.Error(), dir) {
		t.Errorf("mounted: got %v", err)
	}
	if err := umount.Plain(dir); err != nil {
		t.Fatal(err)
	}
	// The kernel counts an opener of a partition as one of the device.
	if out, err := exec.Command("addpart", d.Path, "1", "2048", "4096").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer exec.Command("delpart", d.Path, "1").Run() // if the test fails
	if user, err = os.Open(d.Path + "p1"); err != nil {
		t.Fatal(err)
	}
	err = n.Deactivate(t.Context(), n.lock, lv, d)
	if !errors.As(err, &busy) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) || !strings.Contains(err.Error(), d.Path+"p1") {
		t.Errorf("partition open: got %v", err)
	}
	user.Close()
	if l, err := (kernel{}).Loop(filepath.Base(d.Path)); err != nil || l.Ending {
		t.Errorf("partition open: the kernel was to detach %+v, %v", l, err)
	}
	if out, err := exec.Command("delpart", d.Path, "1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := n.device(lv)
	got.Checked = d.Checked // of a later scan
	if !reflect.DeepEqual(got, d) {
		t.Errorf("got %+v, want %+v", got, d)
	}
	n.deactivate(lv, d)
}

// noSearch returns a file that ends a child's search among the processes at once.
func noSearch(pid int) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("flexd-loopdev-test-%d-no-search", pid))
}

// A pod has too many descriptors to search: the kernel knows whether the device is open.
func TestDeactivateUnsearched(t *testing.T) {
	n := newNode(t)
	if err := os.WriteFile(noSearch(os.Getpid()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(noSearch(os.Getpid()))
	lv := n.create("a", 64*mib)
	d := n.activate(lv)
	user, err := os.Open(d.Path)
	if err == nil {
		_, err = user.Read(make([]byte, 512))
	}
	if err != nil {
		t.Fatal(err)
	}
	err = n.Deactivate(t.Context(), n.lock, lv, d)
	var busy *mount.BusyError
	if !errors.As(err, &busy) || !strings.Contains(err.Error(), "lsof") {
		t.Errorf("open: got %v", err)
	}
	user.Close()
	n.deactivate(lv, d)
}

// Ensure that a volume without write permission gets a read-only device.
func TestReadOnlyVolume(t *testing.T) {
	n := newNode(t)
	n.create("a", 16*mib)
	if err := os.Chmod(filepath.Join(n.dir, "a"), 0o400); err != nil {
		t.Fatal(err)
	}
	lv := n.lookUp("a")
	d := n.activate(lv)
	if !lv.ReadOnly || !d.ReadOnly {
		t.Errorf("got %+v, %+v", lv, d)
	}
	n.deactivate(lv, d)
}

// The refusal names a read-only directory, with the remedy.
func TestReadOnlyDirectory(t *testing.T) {
	n := newNode(t)
	lv := n.create("a", 16*mib)
	err := errors.Join(unix.Mount(n.dir, n.dir, "", unix.MS_BIND, ""), unix.Mount("", n.dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{n.Activate(t.Context(), n.lock, lv), n.Create(t.Context(), n.lock, volume.Name{VG: "vg0", LV: "b"}, mib, "")} {
		if err == nil || !strings.Contains(err.Error(), "read-only file system; see dmesg for errors of the filesystem of "+n.dir) {
			t.Errorf("got %v", err)
		}
	}
	if err := umount.Plain(n.dir); err != nil {
		t.Fatal(err)
	}
}

// Ensure that a size that does not fit in the directory is refused with numbers and the remedy, and that
// nothing remains.
func TestNoRoom(t *testing.T) {
	n := newNode(t)
	err := n.Create(t.Context(), n.lock, volume.Name{VG: "vg0", LV: "a"}, 1<<60, "")
	for _, words := range []string{"1 EiB wanted", "free", "free space on the filesystem of " + n.dir} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
	if entries, _ := os.ReadDir(n.dir); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
}

// Ensure that a copy with the same uuid is not active beside the original.
func TestCopiedFile(t *testing.T) {
	n := newNode(t)
	lv := n.create("a", mib)
	if out, err := exec.Command("cp", "--preserve=all", filepath.Join(n.dir, "a"), filepath.Join(n.dir, "b")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dup := n.lookUp("b")
	if dup.UUID != lv.UUID {
		t.Skip("cp does not copy the attribute here")
	}
	d := n.activate(lv)
	if err := n.Activate(t.Context(), n.lock, dup); err == nil || !strings.Contains(err.Error(), "same uuid") {
		t.Errorf("got %v", err)
	}
	n.deactivate(lv, d)
}

// Ensure that another device on the file of a volume is found by any name, and that a volume with two files,
// which only the device shows, is neither set up nor deactivated.
func TestExclusive(t *testing.T) {
	defer func(d time.Duration) { soleTimeout = d }(soleTimeout)
	soleTimeout = 100 * time.Millisecond
	for _, row := range []struct {
		name   string
		active bool
		rival  func(n *node, file, other string) string
	}{
		{"another name", false, func(n *node, file, other string) string { n.bind(file, other); return n.losetup(other) }},
		{"another name, active", true, func(n *node, file, other string) string { n.bind(file, other); return n.losetup(other) }},
		{"another name, without its node", false, func(n *node, file, other string) string {
			n.bind(file, other)
			path := n.losetup(other)
			n.sh("mount", "--bind", os.DevNull, path)
			n.Cleanup(func() { n.sh("umount", path) })
			return path
		}},
		{"same name, active", true, func(n *node, file, _ string) string { return n.losetup(file) }},
		{"moved and copied back", true, func(n *node, file, other string) string {
			n.sh("mv", file, other)
			n.sh("cp", "--preserve=all", other, file)
			return other
		}},
		{"directory moved and copied back", true, func(n *node, file, other string) string {
			n.sh("mv", n.dir, n.dir+".old")
			n.sh("cp", "-a", n.dir+".old", n.dir)
			return n.dir + ".old/a"
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t)
			lv, file := n.create("a", 16*mib), filepath.Join(n.dir, "a")
			var d volume.Device
			if row.active {
				d = n.activate(lv)
			}
			name := row.rival(n, file, filepath.Join(filepath.Dir(n.dir), "other"))
			time.Sleep(soleTimeout)
			for range 2 {
				got := n.device(lv)
				if !got.Unusable || !strings.Contains(got.Reason, name) || got.Path != d.Path || got.Seq != d.Seq {
					t.Errorf("got %+v", got)
				}
				if err := n.Activate(t.Context(), n.lock, lv); err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("activate: got %v", err)
				}
				s := n.Survey(t.Context(), "vg0", true)
				found := join.Findings(join.Group{Name: "vg0", Survey: s})
				if row.active != strings.Contains(fmt.Sprint(found), name) {
					t.Errorf("survey: got %+v", found)
				}
				n.restart()
			}
			if row.active && !strings.Contains(row.name, "name") {
				if err := n.Deactivate(t.Context(), n.lock, n.lookUp("a"), n.device(lv)); err == nil || !strings.Contains(err.Error(), "it stays active") {
					t.Errorf("deactivate: got %v", err)
				}
				n.sh("mv", name, file)
				if got := n.device(n.lookUp("a")); got.Unusable || got.Seq != d.Seq {
					t.Errorf("put back: got %+v", got)
				}
				n.deactivate(n.lookUp("a"), n.device(n.lookUp("a")))
				if got := n.device(n.lookUp("a")); got.Activity != volume.Inactive || got.Unusable {
					t.Errorf("after the end: got %+v", got)
				}
			}
		})
	}
}

func (n *node) sh(argv ...string) string {
	n.Helper()
	c := exec.Command(argv[0], argv[1:]...)
	c.Stdin = os.Stdin // /dev/null may not be usable
	out, err := c.CombinedOutput()
	if err != nil {
		n.Fatalf("%v: %v: %s", argv, err, out)
	}
	return strings.TrimSpace(string(out))
}

// detach runs losetup -d, and waits until nothing, such as another test, has the device open.
func (n *node) detach(d volume.Device) {
	n.Helper()
	n.sh("losetup", "-d", d.Path)
	for end := time.Now().Add(10 * time.Second); !gone(filepath.Base(d.Path), d.Seq); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			n.Fatalf("%s is still attached", d.Path)
		}
	}
}

func (n *node) losetup(file string) string {
	n.Helper()
	path := n.sh("losetup", "--show", "-f", file)
	n.Cleanup(func() { exec.Command("losetup", "-d", path).Run() }) // its path may lead nowhere by then
	return path
}

func (n *node) bind(file, other string) {
	n.Helper()
	n.sh("touch", other)
	n.sh("mount", "--bind", file, other)
	n.Cleanup(func() { unix.Unmount(other, unix.MNT_DETACH) })
}

// Ensure that many volumes can be created and removed at once.
func TestMany(t *testing.T) {
	n := newNode(t)
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			lock := fmt.Sprintf("%s-%d", n.lock, i)
			name := volume.Name{VG: "vg0", LV: fmt.Sprintf("lv%d", i)}
			if err := n.Create(t.Context(), lock, name, mib, ""); err != nil {
				t.Error(err)
				return
			}
			for range 2 {
				lv, err := n.LookUp(t.Context(), name)
				if err != nil {
					t.Error(err)
					return
				}
				if err := n.Activate(t.Context(), lock, lv); err != nil {
					t.Error(err)
					return
				}
				d, err := n.Device(t.Context(), lv)
				if err != nil {
					t.Error(err)
					return
				}
				if err := n.Deactivate(t.Context(), lock, lv, d); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
