//go:build !vm

package loopdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestHungDirectory: if the filesystem of a volume group hangs, the daemon waits once, and then answers at
// once until the filesystem responds.
func TestHungDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	t.Parallel()
	dir := t.TempDir()
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		t.Skip("needs FUSE")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := unix.Mount("hung", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())); err != nil {
		t.Fatal(err)
	}
	unmount := func() { _ = unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH) } // every look ends
	defer unmount()

	k := NewKernel()
	looks := map[string]func() error{
		"file":      func() error { _, err := k.File(filepath.Join(dir, "data")); return err },
		"files":     func() error { _, err := k.Files(dir); return err },
		"space":     func() error { _, err := k.NeedsSpace(filepath.Join(dir, "full")); return err },
		"directory": func() error { _, err := k.Directory(filepath.Join(dir, "sub")); return err },
	}
	for round, limit := range []time.Duration{3 * answerTime, answerTime / 2} {
		var all sync.WaitGroup
		for name, look := range looks {
			all.Go(func() {
				begun := time.Now()
				if err := look(); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "its filesystem hangs") {
					t.Errorf("%s: %v", name, err)
				}
				if took := time.Since(begun); took > limit {
					t.Errorf("round %d, %s: %v", round, name, took)
				}
			})
		}
		all.Wait()
	}

	unmount()
	server.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := k.Files(dir); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
