package hosttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Actions of kubelet and of an operator on the machine.

// IsMountPoint returns the result of kubelet's mount point check.
func (h *Host) IsMountPoint(dir string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.top(dir) != nil
}

// Exists reports whether a directory is there.
func (h *Host) Exists(dir string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.folders[h.place(dir)]
}

// Mkdir is MkdirAll.
func (h *Host) Mkdir(dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ; !h.folders[h.place(dir)]; dir = path.Dir(dir) {
		h.folders[h.place(dir)] = true
	}
	return nil
}

// Remove is os.Remove of a directory.
func (h *Host) Remove(dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	on, place := h.reach(dir), h.place(dir)
	mountPoint := func(m *mnt) bool {
		return m.on != nil && m.on.number == on.number && m.on.number+" "+m.on.within(m.dir) == place
	}
	switch {
	case !h.folders[place]:
		return fs.ErrNotExist
	case on.dir == dir, slices.ContainsFunc(h.mounts, mountPoint): // no lookup need reach it
		return &fs.PathError{Op: "remove", Path: dir, Err: syscall.EBUSY}
	}
	for f := range h.folders {
		if strings.HasPrefix(f, place+"/") {
			return &fs.PathError{Op: "remove", Path: dir, Err: syscall.ENOTEMPTY}
		}
	}
	delete(h.folders, place)
	return nil
}

// Umount is an operator's umount(8).
func (h *Host) Umount(dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.top(dir)
	switch {
	case m == nil:
		return errors.New("not mounted")
	case h.busy(m):
		return syscall.EBUSY
	}
	h.unlink(m)
	return nil
}

// MountTmpfs is an operator's mount of a tmpfs.
func (h *Host) MountTmpfs(dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.folders[h.place(dir)] = true
	h.add(&mnt{number: fmt.Sprintf("0:%d", h.nextID), root: "/", dir: dir, typ: "tmpfs", src: "tmpfs", super: "rw", owners: true})
	return nil
}

// BindItself binds a directory on itself, as for a kubelet in a container, which hides the mounts in it. It
// reports whether it has bound it.
func (h *Host) BindItself(dir string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	on := h.reach(dir)
	if on.dir == dir || !h.folders[h.place(dir)] {
		return false
	}
	h.bind(on, dir, dir)
	return true
}

// Bind is an operator's mount --bind.
func (h *Host) Bind(from, dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.folders[h.place(from)] = true
	h.bind(h.reach(from), from, dir)
	return nil
}

func (h *Host) bind(on *mnt, from, dir string) {
	bind := *on
	bind.root, bind.dir, bind.owners = on.within(from), dir, true
	h.add(&bind)
}

// Propagate makes the mount that dir is on private, or shared if it is private.
func (h *Host) Propagate(dir string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.reach(dir); m.peer != 0 {
		for _, on := range h.mounts {
			if on.on == m {
				for _, c := range h.copies(on) {
					c.stranded = true
				}
			}
		}
		m.peer = 0
	} else {
		m.peer = 1000 + h.nextID
		h.nextID++
	}
}

// MountElsewhere is a mount of an active volume by an operator or another driver, at any directory.
func (h *Host) MountElsewhere(file, dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.loopOf(h.files[file])
	switch {
	case l == nil:
		return syscall.ENXIO
	case l.file.State != Whole:
		return syscall.EINVAL
	case l.file.excl:
		return syscall.EBUSY
	}
	h.folders[h.place(dir)] = true
	h.add(&mnt{number: l.Number, root: "/", dir: dir, typ: l.file.Type, src: "/dev/" + l.Name, super: "rw", file: l.file, owners: true})
	return nil
}

// Hold opens a file on the mount at dir, as a process of a pod does.
func (h *Host) Hold(dir string) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := h.top(dir).id
	h.holders[id]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.holders[id]--
	}
}

// Freeze is a backup's fsfreeze -f of the volume mounted at dir; the function thaws it.
func (h *Host) Freeze(dir string) (thaw func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.top(dir)
	if m == nil || m.file == nil {
		return nil
	}
	f := m.file
	h.frozen[f] = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.frozen, f)
		h.detached()
	}
}

// MountInNamespace mounts a volume in another mount namespace; "" removes that mount.
func (h *Host) MountInNamespace(file, dir string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.elsewhere[file] = dir
}

// Write is a pod that writes to the mount at dir.
func (h *Host) Write(dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.top(dir)
	switch {
	case m == nil || m.file == nil:
		return errors.New("no volume is mounted there")
	case m.ro || m.superRO:
		return syscall.EROFS
	case h.locking != nil && h.locking.cutOff:
		return syscall.EIO
	}
	m.file.Data++
	return nil
}

// MountedAt returns the volume on top of dir; "" = none.
func (h *Host) MountedAt(dir string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.top(dir); m != nil && m.file != nil {
		return path.Base(m.file.path)
	}
	return ""
}

// StandsAt reports whether a volume is mounted at dir, also where no lookup reaches it.
func (h *Host) StandsAt(dir string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.mounts, func(m *mnt) bool { return m.dir == dir && m.file != nil && !m.owners })
}

// Hang makes the next command of that kind hang until it is released: before its effect, or after it with
// the process alive. A hard hang cannot be killed.
func (h *Host) Hang(op string, afterEffect, hard bool) (hit <-chan struct{}, release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := &hang{release: make(chan struct{}), hard: hard, hit: make(chan struct{})}
	if afterEffect {
		h.after[op] = g
	} else {
		h.before[op] = g
	}
	return g.hit, func() { g.once.Do(func() { close(g.release) }) }
}

// WhileLooking is called when loop devices are listed, after flexd has read the mount table and before it
// uses it.
func (h *Host) WhileLooking(do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looking = do
}

// HangGroup makes each look-up in the volume group wait until its context ends, or
// until it is released.
func (h *Host) HangGroup() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hung := make(chan struct{})
	h.hung = hung
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.hung = nil
		close(hung)
	})
}

func (h *Host) lookUp(ctx context.Context) error {
	h.mu.Lock()
	hung := h.hung
	h.mu.Unlock()
	if hung == nil {
		return nil
	}
	select {
	case <-hung:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *Host) takeTime() {
	h.mu.Lock()
	do := h.looking
	h.mu.Unlock()
	if do != nil {
		do()
	}
}

func (h *Host) setCareless(v bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Careless = v
}

// DieHalfway kills the next command of that kind in the middle of its effect.
func (h *Host) DieHalfway(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before[what] = &hang{hit: make(chan struct{}), die: true}
}
