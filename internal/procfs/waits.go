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

// A Waiting is a living process and its wait channel. Nothing is read from the process's
// memory, since that could block as well.
type Waiting struct {
	Pid   int
	Wchan string    // the kernel function in which it waits, "" = none, or not known
	Since time.Time // when it was started
	deep  bool      // in an uninterruptible sleep
}

// Deepest returns the process that the others wait for: one in an uninterruptible sleep,
// otherwise the youngest, which the others have started.
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

// Wchan returns the kernel function in which a process waits, "" if in none.
func Wchan(pid int) string {
	if w := waits(pid); w != nil {
		return w.Wchan
	}
	return ""
}

// waits returns the state of a process: that of a thread in an uninterruptible sleep, if
// there is one, since Go may read a disk in any thread.
func waits(pid int) *Waiting {
	proc := Process(pid).dir()
	s, err := readStat(proc)
	if err != nil {
		return nil
	}
	w := &Waiting{Pid: pid, Since: time.Now().Add(s.started - boottime.Now())}
	at := proc
	for _, tid := range readNames(proc + "/task") {
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

// A taskStat is the state of a process or a thread.
type taskStat struct {
	state   byte // 'D' = uninterruptible sleep
	parent  int
	flags   uint64
	started time.Duration // after boot
	pending uint64        // signals, of the thread alone
}

func readStat(dir string) (s taskStat, err error) {
	line, err := sysfs.Line(dir + "/stat")
	if err != nil {
		return s, err
	}
	// The second field, its name, may have any bytes but ends at the last parenthesis.
	f := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(f) < 29 {
		return s, fmt.Errorf("%s/stat does not parse", dir)
	}
	s.state = f[0][0]
	s.parent, err = strconv.Atoi(f[1])
	s.flags, _ = strconv.ParseUint(f[6], 10, 64)
	s.pending, _ = strconv.ParseUint(f[28], 10, 64)
	ticks, err2 := strconv.ParseInt(f[19], 10, 64)
	s.started = time.Duration(ticks) * (time.Second / 100) // a tick is that on every Linux
	return s, errors.Join(err, err2)
}
