package reconcile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/flex"
	"github.com/flexd/flexd/internal/volume"
)

// A call is a FlexVolume call that waits for its answer.
type call struct {
	volume.Call
	verb     string        // kubelet's word for it
	started  time.Duration // its flexdriver's start, on the boot-time clock
	since    time.Time
	deadline time.Time
	opts     flex.Options
	root     string // kubelet's root directory that Dir lies below
	lane     *lane
	title    string // the volume, as people call it

	ctx    context.Context // done when the connection is closed
	pid    int             // of flexdriver, 0 = not known
	parent int             // of flexdriver at its start, 0 = not known

	// landing is set when its mount is let go: from there on the only answer
	// is what comes of it. Guarded by lane.mu.
	landing bool
	done    chan result // of size one: the lane never waits
}

type result struct {
	device string
	err    error
}

// errSuperseded is the answer to the older of two opposite wishes.
var errSuperseded = errors.New("superseded: a newer call for this directory wants the opposite")

// errHungUp is for the log: nobody hears it.
var errHungUp = errors.New("the caller hung up")

// waiting says whether somebody still wants the answer: the connection is open,
// and flexdriver is still the child of the kubelet that started it.
func (c *call) waiting() bool {
	if c.ctx.Err() != nil {
		return false
	}
	if c.pid == 0 || c.parent == 0 {
		return true
	}
	parent, err := parentOf(c.pid)
	return err == nil && parent == c.parent
}

// parentSeen returns flexdriver's parent in flexd's own words: what flexdriver
// said at its start or, where it lives in another pid namespace and its numbers
// mean nothing here, what /proc says at its arrival. 0 = not known.
func parentSeen(pid, said int) int {
	if pid == 0 || said == 0 {
		return 0
	}
	ours, err := os.Readlink("/proc/self/ns/pid")
	theirs, err2 := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	if err == nil && err2 == nil && ours != theirs {
		said, _ = parentOf(pid)
	}
	return said
}

// parentOf reads a process' parent from /proc. The second field, its name, may
// hold anything but ends with the last parenthesis.
func parentOf(pid int) (int, error) {
	// It is read before each step of a call, so without the runtime's poller.
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var buf [1024]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return 0, err
	}
	s := string(buf[:n])
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/stat does not parse", pid)
	}
	return strconv.Atoi(fields[1])
}
