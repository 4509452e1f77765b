package hosttest

import (
	"path"
	"slices"
	"strings"
)

// What an operator does to files and loop devices.

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

// WriteRaw writes to a volume's device as dm-crypt or a database does, at any time, over
// any data, except between the proof that it is blank and the end of mkfs: flexd cannot
// see a write then. It reports whether that was possible.
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

// HideHolders ends all answers to which host holds a lock, as with another lock manager.
func (d *Disk) HideHolders() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.silent
	d.silent = true
	return !was
}

// Empty makes all of a volume read as zeros, as a restored array or an administrator does, if
// no host uses it.
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
// far as nothing is mounted on them, and says whether it did; volumes get their size back; the devices of deleted
// files go when nothing uses them; the faults that are still to come end.
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

// Deactivate is an operator's losetup -d of a volume's device, also of one of flexd: it
// goes when nothing uses it any more. It says whether there is one.
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
		if l := h.loops[name]; !l.foreign && !l.owners && !h.created(l.file) {
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

// created reports whether a volume of a shared group was created and not used yet. It has no
// note during its creation, and none if that was interrupted.
func (h *Host) created(f *File) bool {
	return h.locking != nil && (slices.Contains(f.Tags, "flexd.creating") || f.Created && f.State == Blank)
}
