package hosttest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

func probe(p *process, a deviceArg, l *loop) (any, error) {
	h := p.h
	f := l.file
	f.looked, f.lookedBy, f.blank = true, h, f.State == Blank
	if a.At == "" {
		l.lastUse = h.useOf(l)
	}
	if a.At != "" {
		if m := h.top(a.At); m == nil {
			return nil, fmt.Errorf("%w: %s", mount.ErrNone, a.At)
		} else if m.file != f {
			return nil, fmt.Errorf("%w: %s", mount.ErrForeign, a.At)
		}
	}
	fs := f.content(a.At != "")
	if fs.Content == volume.Filesystem && fs.Size > l.Size {
		fs.Content = volume.Truncated
	}
	if a.At == "" {
		if fs.Use = l.lastUse; fs.Use != volume.Unused {
			fs.UsedBy = a.Device.Path + " is busy"
		}
	}
	return fs, nil
}

// useOf returns the use of a device that is not mounted.
func (h *Host) useOf(l *loop) volume.Use {
	others := slices.ContainsFunc(h.loopNames(), func(n string) bool { return h.loops[n] != l && h.loops[n].file == l.file })
	switch {
	case len(h.mountsOf(l.file)) > 0, l.openers > 0, others, h.elsewhere[l.file.path] != "":
		return volume.InUse
	case h.frozen[l.file]:
		return volume.Unmounted
	}
	return volume.Unused
}

// takes is called first by every child that will write to an unmounted device. The child also writes to a
// device that flexd knew to be in use: the damage of the user's data reveals the error.
func (h *Host) takes(p *process, l *loop) error {
	switch use := h.useOf(l); {
	case use == volume.Unused:
	case l.lastUse == volume.Unused: // it began since, and the child detects it
		return &mount.BusyError{What: "/dev/" + l.Name}
	default:
		h.broke("%s writes to %s, which something else uses (%d)", p.op, l.file.path, use)
	}
	return nil
}

// content returns a child's result for a file's bytes.
func (f *File) content(mounted bool) volume.FS {
	switch f.State {
	case Blank:
		if f.stale {
			return volume.FS{Content: volume.ForeignContent, What: "found data at offset 12288 (0x3000)"}
		}
		return volume.FS{Content: volume.Blank}
	case Whole:
		return volume.FS{Content: volume.Filesystem, Type: f.Type, Size: f.Bytes}
	case Failed:
		if !mounted { // only its superblock shows that, and fsck follows
			return volume.FS{Content: volume.Filesystem, Type: f.Type, Size: f.Bytes, What: f.Note}
		}
		return volume.FS{Content: volume.FilesystemFailed, Type: f.Type, What: f.Note}
	case HalfMade:
		return volume.FS{Content: volume.ForeignContent, What: "found data at offset 4096 (0x1000)", Leftover: true}
	case Foreign:
		if f.Note == "" { // not known what it is
			return volume.FS{Content: volume.ForeignContent, What: "found data at offset 8192 (0x2000)"}
		}
	}
	return volume.FS{Content: volume.ForeignContent, What: "found " + f.Note}
}

// zero zeroes the places of labels, or of the part that was added to a blank volume.
func zero(p *process, a deviceArg, l *loop) (any, error) {
	h := p.h
	h.begin(p, l.file)
	h.alone(p, l.file)
	if h.useOf(l) != volume.Unused {
		return nil, &mount.BusyError{What: "/dev/" + l.Name}
	}
	if l.file.State != Blank {
		if a.From == 0 {
			h.broke("%s is zeroed", l.file.path)
		}
		return nil, &mount.Refusal{What: "found data on " + a.Device.Path, Hint: "wipefs"}
	}
	l.file.stale = false
	return struct{}{}, nil
}

// writes marks a format from its first write on.
const writes = "mkfs"

