package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// A Layout has kubelet's directories for the volumes of one driver. The root directories
// may be symlinks, and may appear after flexd's start, so they are resolved at each
// use.
type Layout struct {
	Dirs   []string // kubelet's root directories as configured
	Driver string   // "vendor/driver"
}

// Resolve returns the path of dir in the mount table, and the root that contains it. It follows symlinks in
// parent directories, but does not access dir itself, which may be a mount that hangs. Missing
// components stay unchanged. If no root contains dir, it returns an error and the path: see AnyRoot.
func (l Layout) Resolve(dir string) (path, root string, err error) {
	parent, err := resolve(filepath.Dir(dir))
	if err != nil {
		return "", "", errors.New(dir + ": " + err.Error())
	}
	path = filepath.Join(parent, filepath.Base(dir))
	roots, _ := l.Roots()
	for _, r := range roots {
		if strings.HasPrefix(path, r+"/") && len(r) > len(root) { // roots may be nested
			root = r
		}
	}
	if root != "" {
		return path, root, nil
	}
	if path != dir {
		return path, "", errors.New(dir + " leads to " + path + ", which is outside kubelet's directories (kubeletRoots: " + strings.Join(l.Dirs, ", ") + ")")
	}
	return path, "", errors.New(dir + " is outside kubelet's directories (kubeletRoots: " + strings.Join(l.Dirs, ", ") + ")")
}

// AnyRoot returns the place that a path would be if another root were configured: a mount there may be from a
// time when it was.
func (l Layout) AnyRoot(path string) volume.Place {
	for root := filepath.Dir(path); len(root) > 1; root = filepath.Dir(root) {
		if p := l.Place(root, path); p.Kind != "" || p.Bind {
			return p
		}
	}
	return volume.Place{}
}

// Roots returns the root directories that can be resolved; all reports whether these are all.
func (l Layout) Roots() (dirs []string, all bool) {
	for _, d := range l.Dirs {
		if p, err := resolve(d); err == nil {
			dirs = append(dirs, p)
		}
	}
	return dirs, len(dirs) == len(l.Dirs)
}

// Link returns a symlink below a root in the path of a directory for a volume, or "".
func (l Layout) Link(dir string) string {
	roots, _ := l.Roots()
	for _, root := range append(roots, l.Dirs...) {
		if l.Place(root, dir).Kind == "" {
			continue
		}
		for p := filepath.Dir(dir); len(p) > len(root); p = filepath.Dir(p) {
			if info, err := os.Lstat(p); err == nil && info.Mode()&os.ModeSymlink != 0 {
				return p
			}
		}
	}
	return ""
}

// resolve follows the symlinks of the part of path that exists.
func resolve(path string) (string, error) {
	p, err := filepath.EvalSymlinks(path)
	if err == nil || !os.IsNotExist(err) && !errors.Is(err, unix.ENOTDIR) {
		return p, err
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path, nil
	}
	if _, lerr := os.Lstat(path); lerr == nil {
		return "", errors.New(path + " is a symlink that leads nowhere")
	}
	p, err = resolve(parent)
	return filepath.Join(p, filepath.Base(path)), err
}
