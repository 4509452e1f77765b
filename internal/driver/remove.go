package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Remove takes the driver out of every plugin directory of the node, or the given one.
func (n *Node) Remove(ctx context.Context, given string) error {
	return n.each(ctx, given, func(p *place) error {
		if exists(p.exe) && !IsOurs(p.exe) {
			p.say("keep: %s: it is not flexd's driver", p.exe)
			return nil
		}
		inUse, err := p.mounted()
		if err != nil {
			return err
		}
		if len(inUse) > 0 {
			return refuse("drain the node (kubectl drain), see that these are gone, and run this again",
				"volumes of %s are mounted, and without the driver kubelet could not unmount them:\n%s", p.Driver, strings.Join(inUse, "\n"))
		}
		return p.remove()
	})
}

// each locks and handles one plugin directory after the other.
func (n *Node) each(ctx context.Context, given string, f func(*place) error) error {
	places, err := n.places(given)
	if err != nil {
		return err
	}
	defer n.unlock()
	for _, p := range places {
		if err := p.lock(ctx); err != nil {
			return err
		}
		p.describe()
		if err := f(p); err != nil {
			return err
		}
	}
	return nil
}

// remove unlinks the executable first, which kubelet detects. Without the dotfile the executable's answer to
// init would change.
func (p *place) remove() error {
	if !exists(p.dir) {
		p.say("none: %s", p.exe)
		return nil
	}
	for _, file := range []string{p.exe, p.initFile} {
		if exists(file) && p.act("remove %s", file) {
			if err := os.Remove(file); err != nil {
				return err
			}
		}
	}
	if p.DryRun {
		return nil
	}
	p.unstage(false)
	if err := os.Remove(p.dir); err != nil {
		var names []string
		entries, _ := os.ReadDir(p.dir)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		p.say("keep: %s, since it has other files: %s", p.dir, strings.Join(names, ", "))
	}
	if exists(p.kept()) {
		p.say("keep: %s: the driver that was replaced; to put it back: flexd driver restore, or without flexd: cp -a %[1]s %s/", p.kept(), p.plugins)
	}
	return syncDir(p.plugins)
}

// kept returns the directory for the copy of the replaced driver.
func (p *place) kept() string {
	return p.Root + p.Kept + strings.TrimPrefix(p.dir, p.Root)
}

// keep copies the driver to be replaced, unless the copy exists.
func (p *place) keep() error {
	kept := p.kept()
	if exists(kept) {
		if p.isKept() {
			return nil
		}
		return refuse("see what both are, and move "+kept+" away", "%s has the copy of yet another driver that was replaced", kept)
	}
	tmp := filepath.Join(filepath.Dir(kept), "."+filepath.Base(kept)+".new")
	err := os.RemoveAll(tmp)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(kept), 0o700)
	}
	if err == nil {
		err = copyDir(tmp, p.dir)
	}
	if err == nil {
		err = syncDir(tmp)
	}
	if err == nil {
		err = os.Rename(tmp, kept)
	}
	if err != nil {
		_ = os.RemoveAll(tmp)
		return fmt.Errorf("no copy of the driver can be made, so it was not replaced: %w", err)
	}
	return syncDir(filepath.Dir(kept))
}

// isKept reports whether the installed driver is the kept one.
func (p *place) isKept() bool {
	kept := filepath.Join(p.kept(), filepath.Base(p.exe))
	to, err := os.Readlink(p.exe)
	keptTo, err2 := os.Readlink(kept)
	if err == nil || err2 == nil {
		return to == keptTo
	}
	now, err := os.ReadFile(p.exe)
	before, err2 := os.ReadFile(kept)
	return err == nil && err2 == nil && bytes.Equal(now, before)
}

// copyDir copies a directory with the owners and modes of its files, some of which may be secret.
func copyDir(to, from string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	var all []string
	err := filepath.WalkDir(from, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, path)
		return err
	})
	for _, path := range slices.Backward(all) { // the directory last: until then no other user can enter it
		st, err2 := os.Lstat(path)
		if err2 != nil {
			return err2
		}
		copied := to + strings.TrimPrefix(path, from)
		sys := st.Sys().(*syscall.Stat_t)
		err = errors.Join(err, os.Lchown(copied, int(sys.Uid), int(sys.Gid)))
		if st.Mode()&os.ModeSymlink == 0 {
			err = errors.Join(err, os.Chmod(copied, st.Mode()))
		}
	}
	return err
}

