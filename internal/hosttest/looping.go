package hosttest

import (
	"fmt"
	"path"
	"slices"
	"syscall"

	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

func identify(p *process, text []byte) (any, error) {
	a := decode[struct {
		Names []string `json:"names"`
	}](p, text)
	h := p.h
	h.mu.Lock()
	defer h.mu.Unlock()
	type identified struct {
		Seq  uint64 `json:"seq"`
		UUID string `json:"uuid,omitempty"`
		loopdev.Inode
	}
	all := []identified{}
	for _, n := range a.Names {
		if l := h.loops[n]; l != nil {
			uuid := l.file.UUID
			if l.foreign {
				uuid = ""
			}
			all = append(all, identified{l.Seq, uuid, l.file.Inode})
		}
	}
	return all, nil
}

func create(p *process, text []byte) (any, error) {
	a := decode[struct {
		File      string `json:"file"`
		Size      int64  `json:"size"`
		Namespace string `json:"namespace"`
	}](p, text)
	h := p.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.files[a.File] != nil {
		return nil, syscall.EEXIST
	}
	h.nextID++
	h.files[a.File] = &File{path: a.File, FileInfo: loopdev.FileInfo{Exists: true, Regular: true, Links: 1, Inode: h.inode(), Created: true, Namespace: a.Namespace,
		UUID: fmt.Sprintf("00000000-0000-4000-8000-%012d", h.nextID), Size: (a.Size + 4095) / 4096 * 4096}}
	return struct{}{}, nil
}

func attach(p *process, text []byte) (any, error) {
	a := decode[struct {
		File     string      `json:"file"`
		UUID     volume.UUID `json:"uuid"`
		ReadOnly bool        `json:"readOnly"`
	}](p, text)
	h := p.h
	h.mustBeNoted(string(a.UUID))
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.files[a.File]
	switch {
	case f == nil:
		return nil, syscall.ENOENT
	case f.UUID != string(a.UUID):
		return nil, fmt.Errorf("%s is now the volume %q, not %s", a.File, f.UUID, a.UUID)
	}
	h.begin(p, f)
	for _, name := range h.loopNames() {
		l := h.loops[name]
		if l.file != f {
			continue
		}
		if !l.owners {
			h.broke("a second loop device for %s", a.File)
		}
		return nil, fmt.Errorf("%s has /dev/%s already", a.File, l.Name)
	}
	return h.newLoop(f).Loop, nil
}

func detach(p *process, text []byte) (any, error) {
	a := decode[struct {
		Device volume.Device `json:"device"`
		UUID   volume.UUID   `json:"uuid"`
	}](p, text)
	h := p.h
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.loops[path.Base(a.Device.Path)]
	if l == nil || l.Seq != a.Device.Seq {
		return struct{}{}, nil // gone already
	}
	if l.foreign || l.file.UUID != string(a.UUID) {
		h.broke("%s is detached as %s, and is %s", l.Name, a.UUID, l.file.path)
		return nil, mount.ErrChanged
	}
	h.begin(p, l.file)
	if l.openers > 0 || h.frozen[l.file] {
		return nil, &mount.BusyError{What: a.Device.Path, Holders: []mount.Holder{{Pid: 4712, Comm: "dd", How: "has it open"}}}
	}
	if all := h.mountsOf(l.file); len(all) > 0 {
		// Only a foreign mount can appear after flexd's look.
		if !h.Lenient || slices.ContainsFunc(all, func(m *mnt) bool { return !m.owners }) {
			h.broke("a mounted device is to be detached: %s", l.Name)
		}
		return nil, &mount.BusyError{What: a.Device.Path}
	}
	if h.seenLoop(l).Deleted {
		return nil, volume.Errorf(volume.Conflict, "it stays active, because the file of /dev/%s was deleted", l.Name)
	}
	delete(h.loops, l.Name)
	return struct{}{}, nil
}

func extend(p *process, text []byte) (any, error) {
	a := decode[struct {
		File   string        `json:"file"`
		UUID   volume.UUID   `json:"uuid"`
		Device volume.Device `json:"device"`
		Size   int64         `json:"size"`
	}](p, text)
	h := p.h
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.files[a.File]
	if f == nil || f.UUID != string(a.UUID) {
		return nil, syscall.ENOENT
	}
	h.begin(p, f)
	f.Size = max(f.Size, (a.Size+4095)/4096*4096)
	if a.Device.Activity == volume.Active {
		l, err := h.device(a.Device)
		if err != nil {
			return nil, err
		}
		l.Size = f.Size
	}
	return struct{}{}, nil
}
