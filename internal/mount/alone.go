package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/procfs"
)

// elsewhere finds other mount namespaces in which the device of e is mounted. It ignores copies of
// e that an unmount of e removes as well: the kernel refuses that unmount if a copy is in use. A
// namespace that cannot be read is an error. Only children call it, because it reads every thread
// of the machine.
func elsewhere(own *mounttable.Table, e *mounttable.Entry, number string) ([]Holder, error) {
	if err := procfs.SeesAll(); err != nil {
		return nil, err
	}
	self, err := procfs.ThreadNamespace("mnt")
	if err != nil {
		return nil, fmt.Errorf("own mount namespace: %w", err)
	}
	s := search{self: self, own: own, e: e, number: number, path: nodeOf(number),
		names: map[string]bool{self: true}, views: map[string]bool{}, kept: map[string]string{}, groups: sync.OnceValue(mounttable.AllGroups)}
	s.addKept(own)
	tasks, err := procfs.Tasks()
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		if err := s.look(task); err != nil && !gone(err) { // a thread that has ended holds nothing
			return nil, fmt.Errorf("the mounts of other namespaces cannot be read: process %d: %w", task.Process(), err)
		}
	}
	for name, where := range s.kept {
		if !s.names[name] && len(s.holders) == 0 {
			return nil, fmt.Errorf("%s is kept by %s without a process, so its mounts are unknown", name, where)
		}
	}
	return s.holders, nil
}

// A search is one walk over the mount namespaces.
type search struct {
	self         string // our own namespace
	own          *mounttable.Table
	e            *mounttable.Entry
	number, path string
	names        map[string]bool   // visited namespaces: "mnt:[4026531841]"
	views        map[string]bool   // the same, with the root of a process there: only mounts below it are visible
	kept         map[string]string // namespaces that a bind mount keeps, with its directory
	groups       func() mounttable.Groups
	holders      []Holder
}

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}

// look reads the mounts that are visible to a thread.
func (s *search) look(task procfs.Task) error {
	name, err := os.Readlink(task.Path("ns/mnt"))
	if err != nil {
		return err
	}
	if name == s.self {
		return nil
	}
	root, err := os.Readlink(task.Path("root"))
	if err != nil {
		return err
	}
	view := name + root
	if s.views[view] {
		return nil
	}
	tab, err := readTable(task.Path("mountinfo"))
	if err != nil {
		return err
	}
	s.names[name], s.views[view] = true, true
	s.addKept(tab)
	for _, x := range tab.OfDevice(s.number, s.path) {
		if !mounttable.Follows(s.own, s.e, tab, x, s.groups) {
			s.holders = append(s.holders, holderOf(task.Process(), mountedIn(name, x.Dir)))
			break
		}
	}
	return nil
}

// addKept adds the namespaces that bind mounts of a table keep.
func (s *search) addKept(tab *mounttable.Table) {
	for _, e := range tab.All() {
		if e.Type == "nsfs" && strings.HasPrefix(e.Root, "mnt:") {
			s.kept[e.Root] = e.Dir
		}
	}
}
