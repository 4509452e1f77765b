package server

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
)

// A flexd that was killed while it started a child leaves its lock to that child until the
// exec: the next flexd waits for it, and for no other process.
func TestLockOfTheDead(t *testing.T) {
	c := exec.Command("true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		about  string
		pid    int
		lets   bool // go, soon
		refuse string
		within time.Duration
	}{
		{"dead, and its child lets go", c.Process.Pid, true, "", time.Second},
		{"dead, and its child does not", c.Process.Pid, false, fmt.Sprintf("another flexd is running (pid %d", c.Process.Pid), 2 * lockGrace},
		{"alive", os.Getpid(), false, fmt.Sprintf("another flexd is running (pid %d", os.Getpid()), lockGrace / 2},
		{"not written yet", 0, false, "another flexd is running (pid 0", lockGrace / 2},
	} {
		path := filepath.Join(t.TempDir(), "lock")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(f, row.pid)
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		if row.lets {
			time.AfterFunc(50*time.Millisecond, func() { f.Close() })
		}
		begun := time.Now()
		got, err := Lock(path)
		if took := time.Since(begun); took > row.within {
			t.Errorf("%s: took %v", row.about, took)
		}
		switch {
		case row.refuse == "" && err != nil, row.refuse != "" && (err == nil || !strings.Contains(err.Error(), row.refuse)):
			t.Errorf("%s: %v, want %q", row.about, err, row.refuse)
		case err == nil:
			got.Close()
		}
		f.Close()
	}
}

const dyingDir = "FLEXD_SERVER_TEST_DYING"

func init() {
	if os.Getenv(dyingDir) != "" {
		runtime.LockOSThread() // TestMain runs in the first thread
	}
}

// die has the lock and a socket like a flexd that was killed while one of its threads waits for a
// disk: its first thread has ended, another one has not.
func die(dir string) {
	_, err := Lock(dir + "/lock")
	if err == nil {
		_, err = Listen(dir+"/s", 0o600, "")
	}
	fmt.Println("holds:", err)
	unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

// A flexd that was killed while a disk hangs keeps its lock and its sockets until the disk answers.
// One flexd of those that start meanwhile gets them.
func TestLockOfTheDying(t *testing.T) {
	dir := filepath.Dir(socketPath(t))
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), dyingDir+"="+dir)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "holds: <nil>\n" {
		t.Fatal(line, err)
	}
	for !procfs.Process(c.Process.Pid).Dying() {
		time.Sleep(time.Millisecond)
	}
	queued, err := net.Dial("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer queued.Close()

	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		lock *os.File
	)
	for range 4 {
		all.Go(func() {
			f, err := Lock(dir + "/lock")
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && lock == nil:
				lock = f
			case err == nil:
				t.Error("two have the lock")
			case !strings.Contains(err.Error(), fmt.Sprintf("another flexd is running (pid %d", os.Getpid())):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if lock == nil {
		t.Fatal("none has the lock")
	}
	defer lock.Close()
	got, err := os.Stat(dir + "/lock")
	if mine, merr := lock.Stat(); err != nil || merr != nil || !os.SameFile(mine, got) {
		t.Error("the lock is not that of the file:", err, merr)
	}
	l, err := Listen(dir+"/s", 0o600, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if cred, err := credentials(conn.(*net.UnixConn)); err != nil || int(cred.Pid) != os.Getpid() {
		t.Error("the socket is not ours:", cred, err)
	}
	if err := unix.Kill(c.Process.Pid, 0); err != nil {
		t.Error("it has ended:", err)
	}
}
