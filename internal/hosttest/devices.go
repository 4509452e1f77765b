package hosttest

import (
	"path"
	"slices"
	"strings"
)

// Actions of an operator on files and loop devices.

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

// Shrink is an operator's lvreduce -f, also of a mounted volume. It reports whether the volume
// exists.
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

// WriteRaw writes to a volume's device, as dm-crypt or a database does, at any time and over any
// data, but not between the proof that it is blank and the end of mkfs, when flexd cannot detect
// a write. It reports whether it has written.
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

// Wipe erases the data and the format record of a volume that flexd refuses to format, as an owner
// does who does not need the data.
func (h *Host) Wipe(file string) {
	h.mu.Lock()
	f := h.files[file]
	if f == nil || f.State != Foreign && f.State != HalfMade && !f.lost || h.live[f] != "" {
		h.mu.Unlock()
		return
	}
	f.State, f.Type, f.Data, f.lost, f.mounted, f.stale = Blank, "", 0, false, false, false
	hosts := []*Host{h}
	if h.locking != nil {
		f.Tags = slices.DeleteFunc(slices.Clone(f.Tags), func(tag string) bool {
			return strings.HasPrefix(tag, "flexd.formatting=") || strings.HasPrefix(tag, "flexd.fs=")
		})
		hosts = h.locking.disk.users
		for _, o := range hosts {
			o.event("")
		}
	}
	h.mu.Unlock()
	for _, o := range hosts {
		o.forget(f.UUID)
	}
}

// HideHolders makes the holders of locks unknown, as with another lock manager.
func (d *Disk) HideHolders() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.silent
	d.silent = true
	return !was
}

// Empty zeroes a volume that no host uses, as a restored array or an administrator does.
func (d *Disk) Empty(file string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[file]
	if f == nil || slices.ContainsFunc(d.users, func(h *Host) bool { return h.deviceOf(f) != nil }) {
		return false
	}
	f.State, f.Type, f.Bytes, f.Data, f.looked, f.lost = Blank, "", 0, 0, false, true
	f.stale = false
	return true
}

// VolumeOf returns the volume of a device node.
func (h *Host) VolumeOf(device string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.loops[path.Base(device)]; l != nil {
		return path.Base(l.file.path)
	}
	return ""
}

// Hide removes a volume's file, as when its disk disappears, or restores it.
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

// Tidy unmounts foreign mounts and leftover copies of mounts, unless something is mounted on them, and
// reports whether it has unmounted any. It restores the sizes of volumes, removes unused devices of
// deleted files, and disarms faults.
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
	for _, l := range h.loops {
		l.going = l.going || strings.HasPrefix(l.Name, "loop") && h.seenLoop(l).Deleted
	}
	h.detached()
	return any
}

// Losetup is an operator's losetup -f of a volume's file, in addition to flexd's device; nil if there
// is no such file.
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
// lvchange -ay does, without a note. It reports whether it has activated it.
func (h *Host) Activate(file string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.files[file]
	if f == nil || slices.ContainsFunc(h.loopNames(), func(n string) bool { return h.loops[n].file == f }) {
		return false
	}
	if h.locking != nil {
		if h.locking.acquire(f.UUID, false) != nil {
			return false
		}
		h.activate(nil, f)
		h.deviceOf(f).owners = true
		return true
	}
	h.newLoop(f).owners = true
	return true
}

// Deactivate is an operator's losetup -d of a volume's device, also of a device of flexd: the device
// is removed when nothing uses it. It reports whether there is a device.
func (h *Host) Deactivate(file string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.loopOf(h.files[file])
	if l == nil {
		return false
	}
	if h.locking != nil { // LVM refuses that while it is in use
		if h.locking.cutOff || !h.removeDevice(&said{}, l.file) {
			return false
		}
		h.unlock(&said{}, l.file)
		return true
	}
	l.going = true
	h.detached()
	return true
}

// detached removes the unused devices that are to be detached after their last use.
func (h *Host) detached() {
	for name, l := range h.loops {
		if l.going && l.openers == 0 && len(h.mountsOf(l.file)) == 0 && h.live[l.file] == "" && !h.frozen[l.file] {
			delete(h.loops, name)
		}
	}
}

// DeactivateOwn removes the device that Activate has made, unless flexd uses it now.
func (h *Host) DeactivateOwn(noted func(uuid string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, l := range h.loops {
		if l.owners && len(h.mountsOf(l.file)) == 0 && !noted(l.file.UUID) {
			delete(h.loops, name)
			if h.locking != nil {
				_ = h.locking.release(l.file.UUID)
			}
		}
	}
}

// Activated returns the uuids of the volumes whose device flexd has made.
func (h *Host) Activated() (uuids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range h.loopNames() {
		if l := h.loops[name]; !l.foreign && !l.owners {
			uuids = append(uuids, l.file.UUID)
		}
	}
	return uuids
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
