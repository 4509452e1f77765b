package procfs

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A signal that arrives during the question is not the end of the process.
func TestAlive(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	thread, stop, stopped := unix.Gettid(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG) // as Go's scheduler does
			}
		}
	}()
	for range 50_000 {
		if !Alive(fd) {
			t.Error("this process has ended")
			break
		}
	}
	close(stop)
	<-stopped

	c := exec.Command("true")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	child, err := unix.PidfdOpen(c.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if Alive(child) {
		t.Error("a child that has ended is alive")
	}
}

// A killed process whose first thread waits for a disk is dying, as is one whose first thread has
// ended.
func TestDying(t *testing.T) {
	const fields = " 1 2 2 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 5 0 4000 1000 200 18446744073709551615 1 1 0 0 0 "
	for text, want := range map[string]bool{
		"7 (flexd) S" + fields + "0 0 0":    false,
		"7 (flexd) D" + fields + "0 0 0":    false,
		"7 (flexd) S" + fields + "4194304":  false, // SIGURG, as Go's scheduler sends it
		"7 (flexd) D" + fields + "256 0 0":  true,
		"7 (a) b) Z" + fields + "0 0 0":     true,
		"7 (flexd) X" + fields + "0 0 0 0 ": true,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/stat", []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := readStat(dir); err != nil || s.dying() != want {
			t.Errorf("%s: %v, %v", text, s.dying(), err)
		}
	}
	if Process(os.Getpid()).Dying() {
		t.Error("this process is dying")
	}
}
