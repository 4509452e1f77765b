package loopdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// Device returns the block device of lv, if it has one. Its Link is "" unless it exists and
// leads to the device: Activate repairs it. It uses the volume's size and file from the
// look-up.
func (p *Provider) Device(ctx context.Context, lv volume.LV) (volume.Device, error) {
	file, at := lv.File.Path, Inode{lv.File.Dev, lv.File.Ino} // of the file with that name; zero = there is none
	if file == "" {
		var err error
		if file, err = p.file(lv.Name); err != nil {
			return p.orphan(ctx, lv, err)
		}
		if lv.Presence == volume.Present {
			f, err := p.kernel.File(file)
			if err != nil {
				return volume.Device{}, err
			}
			at = f.Inode
		}
	}
	if d, ok := p.lastDevice(lv, file, at); ok {
		return whole(lv, file, d), nil
	}
	s, err := p.look(ctx)
	if err != nil {
		return volume.Device{}, err
	}
	all, err := p.loopsOf(ctx, lv, file, at, p.candidates(s, lv.Name, file, at, lv.UUID))
	if err != nil {
		return volume.Device{}, err
	}
	if all.own == nil && len(all.reasons) == 0 {
		if lv.Presence != volume.Present {
			// Its file may have been renamed, and may still have a device.
			return p.orphan(ctx, lv, nil)
		}
		return volume.Device{Activity: volume.Inactive, Checked: s.checked}, nil
	}
	d := volume.Device{Activity: volume.Inactive}
	switch {
	case all.own != nil:
		d = p.deviceOf(lv.Name, *all.own)
		p.saveAgain(all.own.Seq)
		p.noteRival(all.own.Seq, volume.Name{})
		if len(all.reasons) == 0 {
			p.mu.Lock()
			p.sole[lv.UUID] = sole{lv.Name, all.own.Name, s.end, s.checked}
			p.mu.Unlock()
		}
	case all.left != nil: // Deactivate keeps it
		d = p.deviceOf(lv.Name, *all.left)
		if all.rival && !all.left.Deleted {
			p.noteRival(all.left.Seq, lv.Name)
		}
	}
	if len(all.reasons) > 0 {
		d.Unusable, d.Reason = true, strings.Join(all.reasons, "; ")
	}
	d.Checked = s.checked
	return whole(lv, file, d), nil
}

// loops are the loop devices of a volume.
type loops struct {
	own     *Loop
	left    *Loop    // the volume's, but of another or a deleted file
	rival   bool     // the volume's file is another one than that of left
	reasons []string // why the volume must not be used
}

// loopsOf classifies the loop devices with those names. at is the volume's file; zero if
// there is none.
func (p *Provider) loopsOf(ctx context.Context, lv volume.LV, file string, at Inode, names []string) (all loops, err error) {
	for _, name := range names {
		l, id, err := p.loop(ctx, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // detached meanwhile
		}
		if err != nil {
			return all, err
		}
		// The volume's own device may show another path: flexd was started in another mount namespace,
		// or the group's filesystem was unmounted lazily and mounted again.
		// A hard link that was moved to a deleted name is the same file.
		same := id.UUID == lv.UUID && lv.UUID != "" && at != (Inode{}) && id.Inode == at
		if same && (l.Deleted || l.BackingFile != file) { // or the file was replaced since the look-up
			f, err := p.kernel.File(file)
			if err != nil {
				return all, err
			}
			same = f.Inode == id.Inode
		}
		if !same {
			l = p.askDeleted(ctx, l)
		}
		if id.UUID != lv.UUID && lv.Presence == volume.Present && p.keptHere(l, lv.Name) {
			all.reasons = append(all.reasons, formerFile(l, id, file).String())
			continue
		}
		if id.UUID == lv.UUID && l.BackingFile != file {
			l.Hidden = p.hidden(l, id)
		}
		all.add(lv, file, at, l, id, same)
	}
	if all.own != nil && all.own.Part {
		all.reasons = append(all.reasons, fmt.Sprintf("/dev/%s was made to show only a part of %s (losetup -l /dev/%[1]s): delete the pods that use it, and it is attached again; if its group has `deactivate: never`, then: losetup -d /dev/%[1]s", all.own.Name, file))
	}
	if all.own != nil && all.own.NoNode != "" {
		all.reasons = append(all.reasons, all.own.NoNode+": "+all.own.MakeNode)
	}
	return all, nil
}

