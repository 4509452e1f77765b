package server

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
