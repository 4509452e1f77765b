package loopdev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Deadlines of the children. All of them only change metadata.
const changeDeadline = 2 * time.Minute

type createArg struct {
	File      string `json:"file"`
	Size      int64  `json:"size"`
	Namespace string `json:"namespace,omitempty"`
}

// Create creates a blank volume of size bytes (rounded up to 4 KiB) for a namespace. It never
// replaces a file.
func (p *Provider) Create(ctx context.Context, lock string, name volume.Name, size int64, namespace string) error {
	file, err := p.file(name)
	if err != nil {
		return err
	}
	if size <= 0 {
		return fmt.Errorf("volume %s: no size", name)
	}
	end, err := p.admit(name, reservation{created: true, namespace: namespace, size: roundUp(size)})
	if err != nil {
		return err
	}
	err = p.change(ctx, "create", "loop-create", lock, createArg{File: file, Size: size, Namespace: namespace}, nil)
	end(err)
	return err
}

// CanCreate returns why Create would refuse a volume that does not exist. It changes nothing.
func (p *Provider) CanCreate(ctx context.Context, name volume.Name, size int64, namespace string) error {
	if err := p.CheckVacant(ctx, name); err != nil {
		return err
	}
	p.admitting.Lock()
	defer p.admitting.Unlock()
	_, _, err := p.admissible(name, reservation{created: true, namespace: namespace, size: roundUp(size)})
	return err
}

// SetRecord is never called: no other node has these volumes.
func (p *Provider) SetRecord(_ context.Context, lv volume.LV, _ volume.Record, _ string) error {
	return fmt.Errorf("the group of %s is not shared", lv.Name)
}

type attachArg struct {
	File     string      `json:"file"`
	UUID     volume.UUID `json:"uuid"`
	ReadOnly bool        `json:"readOnly,omitempty"`
	After    uint64      `json:"after,omitempty"`  // devices up to this diskseq were checked
	Others   []uint64    `json:"others,omitempty"` // the checked devices of other files with the same name
}

// Activate attaches lv to a loop device. If lv is active already, it only checks the link.
func (p *Provider) Activate(ctx context.Context, lock string, lv volume.LV) error {
	file, err := p.file(lv.Name)
	if err != nil {
		return err
	}
	lv.File = volume.File{} // it is read again
	d, err := p.Device(ctx, lv)
	if err != nil {
		return err
	}
	if d.Unusable {
		return fmt.Errorf("activate: %s", d.Reason)
	}
	if d.Activity != volume.Active {
		if lv.Size < 512 {
			return errors.New("activate: " + empty(lv))
		}
		var l Loop
		arg := attachArg{File: file, UUID: lv.UUID, ReadOnly: lv.ReadOnly, After: d.Checked, Others: p.sameName(file)}
		if err := p.change(ctx, "activate", "loop-attach", lock, arg, &l); err != nil {
			return err
		}
		id := identity{UUID: lv.UUID, Inode: l.Inode}
		p.remember(l.Seq, id)
		p.save(l.Seq, id)
		d = p.deviceOf(lv.Name, l)
	}
	if err := makeLink(p.link(lv.Name), d.Path); err != nil {
		return fmt.Errorf("activate: %w", err)
	}
	return nil
}

type detachArg struct {
	Device volume.Device `json:"device"`
	UUID   volume.UUID   `json:"uuid"`
	File   string        `json:"file,omitempty"`  // the volume's
	Known  bool          `json:"known,omitempty"` // that incarnation of the device is known to be the volume's
}

// Deactivate detaches lv's block device d. A device that is gone is success; a device in
// use gives a *mount.BusyError. It does not change a device that is not, or no longer, lv's, nor a device
// with the only copy of its data.
func (p *Provider) Deactivate(ctx context.Context, lock string, lv volume.LV, d volume.Device) error {
	if d.Activity == volume.Active {
		id, known := p.remembered(d.Seq)
		if known = known && id.UUID == lv.UUID; known {
			if why := p.keepReason(ctx, lv, d, id); why != "" {
				return volume.Errorf(volume.Conflict, "deactivate: it stays active: %s", why)
			}
		}
		file, _ := p.file(lv.Name)
		arg := detachArg{Device: d, UUID: lv.UUID, File: cmp.Or(lv.File.Path, file), Known: known}
		if err := p.change(ctx, "deactivate", "loop-detach", lock, arg, nil); err != nil {
			return err
		}
		p.mu.Lock()
		delete(p.known, d.Seq)
		delete(p.sole, lv.UUID)
		p.mu.Unlock()
		_ = os.Remove(p.saved(d.Seq))
		p.noteRival(d.Seq, volume.Name{})
	}
	if lv.Name.LV == "" {
		return nil
	}
	link := p.link(lv.Name)
	if d.Path == "" || leadsTo(link, d.Path) {
		return removeLink(link)
	}
	// The link still has the volume's old name, or the link of a later volume leads elsewhere.
	var err error
	for _, link := range p.linksTo(d.Path) {
		err = errors.Join(err, removeLink(link))
	}
	return err
}

