package run

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
)

// Ensure that of the processes which hold a lock the one is returned that the others wait
// for, with where it waits and since when.
func TestHolder(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	if w := Holder(lock); w != nil {
		t.Errorf("no lock: got %+v", w)
	}
	ended := make(chan error, 1)
	go func() {
		c := sh("sleep 1; sleep 8765.4; true")
		c.Lock = lock
		_, err := NewExec().Run(t.Context(), c)
		ended <- err
	}()
	comm := func(w *procfs.Waiting) string {
		b, _ := os.ReadFile("/proc/" + strconv.Itoa(w.Pid) + "/cmdline")
		return strings.ReplaceAll(string(b), "\x00", " ")
	}
	var w *procfs.Waiting
	eventually(t, "the youngest is found", func() bool {
		w = Holder(lock)
		return w != nil && strings.HasPrefix(comm(w), "sleep 8765.4") && w.Wchan != ""
	})
	if age := time.Since(w.Since); age < -100*time.Millisecond || age > 3*time.Second {
		t.Errorf("it is %s old; the whole began more than a second ago", age)
	}
	if e := Held(lock); e == nil || e.Child.Pid != w.Pid || e.Child.Wchan != w.Wchan {
		t.Errorf("held: got %+v", e)
	}
	process, err := os.FindProcess(w.Pid)
	if err == nil {
		err = process.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if w := Holder(lock); w != nil {
		t.Errorf("it has ended: got %+v", w)
	}
}

// takeLock makes the lock file if there is none, and locks it, or fails with EWOULDBLOCK.
func takeLock(path string) (*os.File, error) { return lockFile(path, unix.O_CREAT) }

// Ensure that a lock which is held for a moment without a child, as RemoveLock holds it, is no
// child of an earlier flexd.
func TestHeldForAMoment(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	f, err := takeLock(lock)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *LockedError)
	go func() { got <- Held(lock) }()
	time.Sleep(2 * lockPause)
	release(f)
	if e := <-got; e != nil {
		t.Errorf("a child is reported: %v", e)
	}
}

// Ensure that each of many concurrent callers of Holder gets a child that existed at its
// call.
func TestConcurrentHolders(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for k := range 8 {
				lock := filepath.Join(t.TempDir(), fmt.Sprint(i, "-", k))
				f, err := os.Create(lock)
				if err != nil {
					t.Error(err)
					return
				}
				c := exec.Command("sleep", "60")
				c.Stdin = f
				if err := c.Start(); err != nil {
					t.Error(err)
					return
				}
				if w := Holder(lock); w == nil || w.Pid != c.Process.Pid {
					t.Errorf("%s is held by %+v, want %d", lock, w, c.Process.Pid)
				}
				_ = c.Process.Kill()
				_ = c.Wait()
				f.Close()
			}
		})
	}
	all.Wait()
}
