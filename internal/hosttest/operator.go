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

// MountTmpfs is an operator's mount of something else.
func (h *Host) MountTmpfs(dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.folders[h.place(dir)] = true
	h.add(&mnt{number: fmt.Sprintf("0:%d", h.nextID), root: "/", dir: dir, typ: "tmpfs", src: "tmpfs", super: "rw", owners: true})
	return nil
}

// BindItself binds a directory on itself, as for a kubelet in a container: what was
// mounted in it before is hidden. It says whether that was possible.
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

// MountElsewhere is a mount of a volume that is active by an operator or another
// driver, anywhere.
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
		h.detached()
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

// Shrink is an operator's lvreduce -f, also of a volume that is mounted. It says whether
// there is one.
func (h *Host) Shrink(file string, size int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.files[file]
	if f != nil {
		h.resize(f, size)
	}
	return f != nil
}

func (h *Host) resize(f *File, size int64) {
	f.Size, f.looked = size, false
	for _, l := range h.loops {
		if l.file == f {
			l.Size = size
		}
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

// WriteRaw is an owner that writes to a volume's device itself, as dm-crypt or a
// database does, at any time, over any data. Only between the proof that it is
// blank and the end of mkfs nothing can tell flexd. It says whether that was possible.
func (h *Host) WriteRaw(file string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.files[file]
	if f == nil || f.excl {
		return false
	}
	f.State, f.Type, f.Note, f.Bytes, f.looked = Foreign, "", "", 0, false
	f.Data++
	return true
}

// Wipe is an owner that needs nothing of what is on a volume that flexd refuses to
// format, and takes the way out: what is there goes, and its format record.
func (h *Host) Wipe(file string) {
	h.mu.Lock()
	f := h.files[file]
	if f == nil || f.State != Foreign && f.State != HalfMade || h.live[f] != "" {
		h.mu.Unlock()
		return
	}
	f.State, f.Type, f.Data = Blank, "", 0
	h.mu.Unlock()
	h.forget(f.UUID)
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

// StandsAt says whether a volume is mounted at dir, also where no lookup reaches it.
func (h *Host) StandsAt(dir string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.mounts, func(m *mnt) bool { return m.dir == dir && m.file != nil && !m.owners })
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

// Tidy unmounts what others have mounted, and copies that nothing takes away any more, as
// far as nothing is mounted on them, and says whether it did; volumes get their size back; the faults that are still to come end.
func (h *Host) Tidy() (any bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.torn, h.blind = false, false
	for _, f := range h.files {
		h.resize(f, max(f.Size, f.Bytes))
	}
	for _, m := range slices.Backward(slices.Clone(h.mounts)) {
		if (m.owners || m.stranded) && slices.Contains(h.mounts, m) && !h.busy(m) {
			h.unlink(m)
			any = true
		}
	}
	return any
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

// Deactivate is an operator's losetup -d of a volume's device, whoever made it: it goes
// when nothing uses it any more. It says whether there is one.
func (h *Host) Deactivate(file string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.loopOf(h.files[file])
	if l == nil {
		return false
	}
	l.going = true
	h.detached()
	return true
}

// detached takes away the devices that were to go when their last user ends.
func (h *Host) detached() {
	for name, l := range h.loops {
		if l.going && l.openers == 0 && len(h.mountsOf(l.file)) == 0 && h.live[l.file] == "" && !h.frozen[l.file] {
			delete(h.loops, name)
		}
	}
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
