package loopdev

import (
	"cmp"
	"context"
	"fmt"

	"github.com/flexd/flexd/internal/volume"
)

// Space returns the space of the filesystem with a group's directory, and the largest volume
// up to limit bytes that Create would create for a namespace that has none. It waits for a
// filesystem that hangs, but not forever.
func (p *Provider) Space(_ context.Context, vg string, limit int64) (volume.Space, error) {
	dir, err := p.directory(vg)
	if err != nil {
		return volume.Space{}, err
	}
	if err := p.checkDirectory(vg, dir); err != nil {
		return volume.Space{}, err
	}
	limits := cmp.Or(p.Limits(vg), &volume.Limits{})
	p.admitting.Lock()
	defer p.admitting.Unlock()
	s, err := p.groupFiles(vg)
	if err != nil {
		return volume.Space{}, err
	}
	all, err := p.committed(s, limits)
	if err != nil {
		return volume.Space{}, err
	}
	found := volume.Space{At: s.read, Size: s.space.Size, Free: s.space.Free, Disks: []volume.Disk{{Device: dir, Size: s.space.Size, Free: s.space.Free}}}
	found.Largest, found.Refused = volume.Largest(unit, limit, func(size int64) error {
		more := volume.Amount{Volumes: 1, Size: roundUp(size)}
		if err := limits.Check(vg, s.usage, volume.NewNamespace, more); err != nil {
			return err
		}
		if more.Size > s.space.Free {
			return advised(fmt.Errorf("%d bytes are wanted, and %d are free", more.Size, s.space.Free), dir)
		}
		return p.checkFilesystem(vg, s, all, limits, more)
	})
	return found, nil
}
