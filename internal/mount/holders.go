package mount

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// maxHolders limits the search for holders: a message names only a few.
const maxHolders = 8

// MaxSearch limits the entries of /proc that a search reads, each in 5 to 25 microseconds: a pod
// may have more descriptors than can be read in minutes. Tests set another value.
var MaxSearch = 200_000

// cut adds entries to the holders if the search ended too early.
func cut(s *procfs.Search, holders []Holder) []Holder {
	if p := s.Blocked(); p != 0 {
		holders = append(holders, Holder{Cut: true, How: fmt.Sprintf("the search for mapped files ended early, because those of pid %d (%s) cannot be read: it waits in the kernel, for example for a filesystem that hangs; lsof would hang, too", p, p.Comm())})
	}
	if s.Cut() {
		holders = append(holders, Holder{Cut: true, How: fmt.Sprintf("the search for holders ended early, because there are too many open files and mounts (limit %d): lsof and findmnt -N PID find the others", MaxSearch)})
	}
	return holders
}

// mountHolders finds the holders of a mount: mounts below it, and processes of any mount namespace.
// Only children call it, because a read of mapped files that waits for their process ends with the
// child.
func mountHolders(tab *mounttable.Table, e *mounttable.Entry) []Holder {
	var holders []Holder
	for _, m := range tab.On(e) {
		holders = append(holders, Holder{How: "mounted on it: " + m.String()})
	}
	loops, _ := sysfs.Loops()
	for _, l := range loops {
		if strings.HasPrefix(l.File, e.Dir+"/") {
			holders = append(holders, Holder{How: "/dev/" + l.Name + " is backed by " + l.File})
		}
	}
	for _, path := range procfs.Swaps() {
		if strings.HasPrefix(path, e.Dir+"/") {
			holders = append(holders, Holder{How: path + " is a swap file in use (swapoff " + path + ")"})
		}
	}
	s := procfs.NewSearch(MaxSearch)
	ids, in := copiesOf(s, tab, e)
	holders = addProcesses(holders, s, func(p procfs.Process) string {
		how, id := s.HoldsMount(p, ids, e.Number)
		return how + in[id]
	})
	return cut(s, holders)
}

// A mount table of another process is read up to maxTable bytes and for at most tableTime: a user
// can have a table of gigabytes in a mount namespace of his own.
var maxTable = 16 << 20 // another in tests

const tableTime = 2 * time.Second

// errTableTooLarge is the error of a mount table above these limits.
var errTableTooLarge = errors.New("its mount table is too large")

// readTable reads the mount table of another process.
func readTable(path string) (*mounttable.Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var text bytes.Buffer
	for end := time.Now().Add(tableTime); err == nil; {
		_, err = io.CopyN(&text, f, 64<<10)
		if text.Len() > maxTable || time.Now().After(end) {
			return nil, errTableTooLarge
		}
	}
	if err != io.EOF {
		return nil, err
	}
	return mounttable.Read(&text)
}

// tableOf reads the mount table of a process for a search; nil = it has ended, or the search is over.
func tableOf(s *procfs.Search, p procfs.Process) *mounttable.Table {
	tab, err := readTable(p.Path("mountinfo"))
	switch {
	case errors.Is(err, errTableTooLarge):
		s.Over(MaxSearch + 1)
		return nil
	case err != nil:
		return nil
	}
	s.Over(len(tab.All()) / 10) // a mount costs a tenth of a descriptor
	return tab
}

// views are visited mount namespaces, with the root of a process there: only the mounts below the
// root are visible to the process.
type views map[string]bool

// add adds the view of a process. It returns the namespace, and whether the view is new.
func (v views) add(p procfs.Process) (ns string, isNew bool) {
	ns, err := p.Namespace("mnt")
	root, _ := os.Readlink(p.Path("root"))
	if err != nil || v[ns+root] {
		return ns, false
	}
	v[ns+root] = true
	return ns, true
}

// copiesOf returns the ids of e and of its copies in other mount namespaces: the kernel unmounts
// all of them or none. in has the namespaces of the copies.
func copiesOf(s *procfs.Search, tab *mounttable.Table, e *mounttable.Entry) (ids []int, in map[int]string) {
	ids, in = []int{e.ID}, map[int]string{}
	self, _ := procfs.ThreadNamespace("mnt")
	visited, groups := views{}, sync.OnceValue(mounttable.AllGroups)
	s.Each(func(p procfs.Process) bool {
		ns, isNew := visited.add(p)
		if !isNew || ns == self {
			return true
		}
		theirs := tableOf(s, p)
		if theirs == nil {
			return true
		}
		for _, x := range theirs.Of(e.Number) {
			if mounttable.Follows(tab, e, theirs, x, groups) {
				ids = append(ids, x.ID)
				in[x.ID] = " in the mount namespace " + ns
			}
		}
		return true
	})
	return ids, in
}

