package join

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/volume"
)

// dmOnly checks a device of a volume that is not in the metadata.
func (s *facts) dmOnly() {
	text := fmt.Sprintf("the kernel has the device %s, and the metadata of %s has no such volume (uuid %s)", s.deviceName(), s.g.Name, s.uuid)
	if s.device.Misplaced != "" {
		text = fmt.Sprintf("the device %s %s (uuid %s)", s.deviceName(), s.device.Misplaced, s.uuid)
	}
	if s.device.Namesake {
		text = fmt.Sprintf("the kernel has the device %s, of another volume group with the name %s (uuid %s)", s.deviceName(), s.g.Name, s.uuid)
	}
	var used []string
	for _, m := range s.mounts() {
		used = append(used, "mounted at "+m.Dir+s.claimedFor(m.Dir))
	}
	if len(used) == 0 && s.device.Open > 0 {
		used = append(used, fmt.Sprintf("open %d times", s.device.Open))
	}
	if len(used) > 0 {
		text += "; it is " + strings.Join(used, ", ")
	}
	hint := fmt.Sprintf("its file was removed, renamed away or replaced. If it was renamed, put it back. If not, only %s has its data. %s: a copy from their mounts lacks what they write later. Once no mount uses the device, copy it if the data is needed: cp --sparse=always %[1]s COPY. Then: losetup -d %[1]s", s.device.Path, volume.KeepLoop(s.device.Path, s.device.Ending))
	for _, r := range s.device.Rivals {
		text, hint = text+"; "+r.Text, r.Hint
	}
	if why := s.g.Refused[s.uuid]; why != "" {
		text += ", because " + why
		hint = "undo that change. Present mounts stay, and flexd unmounts them; until then it mounts the volume for no further pod"
	}
	if s.lvm() {
		hint = fmt.Sprintf("it was removed, or the metadata is an older version: vgcfgrestore --list %s. Copy the data off first if it is needed; then, once nothing uses it: dmsetup remove %s", s.g.Name, s.device.Kernel)
	}
	switch {
	case s.device.Namesake:
		hint = fmt.Sprintf("the host's LVM has activated the group of a guest (lsblk -s %s shows its disk): deactivate that group, and exclude the disk from LVM (devices file, global_filter). Or %s was made anew: copy the data off first if it is needed; then, once nothing uses it: dmsetup remove %s", s.device.Path, s.g.Name, s.device.Kernel)
	case s.device.Left:
		hint = Left(s.device.Kernel)
	case s.device.Misplaced != "":
		hint = s.noRefresh()
	}
	s.add(DMOnly, "", hint, "%s", text)
}

// elsewhere checks a mounted volume without a file or a device in the group: the kernel shows another path
// for the device, or the name of another group.
func (s *facts) elsewhere() {
	if s.device != nil || s.volume != nil || s.g.Metadata+s.g.Kernel != "" {
		return
	}
	for _, c := range s.claims {
		ours, _, _ := s.at(c.Dir)
		switch {
		case ours == nil || c.Phase != volume.Held:
		case s.lvm() && (ours.Name.VG == "" || slices.Contains(s.g.Compared, ours.Name.VG)): // unknown, or that group reports it
		case s.lvm():
			s.add(StaleMapping, c.Dir, fmt.Sprintf("rename the group back, after the present %[1]s was renamed or removed (vgrename %[2]s %[1]s), or change the name that pods ask for. Present mounts stay, and flexd unmounts them; until then pods that ask for %[3]s do not find it, and afterwards they get a new, empty volume of the present %[1]s, or none", s.g.Name, ours.Name.VG, s.title()),
				"%s is mounted at %s, for %s: it was %s when flexd set it up, and is now %s", ours.What, c.Dir, c.For, s.title(), ours.Name)
		default:
			s.add(DMOnly, c.Dir, fmt.Sprintf("the file, or the whole directory %s, was renamed, moved or replaced: put it back. Present mounts stay, and flexd unmounts them; until then pods that ask for %s do not find it", s.g.Directory, s.title()),
				"%s is mounted at %s, for %s, and %s has no file of that volume (uuid %s)", ours.What, c.Dir, c.For, s.g.Directory, s.uuid)
		}
	}
}

