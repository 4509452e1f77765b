package procfs

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// WithStdin finds the processes whose standard input is that file, or that have ended
// so far that it is unknown. It only reads links.
func WithStdin(path string) []int {
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
	next       *scan // has not begun, nil = not requested
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
// several it is unknown which of them has which lock.
func dying(names []string) (pids []int) {
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		threads, _ := readNames("/proc/" + n + "/task")
		for _, tid := range threads {
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
