package procfs

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"
)

// A Waiting is a process that lives, and where it is. It never comes from
// the process's memory, which could wait with it.
type Waiting struct {
	Pid   int
	Wchan string    // where in the kernel it waits, "" = it does not, or that is not known
	Since time.Time // when it was started
	deep  bool      // in a sleep that no signal ends
}

// Deepest looks at processes: one in a sleep that no signal ends comes first, and
// then the youngest, which the others have started.
func Deepest(pids []int) *Waiting {
	var found *Waiting
	for _, pid := range pids {
		w := waits(pid)
		if w != nil && (found == nil || w.deep && !found.deep || w.deep == found.deep && !w.Since.Before(found.Since)) {
			found = w
		}
	}
	return found
}

// Wchan says in which kernel function a process waits, "" if in none.
func Wchan(pid int) string {
	if w := waits(pid); w != nil {
		return w.Wchan
	}
	return ""
}

// waits looks at a process. Of its threads it is about the one that no signal
// wakes, if there is one: which thread reads a disk is up to Go.
func waits(pid int) *Waiting {
	proc := Process(pid).dir()
	s, ok := stat(proc)
	if !ok {
		return nil
	}
	w := &Waiting{Pid: pid, Since: time.Now().Add(s.started - SinceBoot())}
	threads, _ := readNames(proc + "/task")
	at := proc
	for _, tid := range threads {
		if s, ok := stat(proc + "/task/" + tid); ok && s.state == 'D' {
			at, w.deep = proc+"/task/"+tid, true
			break
		}
	}
	if b, err := os.ReadFile(at + "/wchan"); err == nil && string(b) != "0" {
		w.Wchan = string(b)
	}
	return w
}

// A taskStat is what the kernel says of a process or a thread.
type taskStat struct {
	state   byte // 'D' = in a sleep that no signal ends
	flags   uint64
	started time.Duration // after boot
}

func stat(dir string) (s taskStat, ok bool) {
	b, err := os.ReadFile(dir + "/stat")
	// Its name may have any bytes but ends at the last parenthesis.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if err != nil || len(f) < 20 {
		return s, false
	}
	s.state = f[0][0]
	s.flags, _ = strconv.ParseUint(f[6], 10, 64)
	ticks, err := strconv.ParseInt(f[19], 10, 64)
	s.started = time.Duration(ticks) * (time.Second / 100) // a tick is that on every Linux
	return s, err == nil
}
