package run

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
)

// Held returns the holder of the lock at path, nil if there is none or it is
// unknown.
func Held(path string) *LockedError {
	f, pids, err := tryLock(path, 0)
	if err == nil {
		unlock(int(f.Fd()))
		f.Close()
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	return locked("wait", pids, LockDone(path))
}

// How often and with which pause a held lock without a visible holder is tried again.
const (
	lockTries = 20
	lockPause = 5 * time.Millisecond
)

// tryLock opens the lock file and locks it, or fails with EWOULDBLOCK and the processes that hold
// the lock. One without a visible holder is changing hands (a child between fork and exec, a
// waiter that just got it, a RemoveLock): it is tried again, before an exiting process counts
// as its holder, which may be any on the node.
func tryLock(path string, flags int) (f *os.File, pids []int, err error) {
	for range lockTries {
		f, err = lockFile(path, flags)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return f, nil, err
		}
		if pids = procfs.WithStdin(path); len(pids) > 0 {
			return nil, pids, err
		}
		time.Sleep(lockPause)
	}
	return nil, procfs.Exiting(), err
}

// locked returns the error for a held lock, with its holder if known.
func locked(step string, pids []int, done <-chan struct{}) *LockedError {
	e := &LockedError{Step: step, Pids: pids, Done: done}
	if w := procfs.Deepest(pids); w != nil {
		e.Child = *w
	}
	return e
}

// LockFree reports whether the lock at path is free, and returns the processes that have it
// as standard input. A missing lock file is free.
func LockFree(path string) (free bool, pids []int, err error) {
	f, err := lockFile(path, 0)
	switch {
	case err == nil:
		unlock(int(f.Fd()))
		f.Close()
		return true, nil, nil
	case errors.Is(err, fs.ErrNotExist):
		return true, nil, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, holders(path), nil
	}
	return false, nil, err
}

// holders returns the processes that may hold a lock.
func holders(path string) []int {
	if pids := procfs.WithStdin(path); len(pids) > 0 {
		return pids
	}
	return procfs.Exiting()
}

// RemoveLock removes the lock file at path if the lock is free.
func RemoveLock(path string) error {
	f, err := lockFile(path, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	defer unlock(int(f.Fd()))
	return os.Remove(path) // while it is locked: another process that has it open sees that it is gone
}

// LockDone returns a channel that is closed when the lock at path is free (or
// cannot be waited for). It costs a waiting thread until then.
func LockDone(path string) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fd, err := openLock(path, 0)
		if err != nil {
			return
		}
		if flock(fd, unix.LOCK_EX) == nil {
			unlock(fd)
		}
		unix.Close(fd)
	}()
	return done
}

// lockFile opens the lock file and locks it, or fails with EWOULDBLOCK.
func lockFile(path string, flags int) (*os.File, error) {
	for {
		fd, err := openLock(path, flags)
		if err != nil {
			return nil, err
		}
		if err := flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			unix.Close(fd)
			return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
		}
		// The file may have been removed between open and flock: a deleted file excludes no
		// other process.
		var mine, there unix.Stat_t
		if err := unix.Fstat(fd, &mine); err != nil {
			unix.Close(fd)
			return nil, err
		}
		if err := unix.Lstat(path, &there); err == nil && mine.Ino == there.Ino && mine.Dev == there.Dev {
			return os.NewFile(uintptr(fd), path), nil
		}
		unlock(fd)
		unix.Close(fd)
	}
}

func openLock(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|flags, 0o600)
		if err == unix.EINTR {
			continue
		}
		if err == unix.ENOENT && flags&unix.O_CREAT != 0 {
			// The directory is gone, perhaps with the rest of /run: releases must work all
			// the same.
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return -1, err
			}
			fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|flags, 0o600)
		}
		if err != nil {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); err != unix.EINTR {
			return err
		}
	}
}

// unlock releases a lock at once. A close would not: a forked child holds every descriptor
// until its exec.
func unlock(fd int) { _ = flock(fd, unix.LOCK_UN) }

// Holder returns the child that holds the lock at path, nil if none was found. Of several
// (mkfs, and the child of flexd that started it) it returns the one that the others wait
// for.
func Holder(path string) *procfs.Waiting {
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	return procfs.Deepest(holders(path))
}
