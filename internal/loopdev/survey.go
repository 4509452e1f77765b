package loopdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// Survey returns the volumes in a group's directory, and their loop devices. Only if fresh
// is set it may start a child, to read the identity of a new device. The result also says which
// facts could not be read.
func (p *Provider) Survey(ctx context.Context, vg string, fresh bool) join.Survey {
	s := join.Survey{Kind: "loopdev"}
	p.watchAgain(vg)
	dir, err := p.directory(vg)
	if err != nil {
		s.Metadata, s.Kernel = err.Error(), err.Error()
		return s
	}
	s.Directory = dir
	found, err := p.files(vg, dir)
	s.Volumes, s.Refused = found.volumes, found.refused
	if err != nil {
		s.Metadata, s.Gone = err.Error(), errors.Is(err, fs.ErrNotExist)
		if missing := p.checkDirectory(vg, dir); s.Gone && missing != nil {
			s.Metadata = missing.Error()
		}
	}
	s.Unread = found.unread
	loops, err := p.kernel.Loops()
	if err == nil {
		if fresh {
			p.askNew(ctx, loops)
		}
		s.Devices, err = p.devicesIn(ctx, vg, dir, fresh, loops, found)
		p.addFull(dir, s.Devices, found.inodes)
		p.addRivals(dir, loops, found.inodes, &s)
		p.noteRivals(vg, loops, found)
	}
	if err != nil {
		s.Kernel = err.Error()
	}
	return s
}

// contents are the files of a directory.
type contents struct {
	volumes []join.Volume
	inodes  map[string]Inode // of the volumes, by name
	foreign map[Inode]foreignFile
	refused map[volume.UUID]string // why the file of a device is not a volume any more
	unread  map[string]string      // why a file could not be read, by name
}

// A foreignFile is a file that is not a volume.
type foreignFile struct {
	path string
	FileInfo
}

func (p *Provider) files(vg, dir string) (contents, error) {
	c := contents{inodes: map[string]Inode{}, foreign: map[Inode]foreignFile{}, refused: map[volume.UUID]string{}}
	var err error
	c.unread, err = p.each(vg, dir, func(name, file string, f FileInfo) {
		if foreign(file, f) != "" {
			c.foreign[f.Inode] = foreignFile{file, f}
			return
		}
		// A device consists of whole sectors.
		c.volumes = append(c.volumes, join.Volume{Name: name, UUID: volume.UUID(f.UUID), Size: f.Size / 512 * 512, ReadOnly: f.ReadOnly})
		c.inodes[name] = f.Inode
	})
	return c, err
}

// maxHung is how many files of a directory may hang before the others are not read: each takes
// seconds while creations wait, and a thread until it responds.
const maxHung = 3

// each visits the files of a volume group that have the name of a volume. It returns why others
// could not be read: one damaged file, or a mount without a server, hides no other volume.
func (p *Provider) each(vg, dir string, visit func(name, file string, f FileInfo)) (unread map[string]string, err error) {
	names, err := p.kernel.Files(dir)
	if err != nil {
		return nil, fmt.Errorf("volume group %s: %w", vg, advised(err, dir))
	}
	unread = map[string]string{}
	hung := 0
	for _, name := range names {
		file, err := p.file(volume.Name{VG: vg, LV: name})
		if err != nil {
			continue
		}
		f, err := FileInfo{}, error(&hangError{file})
		if hung < maxHung {
			f, err = p.kernel.File(file)
		}
		if _, hangs := errors.AsType[*hangError](err); hangs {
			hung++
		}
		switch {
		case err != nil:
			unread[name] = fmt.Sprintf("%s/%s: %v: if something is mounted there, unmount it; if not, look at dmesg, and run fsck on the filesystem of %s", vg, name, err, dir)
		case f.Exists:
			visit(name, file, f)
		}
	}
	return unread, nil
}

