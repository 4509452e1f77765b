package hosttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/boottime"
	"github.com/flexd/flexd/internal/flexserve"
	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
)

// inside marks the test process that lives in a mount namespace of its own.
const inside = "HOSTTEST_INSIDE"

// Main runs the tests of a package, and plays flexd's children when the tests' executable
// is started as one. As root the tests run in a mount namespace of their own: mounts that
// they leave end with them.
func Main(m *testing.M) int {
	if len(os.Args) == 4 && os.Args[1] == "child" {
		code, ok := mount.Child(os.Args[2], []byte(os.Args[3]))
		if !ok {
			code, ok = loopdev.Child(os.Args[2], []byte(os.Args[3]))
		}
		if !ok {
			code, ok = lvm.Child(os.Args[2], []byte(os.Args[3]))
		}
		if !ok {
			code = 2
		}
		syscall.Exit(code) // not os.Exit: the race detector would sleep for a second
	}
	if os.Getuid() != 0 || os.Getenv(inside) != "" {
		if os.Getuid() == 0 {
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		remove, err := buildFlexd()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer remove()
		code := m.Run()
		if left := leftInGroup(); left != "" {
			fmt.Fprint(os.Stderr, left)
			return 1
		}
		return code
	}
	runtime.LockOSThread() // Pdeathsig is about the thread
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), inside+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := c.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(1, exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// NoReal returns why the real machine cannot be used; "" = it can.
func NoReal() string {
	if os.Getuid() != 0 {
		return "needs root"
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return err.Error()
	}
	return ""
}

// TempDir is a directory in memory, if there is such a place and $TMPDIR is none:
// these tests are not about the disk.
func TempDir(t testing.TB) string {
	dir, err := os.MkdirTemp(cmp.Or(os.Getenv("TMPDIR"), "/dev/shm"), "flexd-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// NewReal returns this machine with a flexd on it, in a place of its own.
func NewReal(t testing.TB) *Env {
	tmp := TempDir(t) // loop devices do as well on files in memory, and no test waits for a busy disk
	e := newReal(t, tmp, files{loopdev.NewKernel(), filepath.Join(tmp, "vg0")})
	e.Limit, e.Config.Lease = 20*time.Second, 300*time.Millisecond
	e.Start()
	return e
}

func newReal(t testing.TB, tmp string, s Storage) *Env {
	e := &Env{T: t, M: &machine{}, Storage: s, Restart: 20 * time.Millisecond, tmp: tmp, Root: filepath.Join(tmp, "kubelet")}
	for _, dir := range []string{e.Root, filepath.Join(tmp, "vg0")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	e.configure()
	t.Cleanup(e.sweep)
	return e
}

// sweep removes the remains of a failed test.
func (e *Env) sweep() {
	for range 3 {
		all := e.table().All()
		for i := len(all) - 1; i >= 0; i-- {
			if strings.HasPrefix(all[i].Dir, e.tmp+"/") {
				_ = unix.Unmount(all[i].Dir, unix.MNT_DETACH)
			}
		}
	}
	e.Storage.sweep(e)
}

// machine is this machine.
type machine struct{}

func (m *machine) Runner(started func()) run.Runner {
	r := run.NewExec()
	r.Started = func(run.Cmd) { started() }
	if flexd == "" {
		return r
	}
	return otherSelf{r}
}

// flexd is the executable whose children the tests start instead of their own.
var flexd string

// buildFlexd builds flexd for the children of tests with the race detector: each
// would start it, which takes longer than what a child does.
func buildFlexd() (remove func(), err error) {
	if !raceDetector {
		return func() {}, nil
	}
	dir, err := os.MkdirTemp("", "flexd-child-")
	if err != nil {
		return nil, err
	}
	flexd = filepath.Join(dir, "flexd")
	build := exec.Command("go", "build", "-o", flexd, "github.com/flexd/flexd/cmd/flexd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make builds it, also from a test with the race detector
	out, err := build.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build: %w: %s", err, out)
	}
	return func() { os.RemoveAll(dir) }, err
}

// An otherSelf starts another executable where flexd starts itself.
type otherSelf struct{ *run.Exec }

func (s otherSelf) Run(ctx context.Context, c run.Cmd) (run.Result, error) {
	if c.Argv[0] == "/proc/self/exe" {
		c.Argv = append([]string{flexd}, c.Argv[1:]...)
	}
	return s.Exec.Run(ctx, c)
}

func (m *machine) Mounts() asw.MountSource {
	s, err := asw.OpenMountinfo()
	if err != nil {
		panic(err)
	}
	// A life that has ended may still read for a moment: only older ones are closed.
	tables.Lock()
	defer tables.Unlock()
	if tables.open = append(tables.open, s); len(tables.open) > 100 {
		tables.open[0].Close()
		tables.open = tables.open[1:]
	}
	return s
}

var tables struct {
	sync.Mutex
	open []*asw.Mountinfo
}

func (m *machine) Hook(*asw.Observer) {}

func (m *machine) Boot() time.Duration { return boottime.Now() }

func (m *machine) Held(lock string) *run.LockedError { return run.Held(lock) }

func (m *machine) BootID() string { return "this-boot" }

func (m *machine) Self() flexserve.Namespaces {
	n, err := flexserve.OwnNamespaces()
	if err != nil {
		panic(err)
	}
	return n
}

func (m *machine) IsMountPoint(dir string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

func (m *machine) Exists(dir string) bool { _, err := os.Lstat(dir); return err == nil }
func (m *machine) Mkdir(dir string) error { return os.MkdirAll(dir, 0o750) }
func (m *machine) Remove(dir string) error {
	return os.Remove(dir)
}

var written atomic.Int64

func (m *machine) Write(dir string) error {
	if !m.IsMountPoint(dir) {
		return errors.New("no volume is mounted there")
	}
	return os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%d", written.Add(1))), []byte("data"), 0o600)
}

func (m *machine) Umount(dir string) error { return unix.Unmount(dir, 0) }

func (m *machine) MountTmpfs(dir string) error {
	_ = os.MkdirAll(dir, 0o750)
	return unix.Mount("tmpfs", dir, "tmpfs", 0, "")
}

func (m *machine) Bind(from, dir string) error {
	_ = os.MkdirAll(from, 0o750)
	return unix.Mount(from, dir, "", unix.MS_BIND, "")
}

// Hold keeps a working directory there, in a process that can be named.
func (m *machine) Hold(dir string) (release func()) {
	c := exec.Command("sleep", "1000")
	c.Dir = dir
	return held(c)
}

func held(c *exec.Cmd) (release func()) {
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ready := make(chan error)
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // Pdeathsig is about the thread
		defer close(done)
		runtime.LockOSThread()
		ready <- c.Start()
		<-ctx.Done()
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	if err := <-ready; err != nil {
		panic(err)
	}
	return func() { cancel(); <-done }
}

func (m *machine) Text() string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		panic(err)
	}
	return string(b)
}
