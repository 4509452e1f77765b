package asw

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/flexd/flexd/test/umount"
	"golang.org/x/sys/unix"
)

func real(t *testing.T) (*Mountinfo, *Observer) {
	t.Helper()
	m, err := OpenMountinfo()
	if err != nil {
		t.Fatal(err)
	}
	return m, New(nil, nil, nil, m)
}

// tmount mounts a tmpfs and returns its directory.
func tmount(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	mountAt(t, dir)
	t.Cleanup(func() { _ = umount.Plain(dir) })
	return dir
}

func mountAt(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err == unix.EPERM {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	} else if err != nil {
		t.Fatal(err)
	}
}

// A rename of a directory above a mount changes its path in the table without an event.
func TestLookAtRenamed(t *testing.T) {
	_, o := real(t)
	above := t.TempDir()
	for _, dir := range []string{"/a", "/b"} {
		if err := os.Mkdir(above+dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	from, to := above+"/a/m", above+"/b/m"
	if err := os.Mkdir(from, 0o700); err != nil {
		t.Fatal(err)
	}
	mountAt(t, from)
	t.Cleanup(func() { _ = umount.Plain(to) })
	if _, err := o.Look(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(above+"/b"), os.Rename(above+"/a", above+"/b")); err != nil {
		t.Fatal(err)
	}
	table, err := o.LookAt(context.Background(), "/", to)
	if err != nil {
		t.Fatal(err)
	}
	if table.Top(to) == nil || table.Top(from) != nil {
		t.Errorf("at the new path: %v; at the former: %v", table.Top(to), table.Top(from))
	}
}

// A look sees what happened before it began, although an unchanged table is not
// read again. It once did not: Go's own poller had taken the kernel's event.
func TestLookSeesEveryChange(t *testing.T) {
	_, o := real(t)
	dir := t.TempDir()
	mounted := func() int {
		t.Helper()
		table, err := o.Look(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		at, _ := table.At(dir)
		return len(at)
	}
	for range 20 {
		if n := mounted(); n != 0 {
			t.Fatalf("seen %d mounts, want none", n)
		}
		mountAt(t, dir)
		if n := mounted(); n != 1 {
			t.Fatalf("seen %d mounts, want one", n)
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		if table, err := o.Look(context.Background()); err != nil || !table.Top(dir).ReadOnly {
			t.Fatalf("remount read-only is not seen: %v", err)
		}
		if err := umount.Plain(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUnchangedTableIsNotReadAgain(t *testing.T) {
	_, o := real(t)
	tmount(t)
	ctx := context.Background()
	first, err := o.Look(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		// Others on this machine may mount something; they cannot do it always.
		if again, err := o.Look(ctx); err == nil && again == first {
			return
		}
		first, _ = o.Look(ctx)
	}
	t.Error("the table was read anew ten times, though nothing was mounted")
}

func TestWaitWakes(t *testing.T) {
	m, _ := real(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	woken := make(chan error, 1)
	go func() { woken <- m.Wait(ctx) }()
	time.Sleep(20 * time.Millisecond)
	tmount(t)
	if err := <-woken; err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			if err := m.Wait(ctx); err != nil {
				woken <- err
				return
			}
		}
	}()
	cancel()
	if err := <-woken; err != context.Canceled {
		t.Errorf("got %v, want the context's end", err)
	}
}

// A wait that ended by its deadline once left a byte in the pipe that no reader read, and
// every later one span.
func TestWaitSleepsAgain(t *testing.T) {
	m, _ := real(t)
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		for m.Wait(ctx) == nil { // others may mount something
		}
		cancel()
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := cpu(t)
	for m.Wait(ctx) == nil {
	}
	if used = cpu(t) - used; used > 300*time.Millisecond {
		t.Errorf("a second of waiting used %v of a processor", used)
	}
}

func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A lookup of a directory that a mount above hides leads through that mount, whose server may not
// respond: it is not made.
func TestLookAtHidden(t *testing.T) {
	o := observer(twoVolumes())
	asked := 0
	o.MountID = func(string) (int, error) { asked++; return 0, nil }
	tab := table(t, line("50", "7:1", "/", podDir, "", "ext4", "/dev/loop1"), line("51", "0:40", "/", "/k/pods", "", "fuse.sshfs", "host:"))
	if o.moved(tab, podDir) || asked > 0 {
		t.Errorf("%d lookups", asked)
	}
}