func (p *Provider) devicesIn(ctx context.Context, vg, dir string, fresh bool, loops []Loop, found contents) ([]join.Device, error) {
	names := map[identity]string{}
	for _, v := range found.volumes {
		names[identity{v.UUID, found.inodes[v.Name]}] = v.Name
	}
	read := p.kernel.Loop
	if fresh {
		read = func(name string) (Loop, error) {
			l, _, err := p.loop(ctx, name)
			return l, err
		}
	}
	if fresh {
		p.askHidden(ctx, slices.DeleteFunc(slices.Clone(loops), func(l Loop) bool {
			id, _ := p.remembered(l.Seq)
			here := filepath.Dir(l.BackingFile) == dir || p.linked(volume.Name{VG: vg, LV: filepath.Base(l.BackingFile)}) == l.Name // its directory was moved
			return names[id] != "" || !here
		}))
	}
	var all []join.Device
	for _, l := range loops {
		id, known := p.remembered(l.Seq)
		own, path := names[id], l.BackingFile
		l.Deleted = l.Deleted || id.deleted()
		if known && own != "" {
			path = filepath.Join(dir, own)
		}
		if l.Deleted && filepath.Dir(path) != dir { // perhaps moved away before
			for _, link := range p.linksTo("/dev/" + l.Name) {
				if filepath.Dir(link) == filepath.Join(p.linkDir, vg) {
					path = filepath.Join(dir, filepath.Base(link))
				}
			}
		}
		var rivals []join.Rival
		here := filepath.Dir(path) == dir
		l.Silent = here && own == "" && p.silent(l, id) // the files of other groups may hang
		if !here || known && own == "" && p.elsewhere(l, id) {
			noted := p.notedRival(l.Seq)
			if !known || l.Deleted || noted.VG != vg || found.has(id.UUID) { // few have a note
				continue
			}
			l.Silent = p.silent(l, id)
			path = filepath.Join(dir, noted.LV)
			if full, err := p.kernel.Loop(l.Name); err == nil && full.Seq == l.Seq {
				l.Size, l.Ending = full.Size, full.Ending
			}
			if r := p.rival(l, id, noted, false); r.Text != "" {
				rivals = append(rivals, r)
			}
		}
		now, err := read(l.Name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && now.BackingFile == "" {
			continue // it went meanwhile
		}
		if err != nil {
			return all, fmt.Errorf("the identity of /dev/%s cannot be read: %w", l.Name, err)
		}
		l = now
		if id, known = p.remembered(l.Seq); !known {
			return all, fmt.Errorf("the identity of /dev/%s has not been read", l.Name)
		}
		if l.Silent = own == "" && p.silent(l, id); l.Silent {
			rivals = append(rivals, formerFile(l, id, path))
		}
		if f, ok := found.foreign[id.Inode]; ok && id.UUID != "" {
			found.refused[id.UUID] = f.whyNot(id.UUID)
		}
		name := volume.Name{VG: vg, LV: filepath.Base(path)}
		d := p.deviceOf(name, l)
		all = append(all, join.Device{
			UUID: id.UUID, Name: name.LV, Kernel: d.Path, Path: d.Path, Number: d.Number, Size: d.Size, Open: -1, ReadOnly: d.ReadOnly, Part: l.Part, NoNode: l.NoNode, MakeNode: l.MakeNode, Ending: l.Ending, Rivals: rivals,
		})
	}
	return all, nil
}

// has reports whether a file with that uuid was found.
func (c contents) has(uuid volume.UUID) bool {
	return slices.ContainsFunc(c.volumes, func(v join.Volume) bool { return v.UUID == uuid })
}

// addFull marks the devices of files that need space of a filesystem that is full. The file of one may be bound into
// the directory from another filesystem.
func (p *Provider) addFull(dir string, devices []join.Device, inodes map[string]Inode) {
	if len(devices) == 0 {
		return
	}
	own, err := p.kernel.File(dir)
	full := func(path string) bool {
		space, err := p.kernel.Space(path)
		return err == nil && space.Size > 0 && space.Root < mount.FullBelow
	}
	fullDir, hung := full(dir), 0
	for i := range devices {
		d := &devices[i]
		file := filepath.Join(dir, d.Name)
		where, isFull := dir, fullDir
		if at, known := inodes[d.Name]; known && err == nil && at.Dev != own.Inode.Dev {
			where, isFull = file, full(file)
		}
		if !isFull {
			continue
		}
		needs, err := false, error(&hangError{file})
		if hung < maxHung {
			needs, err = p.kernel.NeedsSpace(file)
		}
		if _, hangs := errors.AsType[*hangError](err); hangs {
			hung++
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // its file was deleted or moved
		case err != nil:
			d.Failed = fmt.Sprintf("the filesystem of %s is full, and whether the volume needs space there is unknown: %v", where, err)
			d.Remedy = "make room there (flexd check looks again), look at dmesg and the disk of that filesystem, and check the files that were written last"
		case needs:
			d.Failed = fmt.Sprintf("the filesystem of %s is full: writes to the volume fail, and recent kernels (Linux 6.18) report some of them as done", where)
			d.Remedy = "make room there (flexd check looks again), and check the files that were written last"
		}
	}
}

// whyNot returns why the file of a device of flexd is not the volume with that uuid.
func (f foreignFile) whyNot(uuid volume.UUID) string {
	if isUUID(f.UUID) {
		return foreign(f.path, f.FileInfo)
	}
	return fmt.Sprintf("the attribute %s of %s is lost; to restore it: setfattr -n %[1]s -v %[3]s %[4]s (package attr)", uuidAttr, f.path, uuid, volume.Quote(f.path))
}

// elsewhere reports whether another file is at the path of a loop device of flexd: its own is in another
// mount namespace, or below a later mount.
func (p *Provider) elsewhere(l Loop, id identity) bool {
	if id.UUID == "" || l.Deleted || l.Silent {
		return false
	}
	f, err := p.kernel.File(l.BackingFile)
	return err == nil && f.Inode != id.Inode
}

// addRivals finds further loop devices of a volume's file, and loop devices with a volume's
// uuid and another file.
func (p *Provider) addRivals(dir string, loops []Loop, inodes map[string]Inode, s *join.Survey) {
	byUUID, byInode := map[volume.UUID]*join.Volume{}, map[Inode]*join.Volume{}
	for i := range s.Volumes {
		v := &s.Volumes[i]
		byUUID[v.UUID], byInode[inodes[v.Name]] = v, v
	}
	own := map[volume.UUID]int{}
	for i, d := range s.Devices {
		own[d.UUID] = i
	}
	for _, l := range loops {
		id, known := p.remembered(l.Seq)
		v := byInode[id.Inode]
		if v == nil && id.UUID != "" {
			v = byUUID[id.UUID]
		}
		if !known || v == nil {
			continue
		}
		i, has := own[v.UUID]
		file, at := filepath.Join(dir, v.Name), inodes[v.Name]
		switch {
		case has && s.Devices[i].Path == "/dev/"+l.Name && id.UUID == v.UUID && id.Inode == at:
			continue // its own
		case !has && (id.UUID != v.UUID || filepath.Dir(l.BackingFile) != dir && p.nameOf(l.BackingFile) != (volume.Name{})):
			continue // not flexd's, of a volume that is inactive; or another group's
		}
		full, err := p.kernel.Loop(l.Name) // with its number and size
		switch {
		case err == nil && full.Seq == l.Seq:
			l = full
		case !has:
			continue
		}
		if !has {
			i, own[v.UUID] = len(s.Devices), len(s.Devices)
			s.Devices = append(s.Devices, join.Device{
				UUID: v.UUID, Name: v.Name, Kernel: "/dev/" + l.Name, Path: "/dev/" + l.Name, Number: l.Number, Size: l.Size, Open: -1,
			})
		}
		l.Hidden, l.Deleted, l.Silent = p.hidden(l, id), l.Deleted || id.deleted(), p.silent(l, id)
		lv := volume.LV{Presence: volume.Present, UUID: v.UUID}
		s.Devices[i].Rivals = append(s.Devices[i].Rivals, rivalOf(lv, file, at, l, id))
	}
}

// noteRivals notes the files with the uuid of a device and another inode, if they have the name that the device's
// link has, or the device's own file is in no group.
func (p *Provider) noteRivals(vg string, loops []Loop, found contents) {
	byUUID, here := map[volume.UUID][]Loop{}, map[Inode]bool{}
	for _, at := range found.inodes {
		here[at] = true
	}
	for _, l := range loops {
		if id, _ := p.remembered(l.Seq); id.UUID != "" && !l.Deleted && !id.deleted() {
			byUUID[id.UUID] = append(byUUID[id.UUID], l)
		}
	}
	for _, v := range found.volumes {
		name := volume.Name{VG: vg, LV: v.Name}
		for _, l := range byUUID[v.UUID] {
			switch id, _ := p.remembered(l.Seq); {
			case id.Inode == found.inodes[v.Name]:
			case p.linked(name) == l.Name, p.notedRival(l.Seq).LV == "" && !here[id.Inode] && !p.listed(l, id):
				p.noteRival(l.Seq, name)
			}
		}
	}
}
