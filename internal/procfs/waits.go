package procfs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/boottime"
	"github.com/flexd/flexd/internal/sysfs"
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
	s, err := readStat(proc)
	if err != nil {
		return nil
	}
	w := &Waiting{Pid: pid, Since: time.Now().Add(s.started - boottime.Now())}
	threads, _ := readNames(proc + "/task")
	at := proc
	for _, tid := range threads {
		if s, err := readStat(proc + "/task/" + tid); err == nil && s.state == 'D' {
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
	parent  int
	flags   uint64
	started time.Duration // after boot
}

func readStat(dir string) (s taskStat, err error) {
	line, err := sysfs.Line(dir + "/stat")
	if err != nil {
		return s, err
	}
	// The second field, its name, may have any bytes but ends at the last parenthesis.
	f := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(f) < 20 {
		return s, fmt.Errorf("%s/stat does not parse", dir)
	}
	s.state = f[0][0]
	s.parent, err = strconv.Atoi(f[1])
	s.flags, _ = strconv.ParseUint(f[6], 10, 64)
	ticks, err2 := strconv.ParseInt(f[19], 10, 64)
	s.started = time.Duration(ticks) * (time.Second / 100) // a tick is that on every Linux
	return s, errors.Join(err, err2)
}
