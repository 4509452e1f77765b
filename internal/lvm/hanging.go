package lvm

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/sysfs"
)

// A disk is a block device whose label LVM may read.
type disk struct {
	path, number string
	queue        string // the number of the device that counts its requests, for a partition its disk
}

// hanging returns the disks that a command for a group must not read, because they do not respond
// or a command of their group hangs: disks of other groups according to their last reports, and
// disks that are in no report. list has the devices of device-mapper.
func (p *Provider) hanging(mine *group, list []devmapper.Mapped) (others, unknown []string) {
	p.mu.Lock()
	groups := slices.Collect(maps.Values(p.groups))
	p.mu.Unlock()
	own, theirs := map[string]bool{}, map[string]string{} // by number; theirs has the reported paths
	for _, g := range groups {
		g.mu.Lock()
		known, blocked := g.known, g.block != nil
		g.mu.Unlock()
		if known == nil {
			continue
		}
		for _, pv := range known.PVs {
			switch {
			case pv.Missing:
			case g == mine:
				own[blockNumber(pv.Path)] = true
			default:
				theirs[blockNumber(pv.Path)] = pv.Path
				if blocked {
					others = append(others, pv.Path)
				}
			}
		}
	}
	for _, d := range p.unresponsive(list, own) {
		if path := theirs[d.number]; path != "" {
			others = append(others, path)
		} else {
			unknown = append(unknown, d.path)
		}
	}
	return distinct(others), distinct(unknown)
}

// unresponsive returns the disks that keep their requests, or complete none of them. It skips
// the group's own disks: its commands must read them.
func (p *Provider) unresponsive(list []devmapper.Mapped, own map[string]bool) []disk {
	isOwn := func(d disk) bool { return own[d.number] }
	pending := slices.DeleteFunc(p.pending(p.Dev, list), isOwn)
	stalled := filterParallel(pending, func(d disk) bool { return p.stalls(d.queue) })
	return append(slices.DeleteFunc(p.keeping(list), isOwn), stalled...)
}

// unresponsiveDisks returns the paths of all disks that do not respond, and the names of the suspended ones of them: a
// command may wait for one of them.
func (p *Provider) unresponsiveDisks() (paths, suspended []string) {
	list, _ := p.DM.List()
	for _, d := range p.unresponsive(list, nil) {
		paths = append(paths, d.path)
		if now, err := p.DM.Device(devmapper.Key{Number: d.number}); err == nil && now.Suspended {
			suspended = append(suspended, now.Name)
		}
	}
	return distinct(paths), distinct(suspended)
}

// stalls reports whether a disk with requests in flight completes none. It does not wait again for
// a disk that has completed no request since it was found stalled.
func (p *Provider) stalls(number string) bool {
	waiting, done := p.requests(number)
	p.mu.Lock()
	before, known := p.stalled[number]
	p.mu.Unlock()
	if known && waiting && done == before {
		return true
	}
	if !p.silent(number) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled[number] = done
	return true
}

// pendingDisks returns the block devices with requests in flight, and their partitions. It omits
// suspended devices and LVM's volumes (by list), whose labels no command reads (scan_lvs=0).
func pendingDisks(sys, dev string, list []devmapper.Mapped) (all []disk) {
	lvs := map[string]bool{} // reading the counters of each would take most of the time
	for _, m := range list {
		lvs[m.Number] = strings.HasPrefix(m.UUID, "LVM-")
	}
	entries, _ := os.ReadDir(sys + "/dev/block")
	for _, e := range entries {
		number, dir := e.Name(), sys+"/dev/block/"+e.Name()
		if lvs[number] || !inFlight(counters(sys, number)) {
			continue
		}
		uuid, _ := sysfs.Line(dir + "/dm/uuid") // of a volume that is not listed
		suspended, _ := sysfs.Line(dir + "/dm/suspended")
		target, err := os.Readlink(dir)
		if err != nil || suspended == "1" || strings.HasPrefix(uuid, "LVM-") {
			continue
		}
		name := filepath.Base(target)
		path := filepath.Join(dev, strings.ReplaceAll(name, "!", "/"))
		if mapped, err := sysfs.Line(dir + "/dm/name"); err == nil {
			path = filepath.Join(dev, "mapper", mapped)
		}
		all = append(all, disk{path, number, number})
		parts, _ := filepath.Glob(dir + "/" + name + "*/dev")
		for _, part := range parts {
			if n, err := sysfs.Line(part); err == nil {
				all = append(all, disk{filepath.Join(dev, filepath.Base(filepath.Dir(part))), n, number})
			}
		}
	}
	return all
}

// keeping returns the devices of device-mapper that keep their requests, without LVM volumes: suspended
// ones, and multipath disks without a usable path.
func (p *Provider) keeping(list []devmapper.Mapped) (all []disk) {
	for _, m := range list {
		if strings.HasPrefix(m.UUID, "LVM-") {
			continue
		}
		if now, err := p.DM.Device(devmapper.Key{UUID: m.UUID, Number: m.Number}); err == nil && (now.Suspended || p.waitsForPath(now)) {
			all = append(all, disk{filepath.Join(p.Dev, "mapper", m.Name), m.Number, m.Number})
		}
	}
	return all
}