// add adds a loop device; same reports whether it shows the volume's file.
func (a *loops) add(lv volume.LV, file string, at Inode, l Loop, id identity, same bool) {
	// Another file may have the same path: a filesystem was mounted over its directory.
	other := id.UUID == lv.UUID && !l.Deleted && at != (Inode{}) && id.Inode != at
	refuse := func(format string, args ...any) { a.reasons = append(a.reasons, fmt.Sprintf(format, args...)) }
	switch {
	case l.BackingFile != file && !same || other:
		if r := rivalOf(lv, file, at, l, id); r.Text != "" {
			refuse("%s", r)
			if id.UUID == lv.UUID {
				a.left, a.rival = &l, id.Inode != at // if it is the same, the file was renamed since the look-up
			}
		}
	case id.UUID != lv.UUID && (l.Deleted || lv.Presence == volume.Absent || anotherFile(id, at)):
		// The device of another file that has or had this name: not this volume.
	case l.Deleted && lv.Presence == volume.Absent && a.own == nil:
		a.own = &l // its file is gone
	case l.Deleted && !same:
		a.left = &l
		refuse("/dev/%s still has a deleted file with the uuid of this volume: %s", l.Name, deletedAdvice(l, file))
	case id.UUID == "":
		refuse("/dev/%s is attached to %s, but not by flexd: %s", l.Name, file, detachAdvice(l.Name))
	case id.UUID != lv.UUID:
		refuse("/dev/%s is attached to %s as the volume %s, but the file says %s: %s", l.Name, file, id.UUID, lv.UUID, detachAdvice(l.Name))
	case a.own != nil:
		refuse("/dev/%s and /dev/%s are both attached to %s: %s", a.own.Name, l.Name, file, detachAdvice(l.Name))
	default:
		a.own = &l
	}
}

// anotherFile reports whether a volume of flexd has another file than at. Both may have the
// same path: nodes in containers share the kernel's loop devices, and not their mounts. An
// inode alone proves nothing, since a filesystem that is mounted again may get other numbers.
func anotherFile(id identity, at Inode) bool {
	return id.UUID != "" && id.Inode != (Inode{}) && at != (Inode{}) && id.Inode != at
}

// soleTimeout is how long a volume's device counts as the only one after a scan that found
// no other. The children that activate, check, format or first mount a volume scan
// themselves.
var soleTimeout = time.Second

// A sole device was the only one of its volume, and of its name, at the end of a scan.
type sole struct {
	name    volume.Name
	loop    string
	scanned time.Time
	checked uint64
}

// lastDevice returns the volume's device without a scan, if it was the only one within soleTimeout.
func (p *Provider) lastDevice(lv volume.LV, file string, at Inode) (volume.Device, bool) {
	p.mu.Lock()
	last := p.sole[lv.UUID]
	p.mu.Unlock()
	if last.loop == "" || last.name != lv.Name || time.Since(last.scanned) > soleTimeout {
		return volume.Device{}, false
	}
	l, err := p.kernel.Loop(last.loop)
	if err != nil || l.BackingFile != file || l.Deleted || l.Part || l.NoNode != "" {
		return volume.Device{}, false
	}
	id, ok := p.remembered(l.Seq)
	if !ok || id.UUID != lv.UUID || at != (Inode{}) && id.Inode != at {
		return volume.Device{}, false
	}
	d := p.deviceOf(lv.Name, l)
	d.Checked = last.checked
	return d, true
}

