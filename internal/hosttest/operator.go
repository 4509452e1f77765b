package hosttest

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
)

// What kubelet and an operator do on the machine themselves.

// IsMountPoint says what kubelet's IsLikelyNotMountPoint would.
func (h *Host) IsMountPoint(dir string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.top(dir) != nil
}

// Exists says whether a directory is there.
func (h *Host) Exists(dir string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.folders[dir]
}

// Mkdir is MkdirAll.
func (h *Host) Mkdir(dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ; !h.folders[dir]; dir = path.Dir(dir) {
		h.folders[dir] = true
	}
	return nil
}

// Remove is os.Remove of a directory.
func (h *Host) Remove(dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.folders[dir]:
		return fs.ErrNotExist
	case h.top(dir) != nil:
		return &fs.PathError{Op: "remove", Path: dir, Err: syscall.EBUSY}
	}
	for f := range h.folders {
		if strings.HasPrefix(f, dir+"/") {
			return &fs.PathError{Op: "remove", Path: dir, Err: syscall.ENOTEMPTY}
		}
	}
	delete(h.folders, dir)
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
	case h.holders[m.id] > 0 || h.covered(m):
		return syscall.EBUSY
	}
	h.unlink(m)
	return nil
}

// MountTmpfs is an operator's mount of something else.
func (h *Host) MountTmpfs(dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.folders[dir] = true
	h.add(&mnt{number: "0:77", root: "/", dir: dir, typ: "tmpfs", src: "tmpfs", super: "rw"})
	h.tableChanged()
	return nil
}

// MountElsewhere is an operator's mount of a volume that is active.
func (h *Host) MountElsewhere(file, dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.loopOf(h.files[file])
	switch {
	case l == nil:
		return syscall.ENXIO
	case l.file.State != Whole:
		return syscall.EINVAL
	}
	h.add(&mnt{number: l.Number, root: "/", dir: dir, typ: l.file.Type, src: "/dev/" + l.Name, super: "rw", file: l.file})
	h.tableChanged()
	return nil
}

// Elsewhere begins the directories where an operator mounts volumes of ours.
const Elsewhere = "/mnt/"

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

// HoldDevice opens the volume's block device; nil if there is none.
func (h *Host) HoldDevice(file string) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.loopOf(h.files[file])
	if l == nil {
		return nil
	}
	l.openers++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		l.openers--
	}
}

// MountInNamespace mounts a volume in another mount namespace; "" takes it away.
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
	}
	m.file.Data++
	return nil
}

// MountedAt returns which volume is on top of dir, "" if none is.
func (h *Host) MountedAt(dir string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.top(dir); m != nil && m.file != nil {
		return path.Base(m.file.path)
	}
	return ""
}

// VolumeOf returns which volume a device node is of.
func (h *Host) VolumeOf(device string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.loops[path.Base(device)]; l != nil {
		return path.Base(l.file.path)
	}
	return ""
}

// Hide takes a volume's file away, as when its disk goes, and brings it back.
func (h *Host) Hide(file string) (show func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.files[file]
	if f == nil {
		return nil, false
	}
	delete(h.files, file)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.files[file] == nil { // else a new one has taken its place
			h.files[file] = f
		}
	}, true
}

// Tidy unmounts what an operator has mounted, and ends the faults that are still
// to come.
func (h *Host) Tidy(root string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.torn, h.blind = false, false
	for _, m := range slices.Clone(h.mounts) {
		if strings.HasPrefix(m.dir, root+"/") && m.file == nil || strings.HasPrefix(m.dir, Elsewhere) {
			h.unlink(m)
		}
	}
}

func (h *Host) covered(m *mnt) bool {
	for _, o := range h.mounts {
		if o.parent == m.id {
			return true
		}
	}
	return false
}

// Hang makes the next command of that kind stay where it is until released:
// before its effect, or after it with the process alive. A hard one does not
// even die.
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

// WhileLooking is called when somebody asks for loop devices: between flexd's
// look at the mount table and what it makes of it.
func (h *Host) WhileLooking(do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looking = do
}

func (h *Host) takeTime() {
	h.mu.Lock()
	do := h.looking
	h.mu.Unlock()
	if do != nil {
		do()
	}
}

// Losetup is an operator's losetup -f of a volume's file, beside flexd's; nil if
// there is no such file.
func (h *Host) Losetup(file string) (detach func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.files[file]
	if f == nil {
		return nil
	}
	l := h.newLoop(f)
	l.foreign, l.owners = true, true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.loops, l.Name)
	}
}

// Activate gives a volume a device that looks like flexd's, as an operator's
// lvchange -ay does: nothing is noted of it. It says whether that was possible.
func (h *Host) Activate(file string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.files[file]
	if f == nil || slices.ContainsFunc(h.loopNames(), func(n string) bool { return h.loops[n].file == f }) {
		return false
	}
	h.newLoop(f).owners = true
	return true
}

// Deactivate is an operator's losetup -d of a volume's device, whoever made it,
// while nothing uses it. It says whether that was possible.
func (h *Host) Deactivate(file string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.loopOf(h.files[file])
	if l == nil || l.openers > 0 || len(h.mountsOf(l.file)) > 0 || h.live[l.file] != "" {
		return false
	}
	delete(h.loops, l.Name)
	return true
}

// DeactivateOwn takes away what Activate has made, unless flexd has it by now.
func (h *Host) DeactivateOwn(noted func(uuid string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, l := range h.loops {
		if l.owners && len(h.mountsOf(l.file)) == 0 && !noted(l.file.UUID) {
			delete(h.loops, name)
		}
	}
}

// UUIDOf returns the uuid of the volume of that name, "" if there is none.
func (h *Host) UUIDOf(file string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.files[file]; f != nil {
		return f.UUID
	}
	return ""
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
