package mounttable

import (
	"path/filepath"
	"slices"
	"strings"
)

// All returns every entry in the kernel's order.
func (t *Table) All() []*Entry {
	t.visits.Add(int64(len(t.all)))
	return t.all
}

// Visits returns the number of entries that the table's methods have read, for tests.
func (t *Table) Visits() int64 { return t.visits.Load() }

// At returns the mounts at a directory. reached has the mounts that cover it, from the lowest to the one
// that a lookup reaches; hidden has those that no lookup reaches, because a parent
// directory is mounted over.
func (t *Table) At(dir string) (reached, hidden []*Entry) {
	i := t.dirs.of(dir)
	if i < 0 || t.at[i] == nil {
		return nil, nil
	}
	_, covering := t.lookup(dir)
	for lowest := t.at[i]; lowest != nil; lowest = lowest.beside {
		for e := lowest; e != nil; e = e.over {
			if lowest == covering {
				reached = append(reached, e)
			} else {
				hidden = append(hidden, e)
			}
		}
	}
	t.visits.Add(int64(len(reached) + len(hidden)))
	return reached, hidden
}

// Top returns the mount whose root a lookup of dir reaches, or nil if dir is no
// mount point.
func (t *Table) Top(dir string) *Entry {
	if _, lowest := t.lookup(dir); lowest != nil {
		return lowest.top
	}
	return nil
}

// Containing returns the mount that a lookup of dir reaches, or nil.
func (t *Table) Containing(dir string) *Entry {
	on, lowest := t.lookup(dir)
	if lowest != nil {
		return lowest.top
	}
	return on
}

// Over returns the mount that hides e from a lookup of its path, or nil.
func (t *Table) Over(e *Entry) *Entry {
	if t.Top(e.Dir) == e {
		return nil
	}
	above := map[*Entry]bool{}
	for on := e; on != nil && !above[on]; on = t.Parent(on) {
		above[on] = true
	}
	t.visits.Add(int64(len(above)))
	on := t.root
	path, _ := t.dirs.path(e.Dir, nil)
	for _, dir := range path {
		for m := t.child(on, dir); m != nil; m = m.over {
			if !above[m] {
				return m
			}
			on = m
		}
	}
	return nil
}

// Of returns the entries whose superblock has a device number.
func (t *Table) Of(number string) (of []*Entry) {
	if i := t.numbers.of(number); i >= 0 {
		for e := t.first[i]; e != nil; e = e.after {
			of = append(of, e)
		}
	}
	t.visits.Add(int64(len(of)))
	return of
}

// OfDevice is Devices.Of for one device now.
func (t *Table) OfDevice(number, path string) []*Entry {
	return t.Devices().Of(number, path)
}

// IsOf reports whether e is a mount of a device.
func (t *Table) IsOf(e *Entry, number, path string) bool {
	return slices.Contains(t.OfDevice(number, path), e)
}

// Parent returns the mount that e is mounted on, or nil if it is not in the table.
func (t *Table) Parent(e *Entry) *Entry {
	if p := t.ids()[e.Parent]; p != e {
		return p
	}
	return nil
}

func (t *Table) byID() map[int]*Entry {
	t.visits.Add(int64(len(t.all)))
	ids := make(map[int]*Entry, len(t.all))
	for _, e := range t.all {
		ids[e.ID] = e
	}
	return ids
}

// On returns the mounts on e.
func (t *Table) On(e *Entry) []*Entry { return t.on()[e.ID] }

func (t *Table) byParent() map[int][]*Entry {
	t.visits.Add(int64(len(t.all)))
	on := map[int][]*Entry{}
	for _, e := range t.all {
		if e.Parent != e.ID {
			on[e.Parent] = append(on[e.Parent], e)
		}
	}
	return on
}