// Restore puts back the drivers that were replaced, each in one rename, also while volumes
// are mounted: kubelet goes on with the other driver.
func (n *Node) Restore(ctx context.Context, given string) error {
	return n.each(ctx, given, func(p *place) error {
		kept := p.kept()
		if !exists(kept) {
			p.say("none: no driver was replaced in %s", p.plugins)
			return nil
		}
		swapped := exists(p.exe) && p.isKept() // by an interrupted restoration
		if exists(p.exe) && !IsOurs(p.exe) && !swapped {
			return refuse("see what it is; the copy is "+kept, "%s is another program than flexd's driver, so it was not replaced", p.exe)
		}
		if !swapped {
			if err := p.sameMode(ctx, kept); err != nil {
				return err
			}
		}
		if !p.act("restore %s from %s", p.exe, kept) {
			return nil
		}
		p.unstage(false)
		defer p.unstage(false)
		if !exists(p.dir) {
			if err := copyDir(p.outside, kept); err != nil {
				return err
			}
			if err := errors.Join(syncDir(p.outside), os.Rename(p.outside, p.dir)); err != nil {
				return err
			}
		} else if err := p.swap(kept); err != nil {
			return err
		}
		if err := p.finish(p.dir); err != nil {
			return err
		}
		return os.RemoveAll(kept)
	})
}

// swap replaces flexd's driver by the kept one: first the executable, then init's file,
// which only flexd's driver reads.
func (p *place) swap(kept string) error {
	for _, f := range []struct{ name, staged, dest string }{{filepath.Base(p.exe), p.newExe, p.exe}, {filepath.Base(p.initFile), p.newInitFile, p.initFile}} {
		from := filepath.Join(kept, f.name)
		st, err := os.Lstat(from)
		switch {
		case os.IsNotExist(err):
			err = os.RemoveAll(f.dest)
		case err == nil && st.Mode()&os.ModeSymlink != 0:
			var to string
			if to, err = os.Readlink(from); err == nil {
				err = errors.Join(os.Symlink(to, f.staged), os.Rename(f.staged, f.dest))
			}
		case err == nil:
			var text []byte
			if text, err = os.ReadFile(from); err == nil {
				err = write(f.staged, text, st.Mode().Perm())
			}
			if err == nil {
				err = os.Rename(f.staged, f.dest)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sameMode refuses to restore a driver with another mode while volumes are mounted.
func (p *place) sameMode(ctx context.Context, kept string) error {
	inUse, err := p.mounted()
	if err != nil || len(inUse) == 0 {
		return err
	}
	ours, err := Mode(p.initFile)
	if err != nil {
		return err
	}
	c, err := p.init(ctx, filepath.Join(kept, filepath.Base(p.exe)))
	switch {
	case err != nil:
		return refuse("see what its init says; or drain the node, and run this again", "the mode of the driver in %s is unknown, and volumes are mounted: %v", kept, err)
	case (c == nil || c.attaches()) != ours:
		return refuse("drain the node (kubectl drain), and run this again", "the driver in %s has attach:%t, and volumes are mounted with attach:%t:\n%s", kept, !ours, ours, strings.Join(inUse, "\n"))
	}
	return nil
}

// Status reports the kubelets of the node, and the driver in their plugin directories.
func (n *Node) Status(given string) error {
	places, err := n.places(given)
	if err != nil {
		return err
	}
	for _, p := range places {
		p.describe()
		attach, err := Mode(p.initFile)
		switch {
		case !exists(p.exe):
			p.report("driver", "%s is not installed: flexd driver install", p.Driver)
		case !IsOurs(p.exe):
			p.report("driver", "%s is another program than flexd's driver", p.exe)
		case err != nil:
			p.report("driver", "%s, whose init fails: %s: %v", p.exe, p.initFile, err)
		default:
			p.report("driver", "%s, attach:%t", p.exe, attach)
		}
		if exists(p.kept()) {
			p.report("replaced", "%s; flexd driver restore puts it back", p.kept())
		}
	}
	if _, missing := n.roots(); len(missing) > 0 {
		n.report("to do", "set in %s: %s", n.Path, n.rootsLine())
	}
	return nil
}