// waitsForPath reports whether a multipath disk has no usable path, and does not fail its requests. The kernel
// counts none of them as in flight. Its state has "8:0 A" for each usable path, and "8:0 F" for a failed one.
func (p *Provider) waitsForPath(m devmapper.Mapped) bool {
	if len(m.Targets) != 1 || m.Targets[0].Type != "multipath" || !slices.Contains(strings.Fields(m.Targets[0].Params), "queue_if_no_path") {
		return false
	}
	now, err := p.DM.Status(devmapper.Key{UUID: m.UUID, Number: m.Number})
	if err != nil || len(now.Targets) != 1 {
		return false
	}
	before := ""
	for word := range strings.FieldsSeq(now.Targets[0].Params) {
		if _, _, path := sysfs.SplitNumber(before); path && word == "A" {
			return false
		}
		before = word
	}
	return true
}

// hangingPools returns all devices of volume groups with a thin pool or a cache whose state the kernel does
// not return. LVM reads the state of every device that the filter accepts, and would wait for the
// state of the pool and its volumes.
func (p *Provider) hangingPools(list []devmapper.Mapped) (paths []string) {
	const (
		prefix        = len("LVM-") + uuidLength
		cacheMetadata = "-cmeta"
	)
	var pools []devmapper.Mapped
	for _, m := range list {
		if len(m.UUID) >= prefix && strings.HasPrefix(m.UUID, "LVM-") && (strings.HasSuffix(m.UUID, "-tpool") || strings.HasSuffix(m.UUID, cacheMetadata)) {
			pools = append(pools, m)
		}
	}
	hangs := func(m devmapper.Mapped) bool {
		if strings.HasSuffix(m.UUID, cacheMetadata) { // the device of the cache has no suffix
			return p.silent(m.Number)
		}
		m, err := p.DM.Device(devmapper.Key{UUID: m.UUID})
		if err == nil {
			_, err = p.status(m)
		}
		_, silent := errors.AsType[silentError](err)
		return silent
	}
	for _, pool := range filterParallel(pools, hangs) {
		for _, m := range list {
			if strings.HasPrefix(m.UUID, pool.UUID[:prefix]) {
				paths = append(paths, filepath.Join(p.Dev, "mapper", m.Name))
			}
		}
	}
	return distinct(paths)
}

// disks returns the disks of the group in its last report.
func (g *group) disks() (paths []string) {
	if f := g.lastFacts(); f != nil {
		for _, pv := range f.PVs {
			if !pv.Missing {
				paths = append(paths, pv.Path)
			}
		}
	}
	return paths
}

// without returns the disks that are not excluded, under any name.
func without(paths, excluded []string) (rest []string) {
	for _, path := range paths {
		same := func(other string) bool {
			return path == other || blockNumber(path) != "" && blockNumber(path) == blockNumber(other)
		}
		if !slices.ContainsFunc(excluded, same) {
			rest = append(rest, path)
		}
	}
	return rest
}

// allNames adds the other names of disks, such as udev's links: a filter accepts a disk if it
// accepts any of its names.
func (p *Provider) allNames(paths []string) []string {
	numbers := map[string]bool{}
	for _, path := range paths {
		if n := blockNumber(path); n != "" {
			numbers[n] = true
		}
	}
	all := slices.Clone(paths)
	if len(numbers) == 0 {
		return all
	}
	_ = filepath.WalkDir(p.Dev, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // it is gone
		case e.IsDir() && e.Name() == "shm": // files of users
			return fs.SkipDir
		case e.IsDir():
			return nil
		}
		node := path
		if target, err := os.Readlink(path); err == nil {
			if node = target; !filepath.IsAbs(node) {
				node = filepath.Join(filepath.Dir(path), target)
			}
		}
		if strings.HasPrefix(node, p.Dev+"/") && numbers[blockNumber(node)] { // a stat outside of /dev might hang
			all = append(all, path)
		}
		return nil
	})
	return distinct(all)
}

// blockNumber returns the number of the block device at a path; "" = there is none.
func blockNumber(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return ""
	}
	return sysfs.Number(st.Rdev)
}

// filterParallel returns the elements for which holds is true. It tests all elements at the same
// time, because holds may block.
func filterParallel[T any](all []T, holds func(T) bool) (some []T) {
	answers := make([]bool, len(all))
	var wait sync.WaitGroup
	for i, one := range all {
		wait.Go(func() { answers[i] = holds(one) })
	}
	wait.Wait()
	for i, one := range all {
		if answers[i] {
			some = append(some, one)
		}
	}
	return some
}

func distinct(paths []string) []string {
	slices.Sort(paths)
	return slices.Compact(paths)
}