// DeviceHolders finds the holders of a block device or of its partitions: devices on top, mounts of
// any mount namespace, and processes that have it open. Only children call it.
func DeviceHolders(d volume.Device) []Holder {
	devices, names := withPartitions(d)
	var holders []Holder
	for _, x := range devices {
		entries, _ := os.ReadDir("/sys/dev/block/" + x.Number + "/holders")
		for _, e := range entries {
			above, _ := sysfs.Line("/sys/block/" + e.Name() + "/dev")
			holders = append(holders, Holder{How: "/dev/" + e.Name() + mappedName(above) + " lies on " + names[x.Number]})
		}
	}
	if dev, err := os.Open(d.Path); err == nil {
		loops, _ := loopsOn(dev, d)
		dev.Close()
		for _, l := range loops {
			holders = append(holders, Holder{How: l})
		}
	}
	for _, path := range procfs.Swaps() {
		var st unix.Stat_t
		if !strings.HasPrefix(path, "/dev/") || unix.Stat(path, &st) != nil {
			continue
		}
		if name := names[sysfs.Number(st.Rdev)]; name != "" {
			holders = append(holders, Holder{How: name + " is swap space in use (swapoff " + path + ")"})
		}
	}
	mounted, visited := map[string]bool{}, views{}
	s := procfs.NewSearch(MaxSearch)
	s.Each(func(p procfs.Process) bool {
		if how := s.HoldsDevice(p, names); how != "" {
			holders = append(holders, holderOf(p, how))
		}
		if ns, isNew := visited.add(p); isNew {
			for number, dirs := range mountsOf(s, p, devices) {
				how := mountedIn(ns, dirs...)
				if number != d.Number {
					how = names[number] + " is " + how
				}
				holders, mounted[number] = append(holders, holderOf(p, how)), true
			}
		}
		return len(holders) < maxHolders
	})
	for _, x := range devices {
		if fsType := liveSuperblock(x.Number); fsType != "" && !mounted[x.Number] && !s.Cut() && len(holders) < maxHolders {
			holders = append(holders, unmountedSuperblock(fsType, x, names[x.Number]))
			holders = addProcesses(holders, s, func(p procfs.Process) string { return s.HoldsFileOn(p, x.Number) })
		}
	}
	return cut(s, holders)
}

// deviceMappers finds the processes that have mapped a block device or one of its partitions.
func deviceMappers(d volume.Device) []Holder {
	_, names := withPartitions(d)
	s := procfs.NewSearch(MaxSearch)
	return cut(s, addProcesses(nil, s, func(p procfs.Process) string { return s.MapsDevice(p, names) }))
}

// addProcesses adds the processes that how describes, until there are enough holders.
func addProcesses(holders []Holder, s *procfs.Search, how func(procfs.Process) string) []Holder {
	s.Each(func(p procfs.Process) bool {
		if how := how(p); how != "" {
			holders = append(holders, holderOf(p, how))
		}
		return len(holders) < maxHolders
	})
	return holders
}

func holderOf(p procfs.Process, how string) Holder {
	return Holder{Pid: int(p), Comm: p.Comm(), How: how}
}

// mountedIn describes the mount namespace in which a process has a device: lsns(8) lists
// namespaces by number.
func mountedIn(ns string, dirs ...string) string {
	return "mounted in its mount namespace " + ns + " at " + strings.Join(dirs, ", ")
}

// mountsOf returns the mount points of devices in the process's namespace, by number.
func mountsOf(s *procfs.Search, p procfs.Process, devices []volume.Device) map[string][]string {
	tab := tableOf(s, p)
	if tab == nil {
		return nil
	}
	mounts, dirs := tab.Devices(), map[string][]string{}
	for _, d := range devices {
		for _, e := range mounts.Of(d.Number, d.Path) {
			dirs[d.Number] = append(dirs[d.Number], e.Dir)
		}
		if all := dirs[d.Number]; all != nil {
			slices.Sort(all)
			dirs[d.Number] = slices.Compact(all)
		}
	}
	return dirs
}
