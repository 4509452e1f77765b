package volume

// GrowSlack is how much smaller than its room an extended filesystem may be: ext4 rounds down to whole
// blocks, and xfs drops a last allocation group of less than 64 blocks.
const GrowSlack = 1 << 20

// Tail is the size of the end of a device that is not part of its filesystem, so that no file can
// contain a label there: most formats with a label at the end, such as md, DDF, GPT and ZFS, have it in
// this range.
const Tail = 1 << 20

// Room is the largest size of a filesystem that flexd makes or extends on a device.
func Room(device int64) int64 { return max(device-Tail, 0) }

// Growable reports whether a filesystem is to be extended on a device. A filesystem over the whole
// device keeps its size.
func Growable(fs, device int64) bool { return fs+GrowSlack <= Room(device) }

func (p *planner) expand(c Call) {
	lv, d := p.h.LV, p.h.Device
	switch {
	case p.h.Targets[c.Dir].Other != "" && !p.h.Targets[c.Dir].Under:
		p.refuse(c, Conflict, "%s is mounted at %s, not this volume", p.h.Targets[c.Dir].Other, c.Dir)
		return
	case p.live() == nil || d.Activity != Active:
		p.refuse(c, Conflict, "it is not mounted, and a filesystem is extended only while it is mounted: mount it first")
		return
	case p.readOnlyLV() && !p.h.LV.ReadOnly && lv.File.Path == "":
		p.refuse(c, Conflict, "its device is read-only and cannot be extended: blockdev --setrw %s; if it stays read-only: remove it from activation/read_only_volume_list in lvm.conf, if it is there; then lvchange -prw %s", p.device(), lv.Name)
		return
	case p.readOnlyLV():
		p.refuse(c, Conflict, "the volume is read-only and cannot be extended")
		return
	case p.h.FS.Content == FilesystemFailed:
		p.refuseWith(c, failed(p.h.FS))
		return
	case p.h.FS.Content == Truncated: // an extension could use other extents than those that were cut off
		p.refuseWith(c, p.truncated())
		return
	case p.enlarged(): // LVM would load a table of the older size
		p.refuse(c, Conflict, "its device %s has %s, and the metadata of the volume group only %s: the metadata may be an older version, and flexd extends no filesystem over space that the device loses at the next activation (flexd check has the remedy)", d.Path, Bytes(d.Size), Bytes(lv.Size))
		return
	case lv.Size < c.Size && c.MaxSize > 0 && c.Size > c.MaxSize:
		p.refuse(c, NoSpace, "%s are wanted, more than the volume group's maxSize (%s): raise it in flexd's configuration", Bytes(c.Size), Bytes(c.MaxSize))
		return
	}
	extends := min(lv.Size, d.Size) < c.Size
	if fs := p.h.FS; fs.Small != "" && (extends || Growable(fs.Size, c.Size)) {
		p.refuse(c, Unusable, "%s", fs.Small)
		return
	}
	if live := p.live(); extends && live.SuperReadOnly {
		p.refuseWith(c, MountedReadOnly(live.Type, live.Dir))
		return
	}
	p.serving = true
	switch calls := []string{c.ID}; {
	case extends && p.h.FS.Content == ContentUnknown: // the filesystem could be truncated
		p.add(Step{Kind: Inspect, Calls: calls})
	case extends:
		p.add(Step{Kind: Extend, Size: max(c.Size, lv.Size), Calls: calls})
	case !p.grow(c.Size, calls): // the rest of a larger device is left to growth: it may be impossible
		p.done(c)
	}
}

// MountedReadOnly refuses to extend a filesystem that is read-only on a writable device, without an error.
func MountedReadOnly(fsType, dir string) Refusal {
	return refusal(Conflict, "its %s is mounted read-only, and cannot be extended: mount -o remount,rw %s (this makes a readOnly pod's mount writable, too; afterwards: mount -o remount,bind,ro %[2]s)", fsType, Quote(dir))
}

// ForcedReadOnly describes the error of a btrfs that is read-only on a writable device. Only a remount shows
// whether it has an error: the kernel refuses it then.
func ForcedReadOnly(dir string) string {
	return "it is read-only on a writable device, as the kernel makes it after an error; if it was remounted by hand: mount -o remount,rw " + Quote(dir)
}

// NoWrites describes the filesystem with a volume's file that accepts no writes, with the remedy. option is that of the
// mount table which shows it, and dir the mount point.
func NoWrites(fsType, dir, option string) (text, remedy string) {
	return "its file is on the " + fsType + " at " + dir + ", which accepts no writes (" + option + ")",
		"look at dmesg, and back up what can be read. If it has errors of that filesystem: delete the pods with volumes there, then umount, fsck and mount it; if not: mount -o remount,rw " + Quote(dir)
}

// enlarged reports whether the device has more space than the volume. The next activation would
// truncate a filesystem that uses that space.
func (p *planner) enlarged() bool {
	return p.h.LV.Presence == Present && p.h.LV.Size > 0 && p.h.LV.Size < p.h.Device.Size
}

// grow plans the extension of the filesystem to its device if it is smaller than on a device of the given size,
// and reports whether it is, or may be.
func (p *planner) grow(size int64, calls []string) bool {
	switch fs := p.h.FS; {
	case fs.Grown:
		return false
	case fs.Size == 0:
		p.add(Step{Kind: Inspect, Calls: calls})
	case !Growable(fs.Size, size):
		return false
	default:
		p.add(Step{Kind: Grow, Calls: calls})
	}
	return true
}

// growth plans the only set-up without a waiting call: the extension of the filesystem of a held claim
// that flexd found smaller than its device at the mount.
func (p *planner) growth() {
	live := p.live()
	if p.h.Device.Suspended { // a child that reads it would hang, and so would an unmount
		p.v.Waiting = p.v.Waiting || live != nil && (p.w.Recheck || p.w.Grow)
		return
	}
	if p.w.Recheck && live != nil && !p.serving && len(p.w.Calls) == 0 && p.h.Device.Activity == Active && p.h.FS.Content == ContentUnknown {
		p.add(Step{Kind: Inspect})
		return
	}
	if !p.w.Grow || p.serving || p.enlarged() || p.h.LV.Pending || live == nil || live.SuperReadOnly || p.readOnlyLV() || len(p.w.Calls) > 0 ||
		p.h.Device.Activity != Active || p.h.FS.Content == FilesystemFailed || p.h.FS.Content == Truncated || p.h.FS.Small != "" {
		return
	}
	for _, c := range p.w.Claims {
		if c.Phase == Held && p.here(c.Dir) {
			p.grow(p.h.Device.Size, nil)
			return
		}
	}
}