// lookup walks a path as the kernel does: on is the mount that contains the last component,
// lowest the lowest mount that covers it there, if any.
func (t *Table) lookup(dir string) (on, lowest *Entry) {
	if dir == "/" {
		return nil, t.root
	}
	on = t.root
	path, whole := t.dirs.path(dir, make([]int, 0, 16))
	t.visits.Add(int64(len(path)))
	for i, above := range path {
		covers := t.child(on, above)
		if whole && i == len(path)-1 {
			return on, covers
		}
		if covers != nil {
			on = covers.top
		}
	}
	return on, nil
}

// child returns the lowest mount at a directory (its number) of the mount on.
func (t *Table) child(on *Entry, dir int) *Entry {
	for e := t.at[dir]; e != nil; e = e.beside {
		t.visits.Add(1)
		if on != nil && e.Parent == on.ID || on == nil && t.Parent(e) == nil {
			return e
		}
	}
	return nil
}

// CopyOf reports whether c is a copy of e that the kernel created by propagation and
// unmounts together with e.
func (t *Table) CopyOf(c, e *Entry) bool { return c != e && Follows(t, e, t, c, nil) }

// Place identifies e's mount point by filesystem and not by path: copies of e have the same place.
func (t *Table) Place(e *Entry) string {
	on := t.Parent(e)
	if on == nil {
		return ""
	}
	return on.Number + " " + within(on, e.Dir)
}

// Follows reports whether x, of this or another table, is a copy of e that is unmounted
// with it: its mount point is the same place on a mount that receives propagation from the
// mount under e. others returns peer groups that the table of x does not show; it may be nil.
func Follows(own *Table, e *Entry, tab *Table, x *Entry, others func() Groups) bool {
	if x.Root != e.Root || x.Number != e.Number {
		return false
	}
	ours, theirs := own.Parent(e), tab.Parent(x)
	return ours != nil && theirs != nil && tab.receives(theirs, ours, others) && within(ours, e.Dir) == within(theirs, x.Dir)
}

// Appears reports whether a mount at dir will be visible in another namespace, where the
// path of the directory is name. others returns peer groups that the other table does not show; it may be nil.
func (t *Table) Appears(dir string, other *Table, name string, others func() Groups) bool {
	on := t.Containing(dir)
	return on != nil && slices.ContainsFunc(other.paths(on, dir, name), func(path string) bool {
		return other.Top(path) == nil && other.receives(other.Containing(path), on, others)
	})
}

// Shows reports whether a lookup in another namespace, where the path of the directory is name,
// reaches the filesystem that is mounted at dir.
func (t *Table) Shows(dir string, other *Table, name string) bool {
	on, lowest := t.lookup(dir)
	return on != nil && lowest != nil && slices.ContainsFunc(other.paths(on, dir, name), func(path string) bool {
		x := other.Top(path)
		return x != nil && x.Number == lowest.top.Number && x.Root == lowest.top.Root
	})
}

// paths returns the paths in this table at which a lookup reaches dir, a directory of the mount on of another
// table. If name is one of them, it returns only name: a process that uses it does not use the others.
func (t *Table) paths(on *Entry, dir, name string) (all []string) {
	place := within(on, dir)
	for _, e := range t.Of(on.Number) {
		rest, ok := strings.CutPrefix(place, strings.TrimSuffix(e.Root, "/")+"/")
		if !ok {
			continue
		}
		path := filepath.Join(e.Dir, rest)
		if holds, _ := t.lookup(path); holds != e {
			continue
		}
		if path == name {
			return []string{path}
		}
		all = append(all, path)
	}
	return all
}

// receives reports whether mounts on from propagate to the mount to of this table, as a peer or as a direct or
// indirect slave.
func (t *Table) receives(to, from *Entry, others func() Groups) bool {
	master := to.master()
	switch {
	case from.Peer == 0:
		return false
	case to.Peer == from.Peer || master == from.Peer:
		return true
	case master == 0:
		return false
	}
	return t.groups().follows(master, from.Peer) || others != nil && others().follows(master, from.Peer)
}

// within returns the path of a directory in the filesystem of its mount.
func within(on *Entry, dir string) string {
	return filepath.Join(on.Root, strings.TrimPrefix(dir, on.Dir))
}
