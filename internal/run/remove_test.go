package run

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A lock excludes while others remove its file, and at the end the file is gone.
func TestRemoveLock(t *testing.T) {
	t.Parallel()
	lock := filepath.Join(t.TempDir(), "lanes", "lock")
	if err := RemoveLock(lock); err != nil {
		t.Errorf("no file: %v", err)
	}
	held, err := takeLock(lock)
	if err != nil {
		t.Fatal(err)
	}
	if err := RemoveLock(lock); err != nil {
		t.Errorf("held: %v", err)
	}
	if _, err := os.Stat(lock); err != nil {
		t.Errorf("a held lock is removed: %v", err)
	}
	release(held)

	var inside atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for taken := 0; taken < 6000; {
				f, err := takeLock(lock)
				if errors.Is(err, unix.EWOULDBLOCK) {
					time.Sleep(50 * time.Microsecond) // without it, the others take the processor from the holder
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				taken++
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d hold one lock", n)
				}
				if _, err := lockFile(lock, 0); !errors.Is(err, unix.EWOULDBLOCK) {
					t.Errorf("held, and taken again: %v", err)
				}
				runtime.Gosched()
				inside.Add(-1)
				release(f)
			}
		})
		all.Go(func() {
			for range 20000 {
				if err := RemoveLock(lock); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if err := RemoveLock(lock); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(lock); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
