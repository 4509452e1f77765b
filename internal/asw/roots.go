package asw

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/flexd/flexd/internal/flex"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// Roots are kubelet's root directories. They may be symlinks, and they may
// appear after flexd started, so they are resolved at each use.
type Roots struct {
	Dirs   []string // as configured
	Driver string   // "vendor/driver"
}

// Resolve returns dir as the mount table would show it: every symlink on the
// way to it is followed, dir itself is not looked at, because it may be a mount
// that hangs. What does not exist is taken as it is written. It is an error if
// the result is not below one of kubelet's roots, which is returned beside it.
func (r Roots) Resolve(dir string) (path, root string, err error) {
	parent, err := resolve(filepath.Dir(dir))
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", dir, err)
	}
	path = filepath.Join(parent, filepath.Base(dir))
	for _, root := range r.resolved() {
		if strings.HasPrefix(path, root+"/") {
			return path, root, nil
		}
	}
	if path != dir {
		return "", "", fmt.Errorf("%s leads to %s, which is outside kubelet's directories (kubeletRoots: %s)", dir, path, strings.Join(r.Dirs, ", "))
	}
	return "", "", fmt.Errorf("%s is outside kubelet's directories (kubeletRoots: %s)", dir, strings.Join(r.Dirs, ", "))
}

func (r Roots) resolved() []string {
	var roots []string
	for _, d := range r.Dirs {
		if p, err := resolve(d); err == nil {
			roots = append(roots, p)
		}
	}
	return roots
}

// resolve follows the symlinks of the part of path that exists.
func resolve(path string) (string, error) {
	p, err := filepath.EvalSymlinks(path)
	if err == nil || !os.IsNotExist(err) {
		return p, err
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path, nil
	}
	if _, lerr := os.Lstat(path); lerr == nil {
		return "", fmt.Errorf("%s is a symlink that leads nowhere", path)
	}
	p, err = resolve(parent)
	return filepath.Join(p, filepath.Base(path)), err
}

// A ruler tells whose mounts are whose.
type ruler struct {
	roots  []string
	driver string
}

// A ruling is the ruler of one table: kubelet's roots are resolved once for all
// volumes that are looked for in it.
type ruling struct {
	table *mount.Table
	ruler ruler
}

func (o *Observer) ruler(table *mount.Table) ruler {
	if r := o.ruling.Load(); r != nil && r.table == table && len(r.ruler.roots) == len(o.Roots.Dirs) {
		return r.ruler
	}
	r := &ruling{table, ruler{o.Roots.resolved(), o.Roots.Driver}}
	o.ruling.Store(r)
	return r.ruler
}

// owner classifies a mount by where it is. Kubelets means that only while a mount
// of ours shows the same filesystem.
func (r ruler) owner(e *mount.Entry) (volume.Owner, volume.Kind) {
	for _, root := range r.roots {
		if !strings.HasPrefix(e.Dir, root+"/") {
			continue
		}
		place, ok := flex.ParsePlace(root, r.driver, e.Dir)
		switch {
		case ok && whole(e) && place.Staged:
			return volume.Ours, volume.Staged
		case ok && whole(e):
			return volume.Ours, volume.Published
		case flex.IsSubPath(root, e.Dir):
			return volume.Kubelets, ""
		}
	}
	return volume.Elsewhere, ""
}