// orphan finds the device of a volume whose group is no longer configured: flexd still
// unmounts it and detaches its device. why is the error if that device is unknown.
func (p *Provider) orphan(ctx context.Context, lv volume.LV, why error) (volume.Device, error) {
	if lv.UUID == "" {
		return volume.Device{Activity: volume.Inactive}, why
	}
	s, err := p.look(ctx)
	if err != nil {
		return volume.Device{}, err
	}
	for _, name := range s.byUUID[lv.UUID] {
		l, id, err := p.loop(ctx, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return volume.Device{}, err
		}
		if id.UUID == lv.UUID {
			d := p.deviceOf(lv.Name, l)
			d.Checked = s.checked
			return d, nil
		}
	}
	if len(s.silent) > 0 { // its path proves nothing: it may be of another mount namespace, or of a filesystem that was unmounted lazily
		return volume.Device{}, fmt.Errorf("/dev/%s may be the volume, but does not return its identity: check dmesg and the filesystem of its file (cat /sys/block/%[1]s/loop/backing_file)", s.silent[0])
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

// whole refuses a device that is larger than its file: on some kernels the part beyond its
// end reads as zeros, and would count as blank. It refuses one without a sector, too.
func whole(lv volume.LV, file string, d volume.Device) volume.Device {
	switch {
	case lv.Presence != volume.Present || d.Activity != volume.Active || d.Unusable:
	case lv.Size < d.Size:
		d.Unusable = true
		d.Reason = fmt.Sprintf("its file has %s, but %s was attached with %s: the file was truncated, or replaced in place: %[4]s; if it is to be that small and its group has `deactivate: never`: losetup -d %[2]s",
			volume.Bytes(lv.Size), d.Path, volume.Bytes(d.Size), volume.CutFile(d.Size, lv.Size, file, d.Path))
	case d.Size == 0 && lv.Size < 512:
		d.Unusable, d.Reason = true, empty(lv)
	case d.Size == 0:
		d.Unusable = true
		d.Reason = fmt.Sprintf("its file had no data when it was attached, and has %s now: losetup -c %s", volume.Bytes(lv.Size), d.Path)
	}
	return d
}

// empty returns why a file without a sector is not used.
func empty(lv volume.LV) string {
	return fmt.Sprintf("its file has only %s: the file was truncated, or never filled; truncate -s SIZE gives it a size", volume.Bytes(lv.Size))
}

// linked returns the loop device to which a volume's link leads; "" = none. It finds the device of a file that
// was moved away and deleted.
func (p *Provider) linked(name volume.Name) string {
	to, _ := os.Readlink(p.link(name))
	loop, _ := strings.CutPrefix(to, "/dev/")
	return loop
}

// linksTo returns the links that lead to a device.
func (p *Provider) linksTo(path string) []string {
	links, _ := filepath.Glob(filepath.Join(p.linkDir, "*", "*")) // an error is one of the pattern
	return slices.DeleteFunc(links, func(link string) bool { return !leadsTo(link, path) })
}

// link returns the stable name of a volume's device. It is in a directory of flexd, so that its creation
// never waits for a volume.
func (p *Provider) link(name volume.Name) string {
	return filepath.Join(p.linkDir, name.VG, name.LV)
}

func leadsTo(link, path string) bool {
	to, err := os.Readlink(link)
	return err == nil && to == path
}

// makeLink creates or corrects the link atomically.
func makeLink(link, path string) error {
	if leadsTo(link, path) {
		return nil
	}
	dir := filepath.Dir(link)
	tmp := filepath.Join(dir, ".new-"+filepath.Base(link))
	err := fs.ErrNotExist
	// The deactivation of the last volume removes the directory, perhaps concurrently.
	for tries := 0; errors.Is(err, fs.ErrNotExist) && tries < 100; tries++ {
		// #nosec G301 -- in /dev, as LVM makes them
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
	_ = os.Remove(filepath.Dir(link)) // if it was the last of its volume group
	return nil
}
