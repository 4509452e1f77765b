package loopdev

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// filesAge is how long the sizes read from a group's files stay valid. flexd adds the volumes that it
// creates at once, and a write to a file uses blocks that are already reserved for it, so only external
// changes are seen late.
const filesAge = time.Second

// groupFiles has the space that a group's files occupy, and the space that is reserved for them.
type groupFiles struct {
	read      time.Time
	dev       uint64 // of the filesystem
	space     Space
	files     map[string]reservation // by name; with those that are being created
	usage     volume.Usage           // of those that flexd created
	unwritten int64
}

// A reservation is the space of a volume: it may use its whole size.
type reservation struct {
	created   bool
	namespace string
	size      int64
	unwritten int64
}

// set replaces the reservation of a file; one without size removes it.
func (s *groupFiles) set(name string, f reservation) {
	old := s.files[name]
	s.unwritten += f.unwritten - old.unwritten
	if old.created {
		s.usage.Add(old.namespace, volume.Amount{Volumes: -1, Size: -old.size})
	}
	if delete(s.files, name); f.size == 0 {
		return
	}
	s.files[name] = f
	if f.created {
		s.usage.Add(f.namespace, volume.Amount{Volumes: 1, Size: f.size})
	}
}

// admit refuses a volume that is to be created or extended to a size beyond the limits of
// its group. Otherwise the volume counts with that size from now on; end is called with the
// result.
func (p *Provider) admit(name volume.Name, f reservation) (end func(error), err error) {
	p.admitting.Lock()
	defer p.admitting.Unlock()
	s, f, err := p.admissible(name, f)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return func(error) {}, nil
	}
	old := s.files[name.LV]
	s.set(name.LV, f)
	p.pending[name] = &f
	release := func(failed bool) {
		p.admitting.Lock()
		defer p.admitting.Unlock()
		if p.pending[name] == &f {
			delete(p.pending, name)
		}
		if s := p.groups[name.VG]; failed && s != nil && s.files[name.LV] == f {
			s.set(name.LV, old)
		}
	}
	return func(err error) {
		if stuck, ok := errors.AsType[*run.StuckError](err); ok {
			go func() { // it may still succeed
				<-stuck.Done
				release(true)
			}()
			return
		}
		release(err != nil)
	}, nil
}

// admissible returns why the limits of its group refuse a volume, or the group's files and the
// volume's reservation; nil = there are no limits. The caller holds p.admitting.
func (p *Provider) admissible(name volume.Name, f reservation) (*groupFiles, reservation, error) {
	limits := p.Limits(name.VG)
	if limits == nil {
		return nil, f, nil
	}
	s, err := p.groupFiles(name.VG)
	if err != nil {
		return nil, f, err
	}
	old := s.files[name.LV]
	if !f.created {
		f.created, f.namespace = old.created, old.namespace
	}
	f.size = max(f.size, old.size)
	f.unwritten = old.unwritten + f.size - old.size
	more := volume.Amount{Size: f.size - old.size}
	if old.size == 0 {
		more.Volumes = 1
	}
	if f.created {
		if err := limits.Check(name.VG, s.usage, f.namespace, more); err != nil {
			return nil, f, err
		}
	}
	return s, f, p.checkFilesystem(name.VG, s, limits, more)
}

// checkFilesystem refuses a further size for which the filesystem has no space once all files on it are
// full, and a further file without a free inode.
func (p *Provider) checkFilesystem(vg string, s *groupFiles, limits *volume.Limits, more volume.Amount) error {
	free, volumes, may := s.space.Free, len(s.files), s.unwritten
	for other := range p.dirs {
		if other == vg {
			continue
		}
		// A group that cannot be read counts with the sizes that were read last.
		if o, _ := p.groupFiles(other); o != nil && o.dev == s.dev {
			volumes, may = volumes+len(o.files), may+o.unwritten
		}
	}
	inodes, reserve := s.space.Inodes/100*uint64(limits.Reserve), s.space.Size/100*int64(limits.Reserve)
	why := ""
	switch {
	case more.Size <= 0:
	case s.space.Inodes > 0 && more.Volumes > 0 && s.space.InodeFree <= inodes:
		why = fmt.Sprintf("an inode is wanted; of the filesystem's %d inodes, %d must remain free (reserve: %d%%)", s.space.Inodes, inodes, limits.Reserve)
	case limits.Overcommit && more.Size+reserve > free:
		why = fmt.Sprintf("%s wanted, more than is free; of the filesystem's %s, %s must remain free (reserve: %d%%)", volume.Bytes(more.Size), volume.Bytes(s.space.Size), volume.Bytes(reserve), limits.Reserve)
	case !limits.Overcommit && more.Size+reserve > free-may:
		why = fmt.Sprintf("%s wanted, but the filesystem's %s are reserved for its %d volumes (overcommit: false), used by other files, or must remain free (reserve: %d%%)", volume.Bytes(more.Size), volume.Bytes(s.space.Size), volumes, limits.Reserve)
	}
	if why == "" {
		return nil
	}
	// The free space would make the message of each retry different.
	return volume.WithCode(volume.NoSpace, advised(fmt.Errorf("%w: %s", unix.ENOSPC, why), p.dirs[vg]))
}

// groupFiles returns the files of a group, read at most filesAge ago. With an error it returns the
// result of the last read, if there is one. The caller holds p.admitting.
// groupFiles returns the files of a group, read at most filesAge ago. With an error it returns the
// result of the last read, if there is one. The caller holds p.admitting.
func (p *Provider) groupFiles(vg string) (*groupFiles, error) {
	last := p.groups[vg]
	if last != nil && time.Since(last.read) < filesAge {
		return last, nil
	}
	dir, err := p.directory(vg)
	if err != nil {
		return last, err
	}
	s := &groupFiles{read: time.Now(), files: map[string]reservation{}}
	d, err := p.kernel.File(dir)
	if err != nil {
		return last, fmt.Errorf("volume group %s: %w", vg, err)
	}
	s.dev = d.Inode.Dev
	unread, err := p.each(vg, dir, func(name, file string, f FileInfo) {
		if foreign(file, f) == "" {
			s.set(name, reservation{f.Created, f.Namespace, f.Size, max(f.Size-f.Blocks, 0)})
		}
	})
	if err != nil {
		return last, err
	}
	for name := range unread { // it counts with the size that was read last
		if last != nil && last.files[name].size > 0 {
			s.set(name, last.files[name])
		}
	}
	for name, f := range p.pending {
		if name.VG == vg && s.files[name.LV].size < f.size {
			s.set(name.LV, *f)
		}
	}
	if s.space, err = p.kernel.Space(dir); err != nil { // after the files: data written meanwhile counts twice
		return last, err
	}
	p.groups[vg] = s
	return s, nil
}
