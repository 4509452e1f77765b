package mount

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/umount"
)

const mib = 1 << 20

// created is the uuid of a volume that flexd created.
const created volume.UUID = "created"

// Lock the main thread to the main goroutine: another locked goroutine ends its thread with it.
func init() { runtime.LockOSThread() }

// inside marks the process of the tests in its own mount namespace: a namespace of another test would
// otherwise copy its mounts, and keep its devices busy.
const inside = "FLEXD_TEST_NAMESPACE"

// The test binary is also the child of the operations. Remains on the machine fail the tests as a whole.
func TestMain(m *testing.M) {
	proofTime = 100 * time.Millisecond // the children's, too
	cleanTimeout = 100 * time.Millisecond
	procfs.HostPids, _ = procfs.OwnNamespace("pid") // what is tested here is in it
	if len(os.Args) == 4 && os.Args[1] == "child" {
		os.Setenv("PATH", toolsOf(os.Getppid())+":"+os.Getenv("PATH"))
		code, ok := Child(os.Args[2], []byte(os.Args[3]))
		if !ok {
			code = 2
		}
		syscall.Exit(code) // not os.Exit: the race detector would sleep for a second
	}
	if os.Getuid() == 0 {
		if os.Getenv(inside) == "" {
			os.Exit(host.Again(os.Stdout, os.Args[1:], inside+"=1"))
		}
		if err := host.Alone(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	flag.Parse()
	if run, skip := flag.Lookup("test.run").Value, flag.Lookup("test.skip").Value; leftOut != "" && run.String()+skip.String() == "" {
		skip.Set(leftOut)
	}
	code := m.Run()
	if left := leftovers(); len(left) > 0 {
		fmt.Println("left behind:", strings.Join(left, "; "))
		code = 1
	}
	os.Exit(code)
}

func leftovers() []string {
	var left []string
	if tab, err := mounttable.Own(); err == nil {
		for _, e := range tab.All() {
			if strings.HasPrefix(e.Dir, scratch+"/") {
				left = append(left, e.String())
			}
		}
	}
	loops, _ := sysfs.Loops()
	for _, l := range loops {
		if strings.HasPrefix(l.File, scratch+"/") {
			left = append(left, l.Name+" = "+l.File)
		}
	}
	procfs.NewSearch(math.MaxInt).Each(func(p procfs.Process) bool {
		if args, err := os.ReadFile(p.Path("cmdline")); err == nil && bytes.Contains(args, []byte(scratch+"/")) {
			left = append(left, holderOf(p, string(bytes.ReplaceAll(args, []byte{0}, []byte{' '}))).String())
		}
		return true
	})
	return left
}

// scratch is the directory of the disks, in memory if possible, since these tests sync often.
var scratch = scratchOf(os.Getpid())

func scratchOf(pid int) string {
	return filepath.Join(scratchParent(), fmt.Sprintf("flexd-mount-test-%d", pid))
}

// toolsOf returns the first directory in the PATH of a test's children.
func toolsOf(pid int) string { return filepath.Join(scratchOf(pid), "tools") }

// tool replaces a program by a shell script for the children of this test.
func (r *rig) tool(program, script string) {
	r.Helper()
	tools := toolsOf(os.Getpid())
	if err := os.MkdirAll(tools, 0o700); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { os.RemoveAll(tools) })
	if err := os.WriteFile(filepath.Join(tools, program), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		r.Fatal(err)
	}
}

func scratchParent() string {
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() {
		return "/dev/shm"
	}
	return os.TempDir()
}

// need skips a test that this machine can't run, but never in CI.
func need(t *testing.T, programs ...string) {
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
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			skip("needs %s", p)
		}
	}
}

// A rig is a block device with the state of a lane: a loop device or, in a virtual machine, a logical volume.
// newRig makes it, resize and setReadOnly change it, twin copies it.
type rig struct {
	*testing.T
	Ops
	dir, lock string
	disk      // the parts of the real device
	dev       volume.Device
}

// bareRig returns a rig without a device.
func bareRig(t *testing.T) *rig {
	t.Helper()
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(scratch, "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		os.RemoveAll(dir)
		os.Remove(scratch)
	})
	return &rig{T: t, Ops: Ops{Runner: run.NewExec()}, dir: dir, lock: filepath.Join(dir, "lock")}
}

