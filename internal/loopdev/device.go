package loopdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/flexd/flexd/internal/volume"
)

// Device says which block device lv has, if any. Its Link is "" unless it is
// there and leads to the device: Activate heals it.
func (p *Provider) Device(ctx context.Context, lv volume.LV) (volume.Device, error) {
	file, err := p.file(lv.Name)
	if err != nil {
		return p.orphan(ctx, lv, err)
	}
	if d, ok := p.again(lv, file); ok {
		return whole(lv, d), nil
	}
	loops, err := p.kernel.Loops()
	if err != nil {
		return volume.Device{}, err
	}
	var ours, left *Loop // left is this volume's, of a file that is deleted
	var others []string  // why the volume must not be used
	for _, l := range loops {
		if l.BackingFile != file {
			continue
		}
		full, err := p.kernel.Loop(l.Name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return volume.Device{}, err
		}
		if full.BackingFile != file {
			continue // detached meanwhile
		}
		id, err := p.identity(ctx, full)
		if err != nil {
			return volume.Device{}, err
		}
		switch {
		case id.UUID != lv.UUID && (full.Deleted || lv.Presence == volume.Absent):
			// The device of a file that had this name before, or has it now: not
			// this volume.
		case full.Deleted && lv.Presence == volume.Absent && ours == nil:
			ours = &full // its file is gone, and it is only to be let go
		case full.Deleted:
			left = &full
			others = append(others, fmt.Sprintf("/dev/%s still has a deleted file with the uuid of this volume", l.Name))
		case id.UUID == "":
			others = append(others, fmt.Sprintf("/dev/%s is attached to %s, but not by flexd: losetup -d /dev/%s", l.Name, file, l.Name))
		case id.UUID != lv.UUID:
			others = append(others, fmt.Sprintf("/dev/%s is attached to %s as the volume %s, but the file says %s", l.Name, file, id.UUID, lv.UUID))
		case ours != nil:
			others = append(others, fmt.Sprintf("/dev/%s and /dev/%s are both attached to %s", ours.Name, l.Name, file))
		default:
			ours = &full
		}
	}
	if ours == nil && len(others) == 0 {
		if lv.Presence != volume.Present {
			// Its file may have another name by now, and a device all the same.
			return p.orphan(ctx, lv, nil)
		}
		return volume.Device{Activity: volume.Inactive}, nil
	}
	d := volume.Device{Activity: volume.Inactive}
	switch {
	case ours != nil:
		d = p.deviceOf(lv.Name, *ours)
		p.found(lv.UUID, ours.Name)
	case left != nil: // it is let go like any other
		d = p.deviceOf(lv.Name, *left)
	}
	if len(others) > 0 {
		d.Unusable, d.Reason = true, strings.Join(others, "; ")
	}
	return whole(lv, d), nil
}

// again looks at the loop device that the volume had before. A list of all is
// only needed where it is no longer that one; whether somebody else attached the
// file as well is looked at before every activation.
func (p *Provider) again(lv volume.LV, file string) (volume.Device, bool) {
	p.mu.Lock()
	name := p.last[lv.UUID]
	p.mu.Unlock()
	if name == "" {
		return volume.Device{}, false
	}
	l, err := p.kernel.Loop(name)
	if err != nil || l.BackingFile != file || l.Deleted {
		return volume.Device{}, false
	}
	if id, ok := p.remembered(l.Seq); !ok || id.UUID != lv.UUID {
		return volume.Device{}, false
	}
	return p.deviceOf(lv.Name, l), true
}

func (p *Provider) found(uuid volume.UUID, loop string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last[uuid] = loop
}

// orphan finds the device of a volume whose group is not configured any more:
// what is mounted is let go all the same, and its device after it. why is what
// to say if that device cannot be told.
func (p *Provider) orphan(ctx context.Context, lv volume.LV, why error) (volume.Device, error) {
	if lv.UUID == "" {
		return volume.Device{Activity: volume.Inactive}, why
	}
	loops, err := p.kernel.Loops()
	if err != nil {
		return volume.Device{}, err
	}
	for _, l := range loops {
		full, err := p.kernel.Loop(l.Name)
		if err != nil || full.BackingFile == "" {
			continue
		}
		id, err := p.identity(ctx, full)
		if err != nil {
			return volume.Device{}, err
		}
		if id.UUID == lv.UUID {
			return p.deviceOf(lv.Name, full), nil
		}
	}
	return volume.Device{Activity: volume.Inactive}, nil
}

func (p *Provider) deviceOf(name volume.Name, l Loop) volume.Device {
	d := volume.Device{
		Activity: volume.Active,
		Path:     "/dev/" + l.Name,
		Number:   l.Number,
		Seq:      l.Seq,
		Size:     l.Size,
		ReadOnly: l.ReadOnly,
	}
	if link := p.link(name); leadsTo(link, d.Path) {
		d.Link = link
	}
	return d
}

// whole refuses a device that is larger than its file: what lies beyond the end
// reads as zero on some kernels, and would be taken for blank.
func whole(lv volume.LV, d volume.Device) volume.Device {
	if lv.Presence == volume.Present && d.Activity == volume.Active && lv.Size < d.Size && !d.Unusable {
		d.Unusable = true
		d.Reason = fmt.Sprintf("its file has %d bytes, and %s was made with %d: somebody has cut the file", lv.Size, d.Path, d.Size)
	}
	return d
}

// link is the stable name of a volume's device. It stands in a directory of
// flexd's own, so that making it never waits for a volume.
func (p *Provider) link(name volume.Name) string {
	return filepath.Join(p.linkDir, name.VG, name.LV)
}

func leadsTo(link, path string) bool {
	to, err := os.Readlink(link)
	return err == nil && to == path
}

// makeLink makes the link, or makes it right, in one instant.
func makeLink(link, path string) error {
	if leadsTo(link, path) {
		return nil
	}
	dir := filepath.Dir(link)
	tmp := filepath.Join(dir, ".new-"+filepath.Base(link))
	err := fs.ErrNotExist
	// The last volume that goes takes the directory along, maybe just now.
	for tries := 0; errors.Is(err, fs.ErrNotExist) && tries < 100; tries++ {
		if err := os.MkdirAll(dir, 0o755); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		err = os.Symlink(path, tmp)
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp, link)
}

func removeLink(link string) error {
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(filepath.Dir(link)) // when it was the last of its volume group
	return nil
}
