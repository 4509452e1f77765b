package server

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
)

// Lock makes this process the only flexd of a run directory, until it ends or
// closes the file. The kernel releases the lock when the process ends, so
// there is nothing to clean up.
//
// A killed flexd ends only when the last of its threads does, and one may wait for a disk. Such a
// flexd runs no code any more: its lock file is replaced.
func Lock(path string) (*os.File, error) {
	// If two flexds find a dying one, the second must find the first, and the first's pid in the
	// file. Only root can hold this lock: other users may be able to open the directory.
	starting, err := os.OpenFile(path+".starting", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer starting.Close()
	if err := unix.Flock(int(starting.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", starting.Name(), err)
	}
	return lock(path)
}

func lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600) // close-on-exec: children must not hold it
	if err != nil {
		return nil, err
	}
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		b := make([]byte, 20)
		n, _ := f.ReadAt(b, 0)
		holder := strings.TrimSpace(string(b[:n]))
		waited := time.Since(start)
		if waited > peekLimit && dying(holder) {
			f.Close()
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			return lock(path)
		}
		if waited > lockGrace || waited > peekLimit && !dead(holder) {
			f.Close()
			return nil, fmt.Errorf("another flexd is running (pid %s, lock %s)", cmp.Or(holder, "unknown"), path)
		}
	}
	if err == nil {
		err = writePID(f)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// writePID overwrites the pid of the last flexd with ours. A full /run must not stop
// the start, since pods end meanwhile; space freed by truncating first might be taken
// before the write.
func writePID(f *os.File) error {
	pid := fmt.Appendf(nil, "%d\n", os.Getpid())
	if _, err := f.WriteAt(pid, 0); err != nil {
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return f.Truncate(0) // no pid, rather than another one's
		}
		return err
	}
	return f.Truncate(int64(len(pid)))
}

// lockGrace is how long to wait for the lock of a dead flexd: a child that it was starting
// when it was killed holds it until its exec.
const lockGrace = 2 * time.Second

// peekLimit is longer than a flexdriver holds the lock to check whether flexd runs.
const peekLimit = 100 * time.Millisecond

func dead(pid string) bool {
	n, err := strconv.Atoi(pid)
	return err == nil && n > 0 && errors.Is(unix.Kill(n, 0), unix.ESRCH)
}

func dying(pid string) bool {
	n, err := strconv.Atoi(pid)
	return err == nil && procfs.Process(n).Dying()
}
