package loopdev

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
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
	inodes    map[Inode]bool         // of the files
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
	all, err := p.committed(s, limits)
	if err != nil {
		return nil, f, err
	}
	return s, f, p.checkFilesystem(name.VG, s, all, limits, more)
}

// A commitment is the space that the volumes on a filesystem may still use.
type commitment struct {
	volumes   int
	unwritten int64
}

// committed returns the commitment of the filesystem of a group; none with overcommit. The caller holds
// p.admitting.
func (p *Provider) committed(s *groupFiles, limits *volume.Limits) (c commitment, err error) {
	if limits.Overcommit {
		return c, nil
	}
	var groups []*groupFiles
	for vg := range p.dirs {
		// A group that cannot be read counts with the sizes that were read last.
		if g, _ := p.groupFiles(vg); g != nil && g.dev == s.dev {
			c.volumes, c.unwritten = c.volumes+len(g.files), c.unwritten+g.unwritten
			groups = append(groups, g)
		}
	}
	unlisted, err := p.unlisted(s.dev, groups)
	for _, l := range unlisted {
		c.volumes, c.unwritten = c.volumes+1, c.unwritten+l.Size // the size of its data is not known
	}
	return c, err
}

// checkFilesystem refuses a further size for which the filesystem has no space once all files on it are
// full, and a further file without a free inode.
func (p *Provider) checkFilesystem(vg string, s *groupFiles, all commitment, limits *volume.Limits, more volume.Amount) error {
	free := s.space.Free
	inodes, reserve := s.space.Inodes/100*uint64(limits.Reserve), s.space.Size/100*int64(limits.Reserve)
	why := ""
	switch {
	case more.Size <= 0:
	case s.space.Inodes > 0 && more.Volumes > 0 && s.space.InodeFree <= inodes:
		why = fmt.Sprintf("an inode is wanted; of the filesystem's %d inodes, %d must remain free (reserve: %d%%)", s.space.Inodes, inodes, limits.Reserve)
	case limits.Overcommit && more.Size+reserve > free:
		why = fmt.Sprintf("%s wanted, more than is free; of the filesystem's %s, %s must remain free (reserve: %d%%)", volume.Bytes(more.Size), volume.Bytes(s.space.Size), volume.Bytes(reserve), limits.Reserve)
	case !limits.Overcommit && more.Size+reserve > free-all.unwritten:
		why = fmt.Sprintf("%s wanted, but the filesystem's %s are reserved for its %d volumes (overcommit: false), used by other files, or must remain free (reserve: %d%%)", volume.Bytes(more.Size), volume.Bytes(s.space.Size), all.volumes, limits.Reserve)
	}
	if why == "" {
		return nil
	}
	// The free space would make the message of each retry different.
	return volume.WithCode(volume.NoSpace, advised(fmt.Errorf("%w: %s", unix.ENOSPC, why), p.dirs[vg]))
}

// unlisted returns this node's loop devices whose files are on a filesystem, but in none of its groups:
// deleted or moved files that are still written.
func (p *Provider) unlisted(dev uint64, groups []*groupFiles) (all []Loop, err error) {
	loops, err := p.kernel.Loops()
	if err != nil {
		return nil, err
	}
	for _, l := range loops {
		id, _ := p.remembered(l.Seq)
		if id.UUID == "" || id.Dev != dev || slices.ContainsFunc(groups, func(s *groupFiles) bool { return s.inodes[id.Inode] }) {
			continue
		}
		name := p.nameOf(l.BackingFile)
		if s := p.groups[name.VG]; s != nil && !l.Deleted && s.files[name.LV].size > 0 {
			continue // just created
		}
		if _, here := p.restore(l.Seq); !here {
			continue
		}
		if l, err = p.kernel.Loop(l.Name); err == nil {
			all = append(all, l)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return all, nil
}

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
	s := &groupFiles{read: time.Now(), files: map[string]reservation{}, inodes: map[Inode]bool{}}
	d, err := p.kernel.File(dir)
	if err != nil {
		return last, fmt.Errorf("volume group %s: %w", vg, err)
	}
	s.dev = d.Inode.Dev
	unread, err := p.each(vg, dir, func(name, _ string, f FileInfo) {
		// A volume that cannot be used now, as with a hard link, may still be written.
		if f.Regular && (f.Created || isUUID(f.UUID)) && !s.inodes[f.Inode] {
			s.set(name, reservation{f.Created, f.Namespace, f.Size, max(f.Size-f.Blocks, 0)})
			s.inodes[f.Inode] = f.Inode != (Inode{})
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
