package loopdev

import (
	"cmp"
	"fmt"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/volume"
)

// A rival of a volume's device is another device of its file, or another file with its uuid or its name. While there is
// one, it is not known which has the newest data.

// detachAdvice names lsblk first: the kernel detaches a device in use only at its last close.
func detachAdvice(loop string) string {
	return fmt.Sprintf("end the users of /dev/%[1]s (lsblk /dev/%[1]s; delete the pods of its mounts), then losetup -d /dev/%[1]s", loop)
}

// onlyCopy is the refusal to detach the device of a deleted file.
func onlyCopy(l Loop, file string) error {
	return volume.Errorf(volume.Conflict, "it stays active, because the file of /dev/%s was deleted: %s", l.Name, deletedAdvice(l, file))
}

// keptHere reports whether l is of a file that was deleted, or may have been, and this node's. Nodes in containers may have the same
// paths, but not the same saved identities. A link of the name may be of an earlier device with that number.
func (p *Provider) keptHere(l Loop, name volume.Name) bool {
	if !l.Deleted && !l.Silent {
		return false
	}
	if now := p.nameOf(l.BackingFile); now.LV != "" && now != name && leadsTo(p.link(now), "/dev/"+l.Name) {
		return false
	}
	_, saved := p.restore(l.Seq)
	return saved
}

// formerFile says that a device has the former file at a volume's path, or may have it.
func formerFile(l Loop, id identity, file string) join.Rival {
	text := fmt.Sprintf("/dev/%s still has a deleted file with that name, of the volume %s", l.Name, cmp.Or(id.UUID, "without a uuid"))
	if l.Silent {
		text = fmt.Sprintf("/dev/%s may have a deleted file, of the volume %s: %s shows another file, or none, and the device does not answer", l.Name, id.UUID, l.BackingFile)
	}
	return join.Rival{Text: text, Hint: deletedAdvice(l, file)}
}

// deletedAdvice overwrites no file, since flexd does not know which one is needed. The directory of the deleted
// file may not exist; that of the volume does.
func deletedAdvice(l Loop, file string) string {
	if l.Silent {
		return fmt.Sprintf("look at dmesg and at the disk of its filesystem: flexd looks again when the device answers. Its newest data may be only in /dev/%[1]s, which flexd keeps; only if that is not needed: delete the pods that use it (lsblk /dev/%[1]s), then losetup -d /dev/%[1]s", l.Name)
	}
	return fmt.Sprintf("its newest data may be only in /dev/%[1]s. %[2]s. If the data is needed, %[3]s. If not: losetup -d /dev/%[1]s", l.Name, keep(l), rescue(l, cmp.Or(file, l.BackingFile)))
}

func keep(l Loop) string { return volume.KeepLoop("/dev/"+l.Name, l.Ending) }

// rescue returns the commands that copy the data of a device to a new volume beside a file, and detach the device
// only if the copy is complete. Repeated, they overwrite no earlier copy: the kernel uses the device's name again, but
// not its diskseq.
func rescue(l Loop, file string) string {
	copied := volume.Quote(fmt.Sprintf("%s-rescued-%d", file, l.Seq))
	return fmt.Sprintf("and the filesystem has %[3]s of space for a copy, which other volumes do not need (otherwise copy it to another one): [ ! -e %[2]s ] && cp --sparse=always /dev/%[1]s %[2]s && flexd uuid --new %[2]s && losetup -d /dev/%[1]s", l.Name, copied, volume.Bytes(l.Size))
}

// rivalOf returns why the loop device l prevents the use of lv, if it does: it is attached
// to the same file under another name, or has the volume's uuid but another file.
func rivalOf(lv volume.LV, file string, at Inode, l Loop, id identity) (r join.Rival) {
	other := l.BackingFile
	if l.Deleted {
		other += " (deleted)"
	}
	switch {
	case lv.Presence != volume.Present || lv.UUID == "":
	case id.Inode == at:
		r.Text = fmt.Sprintf("/dev/%s is attached to the same file (%s)", l.Name, other)
		r.Hint = detachAdvice(l.Name)
	case id.UUID == lv.UUID && l.Silent:
		return formerFile(l, id, file)
	case id.UUID == lv.UUID && l.BackingFile == file && !l.Deleted:
		r.Text = fmt.Sprintf("/dev/%s is attached to another file with the path %s and the same uuid %s: a filesystem was mounted over its directory later, or it is of another mount namespace", l.Name, file, lv.UUID)
		r.Hint = fmt.Sprintf("the newest data may be in either file. %[4]s. If /dev/%[1]s cannot be read (dmesg: its disk is gone, or came back under another name), the file at that path now is the volume: losetup -d /dev/%[1]s. If it can, that file may be older: unmount the later filesystem (findmnt -T %[2]s); or, if that one is to stay, %[3]s", l.Name, volume.Quote(file), rescue(l, file), keep(l))
	case id.UUID == lv.UUID:
		r.Text = fmt.Sprintf("%s and %s have the same uuid %s, and /dev/%s is attached to the second", file, other, lv.UUID, l.Name)
		if l.Deleted {
			r.Hint = deletedAdvice(l, file)
			break
		}
		if l.Hidden {
			r.Text = fmt.Sprintf("%s has the uuid %s, and /dev/%s is attached to another file with it, which %s does not show", file, lv.UUID, l.Name, l.BackingFile)
			r.Hint = hiddenAdvice(l, file)
			break
		}
		// The second path may be of a filesystem that is not mounted any more, such as a disk that
		// came back under another name: then there is one file only.
		r.Hint = fmt.Sprintf("data written since the copy was made is only in the second file. %[4]s. If the second file is the volume: mv %[2]s %[1]s && losetup -d /dev/%[3]s. If the first is the volume, or both are one file (ls -li %[1]s %[2]s): losetup -d /dev/%[3]s, and remove the copy, or make it a volume of its own: flexd uuid --new COPY", volume.Quote(file), volume.Quote(l.BackingFile), l.Name, keep(l))
	}
	return r
}