// copied checks files with the same uuid. It is unknown which of them is the copy, which may also be the
// file in use.
func (s *facts) copied() {
	var files, quoted []string
	for _, v := range s.volumes {
		files = append(files, s.file(v))
	}
	files = append(files, s.g.Copies[s.uuid]...)
	if len(s.volumes) == 0 || len(files) < 2 {
		return
	}
	for _, f := range files {
		quoted = append(quoted, volume.Quote(f))
	}
	text := fmt.Sprintf("the files %s have the same uuid: one is a copy of the other, made with its attributes", strings.Join(files, " and "))
	hint := "make the copy a volume of its own: flexd uuid --new COPY; or remove it"
	if s.device != nil && s.device.Name == s.volume.Name {
		text += fmt.Sprintf("; %s is in use (%s)", files[0], s.device.Path)
		hint = fmt.Sprintf("if %[1]s is the copy: flexd uuid --new %[1]s, or remove it. If %[2]s is the copy: delete its pods first, then change or remove it. Do not rename or replace %[2]s while it is in use",
			strings.Join(quoted[1:], " "), quoted[0])
	}
	s.add(StaleMapping, files[1], hint, "%s", text)
}

// Left returns the advice about a device with Device.Left.
func Left(name string) string {
	return "an interrupted or failed command of LVM has left it, and nothing uses it: dmsetup remove " + name
}

// Enlarged is the value of Misplaced for a device that was extended, perhaps by a command that was
// interrupted before it wrote the metadata.
const Enlarged = "has more space at its end than the metadata, which counts it as free"

// Remedy returns the advice about a device that contradicts its group's metadata.
func Remedy(misplaced, group string) string {
	restore := restore(group)
	if strings.HasSuffix(misplaced, Enlarged) {
		return "if lvextend or dmeventd was interrupted, repeat that extension, and neither restore nor refresh anything. Only if older metadata was restored: " + restore
	}
	return "the metadata may be an older version: " + restore
}

// CancelMerge returns the remedy for the merge of a snapshot whose contents are lost. LVM has no command that cancels
// it, and older metadata may lack other volumes: the current metadata is changed.
func CancelMerge(group, snapshot string) string {
	return fmt.Sprintf(`copy its data off, then cancel the merge: vgcfgbackup -f now.%[1]s %[1]s && sed -i 's/merging_store = "%[2]s"/cow_store = "%[2]s"/' now.%[1]s && vgcfgrestore -f now.%[1]s %[1]s && lvremove %[1]s/%[2]s (with thin pools in the group: vgcfgrestore --force)`, group, snapshot)
}

// beforeDeactivation adds to advice that ends in a deactivation what must be done before.
func (s *facts) beforeDeactivation(hint string) string {
	if s.device.LostSnapshot == "" {
		return hint
	}
	return fmt.Sprintf("first lvremove %s, whose contents are lost: it could look valid after the next activation. Then: %s", s.device.LostSnapshot, hint)
}

func restore(group string) string {
	return "vgcfgrestore --list " + group + ", and restore the newest file that differs from the current metadata, but none with other transaction ids of its thin pools than the kernel's (dmsetup status)"
}

// noRefresh returns the advice for a group with older metadata: a refresh would load tables of it.
func (s *facts) noRefresh() string {
	return Remedy(s.device.Misplaced, s.g.Name) + ". Do not lvchange --refresh before"
}

