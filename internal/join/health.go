package join

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/volume"
)

// BringBack is the advice about a missing disk, which LVM's settings may only hide.
const BringBack = "bring the disk back (pvs, dmesg), or let LVM see it again (filter, devices file; flexd doctor)"

// cutOff checks for a disk that ends before a part of the volume.
func (s *facts) cutOff() {
	if s.volume == nil || s.volume.CutOff == "" {
		return
	}
	hint := "do not deactivate or extend the volume before that: it could not be activated again"
	if s.device == nil {
		hint = "it cannot be activated before that"
	}
	s.add(Degraded, "", hint, "a part of it is beyond the end of a disk: %s", s.volume.CutOff)
}

// degraded checks a volume in use for a missing disk or a failed copy of its data. A device
// with errors has been reported before.
func (s *facts) degraded() {
	d, v := s.device, s.volume
	if d.Broken != "" || len(s.claims)+len(s.mounts()) == 0 {
		return
	}
	var texts []string
	if d.Degraded != "" {
		texts = append(texts, "its RAID is degraded: "+d.Degraded)
	}
	if v != nil && v.Missing != "" {
		texts = append(texts, cmp.Or(v.Lost, "a part of it")+" is on a disk that LVM does not find ("+v.Missing+")")
	}
	if d.Differ != "" {
		texts = append(texts, d.Differ)
	}
	if len(texts) == 0 {
		return
	}
	const stays = "do not deactivate the volume: it could not be activated again"
	hint := BringBack + ". Until then copy the data off while it can be read, and " + stays
	raid, refresh := cmp.Or(d.RAID, s.title()), cmp.Or(d.Refresh, s.title())
	switch {
	case d.Degraded != "" && s.g.older:
		hint = s.noRefresh()
	case d.Split != "":
		hint = fmt.Sprintf("%s was split off (lvconvert --splitmirrors --trackchanges); once nothing uses it, lvconvert --merge %[1]s makes it a copy again", d.Split)
	case v != nil && v.Remedy != "":
		hint = BringBack
		if d.Degraded != "" {
			hint += ", then lvchange --refresh " + refresh
		}
		hint += "; or, if it is lost, " + v.Remedy + ". Until then " + stays
	case v != nil && v.Partly:
	case d.Degraded != "" || v != nil && v.Missing != "" && v.RAID:
		hint = fmt.Sprintf("%s, then lvchange --refresh %s; or give the group another disk, then lvconvert --repair %s", BringBack, refresh, raid)
		if v != nil && v.Stays {
			hint += ". Until then " + stays
		}
	case v == nil || v.Missing == "":
		hint = fmt.Sprintf("LVM does not know which copy is right: back the data up, and check it. Then lvchange --syncaction repair %s makes them equal, and lvchange --syncaction check %[1]s counts again", raid)
	}
	s.add(Degraded, "", hint, "%s", strings.Join(texts, "; "))
}

// faulty checks a volume in use for reads or writes that fail, or will fail, although its disks are
// present.
func (s *facts) faulty() bool {
	d := s.device
	if d.Broken != "" || len(s.claims)+len(s.mounts()) == 0 {
		return false
	}
	var texts, hints []string
	if d.Failed != "" {
		texts, hints = append(texts, d.Failed), append(hints, d.Remedy)
	}
	for _, check := range []func() (text, hint string){s.filesystem, s.sectors, s.disks} {
		if text, hint := check(); text != "" {
			texts, hints = append(texts, text), append(hints, hint)
		}
	}
	if len(texts) > 0 {
		s.add(Faulty, "", strings.Join(hints, "; "), "%s", strings.Join(texts, "; "))
	}
	return len(texts) > 0
}

// filesystem describes the error of the mounted filesystem.
func (s *facts) filesystem() (text, hint string) {
	fs, d := s.g.Filesystems[s.uuid], s.device
	lost := ""
	for _, m := range s.mounts() {
		fs.What, lost = cmp.Or(fs.What, m.Fault), cmp.Or(lost, m.Lost)
	}
	switch {
	case len(s.mounts()) == 0:
	case fs.Content == volume.Truncated:
		v := cmp.Or(s.volume, &Volume{Name: s.name()})
		remedy := volume.CutLV(fs.Size, v.Size, volume.Name{VG: s.g.Name, LV: v.Name})
		switch {
		case !s.lvm():
			remedy = volume.CutFile(fs.Size, v.Size, s.file(v), d.Path)
		case s.g.older:
			remedy = "do not run fsck. " + s.noRefresh()
		}
		text := fmt.Sprintf("its %s has %s and its device %s only %s", fs.Type, volume.Bytes(fs.Size), d.Path, volume.Bytes(d.Size))
		if s.volume != nil && v.Size < fs.Size {
			text += ": the volume was made smaller than its filesystem"
		}
		return text, "stop writing to it: " + remedy
	case fs.What != "":
		hint := "look at dmesg and at the disk, and back up what can be read. Then delete its pods: the next mount runs fsck, and reports if that does not suffice"
		if d.ReadOnly {
			hint = "look at dmesg and at the disk, and back up what can be read. No fsck runs while the volume is read-only: delete its pods and make it writable, then the next mount runs fsck"
		}
		if d.Failed != "" { // after the remedy for that
			hint = "then, once its pods are deleted, the next mount runs fsck, and reports if that does not suffice"
		}
		return "its filesystem is in error: " + fs.What, hint
	case lost != "":
		return fmt.Sprintf("a write to it has failed since it was mounted, so that data of it may be lost: the kernel logged %q", lost),
			"look at dmesg: was the disk, the thin pool or the filesystem below it full, or did it fail? Check the files that were written last. It is reported until the volume is unmounted, or flexd is restarted"
	}
	return "", ""
}

