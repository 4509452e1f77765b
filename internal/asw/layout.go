package asw

import (
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// A Layout knows the directories in which one frontend wants volumes mounted.
type Layout interface {
	// Roots returns the directories that contain all of them, as the mount table shows them; all =
	// false if there will be more.
	Roots() (dirs []string, all bool)
	// Place returns the kind of a directory below one of the roots.
	Place(root, dir string) volume.Place
	// AnyRoot returns the place that a path would be below another root.
	AnyRoot(path string) volume.Place
	// Strays returns the directories that are not empty although nothing is mounted there.
	Strays() []volume.Stray
}

// Pods are the frontends' pods at one instant.
type Pods interface {
	// Life reports whether a pod has a process, and how that is known.
	Life(uid string) (volume.Life, string)
	// Events returns the files in which the kernel announces the pod's first and last process.
	Events(uid string) []string
	// Forget drops the memory of all other pods.
	Forget(but map[string]bool)
}

// A root is a directory of a layout.
type root struct {
	dir    string
	layout Layout
}

// A classifier determines the owners of mounts by the directories of all frontends.
type classifier []root

// cachedOwners is the classifier of one table: roots are resolved once for all volumes
// that are looked for in it.
type cachedOwners struct {
	table      *mounttable.Table
	classifier classifier
	all        bool // every root could be resolved
}

func (o *Observer) classifierFor(table *mounttable.Table) classifier {
	if r := o.cached.Load(); r != nil && r.table == table && r.all {
		return r.classifier
	}
	r := &cachedOwners{table: table, all: true}
	for _, l := range o.Layouts {
		dirs, all := l.Roots()
		for _, dir := range dirs {
			r.classifier = append(r.classifier, root{dir, l})
		}
		r.all = r.all && all
	}
	o.cached.Store(r)
	return r.classifier
}

// place returns the kind of a directory.
func (c classifier) place(dir string) (place volume.Place) {
	for _, r := range c {
		if !strings.HasPrefix(dir, r.dir+"/") {
			continue
		}
		switch p := r.layout.Place(r.dir, dir); {
		case p.OtherDriver: // unless it is one of another layout's
			place = p
		case p != (volume.Place{}):
			return p
		}
	}
	return place
}

// within reports whether a directory is below a root.
func (c classifier) within(dir string) bool {
	return slices.ContainsFunc(c, func(r root) bool { return strings.HasPrefix(dir, r.dir+"/") })
}

// Place returns the kind of a directory of the mount table.
func (o *Observer) Place(dir string) volume.Place {
	return o.classifierFor(o.LastTable()).place(dir)
}

// Strays returns the directories of all frontends that are not empty although nothing is
// mounted there.
func (o *Observer) Strays() (all []volume.Stray) {
	for _, l := range o.Layouts {
		all = append(all, l.Strays()...)
	}
	return all
}

// life reports whether a pod still has a process.
func (o *Observer) life(uid string) (volume.Life, string) {
	switch {
	case uid == "":
		return volume.LifeUnknown, "no pod's directory"
	case o.Pods == nil:
		return volume.LifeUnknown, "the processes of pods cannot be observed here"
	}
	return o.Pods().Life(uid)
}
