// Package procfs reads processes from /proc: their wait channels and start times, open
// files, mappings and namespaces.
//
// It never waits for a process, except in HoldsMount and MapsDevice, which read mapped
// files and wait for a limited time.
package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Process is a process, by its pid.
type Process int

// Path returns the path of one of its files.
func (p Process) Path(name string) string { return p.dir() + "/" + name }

func (p Process) dir() string { return "/proc/" + strconv.Itoa(int(p)) }

// Comm returns its name, "" if it has ended.
func (p Process) Comm() string { return word(p.Path("comm")) }

// Args returns its command line; none if it has ended.
func (p Process) Args() []string {
	line, err := os.ReadFile(p.Path("cmdline"))
	if err != nil || len(line) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
}

// Parent returns the pid of its parent.
func (p Process) Parent() (int, error) {
	s, err := readStat(p.dir())
	return s.parent, err
}

// Started returns when it was started, as the time since boot.
func (p Process) Started() (time.Duration, error) {
	s, err := readStat(p.dir())
	return s.started, err
}

// Written returns what a process and its children have written, until its exit status is read: the bytes that it wrote
// to disks, or to pages that the kernel writes later, and the characters that it passed to write(2).
func (p Process) Written() (bytes, chars int64, err error) {
	text, err := os.ReadFile(p.Path("io"))
	if err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscanf(string(text), "rchar: %d\nwchar: %d\nsyscr: %d\nsyscw: %d\nread_bytes: %d\nwrite_bytes: %d", new(int64), &chars, new(int64), new(int64), new(int64), &bytes)
	return bytes, chars, err
}

// SetOOMScore sets the likelihood that the kernel kills a process to free memory. A process that has
// ended is not an error.
func SetOOMScore(pid, score int) error {
	err := os.WriteFile(Process(pid).Path("oom_score_adj"), []byte(strconv.Itoa(score)), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Alive reports whether the process of a pidfd has not ended.
func Alive(pidfd int) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR { // a signal says nothing about the process
			return err == nil && n == 0
		}
	}
}

// Dying reports whether a process has ended, or will end without running any more of its code:
// its first thread has ended, which a Go program never ends alone, or has SIGKILL pending, which the
// kernel sends to all threads. The threads that still wait in the kernel, for a disk, hold its
// descriptors until then.
func (p Process) Dying() bool {
	s, err := readStat(p.dir())
	return err == nil && s.dying()
}

func (s taskStat) dying() bool {
	return s.state == 'Z' || s.state == 'X' || s.pending&(1<<(unix.SIGKILL-1)) != 0
}