// rival returns the file with that name, if it is not the device's own, and has the uuid of its volume or had it as
// flexd noted; its text is "" if there is none. found reports whether flexd has just found the volume by that name.
func (p *Provider) rival(l Loop, id identity, name volume.Name, found bool) (r join.Rival) {
	if name.LV == "" {
		return r
	}
	file, f := p.fileNow(name)
	same := f.Exists && volume.UUID(f.UUID) == id.UUID
	if f.Exists && f.Inode == id.Inode || !same && name != p.notedRival(l.Seq) && !(f.Exists && found) {
		return r
	}
	l.Hidden = p.hidden(l, id)
	if same { // also if it has hard links, and is no volume
		return rivalOf(volume.LV{Presence: volume.Present, UUID: id.UUID}, file, f.Inode, l, id)
	}
	return formerRival(l, id.UUID, name, file, f.Exists)
}

// fileNow reads the file of a volume. The path is "" if its group is not configured; a file that cannot be read does
// not exist.
func (p *Provider) fileNow(name volume.Name) (path string, f FileInfo) {
	path, err := p.file(name)
	if err == nil {
		f, _ = p.kernel.File(path)
	}
	return path, f
}

// listed reports whether the file of a device is in a group, as far as its path shows that. A path that cannot be read
// counts as that of its file: a filesystem that has shut down is repaired only when its devices are detached.
func (p *Provider) listed(l Loop, id identity) bool {
	if p.nameOf(l.BackingFile).LV == "" {
		return false
	}
	f, err := p.kernel.File(l.BackingFile)
	return err != nil || f.Inode == id.Inode
}

// hidden reports whether the path of a device's file shows another file, or none: a filesystem was mounted over it,
// or its own was unmounted lazily.
func (p *Provider) hidden(l Loop, id identity) bool {
	f, err := p.kernel.File(l.BackingFile)
	return err != nil || f.Inode != id.Inode
}

// hiddenAdvice names no path for the device's file, since another file may have it.
func hiddenAdvice(l Loop, file string) string {
	return fmt.Sprintf("data written since the copy was made is only in /dev/%[1]s: its file is below a later mount (findmnt -T %[2]s), or its filesystem was unmounted lazily. %[4]s. If that data is needed, %[3]s. If not: losetup -d /dev/%[1]s", l.Name, volume.Quote(l.BackingFile), rescue(l, file), keep(l))
}

// formerRival says that another file had the name of a device's volume, as flexd noted. It has no path if the group
// is not configured any more. taken reports whether a file has the name now, which is not to be overwritten.
func formerRival(l Loop, uuid volume.UUID, name volume.Name, file string, taken bool) (r join.Rival) {
	r.Text = fmt.Sprintf("/dev/%s is attached to %s, and another file with the uuid %s had the name %s", l.Name, l.BackingFile, uuid, name)
	needed := ""
	switch {
	case file == "":
		needed = fmt.Sprintf("add volume group %s to the configuration again: flexd then says how to keep it", name.VG)
	case l.Silent:
		return formerFile(l, identity{UUID: uuid}, file)
	case l.BackingFile == file, l.Hidden:
		r.Hint = hiddenAdvice(l, file)
		return r
	default:
		if taken {
			r.Text += ", which a third file has now"
			file += "-newer"
		}
		needed = fmt.Sprintf("[ ! -e %[1]s ] && mv %[2]s %[1]s && losetup -d /dev/%[3]s", volume.Quote(file), volume.Quote(l.BackingFile), l.Name)
	}
	r.Hint = fmt.Sprintf("data written since the copy was made is only in %s. %s. If that data is needed: %s. If not: losetup -d /dev/%s", l.BackingFile, keep(l), needed, l.Name)
	return r
}
