package lvm

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// Ensure that flexd waits for a command of a killed flexd, and treats it as hanging only if it does not end.
func TestEarlierCommand(t *testing.T) {
	f, p := newFake(t, 1)
	left := func(seconds string) (*Provider, *exec.Cmd) {
		t.Helper()
		lock := filepath.Join(p.LockDir, "vg-vg0")
		if err := os.MkdirAll(p.LockDir, 0o700); err != nil {
			t.Fatal(err)
		}
		held, err := os.OpenFile(lock, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		c := exec.Command("sleep", seconds)
		c.Stdin = held
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		return New(p.Options), c
	}
	begun := time.Now()
	next, _ := left("0.3")
	lv := f.lookUp(next, "v0")
	if err := next.Activate(t.Context(), "", lv); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took < 250*time.Millisecond {
		t.Errorf("not waited for: %v", took)
	}
	f.commands()

	next, c := left("1000")
	g := next.groups["vg0"]
	g.mu.Lock()
	g.grace = time.Now().Add(50 * time.Millisecond)
	g.mu.Unlock()
	var blocked *BlockedError
	_, err := next.LookUp(t.Context(), volume.Name{VG: "vg0", LV: "v0"})
	if !errors.As(err, &blocked) || !slices.Contains(blocked.Pids, c.Process.Pid) || !strings.Contains(err.Error(), "of an earlier flexd") {
		t.Errorf("got %v", err)
	}
	if ran := f.commands(); len(ran) != 0 {
		t.Errorf("ran %q", ran)
	}
}

// Disks that do not respond are named also for a command of an earlier flexd, and one that holds the lock of a
// group that is not configured any more.
func TestEarlierCommandNamesDisks(t *testing.T) {
	_, p := newFake(t, 0)
	done := make(chan struct{})
	defer close(done)
	p.Options.Earlier = func(string) *Block { return &Block{Step: "activate", Pids: []int{4711}, Done: done} }
	p.pending = func(string, []devmapper.Mapped) []disk { return []disk{{"/dev/sda", "8:0", "8:0"}} }
	p.requests = func(string) (bool, int64) { return true, 0 }
	g, err := p.group("former")
	if err != nil || g.block == nil || !slices.Equal(g.block.Disks, []string{"/dev/sda"}) {
		t.Errorf("got %+v, %v", g, err)
	}
}