// format is the child that proves the device blank, makes the filesystem and, if mkfs fails by itself,
// erases its writes. It refuses like the real child. Nevertheless flexd breaks a promise if it starts the
// child on a device that it has observed to be neither blank nor half formatted.
func format(p *process, text []byte) (any, error) {
	a := decode[mount.Formatting](p, text)
	h := p.h
	h.mu.Lock()
	l, err := h.device(a.Device)
	if err != nil {
		h.mu.Unlock()
		return nil, err
	}
	f := l.file
	h.begin(p, f)
	if err := h.takes(p, l); err != nil {
		h.mu.Unlock()
		return nil, err
	}
	f.excl = true
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		f.excl = false
	}()
	switch {
	case f.stale, f.State != Blank && !(a.Repeat && f.State == HalfMade):
		if f.looked && f.lookedBy == h { // otherwise it was written since flexd's look
			h.broke("mkfs on %s, which is neither blank nor half-made by flexd", f.path)
		}
		h.mu.Unlock()
		return nil, &mount.Refusal{What: "found data on " + a.Device.Path, Hint: "wipefs"}
	}
	h.mu.Unlock()
	if !p.gate() {
		if !a.Repeat {
			h.forget(f.UUID)
		}
		return nil, errors.New("flexd did not permit it")
	}
	h.mustRecord(f.UUID, "formatting", a.Type)
	h.mu.Lock()
	if _, err := h.device(a.Device); err != nil { // it was fenced meanwhile
		h.mu.Unlock()
		return nil, err
	}
	h.live[f] = writes
	h.alone(p, f)
	h.mustTag(f, "flexd.formatting="+a.Type+"/")
	h.mu.Unlock()
	if a.Repeat { // the remains are erased first
		switch err := p.pace("erasing"); {
		case errors.Is(err, errFailed):
			return nil, errors.New("the remains of the interrupted mkfs could not be erased: input/output error")
		case err != nil:
			return nil, err
		}
		h.mu.Lock()
		_, err := h.device(a.Device)
		if err == nil {
			h.alone(p, f)
			f.State = Blank
		}
		h.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	switch err := p.pace("start"); {
	case errors.Is(err, errFailed): // it refused its options, or the device was opened exclusively
		h.forget(f.UUID)
		return nil, errors.New("mkfs.ext4: exit status 1: simulated")
	case err != nil:
		return nil, err
	}
	h.mu.Lock()
	if _, err := h.device(a.Device); err != nil {
		h.mu.Unlock()
		return nil, err
	}
	h.alone(p, f)
	if f.lost && f.mounted {
		h.broke("mkfs on %s, which had a filesystem that flexd mounted", f.path)
	}
	f.State, f.Type, f.lost = HalfMade, a.Type, false
	f.Mkfs++
	if f.Data > 0 {
		h.broke("mkfs destroyed data on %s", f.path)
	}
	h.mu.Unlock()
	switch err := p.pace("within"); {
	case errors.Is(err, errFailed):
		return nil, h.clean(p, f, a.Device)
	case err != nil:
		return nil, err
	}
	if !p.stay(h.before, "format-half") {
		return nil, errKilled
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.device(a.Device); err != nil {
		return nil, err
	}
	h.alone(p, f)
	f.State, f.Bytes = Whole, volume.Room(l.Size)
	return struct{}{}, nil
}

// clean is the child's cleanup after an mkfs that failed by itself, with its answer.
func (h *Host) clean(p *process, f *File, d volume.Device) error {
	err := p.pace("cleaning")
	if err != nil && !errors.Is(err, errFailed) {
		return err
	}
	h.mu.Lock()
	if err == nil {
		_, err = h.device(d)
	}
	if err == nil {
		f.State, f.Type = Blank, ""
	}
	h.mu.Unlock()
	h.forget(f.UUID)
	if err != nil {
		return errors.New("mkfs.ext4: exit status 1: simulated; its writes could not be erased: input/output error")
	}
	return errors.New("mkfs.ext4: exit status 1: simulated")
}

func check(p *process, a deviceArg, l *loop) (any, error) {
	h := p.h
	f := l.file
	h.begin(p, f)
	h.alone(p, f)
	if err := h.takes(p, l); err != nil {
		return nil, err
	}
	if f.Bytes > l.Size {
		if f.looked { // else it was made smaller since flexd looked
			h.broke("fsck of %s, whose end is cut off", f.path)
		}
		return nil, &mount.Refusal{What: "it is larger than its device", Hint: "give it its size back"}
	}
	if f.State != Whole {
		return nil, &mount.Refusal{What: "e2fsck found errors that it may not repair by itself", Hint: "e2fsck -f " + a.Device.Path}
	}
	return struct{}{}, nil
}
