package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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
// The path is returned then, too: what is mounted there may be from a time when
// other roots were configured.
func (r Roots) Resolve(dir string) (path, root string, err error) {
	parent, err := resolve(filepath.Dir(dir))
	if err != nil {
		return "", "", errors.New(dir + ": " + err.Error())
	}
	path = filepath.Join(parent, filepath.Base(dir))
	for _, root := range r.Resolved() {
		if strings.HasPrefix(path, root+"/") {
			return path, root, nil
		}
	}
	if path != dir {
		return path, "", errors.New(dir + " leads to " + path + ", which is outside kubelet's directories (kubeletRoots: " + strings.Join(r.Dirs, ", ") + ")")
	}
	return path, "", errors.New(dir + " is outside kubelet's directories (kubeletRoots: " + strings.Join(r.Dirs, ", ") + ")")
}

// Resolved returns those of the directories that can be resolved.
func (r Roots) Resolved() []string {
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
		return "", errors.New(path + " is a symlink that leads nowhere")
	}
	p, err = resolve(parent)
	return filepath.Join(p, filepath.Base(path)), err
}