// keepReason returns why a device must stay attached: another file with its uuid has the volume's name or had it, or is
// in a group while the device's own file is in none. Only the device shows that. The child checks whether the volume's
// own file was deleted. A filesystem that has shut down is no reason: it could not be repaired while the device is
// attached.
func (p *Provider) keepReason(ctx context.Context, lv volume.LV, d volume.Device, id identity) string {
	l, err := p.kernel.Loop(filepath.Base(d.Path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("%s cannot be read: %v", d.Path, err)
	}
	if err != nil || l.Seq != d.Seq {
		return ""
	}
	if l = p.askDeleted(ctx, l); l.Deleted {
		return ""
	}
	file, f := p.fileNow(lv.Name)
	if f.Exists && f.Inode == id.Inode {
		return ""
	}
	if l.Silent {
		return formerFile(l, id, file).String()
	}
	r := p.rival(l, id, p.notedRival(l.Seq), false)
	if r.Text == "" {
		r = p.rival(l, id, lv.Name, lv.Presence == volume.Present)
	}
	if r.Text == "" && !p.listed(l, id) {
		other, err := p.otherFile(id)
		if err != nil {
			return fmt.Sprintf("/dev/%s is attached to %s, and whether another file has the uuid %s is unknown: %v; if there is none: losetup -d /dev/%[1]s", l.Name, l.BackingFile, id.UUID, err)
		}
		if other.LV != "" {
			p.noteRival(l.Seq, other)
		}
		r = p.rival(l, id, other, false)
	}
	if r.Text == "" {
		return ""
	}
	return r.String()
}

// otherFile searches the groups for another file with the uuid of a device; the name is empty if there is none, or if
// the device's own file is there, too. It reads all files, so only a deactivation uses it, and only if the device's own
// file was moved away.
func (p *Provider) otherFile(id identity) (other volume.Name, err error) {
	own := false
	for _, vg := range slices.Sorted(maps.Keys(p.dirs)) {
		unread, derr := p.each(vg, p.dirs[vg], func(name, _ string, f FileInfo) {
			switch {
			case f.Inode == id.Inode:
				own = true
			case volume.UUID(f.UUID) == id.UUID:
				other = volume.Name{VG: vg, LV: name}
			}
		})
		if !errors.Is(derr, fs.ErrNotExist) {
			err = cmp.Or(err, derr)
		}
		for _, why := range unread {
			err = cmp.Or(err, errors.New(why))
		}
	}
	switch {
	case own:
		return volume.Name{}, nil
	case other.LV != "":
		return other, nil
	}
	return other, err
}

type extendArg struct {
	File   string        `json:"file"`
	UUID   volume.UUID   `json:"uuid"`
	Device volume.Device `json:"device"`
	Size   int64         `json:"size"`
}

// Extend extends lv and its device d to at least size bytes (rounded up to 4 KiB). d may be
// inactive. It continues an interrupted extension.
func (p *Provider) Extend(ctx context.Context, lock string, lv volume.LV, d volume.Device, size int64) error {
	file, err := p.file(lv.Name)
	if err != nil {
		return err
	}
	end, err := p.admit(lv.Name, reservation{size: roundUp(size)})
	if err != nil {
		return err
	}
	err = p.change(ctx, "extend", "loop-extend", lock, extendArg{File: file, UUID: lv.UUID, Device: d, Size: size}, nil)
	end(err)
	return err
}

// ExtendBlank is Extend for an active volume that is blank. The space added to a file is zero, but a failed
// mkfs may have left data at places that the blank proof reads only on a larger device.
func (p *Provider) ExtendBlank(ctx context.Context, lock string, lv volume.LV, d volume.Device, size int64) error {
	if err := p.Extend(ctx, lock, lv, d, size); err != nil {
		return err
	}
	return mount.Ops{Runner: p.runner}.ZeroFrom(ctx, lock, d, d.Size)
}

func (p *Provider) change(ctx context.Context, step, op, lock string, arg, value any) error {
	return mount.Ask(ctx, p.runner, run.Cmd{
		Step:     step,
		Argv:     run.Self(op, arg),
		Lock:     lock,
		Deadline: changeDeadline,
		Mutates:  true,
	}, value)
}

// temporary returns the path of a volume's file during its creation.
func temporary(file string) string {
	return filepath.Join(filepath.Dir(file), ".flexd-new-"+filepath.Base(file))
}
