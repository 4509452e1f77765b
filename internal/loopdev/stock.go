package loopdev

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// stockAge is how long what was read of a group's files counts. What flexd creates is added
// at once, and what is written to a file takes its blocks from what was promised to it, so
// only changes from outside are seen that much later.
const stockAge = time.Second

// A stock is what a group's files occupy, and what they may occupy when they are full.
type stock struct {
	read      time.Time
	dev       uint64 // of the filesystem
	space     Space
	files     map[string]promise // by name; with those that are being created
	usage     volume.Usage       // of those that flexd created
	unwritten int64
}

// A promise is made to a volume: it may use its whole size.
type promise struct {
	created   bool
	namespace string
	size      int64
	unwritten int64
}

// set replaces the promise to a file; one without size removes it.
func (s *stock) set(name string, f promise) {
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
func (p *Provider) admit(name volume.Name, f promise) (end func(error), err error) {
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
		if s := p.stocks[name.VG]; failed && s != nil && s.files[name.LV] == f {
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

// admissible returns why the limits of its group refuse a volume, or the group's stock and
// the volume as it would count; nil = there are no limits. The caller holds p.admitting.
func (p *Provider) admissible(name volume.Name, f promise) (*stock, promise, error) {
	limits := p.Limits(name.VG)
	if limits == nil {
		return nil, f, nil
	}
	s, err := p.stock(name.VG)
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

// checkFilesystem refuses a further size for which the filesystem has no room, if all files
// on it are written, and further files without an inode.
func (p *Provider) checkFilesystem(vg string, s *stock, limits *volume.Limits, more volume.Amount) error {
	free, volumes, may := s.space.Free, len(s.files), s.unwritten
	for other := range p.dirs {
		if other == vg {
			continue
		}
		// A group that cannot be read counts with what was read of it last.
		if o, _ := p.stock(other); o != nil && o.dev == s.dev {
			volumes, may = volumes+len(o.files), may+o.unwritten
		}
	}
	inodes, reserve := s.space.Inodes/100*uint64(limits.Reserve), s.space.Size/100*int64(limits.Reserve)
	why := ""
	switch {
	case more.Size <= 0:
	case s.space.Inodes > 0 && more.Volumes > 0 && s.space.InodeFree <= inodes:
		why = fmt.Sprintf("an inode is wanted, and of its %d inodes %d must remain free (reserve: %d%%)", s.space.Inodes, inodes, limits.Reserve)
	case limits.Overcommit && more.Size+reserve > free:
		why = fmt.Sprintf("%s wanted, more than is free, and of its %s %s must remain so (reserve: %d%%)", volume.Bytes(more.Size), volume.Bytes(s.space.Size), volume.Bytes(reserve), limits.Reserve)
	case !limits.Overcommit && more.Size+reserve > free-may:
		why = fmt.Sprintf("%s wanted, and its %s are promised to the %d volumes there (overcommit: false), used otherwise, or must remain free (reserve: %d%%)", volume.Bytes(more.Size), volume.Bytes(s.space.Size), volumes, limits.Reserve)
	}
	if why == "" {
		return nil
	}
	// The free space would make the message of each retry different.
	return volume.WithCode(volume.NoSpace, advised(fmt.Errorf("%w: %s", unix.ENOSPC, why), p.dirs[vg]))
}

// stock returns what a group's files occupy, read at most stockAge ago. With an error it
// returns what was read last, if anything was. The caller holds p.admitting.
func (p *Provider) stock(vg string) (*stock, error) {
	last := p.stocks[vg]
	if last != nil && time.Since(last.read) < stockAge {
		return last, nil
	}
	dir, err := p.directory(vg)
	if err != nil {
		return last, err
	}
	s := &stock{read: time.Now(), files: map[string]promise{}}
	d, err := p.kernel.File(dir)
	if err != nil {
		return last, fmt.Errorf("volume group %s: %w", vg, err)
	}
	s.dev = d.Inode.Dev
	unread, err := p.each(vg, dir, func(name, file string, f FileInfo) {
		if foreign(file, f) == "" {
			s.set(name, promise{f.Created, f.Namespace, f.Size, max(f.Size-f.Blocks, 0)})
		}
	})
	if err != nil {
		return last, err
	}
	for name := range unread { // it counts with what was read of it last
		if last != nil && last.files[name].size > 0 {
			s.set(name, last.files[name])
		}
	}
	for name, f := range p.pending {
		if name.VG == vg && s.files[name.LV].size < f.size {
			s.set(name.LV, *f)
		}
	}
	if s.space, err = p.kernel.Space(dir); err != nil { // after the files: what is written meanwhile counts twice
		return last, err
	}
	p.stocks[vg] = s
	return s, nil
}
