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
		release(f)
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
// the lock. A lock without a visible holder is in transition (a child between fork and exec, a waiter
// that just got it, a RemoveLock): it is tried again, before any exiting process of the node counts as
// its holder.
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
		release(f)
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
	defer release(f)
	return os.Remove(path) // while it is locked: another process that has it open sees that it is gone
}

// LockDone returns a channel that is closed when the lock at path is free (or
// cannot be waited for). Until then it occupies a thread.
func LockDone(path string) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f, err := openLock(path, 0)
		if err != nil {
			return
		}
		_ = flock(f, unix.LOCK_EX)
		release(f)
	}()
	return done
}

// lockFile opens the lock file and locks it, or fails with EWOULDBLOCK.
func lockFile(path string, flags int) (*os.File, error) {
	for {
		f, err := openLock(path, flags)
		if err != nil {
			return nil, err
		}
		if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
		}
		// The file may have been removed between open and flock: a deleted file excludes no
		// other process.
		mine, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if there, err := os.Lstat(path); err == nil && os.SameFile(mine, there) {
			return f, nil
		}
		release(f)
	}
}

func openLock(path string, flags int) (*os.File, error) {
	flags |= os.O_RDWR | unix.O_NOFOLLOW
	f, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) && flags&os.O_CREATE != 0 {
		// The directory is gone, perhaps with the rest of /run: releases must work all
		// the same.
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, flags, 0o600)
	}
	return f, err
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// release releases a lock at once, and closes its file. The close alone would not: a forked child
// holds every descriptor until its exec.
func release(f *os.File) {
	_ = flock(f, unix.LOCK_UN)
	f.Close()
}

// Holder returns the child that holds the lock at path, nil if none was found. Of several
// (mkfs, and the child of flexd that started it) it returns the one that the others wait
// for.
func Holder(path string) *procfs.Waiting {
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	return procfs.Deepest(holders(path))
}