// sectors checks for a mounted filesystem whose device has larger logical blocks now.
func (s *facts) sectors() (text, hint string) {
	at, mounts := s.g.Sectors[s.uuid], s.mounts()
	if at.Filesystem == 0 || at.Filesystem >= at.Device || len(mounts) == 0 {
		return "", ""
	}
	h := volume.Handle{Name: volume.Name{VG: s.g.Name, LV: s.name()}}
	if !s.lvm() {
		h = volume.Handle{File: s.file(&Volume{Name: s.name()})}
	}
	return volume.SmallSectors(mounts[0].Type, at.Filesystem, at.Device, s.device.Path, h)
}

// disks checks for further devices of a mounted btrfs.
func (s *facts) disks() (text, hint string) {
	for _, m := range s.mounts() {
		if len(m.Disks) > 0 {
			disks := strings.Join(m.Disks, " ")
			return fmt.Sprintf("its btrfs is on %s and on %s, and flexd mounts only filesystems on one device", s.device.Path, disks),
				fmt.Sprintf("to keep its data on the volume, remove the others from the mounted filesystem: btrfs device remove %s %s; a replacement that runs is ended by btrfs replace cancel %[2]s", disks, m.Dir)
		}
	}
	return "", ""
}

// readOnly checks whether a volume was made read-only under a mount.
func (s *facts) readOnly() {
	what, remedy, writable := "its device", "lvchange -prw "+s.title(), "blockdev --setrw "+s.device.Path
	effect := "the kernel may fail its writes"
	switch {
	case s.volume != nil && s.volume.ReadOnly && !s.lvm():
		s.remounted()
		what, remedy, effect = "its file", "chmod u+w "+volume.Quote(s.file(s.volume)), "no further pod can mount it read-write"
	case s.volume != nil && s.volume.ReadOnly:
		what = "the logical volume"
	case !s.device.ReadOnly:
		s.remounted()
		return
	case !s.lvm():
		remedy = writable
	default:
		remedy = "remove it from activation/read_only_volume_list in lvm.conf, if it is there; then " + remedy // a refresh
		if s.g.older {
			remedy = s.noRefresh()
		} else if s.g.Short != "" {
			remedy = s.g.Short + "; then " + remedy
		}
		remedy = writable + "; if it stays read-only: " + remedy
	}
	for _, m := range s.mounts() {
		if !m.ReadOnly && !m.SuperReadOnly {
			s.add(ReadOnly, "", "if it is to be written: "+remedy+"; if not: delete the pod, and mount it with readOnly: true",
				"%s is read-only, and %s is mounted read-write at %s%s: %s", what, m.What, m.Dir, s.claimedFor(m.Dir), effect)
			return
		}
	}
}

// remounted checks for mounts on a writable device that are read-only and were requested read-write, and
// for the opposite. A superblock is reported once.
func (s *facts) remounted() {
	for _, c := range s.claims {
		m, _, _ := s.at(c.Dir)
		if c.Phase != volume.Held || m == nil || m.Over != "" {
			continue
		}
		if c.ReadOnly {
			if !m.ReadOnly && !m.SuperReadOnly {
				s.add(ReadOnly, c.Dir, "something has remounted it: mount -o remount,bind,ro "+c.Dir,
					"the mount at %s, for %s, is read-write, and was requested read-only: the pod can change the volume", c.Dir, c.For)
			}
			continue
		}
		if m.SuperReadOnly {
			s.add(ReadOnly, "", "look at dmesg. If it shows errors of the filesystem: delete the pods, then fsck. If it was remounted by hand: mount -o remount,rw "+c.Dir,
				"the filesystem at %s, for %s, is read-only on a writable device, and was requested read-write: every write to the volume fails", c.Dir, c.For)
			return
		}
		if m.ReadOnly {
			s.add(ReadOnly, c.Dir, "something has remounted it. If it is to be written: mount -o remount,bind,rw "+c.Dir,
				"the mount at %s, for %s, is read-only, and was requested read-write: writes there fail", c.Dir, c.For)
		}
	}
}

// flags checks for mounts by flexd without the flags that the group's configuration requires.
func (s *facts) flags() {
	for _, c := range s.claims {
		m, _, _ := s.at(c.Dir)
		if c.Phase != volume.Held || c.Found || m == nil || m.Over != "" {
			continue
		}
		lacks := slices.DeleteFunc(slices.Clone(s.g.Flags), func(f string) bool { return slices.Contains(m.Options, f) })
		if len(lacks) > 0 {
			flags := strings.Join(lacks, ",")
			s.add(MountFlags, c.Dir, "mount -o remount,bind,"+flags+" "+c.Dir,
				"the mount at %s, for %s, lacks %s, which mountFlags of the volume group has: something has remounted it, or it is older than the setting", c.Dir, c.For, flags)
		}
	}
}
