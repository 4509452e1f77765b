package asw

import (
	"slices"

	"github.com/flexd/flexd/internal/mounttable"
)

// whole reports whether a mount shows what flexd mounts: the whole filesystem or, of a btrfs,
// the default subvolume. That may be changed while it is mounted, so that the notes of the
// claims at dirs decide. Without any, it is the top level, or what was found at the start without a note.
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
// does.
func directory(e *mounttable.Entry) bool {
	_, subvolume := e.Subvolume()
	return e.Root != "/" && e.Root != subvolume
}

// Found remembers the subvolumes that are mounted at the start without a note of any mount of
// their filesystem, as all were lost.
func (o *Observer) Found(table *mounttable.Table) {
	noted := func(e *mounttable.Entry) bool { return len(o.Subvolumes(e.Dir)) > 0 }
	for _, e := range o.OurMounts(table) {
		if id, _ := e.Subvolume(); id != "" && !slices.ContainsFunc(table.Of(e.Number), noted) {
			o.found.Store(e.Dir, id)
		}
	}
}
