package loopdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/volume"
)

// Survey tells which volumes a group's directory has, and which loop devices
// there are of them. Only if fresh is set, a child may be started to ask a
// device that was not seen before whose it is. What could not be seen is said in
// the result.
func (p *Provider) Survey(ctx context.Context, vg string, fresh bool) join.Survey {
	s := join.Survey{Kind: "loopdev"}
	p.surveyed(vg)
	dir, err := p.directory(vg)
	if err != nil {
		s.Metadata, s.Kernel = err.Error(), err.Error()
		return s
	}
	if s.Volumes, err = p.files(vg, dir); err != nil {
		s.Metadata = err.Error()
	}
	if s.Devices, err = p.devicesIn(ctx, vg, dir, fresh); err != nil {
		s.Kernel = err.Error()
	}
	return s
}

// files are the volumes in a directory. Files that are none are nobody's.
func (p *Provider) files(vg, dir string) ([]join.Volume, error) {
	names, err := p.kernel.Files(dir)
	if err != nil {
		return nil, fmt.Errorf("volume group %s: %w", vg, err)
	}
	var all []join.Volume
	for _, name := range names {
		file, err := p.file(volume.Name{VG: vg, LV: name})
		if err != nil {
			continue
		}
		f, err := p.kernel.File(file)
		if err != nil {
			return nil, fmt.Errorf("volume %s/%s: %w", vg, name, err)
		}
		if !f.Exists || foreign(file, f) != "" {
			continue
		}
		// A device has whole sectors.
		all = append(all, join.Volume{Name: name, UUID: volume.UUID(f.UUID), Size: f.Size / 512 * 512})
	}
	return all, nil
}

func (p *Provider) devicesIn(ctx context.Context, vg, dir string, fresh bool) ([]join.Device, error) {
	loops, err := p.kernel.Loops()
	if err != nil {
		return nil, err
	}
	var all []join.Device
	for _, l := range loops {
		if filepath.Dir(l.BackingFile) != dir {
			continue
		}
		l, err := p.kernel.Loop(l.Name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && l.BackingFile == "" {
			continue // it went meanwhile
		}
		if err != nil {
			return all, err
		}
		id, known := p.remembered(l.Seq)
		switch {
		case !known && !fresh:
			return all, fmt.Errorf("/dev/%s has not been asked whose it is", l.Name)
		case !known:
			if id, err = p.identity(ctx, l); err != nil {
				return all, fmt.Errorf("/dev/%s cannot be asked whose it is: %w", l.Name, err)
			}
		}
		name := volume.Name{VG: vg, LV: filepath.Base(l.BackingFile)}
		d := p.deviceOf(name, l)
		all = append(all, join.Device{
			UUID: id.UUID, Name: name.LV, Kernel: d.Path, Path: d.Path, Number: d.Number, Size: d.Size, Open: -1,
		})
	}
	return all, nil
}
