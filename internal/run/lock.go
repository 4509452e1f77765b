package run

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Held returns who holds the lock at path, nil if nobody does or that cannot be
// told.
func Held(path string) *LockedError {
	free, pids, err := LockFree(path)
	if err != nil || free {
		return nil
	}
	return locked("wait", path, pids, LockDone(path))
}

// locked is the error of a lock that is held, with what can be told of who does.
func locked(step, path string, pids []int, done <-chan struct{}) *LockedError {
	e := &LockedError{Step: step, Lock: path, Pids: pids, Done: done}
	if w := deepest(pids); w != nil {
		e.Child = *w
	}
	return e
}

// LockFree says whether nobody holds the lock at path, and if somebody does,
// which processes were found with it as their standard input. A lock that does
// not exist is free.
func LockFree(path string) (free bool, pids []int, err error) {
	fd, err := openLock(path, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	defer unix.Close(fd)
	err = flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
		unlock(fd)
		return true, nil, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, lockHolders(path), nil
	}
	return false, nil, &fs.PathError{Op: "flock", Path: path, Err: err}
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

// takeLock opens the lock anew and locks it, or fails with EWOULDBLOCK.
func takeLock(path string) (*os.File, error) {
	for {
		fd, err := openLock(path, unix.O_CREAT)
		if err != nil {
			return nil, err
		}
		if err := flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			unix.Close(fd)
			return nil, err
		}
		// Somebody may have removed the file between open and flock: a
		// lock without a name excludes nobody.
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
			// The directory is gone, with the rest of /run perhaps: letting go
			// must work all the same.
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

// unlock lets a lock go at once. Closing alone would not: a fork of ours that
// has not reached its exec holds every descriptor for a moment.
func unlock(fd int) { _ = flock(fd, unix.LOCK_UN) }

// lockHolders finds the processes whose standard input is the lock. It only
// reads links of procfs.
func lockHolders(path string) []int {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		path = p
	}
	s := scanNow()
	if pids := s.stdin[path]; len(pids) > 0 {
		return slices.Clone(pids)
	}
	return dying(s.names)
}

// A scan is a look at what each process has as its standard input. It costs a
// tenth of a second where processes are many and the machine is slow, and many
// may want to know at once why they wait.
type scan struct {
	once  sync.Once
	names []string         // in /proc
	stdin map[string][]int // pids, without flexd's own
}

var scans struct {
	sync.Mutex       // guards next
	next       *scan // has not begun, nil = nobody has asked for it
	one        sync.Mutex
}

// scanNow returns a scan that began after it was called. There is one at a time:
// those who ask meanwhile share the next.
func scanNow() *scan {
	scans.Lock()
	if scans.next == nil {
		scans.next = &scan{stdin: map[string][]int{}}
	}
	s := scans.next
	scans.Unlock()
	s.once.Do(func() {
		scans.one.Lock()
		defer scans.one.Unlock()
		scans.Lock()
		scans.next = nil
		scans.Unlock()
		s.read()
	})
	return s
}

func (s *scan) read() {
	s.names, _ = readNames("/proc")
	for _, n := range s.names {
		if pid, err := strconv.Atoi(n); err == nil && pid != os.Getpid() {
			if to := stdinOf("/proc/" + n); to != "" {
				s.stdin[to] = append(s.stdin[to], pid)
			}
		}
	}
}

const exiting = 0x4 // PF_EXITING

// dying finds a child that was killed and hangs in its end: it has given its
// descriptors up, and the lock not yet, because its disk comes first. If there are
// several it cannot be told which of them has which lock.
func dying(names []string) (pids []int) {
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		threads, _ := readNames("/proc/" + n + "/task")
		for _, tid := range threads {
			thread := "/proc/" + n + "/task/" + tid
			if s, ok := stat(thread); !ok || s.state != 'D' || s.flags&exiting == 0 {
				continue
			}
			if _, err := os.Readlink(thread + "/fd/0"); err != nil {
				pids = append(pids, pid)
			}
			break
		}
	}
	if len(pids) > 1 {
		return nil
	}
	return pids
}

// stdinOf returns what a process has as its standard input, "" if nothing. Of one
// that was killed, a thread that no signal ends has it when the others have gone.
func stdinOf(proc string) string {
	if to, err := os.Readlink(proc + "/fd/0"); err == nil {
		return to
	}
	// Each thread is a link of it; the many tasks of the kernel have one each.
	var task unix.Stat_t
	if unix.Lstat(proc+"/task", &task) != nil || task.Nlink < 2+2 {
		return ""
	}
	threads, _ := readNames(proc + "/task")
	for _, tid := range threads {
		if to, err := os.Readlink(proc + "/task/" + tid + "/fd/0"); err == nil {
			return to
		}
	}
	return ""
}

func readNames(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}