func (r *rig) observe(path string) {
	r.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		r.Fatal(err)
	}
	number := sysfs.Number(st.Rdev)
	seq, err := sysfs.Uint("/sys/dev/block/" + number + "/diskseq")
	if err != nil {
		r.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		r.Fatal(err)
	}
	defer f.Close()
	size, err := sizeOf(f)
	if err != nil {
		r.Fatal(err)
	}
	ro, _ := os.ReadFile("/sys/dev/block/" + number + "/ro")
	r.dev = volume.Device{Activity: volume.Active, Path: path, Number: number, Seq: seq, Size: size, ReadOnly: string(ro) == "1\n"}
}

func (r *rig) sh(argv ...string) string {
	r.Helper()
	var errs bytes.Buffer
	c := exec.Command(argv[0], argv[1:]...)
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		r.Fatalf("%s: %v: %s%s", argv, err, out, errs.Bytes())
	}
	return string(out)
}

func (r *rig) mkdir(name string) string {
	r.Helper()
	dir := filepath.Join(r.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.Fatal(err)
	}
	return dir
}

func yes() error { return nil }

// record returns the format record, which must exist.
func (r *rig) record() string {
	r.Helper()
	file := filepath.Join(r.dir, "record")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		r.Fatal(err)
	}
	return file
}

// unrecorded requires that there is no format record.
func (r *rig) unrecorded(when string) {
	r.Helper()
	if _, err := os.Stat(filepath.Join(r.dir, "record")); err == nil {
		r.Errorf("%s: the record stands", when)
	}
}

func (r *rig) spec(dir string) MountSpec {
	return MountSpec{Device: r.dev, FSType: r.probe("").Type, Dir: dir, Root: r.dir}
}

func (r *rig) mount(l MountSpec) {
	r.Helper()
	if err := r.Mount(r.Context(), r.lock, l, yes); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { umount.NoFollow(l.Dir) })
}

func (r *rig) unmount(dir string) {
	r.Helper()
	if err := r.Unmount(r.Context(), r.lock, dir, r.dev.Number, false); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) probe(at string) volume.FS {
	r.Helper()
	fs, err := r.Probe(r.Context(), r.lock, r.dev, at, created, "")
	if err != nil {
		r.Fatal(err)
	}
	return fs
}

func (r *rig) format(fsType string, opts ...string) {
	r.Helper()
	if err := r.Format(r.Context(), r.lock, Formatting{Device: r.dev, Type: fsType, Opts: opts}, yes); err != nil {
		r.Fatal(err)
	}
}

// write writes to the device, bypassing no cache.
func (r *rig) write(b []byte, offset int64) {
	r.Helper()
	f, err := os.OpenFile(r.dev.Path, os.O_RDWR, 0)
	if err != nil {
		r.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, offset); err != nil {
		r.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		r.Fatal(err)
	}
}

// read reads from the device.
func (r *rig) read(n int, offset int64) []byte {
	r.Helper()
	f, err := os.Open(r.dev.Path)
	if err != nil {
		r.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, offset); err != nil {
		r.Fatal(err)
	}
	return b
}

// written returns how much was ever written to the device or discarded, after a sync: two equal results mean
// that nothing was written in between.
func (r *rig) written() string {
	r.Helper()
	f, err := os.Open(r.dev.Path)
	if err != nil {
		r.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		r.Fatal(err)
	}
	b, err := os.ReadFile("/sys/dev/block/" + r.dev.Number + "/stat")
	if err != nil {
		r.Fatal(err)
	}
	n := strings.Fields(string(b))
	return fmt.Sprint("sectors written ", n[6], ", discarded ", n[13])
}

func (r *rig) mounts() []*mounttable.Entry {
	r.Helper()
	tab, err := mounttable.Own()
	if err != nil {
		r.Fatal(err)
	}
	return tab.OfDevice(r.dev.Number, r.dev.Path)
}

func waitFor(t *testing.T, f func() bool) {
	t.Helper()
	for range 500 {
		if f() {
			return
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 10_000_000}, nil)
	}
	t.Fatal("not within 5 s")
}