// stale checks whether a device differs from the metadata.
func (s *facts) stale() {
	d, v := s.device, s.volume
	var texts, hints []string
	wrong := func(hint, format string, a ...any) {
		texts = append(texts, fmt.Sprintf(format, a...))
		if hint != "" && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	if d.Broken != "" {
		back := "look at the disks and at dmesg. A pod that has it mounted gets errors, until its disk is back and the volume was unmounted and deactivated"
		wrong(cmp.Or(d.Repair, back), "%s", d.Broken)
	}
	if d.NoNode != "" {
		wrong(d.MakeNode, "%s", d.NoNode)
	}
	for _, r := range d.Rivals {
		wrong(r.Hint+". Until then flexd mounts the volume for no further pod; if both were written, copy the data off first", "%s", r.Text)
	}
	if len(d.Suspended) > 0 {
		s.suspended(wrong)
	}
	another := !s.lvm() && len(d.Rivals) > 0 // the device may show another file than that of the name
	if v != nil && (v.Size > 0 && d.Size > 0 || !s.lvm()) && v.Size != d.Size && d.Broken == "" && !another {
		hint := "lvchange --refresh " + s.title()
		switch {
		case d.Misplaced == Enlarged:
			hint = Remedy(d.Misplaced, s.g.Name)
		case s.lvm() && v.Size < d.Size && d.SameThin:
			hint = fmt.Sprintf("nothing is lost: after the merge of a snapshot from before an extension, delete its pods, and the next activation has the size of the metadata. If older metadata was restored, give the volume its size back: lvextend -L %db %s", d.Size, s.title())
		case s.lvm() && v.Size < d.Size: // a refresh would truncate the device
			hint = Remedy("", s.g.Name) + ". Only if the volume was reduced on purpose: lvchange --refresh " + s.title()
		case s.lvm() && s.g.older: // a refresh could give the device space of another device
			hint = s.noRefresh()
		case s.lvm() && s.g.Short != "": // a refresh would leave the device suspended
			hint = "no lvchange --refresh before this: " + s.g.Short
		case s.lvm() && len(d.loaded()) > 0:
			hint = "if the sizes still differ after the resume: " + hint
		case s.lvm():
		case v.Size < d.Size:
			hint = fmt.Sprintf("the file was truncated: %s; if its group has `deactivate: never`, then: losetup -d %s", volume.CutFile(d.Size, v.Size, s.file(v), d.Path), d.Path)
		case d.Part:
			hint = "something has given the device an offset or a size limit (losetup -l " + d.Path + "): delete the pods that use it, and it is attached anew; if its group has `deactivate: never`, then: losetup -d " + d.Path
		default:
			hint = "ask for the size again (a larger PersistentVolumeClaim), or: losetup -c " + d.Path
		}
		wrong(hint, "the metadata says %s, and the device %s has %s", volume.Bytes(v.Size), s.deviceName(), volume.Bytes(d.Size))
	}
	if v != nil && d.Misplaced != "" {
		hint := Remedy(d.Misplaced, s.g.Name) + ". If that is not possible, copy the data off now: the next activation uses other space, and what was written since is lost"
		if len(d.loaded()) > 0 && d.Misplaced != Enlarged { // the resume gives it the table of the metadata
			hint = "only if older metadata was restored, before the resume: " + restore(s.g.Name)
		}
		wrong(hint, "the device %s %s", s.deviceName(), d.Misplaced)
	}
	if v != nil && d.Bypassed {
		wrong("if an lvremove of its snapshot was interrupted, repeat it. If not, its snapshots no longer show one point in time: delete their pods, and lvremove them", "the device %s is not the origin of a snapshot, and the metadata says that it is: writes to it change its snapshots", s.deviceName())
	}
	if v != nil && s.lvm() && d.Name != v.Name {
		hint := "lvchange --refresh " + s.title() + ", or dmsetup rename"
		if s.g.older {
			hint = s.noRefresh()
		}
		wrong(hint, "the metadata calls it %s, and the kernel %s", v.Name, d.Kernel)
	}
	if v != nil && s.lvm() && d.LinkBad && d.Name == v.Name {
		hint := "vgmknodes " + s.g.Name
		if d.Obstacle != "" {
			hint = fmt.Sprintf("LVM does not replace %s, which is of another type, as after a write to that path while the volume was inactive: move it away (mv), then %s", d.Obstacle, hint)
		}
		wrong(hint, "%s does not lead to %s", d.Link, d.Path)
	}
	if old := s.oldName(); old != "" && len(s.volumes) == 1 {
		back := "lvrename it back"
		if !s.lvm() {
			back = fmt.Sprintf("rename it back (mv -n %s %s)", volume.Quote(s.file(v)), volume.Quote(s.file(&Volume{Name: old})))
		}
		wrong(fmt.Sprintf("%s: %s, or change the name that they ask for", s.askedFor(s.g.Name, old), back),
			"it was %s when flexd set it up, and was renamed to %s", old, v.Name)
	}
	if i := slices.IndexFunc(s.claims, func(c Claim) bool { return c.VG != "" }); i >= 0 && v != nil {
		c := s.claims[i]
		back := "if it was moved, move it back. If both groups have the same directory, remove one of them from flexd's configuration"
		if s.lvm() {
			back = "rename the groups back (vgrename), or change the name that they ask for"
		}
		wrong(s.askedFor(c.VG, c.LV)+": "+back,
			"it is in use as %s/%s, and %s has it now", c.VG, c.LV, s.g.Name)
	}
	if len(texts) > 0 {
		if v != nil && v.CutOff != "" && len(hints) > 0 {
			hints[0] = "first give the disk its size back; then: " + hints[0]
		}
		s.add(StaleMapping, "", strings.Join(hints, "; "), "%s", strings.Join(texts, "; "))
	}
}

// askedFor describes the answer to pods that ask for a former name of the volume. No other volume gets that name while
// something is mounted for a claim with it.
func (s *facts) askedFor(vg, lv string) string {
	text := fmt.Sprintf("pods that ask for %s/%s do not get it", vg, lv)
	if slices.ContainsFunc(s.claims, func(c Claim) bool {
		return cmp.Or(c.VG, s.g.Name) == vg && c.LV == lv && len(s.g.byDir[c.Dir]) > 0
	}) {
		text += ", nor another volume of that name"
	}
	return text
}

// loaded returns the names of the suspended devices with a second table.
func (d *Device) loaded() (names []string) {
	for _, s := range d.Suspended {
		if s.Loaded {
			names = append(names, s.Kernel)
		}
	}
	return names
}

// suspended reports suspended devices with the advice how to resume them. A killed command may have loaded
// second tables, which a resume makes active: that is right only if the present table contradicts the
// metadata. The resume of a device may read those below it: the lowest is the first.
func (s *facts) suspended(wrong func(hint, format string, a ...any)) {
	d, v := s.device, s.volume
	var names, resumes, drops []string
	for _, one := range d.Suspended {
		again := "dmsetup resume " + one.Kernel
		names, resumes = append(names, one.Kernel), append(resumes, again)
		if one.Loaded {
			again = "dmsetup clear " + one.Kernel + " && " + again
		}
		drops = append(drops, again)
	}
	says := fmt.Sprintf("the devices %s are suspended", strings.Join(names, ", "))
	if len(names) == 1 {
		says = fmt.Sprintf("the device %s is suspended", names[0])
		if names[0] == d.Kernel {
			says = fmt.Sprintf("the device %s is suspended", s.deviceName())
		}
	}
	loaded, resume, lvextend := d.loaded(), strings.Join(resumes, " && "), " If lvextend was interrupted: repeat it, and do not refresh."
	if v != nil && v.Size > d.Size { // lvextend has written the metadata, and would do nothing
		lvextend = ""
	}
	switch drop := "drop the second one first: " + strings.Join(drops, " && "); {
	case len(loaded) == 0, d.Misplaced != "", v != nil && v.Size > 0 && v.Size != d.Size:
	case v == nil, !d.Placed:
		resume, lvextend = fmt.Sprintf("of two tables it is unknown which one belongs to the metadata. Compare them (dmsetup table %[1]s; dmsetup table --inactive %[1]s) with lvs -a -o+devices %[2]s first. To keep the first: %[3]s. To make the second active in place of the first: %[4]s", strings.Join(loaded, " "), s.g.Name, strings.Join(drops, " && "), resume), ""
	case d.Bypassed: // the devices of the snapshot may have no table: a resume could end the pod's filesystem
		resume, lvextend = "only a new snapshot, which is lost, needs the second table: "+drop, ""
	default:
		resume, lvextend = "the present table belongs to the metadata, so "+drop, ""
	}
	wrong("all its reads and writes wait. A snapshot or pvmove may be in progress. If pvmove was interrupted: pvmove --abort."+lvextend+" If no command of LVM runs (ps ax | grep lv): "+resume, "%s", says)
}

// oldName returns the former name of a volume in a claim or the lease; "" = it is the present one.
func (s *facts) oldName() string {
	if s.volume == nil {
		return ""
	}
	for _, c := range s.claims {
		if c.VG == "" && c.LV != "" && c.LV != s.volume.Name {
			return c.LV
		}
	}
	if s.lease != nil && s.lease.LV != "" && s.lease.LV != s.volume.Name {
		return s.lease.LV
	}
	return ""
}

// merged checks a snapshot that will be merged into its origin. Without a mount it is an internal volume of
// LVM.
func (s *facts) merged() {
	if s.device == nil || len(s.mounts()) == 0 {
		return
	}
	s.mountedUnknown()
	s.add(MergePending, "", fmt.Sprintf("if that is intended, delete its pods and those of %s/%s; otherwise copy off the data of both that must be kept", s.g.Name, s.volume.Into),
		"it is to be merged into %s/%s (lvconvert --merge), with all that its pods write, at the next activation of that volume, and then removed", s.g.Name, s.volume.Into)
}

// lostMerge reports whether the contents of the snapshot that will be merged into the volume are lost.
func (s *facts) lostMerge() bool {
	i := slices.IndexFunc(s.g.Volumes, func(v Volume) bool { return v.Name == s.volume.Merging && v.Into == s.volume.Name })
	return i >= 0 && slices.ContainsFunc(s.g.Devices, func(d Device) bool { return d.UUID == s.g.Volumes[i].UUID && d.Repair != "" })
}

// mergePending checks a volume in use into which a snapshot will be merged.
func (s *facts) mergePending() {
	if s.volume == nil || s.volume.Merging == "" || s.device.Merges || s.device.Broken != "" {
		return
	}
	if s.lostMerge() {
		s.add(MergePending, "", CancelMerge(s.g.Name, s.volume.Merging),
			"the snapshot %s is to be merged into it (lvconvert --merge) at its next activation, and its contents are lost: that would mix old and new contents", s.volume.Merging)
		return
	}
	if len(s.claims)+len(s.mounts()) == 0 {
		return
	}
	s.add(MergePending, "", s.beforeDeactivation(fmt.Sprintf("if that is intended, delete its pods now; once it is inactive (lvchange -an %s), the next activation merges. If its present contents are needed: copy them off first", s.title())),
		"the snapshot %s is to be merged into it (lvconvert --merge) at its next activation: data that is written until then will be lost", s.volume.Merging)
}
