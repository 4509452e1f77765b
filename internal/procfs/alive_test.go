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
