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

// metadataLimit is how long the metadata device of a thin pool or a cache may complete no request
// before its state counts as unknown.
const metadataLimit = time.Second

// A silentError says that the metadata device of a target does not respond.
type silentError string

func (e silentError) Error() string { return string(e) }

// status returns a device with the state of its targets. It does not query a thin pool or a cache
// whose metadata device does not respond: for the state the kernel takes a lock that it also holds
// while it writes the metadata, and no signal ends that wait.
func (p *Provider) status(m devmapper.Mapped) (devmapper.Mapped, error) {
	if err := p.answers(m); err != nil {
		return devmapper.Mapped{}, err
	}
	return p.DM.Status(devmapper.Key{UUID: m.UUID, Number: m.Number})
}

// answers fails if the metadata device of a thin pool or a cache does not complete its requests, or
// is suspended.
func (p *Provider) answers(m devmapper.Mapped) error {
	for _, t := range m.Targets {
		if t.Type != "thin-pool" && t.Type != "cache" {
			continue
		}
		number, _, _ := strings.Cut(t.Params, " ")
		if p.silent(number) {
			if meta, err := p.DM.Device(devmapper.Key{Number: number}); err == nil && meta.Suspended {
				return silentError("its metadata device " + meta.Name + " is suspended: a command of LVM changes it, or one was killed (ps ax | grep lv)")
			}
			return silentError(fmt.Sprintf("its metadata device (%s) has completed no request for %s: look at its disk and at dmesg", number, metadataLimit))
		}
	}
	return nil
}

// silent reports whether a device has requests and completes none of them for metadataLimit, or is
// suspended during that time.
func (p *Provider) silent(number string) bool {
	_, before := p.requests(number)
	pause := metadataLimit / 1000
	for end := time.Now().Add(metadataLimit); ; time.Sleep(pause) {
		if waiting, done := p.requests(number); !waiting || done != before {
			return false
		}
		if time.Now().After(end) {
			return true
		}
		pause = min(2*pause, metadataLimit/20) // most disks soon complete a request
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

// inFlight reports whether a device with these counters has requests in flight, or has no usable path:
// the kernel does not count the requests that wait for a path.
func inFlight(dirs []string) bool {
	usable := len(dirs) == 1
	for i, dir := range dirs {
		if pending, _ := sysfs.Line(dir + "/inflight"); strings.Trim(pending, " 0") != "" {
			return true
		}
		if i > 0 {
			state, _ := sysfs.Line(dir + "/device/state")
			usable = usable || state == "live"
		}
	}
	return !usable
}
