package run

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Waiting is a child that lives, and where it is. It comes from procfs only,
// never from the process's memory, which could wait with it.
type Waiting struct {
	Pid   int
	Wchan string    // where in the kernel it waits, "" = it does not, or that is not known
	Since time.Time // when it was started
	deep  bool      // in a sleep that no signal ends
}

// Holder returns the child that holds the lock at path, nil if none was found. Of
// several (mkfs, and the child of flexd that started it) it is the one that the
// others wait for.
func Holder(path string) *Waiting {
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	return deepest(lockHolders(path))
}

// deepest looks at processes: one in a sleep that no signal ends comes first, and
// then the youngest, which the others have started.
func deepest(pids []int) *Waiting {
	var found *Waiting
	for _, pid := range pids {
		w := waits(pid)
		if w != nil && (found == nil || w.deep && !found.deep || w.deep == found.deep && !w.Since.Before(found.Since)) {
			found = w
		}
	}
	return found
}

// wchan says in which kernel function a process waits.
func wchan(pid int) string {
	if w := waits(pid); w != nil {
		return w.Wchan
	}
	return ""
}

// waits looks at a process. Of its threads it is about the one that no signal
// wakes, if there is one: which thread reads a disk is up to Go.
func waits(pid int) *Waiting {
	proc := "/proc/" + strconv.Itoa(pid)
	_, started, ok := stat(proc)
	if !ok {
		return nil
	}
	w := &Waiting{Pid: pid, Since: time.Now().Add(started - sinceBoot())}
	threads, _ := readNames(proc + "/task")
	at := proc
	for _, tid := range threads {
		if state, _, ok := stat(proc + "/task/" + tid); ok && state == 'D' {
			at, w.deep = proc+"/task/"+tid, true
			break
		}
	}
	if b, err := os.ReadFile(at + "/wchan"); err == nil && string(b) != "0" {
		w.Wchan = string(b)
	}
	return w
}

// stat reads the state of a process or a thread, and when after boot it started.
func stat(dir string) (state byte, started time.Duration, ok bool) {
	b, err := os.ReadFile(dir + "/stat")
	// Its name may have any bytes but ends at the last parenthesis.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if err != nil || len(f) < 20 {
		return 0, 0, false
	}
	ticks, err := strconv.ParseInt(f[19], 10, 64)
	return f[0][0], time.Duration(ticks) * (time.Second / 100), err == nil // a tick is that on every Linux
}

func sinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // it is there
	return time.Duration(t.Nano())
}
