package asw

import (
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/mounttable"
)

// whole reports whether a mount shows the whole filesystem or the default subvolume of a btrfs. The
// default may change while the filesystem is mounted, so the notes of the claims at dirs decide. Without
// notes, it is the top level, or the subvolume that Found has stored.
func (o *Observer) whole(e *mounttable.Entry, dirs []string) bool {
	id, _ := e.Subvolume()
	switch {
	case directory(e):
		return false
	case id == "" || o.Subvolumes == nil:
		return true
	}
	if here := o.Subvolumes(e.Dir); len(here) > 0 {
		return slices.Contains(here, id) || slices.Contains(here, "")
	}
	if found, ok := o.found.Load(e.Dir); ok && found == id {
		return true
	}
	noted := false
	for _, dir := range dirs {
		for _, s := range o.Subvolumes(dir) {
			if s == id {
				return true
			}
			noted = noted || s != ""
		}
	}
	return !noted && e.Root == "/"
}

// directory reports whether a mount shows a directory of a filesystem or subvolume, as a bind
// does. The kernel does not know the path of a subvolume that was deleted.
func directory(e *mounttable.Entry) bool {
	_, subvolume := e.Subvolume()
	return e.Root != "/" && e.Root != subvolume && !(subvolume == "" && deleted(e))
}

// deleted reports whether the directory or subvolume that a mount shows was deleted.
func deleted(e *mounttable.Entry) bool { return strings.HasSuffix(e.Root, "//deleted") }

// Found stores the subvolumes that are mounted at the start, if all notes about the mounts of their
// filesystem were lost.
func (o *Observer) Found(table *mounttable.Table) {
	noted := func(e *mounttable.Entry) bool { return len(o.Subvolumes(e.Dir)) > 0 }
	for _, e := range o.OurMounts(table) {
		if id, _ := e.Subvolume(); id != "" && !slices.ContainsFunc(table.Of(e.Number), noted) {
			o.found.Store(e.Dir, id)
		}
	}
}
