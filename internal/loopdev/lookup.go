package loopdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/flexd/flexd/internal/volume"
)

// LookUp looks a volume up by name. A failure to read is an error, and so is a missing
// directory of the volume group: it may not be mounted yet.
func (p *Provider) LookUp(ctx context.Context, name volume.Name) (volume.LV, error) {
	file, err := p.file(name)
	if err != nil {
		return volume.LV{}, err
	}
	f, err := p.kernel.File(file)
	if err != nil || !f.Exists {
		if err := p.checkDirectory(name.VG, filepath.Dir(file)); err != nil {
			return volume.LV{}, err
		}
	}
	if err != nil {
		return volume.LV{}, fmt.Errorf("volume %s: %w", name, err)
	}
	lv := volume.LV{
		Presence: volume.Present,
		Name:     name,
		UUID:     volume.UUID(f.UUID),
		Size:     f.Size,
		ReadOnly: f.ReadOnly,
		Created:  f.Created,
		File:     volume.File{Path: file, Dev: f.Inode.Dev, Ino: f.Inode.Ino, Birth: f.Birth},
	}
	if !f.Exists {
		return volume.LV{Presence: volume.Absent, Name: name}, nil
	}
	if lv.Reason = foreign(file, f); lv.Reason != "" {
		lv.Presence, lv.UUID = volume.Foreign, ""
		former := p.former(ctx, name, file)
		if former != "" {
			lv.Reason = former + "; " + lv.Reason
		}
		lv.File.Unmarked = f.Regular && f.UUID == "" && former == ""
	}
	return lv, nil
}

// former says which device has the file that another one has replaced, if any.
func (p *Provider) former(ctx context.Context, name volume.Name, file string) string {
	s, err := p.look(ctx)
	if err != nil {
		return "" // Device returns the error
	}
	for _, loop := range p.candidates(s, name, file, Inode{}, "") {
		if l, err := p.kernel.Loop(loop); err == nil {
			if former := p.formerIn(ctx, l, name, file, true); former != "" {
				return former
			}
		}
	}
	return ""
}

// formerIn says that a device has the former file with a volume's name, if it has; see formerRival for taken.
func (p *Provider) formerIn(ctx context.Context, l Loop, name volume.Name, file string, taken bool) string {
	id, known := p.remembered(l.Seq)
	if !known {
		return ""
	}
	if l = p.askDeleted(ctx, l); p.keptHere(l, name) {
		return formerFile(l, id, file).String()
	}
	if !l.Deleted && p.notedRival(l.Seq) == name {
		l.Hidden = p.hidden(l, id)
		return formerRival(l, id.UUID, name, file, taken).String()
	}
	return ""
}

// CheckVacant refuses the creation of a volume while a device may have the data of one with its name. Its record may be
// lost, and the saved identity of the device, too: then a device of a deleted file counts as this node's.
func (p *Provider) CheckVacant(ctx context.Context, name volume.Name) error {
	file, err := p.file(name)
	if err != nil {
		return err
	}
	s, err := p.look(ctx)
	if err != nil {
		return err
	}
	linked := p.linked(name)
	for _, l := range s.loops {
		if l.BackingFile != file && l.Name != linked && p.notedRival(l.Seq) != name {
			continue
		}
		l, id, err := p.loop(ctx, l.Name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // detached meanwhile
		}
		if err != nil {
			return err
		}
		former := p.formerIn(ctx, l, name, file, false)
		if former == "" && l.BackingFile == file {
			_, saved := p.restore(l.Seq)
			switch {
			case l.Deleted || id.deleted():
				former = fmt.Sprintf("/dev/%s has a deleted file with that name, but it is not noted here: losetup, or flexd in another container, whose mounts lsblk does not show, may have attached it, and it may be needed there. Only if nothing uses it: if the data is needed, %s. If not: losetup -d /dev/%[1]s", l.Name, rescue(l, file))
			case saved:
				former = fmt.Sprintf("/dev/%s is attached to a file with that name, which is below a later mount (findmnt -T %s), or whose filesystem was unmounted: mount it there again, and nothing over it; if its data is not needed: losetup -d /dev/%[1]s", l.Name, volume.Quote(file))
			}
		}
		if former != "" {
			return volume.Errorf(volume.DataMissing, "it does not exist, but a loop device may have its data: %s", former)
		}
	}
	return nil
}

// foreign returns why flexd must not use a file; "" = it may.
func foreign(file string, f FileInfo) string {
	switch {
	case !f.Regular:
		return file + " is not a regular file"
	case f.UUID == "":
		return fmt.Sprintf("%s was not created by flexd; to let flexd use it: flexd uuid --new %s", file, volume.Quote(file))
	case !isUUID(f.UUID):
		return fmt.Sprintf("the attribute %s of %s is not a uuid; to make it a volume of its own: flexd uuid --new %s", uuidAttr, file, volume.Quote(file))
	case f.Links > 1:
		return fmt.Sprintf("%s has %d hard links, and could be two volumes: remove the others (find DIRECTORY -samefile %s)", file, f.Links, volume.Quote(file))
	}
	return ""
}

// checkDirectory returns an error if a group's directory does not exist.
func (p *Provider) checkDirectory(vg, dir string) error {
	d, err := p.kernel.File(dir)
	if err != nil {
		return fmt.Errorf("volume group %s: %w", vg, err)
	}
	if !d.Exists || !d.Dir {
		return volume.Errorf(volume.NotFound, "volume group %s not found: there is no directory %s; mount its filesystem, or correct `directory` of that group in flexd's configuration", vg, dir)
	}
	return nil
}

// Refresh does nothing: no other node uses the files.
func (p *Provider) Refresh(context.Context, string) error { return nil }

// Reread does nothing: each look-up reads the file's attributes.
func (p *Provider) Reread(context.Context, string) error { return nil }
