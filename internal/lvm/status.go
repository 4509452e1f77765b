package lvm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/sysfs"
)

// silentLimit is how long a device that holds up the state of a target may complete no request before that state
// counts as unknown; stateLimit is how long the kernel may take for a state.
const (
	silentLimit = time.Second
	stateLimit  = 5 * time.Second
)

// A silentError says that a device that holds up the state of a target does not respond.
type silentError string

func (e silentError) Error() string { return string(e) }

// A query reads the state of the targets of a device.
type query struct {
	since time.Time
	done  chan struct{}
	got   devmapper.Mapped
	err   error
}

// status returns a device with the state of its targets. It does not query a thin pool or a cache
// whose devices do not respond: for the state the kernel takes a lock that it also holds while it writes the
// metadata, and no signal ends that wait. At most one query of a device waits so.
func (p *Provider) status(m devmapper.Mapped) (devmapper.Mapped, error) {
	if err := p.answers(m); err != nil {
		return devmapper.Mapped{}, err
	}
	for {
		p.mu.Lock()
		q := p.queries[m.Number]
		own := q == nil
		if own {
			q = &query{since: time.Now(), done: make(chan struct{})}
			p.queries[m.Number] = q
			go p.read(q, m)
		}
		p.mu.Unlock()
		select {
		case <-q.done:
			if own { // the result of another one may be outdated
				return q.got, q.err
			}
		case <-time.After(time.Until(q.since.Add(stateLimit))):
			return devmapper.Mapped{}, silentError(fmt.Sprintf("the kernel has not returned it since %s: look at its disks and at dmesg", q.since.Format(time.TimeOnly)))
		}
	}
}

func (p *Provider) read(q *query, m devmapper.Mapped) {
	q.got, q.err = p.DM.Status(devmapper.Key{UUID: m.UUID, Number: m.Number})
	p.mu.Lock()
	delete(p.queries, m.Number)
	p.mu.Unlock()
	close(q.done)
}

// answers fails if a device that holds up the state of a thin pool or a cache does not complete its
// requests, or is suspended.
func (p *Provider) answers(m devmapper.Mapped) error {
	for _, t := range m.Targets {
		for i, number := range holdUp(t) {
			if !p.silent(number) {
				continue
			}
			what := []string{"metadata", "data"}[i]
			if d, err := p.DM.Device(devmapper.Key{Number: number}); err == nil && d.Suspended {
				return silentError(fmt.Sprintf("its %s device %s is suspended: a command of LVM changes it, or one was killed (ps ax | grep lv); flexd check says how to resume it", what, d.Name))
			}
			return silentError(fmt.Sprintf("its %s device (%s) has completed no request for %s: look at its disk and at dmesg", what, number, silentLimit))
		}
	}
	return nil
}

// holdUp returns the metadata device of a thin pool or a cache, and the data device of a pool, which flushes its data
// before it commits its metadata.
func holdUp(t devmapper.Target) []string {
	words := strings.Fields(t.Params)
	switch {
	case t.Type == "thin-pool" && len(words) > 1:
		return words[:2]
	case t.Type == "cache" && len(words) > 0:
		return words[:1]
	}
	return nil
}

// silent reports whether a device has requests and completes none of them for silentLimit, or is
// suspended during that time.
func (p *Provider) silent(number string) bool {
	_, before := p.requests(number)
	pause := silentLimit / 1000
	for end := time.Now().Add(silentLimit); ; time.Sleep(pause) {
		if waiting, done := p.requests(number); !waiting || done != before {
			return false
		}
		if time.Now().After(end) {
			return true
		}
		pause = min(2*pause, silentLimit/20) // most disks soon complete a request
	}
}

// requests reports whether a device is suspended or has requests pending, and how many the kernel
// has completed.
func requests(sys, number string) (waiting bool, done int64) {
	dirs := counters(sys, number)
	suspended, _ := sysfs.Line(dirs[0] + "/dm/suspended")
	if waiting = suspended == "1" || inFlight(dirs); !waiting {
		return false, 0
	}
	for _, dir := range dirs {
		stat, _ := sysfs.Line(dir + "/stat")
		for i, word := range strings.Fields(stat) {
			if slices.Contains([]int{0, 4, 11, 15}, i) { // reads, writes, discards, flushes
				n, _ := strconv.ParseInt(word, 10, 64)
				done += n
			}
		}
	}
	return true, done
}

// counters returns the sysfs directories with the request counters of a device. For NVMe multipath it
// adds those of the paths, which have no device number: Linux 6.1 counts in nvme0c1n1, and not in
// nvme0n1.
func counters(sys, number string) []string {
	dirs := []string{sys + "/dev/block/" + number}
	target, _ := os.Readlink(dirs[0])
	name := filepath.Base(target)
	if i := strings.LastIndexByte(name, 'n'); i > 0 && strings.HasPrefix(name, "nvme") {
		paths, _ := filepath.Glob(dirs[0] + "/device/nvme*/" + name[:i] + "c*" + name[i:]) // device is the subsystem
		dirs = append(dirs, paths...)
	}
	return dirs
}

// holding has the states of a SCSI device, and of the controller of an NVMe disk without multipath, in which
// requests wait.
var holding = []string{"blocked", "created-blocked", "quiesce", "connecting", "resetting"}

// inFlight reports whether a device with these counters has requests in flight, is in a state in which they
// wait, or has no usable path: the kernel does not count requests that wait for one of these.
func inFlight(dirs []string) bool {
	usable := false
	for _, dir := range dirs {
		if pending, _ := sysfs.Line(dir + "/inflight"); strings.Trim(pending, " 0") != "" {
			return true
		}
		state, _ := sysfs.Line(dir + "/device/state")
		if len(dirs) == 1 {
			usable = !slices.Contains(holding, state)
		} else {
			usable = usable || state == "live"
		}
	}
	return !usable
}
