package procfs

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// WithStdin returns the processes with that file as standard input. It only reads links.
func WithStdin(path string) []int {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		path = p
	}
	return slices.Clone(scanNow().stdin[path])
}

// A scan has the standard input of each process. On a slow machine with many processes it
// takes a tenth of a second, and many callers may need it at the same time.
type scan struct {
	once  sync.Once
	stdin map[string][]int // pids, without flexd's own
}

var scans struct {
	sync.Mutex       // guards next
	next       *scan // has not begun, nil = not requested
	one        sync.Mutex
}

// scanNow returns a scan that began after the call. One scan runs at a time: callers that
// arrive meanwhile share the next.
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
	for _, n := range readNames("/proc") {
		if pid, err := strconv.Atoi(n); err == nil && pid != os.Getpid() {
			if to := stdinOf("/proc/" + n); to != "" {
				s.stdin[to] = append(s.stdin[to], pid)
			}
		}
	}
}

const exiting = 0x4 // PF_EXITING

// Exiting finds a killed child that hangs in its exit: its descriptors are closed, but it
// still holds the lock, because it waits for a disk first. If there are several, it is
// unknown which of them holds which lock.
func Exiting() (pids []int) {
	for _, n := range readNames("/proc") {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		for _, tid := range readNames("/proc/" + n + "/task") {
			thread := "/proc/" + n + "/task/" + tid
			if s, err := readStat(thread); err != nil || s.state != 'D' || s.flags&exiting == 0 {
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

// stdinOf returns the standard input of a process, "" if it has none. In a killed process,
// a thread in an uninterruptible sleep still has it when the other threads have ended.
func stdinOf(proc string) string {
	if to, err := os.Readlink(proc + "/fd/0"); err == nil {
		return to
	}
	// Each thread is a link of the task directory; kernel tasks have one thread each.
	var task unix.Stat_t
	if unix.Lstat(proc+"/task", &task) != nil || task.Nlink < 2+2 {
		return ""
	}
	for _, tid := range readNames(proc + "/task") {
		if to, err := os.Readlink(proc + "/task/" + tid + "/fd/0"); err == nil {
			return to
		}
	}
	return ""
}

// readNames returns the names in a directory; none if it cannot be read.
func readNames(dir string) []string {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	return names
}
