// Package join holds what is known of one volume group from four sides against
// each other: the metadata, the kernel's devices, the mount table, and flexd's
// own claims. Wherever they tell different stories it names the disagreement
// and what an operator can do. It is pure, and it is not for looking: who calls
// it has looked, and says what could not be seen.
package join

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/volume"
)

// A Class is the kind of a disagreement.
type Class string

// The classes.
const (
	LVOnly          Class = "lv-only"          // needed and in the metadata, but no device
	DMOnly          Class = "dm-only"          // a device of a volume that the metadata does not know
	MountedUnknown  Class = "mounted-unknown"  // mounted where no claim is
	ActiveUnclaimed Class = "active-unclaimed" // a device that nobody has asked flexd for
	ClaimedMissing  Class = "claimed-missing"  // a held claim without its mount
	StaleMapping    Class = "stale-mapping"    // the device is not what the metadata says
	Covered         Class = "covered"          // a held claim whose mount a lookup of its directory does not reach
	Degraded        Class = "degraded"         // in use, and a disk or a copy of it is missing, or copies differ
	Faulty          Class = "faulty"           // in use, and its filesystem, cache or thin pool has failed
	MergePending    Class = "merge-pending"    // in use, and its contents are replaced at its next activation
	NestedMount     Class = "nested-mount"     // something is mounted below a mount of ours
	ReadOnly        Class = "read-only"        // the volume is read-only, and mounted read-write; or a mount is, and was asked read-write
)

// Informational says whether a class is worth knowing but nothing is wrong.
func (c Class) Informational() bool { return c == ActiveUnclaimed }

// A Disagreement is one place where the sides differ.
type Disagreement struct {
	Class Class
	LV    string // as the metadata calls it, or else the claim or the kernel
	UUID  volume.UUID
	Dir   string // the mount point, or the copied file, that it is about, or ""
	Text  string // what is seen
	Hint  string // what an operator can do
}

// Same says whether two disagreements are one, seen twice.
func (d Disagreement) Same(o Disagreement) bool {
	return d.Class == o.Class && d.UUID == o.UUID && d.Dir == o.Dir
}

// A Survey is what a provider tells of one volume group.
type Survey struct {
	Kind     string   // "lvm" or "loopdev"
	Volumes  []Volume // what the metadata has, without what belongs to the provider itself
	Metadata string   // why the metadata could not be read as a whole; Volumes means nothing then
	Devices  []Device // the kernel's devices of this group, likewise
	Kernel   string   // why they could not all be seen; that one is missing means nothing then

	Directory string // of the files of a loopdev group
}

// A Volume is what the metadata says of a logical volume.
type Volume struct {
	Name   string
	UUID   volume.UUID
	Size   int64  // bytes of its device; 0 = not to be compared
	Pool   string // the thin pool that it is in, or ""
	Making bool   // flexd is making it

	Merging  string // the snapshot that is to be merged into it, "" = none
	Missing  string // the disks with a part of it that are missing, "" = none
	RAID     bool
	ReadOnly bool
}

// A Device is a block device of the group.
type Device struct {
	UUID      volume.UUID
	Name      string // the volume's name as the kernel's name for the device has it; "" = none of the group's form
	Kernel    string // the kernel's name, such as "vg0-data"
	Path      string
	Number    string // "major:minor"
	Size      int64  // bytes
	Open      int    // how often it is open; -1 = not known
	Suspended bool
	Unknown   string  // why nothing else is known of it but its name and number; "" = it was looked at
	Broken    string  // why nothing can be read from it, or from a part of it
	Merges    bool    // the kernel merges a snapshot into it
	Failed    string  // what is wrong with its pool, its cache or a merge into it; "" = nothing
	Remedy    string  // for Failed
	Degraded  string  // which copies of its data do not work, "" = all do
	Differ    string  // which copies differ, "" = none is known to
	RAID      string  // the RAID with those copies, as lvconvert --repair takes it
	Refresh   string  // the same as lvchange --refresh takes it
	Rivals    []Rival // other devices that show its file, and its own if that is of another file
	ReadOnly  bool
	Link      string // the name by which it should be found; "" = none is expected
	LinkBad   bool   // and that does not lead there
}

// A Rival is another device or file that is the same volume.
type Rival struct{ Text, Hint string }

// A Claim is a note that kubelet wants a volume mounted at a directory.
type Claim struct {
	UUID  volume.UUID
	LV    string // as it was called
	Dir   string
	Phase volume.Phase
	For   string // "pod default/web-0", "kubelet's global mount"

	ReadOnly bool // it was asked read-only
}

// A Lease is a note that a volume is to stay active.
type Lease struct {
	UUID volume.UUID
	LV   string
	Live bool
}

// A Mount is an entry of the mount table: every one of the group's devices, and
// everything at the directory of a claim.
type Mount struct {
	Dir    string
	Device string // number of the block device, "" = none
	What   string // "ext4 from /dev/dm-3"
	Owner  volume.Owner
	Gone   bool   // the kernel has no device of that number
	Over   string // what keeps a lookup of Dir from it, "" = nothing

	ReadOnly      bool // the mount's own flag
	SuperReadOnly bool // the superblock's

	Fault  string   // what the kernel says is wrong with the filesystem, "" = nothing
	Nested []string // where something is mounted below it

	UUID    volume.UUID // the volume that it is of, where the kernel was asked for it
	Unknown bool        // that cannot be told
}

// A Group is all that is known of a volume group.
type Group struct {
	Name string
	Survey
	Claims []Claim
	Leases []Lease
	Mounts []Mount
	Busy   map[volume.UUID]bool // work on it is under way: it is not judged
	Keep   bool                 // volumes are left active on purpose

	Filesystems map[volume.UUID]volume.FS // mounted ones that a child has found in error or truncated

	byDir, byDevice map[string][]*Mount
}

// Disagreements returns where the sides differ, by volume. What could not be
// seen disagrees with nothing.
func Disagreements(g Group) []Disagreement {
	sides := map[volume.UUID]*side{}
	of := func(uuid volume.UUID) *side {
		if sides[uuid] == nil {
			sides[uuid] = &side{g: &g, uuid: uuid}
		}
		return sides[uuid]
	}
	for i, v := range g.Volumes {
		if g.Metadata == "" {
			of(v.UUID).volumes = append(of(v.UUID).volumes, &g.Volumes[i])
		}
	}
	for i, d := range g.Devices {
		of(d.UUID).device = &g.Devices[i]
	}
	for _, c := range g.Claims {
		of(c.UUID).claims = append(of(c.UUID).claims, c)
	}
	for i, l := range g.Leases {
		of(l.UUID).lease = &g.Leases[i]
	}
	var all []Disagreement
	g.byDir, g.byDevice = map[string][]*Mount{}, map[string][]*Mount{}
	for i := range g.Mounts {
		m := &g.Mounts[i]
		g.byDir[m.Dir] = append(g.byDir[m.Dir], m)
		g.byDevice[m.Device] = append(g.byDevice[m.Device], m)
	}
	for uuid, s := range sides {
		s.chooseVolume()
		if uuid == "" || g.Busy[uuid] || s.volume != nil && s.volume.Making {
			continue
		}
		s.judge()
		all = append(all, s.found...)
	}
	slices.SortFunc(all, func(a, b Disagreement) int {
		return cmp.Or(cmp.Compare(a.LV, b.LV), cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Dir, b.Dir))
	})
	return slices.CompactFunc(all, Disagreement.Same) // of mounts one above the other
}

// A side is what each side has of one volume.
type side struct {
	g      *Group
	uuid   volume.UUID
	volume *Volume // of volumes the one that is in use, nil = there is none
	device *Device
	claims []Claim
	lease  *Lease
	found  []Disagreement

	volumes []*Volume // several where a file was copied with its attributes
}

// chooseVolume picks the volume that the device is of, or else the one that a
// claim or the lease names.
func (s *side) chooseVolume() {
	rank := func(v *Volume) int {
		switch {
		case s.device != nil && s.device.Name == v.Name:
			return 0
		case slices.ContainsFunc(s.claims, func(c Claim) bool { return c.LV == v.Name }), s.lease != nil && s.lease.LV == v.Name:
			return 1
		}
		return 2
	}
	slices.SortFunc(s.volumes, func(a, b *Volume) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	if len(s.volumes) > 0 {
		s.volume = s.volumes[0]
	}
}

func (s *side) judge() {
	if s.device != nil && s.volume == nil && s.g.Metadata == "" {
		s.dmOnly()
		return
	}
	missing, standing := s.claimed()
	s.copied()
	switch {
	case s.device != nil && s.device.Unknown != "":
		s.mountedUnknown()
	case s.device != nil:
		s.stale()
		s.degraded()
		if !s.faulty() { // else the kernel has made it read-only
			s.readOnly()
		}
		s.mountedUnknown()
		s.mergePending()
		s.nested()
		s.unclaimed()
	case s.volume != nil && s.g.Kernel == "" && !missing:
		s.lvOnly(standing)
	}
}

func (s *side) add(c Class, dir, hint, format string, a ...any) {
	s.found = append(s.found, Disagreement{Class: c, LV: s.name(), UUID: s.uuid, Dir: dir, Text: fmt.Sprintf(format, a...), Hint: hint})
}

// name is what people call the volume.
func (s *side) name() string {
	switch {
	case s.volume != nil:
		return s.volume.Name
	case len(s.claims) > 0 && s.claims[0].LV != "":
		return s.claims[0].LV
	case s.lease != nil && s.lease.LV != "":
		return s.lease.LV
	case s.device != nil && s.device.Name != "":
		return s.device.Name
	case s.device != nil:
		return s.device.Kernel
	}
	return ""
}

// title is the volume as the provider's commands take it.
func (s *side) title() string { return s.g.Name + "/" + s.name() }

func (s *side) lvm() bool { return s.g.Kind == "lvm" }

// mounts are those of the volume's device.
func (s *side) mounts() []*Mount {
	if s.device == nil {
		return nil
	}
	return s.g.byDevice[s.device.Number]
}

// at returns what is mounted at a directory: of this volume, of a device that is
// gone, or something else.
func (s *side) at(dir string) (ours, gone, other *Mount) {
	for _, m := range s.g.byDir[dir] {
		switch {
		case m.UUID == s.uuid, s.device != nil && m.Device == s.device.Number:
			if ours == nil || ours.Over != "" {
				ours = m
			}
		case m.Gone:
			gone = m
		default:
			other = m
		}
	}
	return ours, gone, other
}

// dmOnly is about a device of a volume that the metadata does not know.
func (s *side) dmOnly() {
	text := fmt.Sprintf("the kernel has the device %s, and the metadata of %s has no such volume (uuid %s)", s.deviceName(), s.g.Name, s.uuid)
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
	hint := "its file was removed, renamed away or replaced: put it back if its data is needed; else, once nothing uses it: losetup -d " + s.device.Path
	if s.lvm() {
		hint = fmt.Sprintf("it was removed, or the metadata is an older one: vgcfgrestore --list %s. Copy the data off first if it is needed; then, once nothing uses it: dmsetup remove %s", s.g.Name, s.device.Kernel)
	}
	s.add(DMOnly, "", hint, "%s", text)
}

func (s *side) deviceName() string {
	if s.device.Kernel == "" || s.device.Kernel == s.device.Path {
		return s.device.Path
	}
	return s.device.Path + " (" + s.device.Kernel + ")"
}

func (s *side) claimedFor(dir string) string {
	for _, c := range s.claims {
		if c.Dir == dir {
			return " for " + c.For
		}
	}
	return ""
}

// claimed is about claims that are held: missing says that one lacks its mount,
// standing is where the mount of a device that is gone still stands.
func (s *side) claimed() (missing bool, standing []Mount) {
	for _, c := range s.claims {
		if c.Phase != volume.Held {
			continue
		}
		ours, gone, other := s.at(c.Dir)
		switch {
		case ours != nil && ours.Over != "":
			s.add(Covered, c.Dir, "unmount what covers it, the last mounted first; until then flexd can neither unmount it nor mount it anew there",
				"its mount at %s, for %s, is covered by %s: whatever looks for that directory does not reach the volume", c.Dir, c.For, ours.Over)
			continue
		case ours != nil:
			continue
		case gone != nil && s.device == nil && s.volume != nil && s.g.Kernel == "":
			standing = append(standing, *gone)
			continue
		case gone != nil:
			s.add(StaleMapping, c.Dir, "the disk is gone; nothing can be read or written there. Delete the pod; kubelet unmounts it, and mounts the volume anew where it is",
				"the mount at %s, for %s, is of the device %s, which the kernel does not have any more", c.Dir, c.For, gone.Device)
			continue
		case other != nil && (other.Unknown || s.device == nil && s.g.Kernel != ""):
			continue // it may be the volume
		}
		missing = true
		text := fmt.Sprintf("its mount at %s, for %s, is gone, and flexd did not take it", c.Dir, c.For)
		if other != nil {
			text += "; " + other.What + " is mounted there instead"
		}
		switch {
		case s.g.Metadata == "" && s.volume == nil:
			text += "; the volume itself is gone, too"
		case s.volume != nil && s.device == nil && s.g.Kernel == "":
			text += "; the volume is inactive"
		}
		s.add(ClaimedMissing, c.Dir, "delete the pod, so that kubelet mounts it anew; what the pod wrote since then went to the disk below", "%s", text)
	}
	return missing, standing
}

// lvOnly is about a volume without a device that needs one.
func (s *side) lvOnly(standing []Mount) {
	var why []string
	for _, m := range standing {
		why = append(why, fmt.Sprintf("%s is mounted from its device %s%s", m.Dir, m.Device, s.claimedFor(m.Dir)))
	}
	if len(why) == 0 && s.lease != nil && s.lease.Live {
		why = append(why, "a lease of flexd's keeps it active")
	}
	if len(why) == 0 {
		return
	}
	hint := "somebody has deactivated it. Nothing has to be done: flexd activates it when kubelet asks for it"
	if len(standing) > 0 {
		hint = "its device was taken away by force. Delete the pod; kubelet mounts the volume anew"
	}
	s.add(LVOnly, "", hint, "%s, but the kernel has no device of it", strings.Join(why, ", "))
}

// file is where a volume of a loopdev group is.
func (s *side) file(v *Volume) string { return s.g.Directory + "/" + v.Name }

// copied is about files of one uuid. Which of them is the copy cannot be told:
// it may be the one in use.
func (s *side) copied() {
	if len(s.volumes) < 2 {
		return
	}
	var files []string
	for _, v := range s.volumes {
		files = append(files, s.file(v))
	}
	text := fmt.Sprintf("the files %s have the same uuid: one is a copy of the other, made with its attributes", strings.Join(files, " and "))
	hint := "take the uuid from the copy: setfattr -x trusted.flexd.uuid COPY; or remove the copy"
	if s.device != nil && s.device.Name == s.volume.Name {
		text += fmt.Sprintf("; %s is in use (%s)", files[0], s.device.Path)
		hint = fmt.Sprintf("if %[1]s is the copy: setfattr -x trusted.flexd.uuid %[1]s, or remove it. If %[2]s is the copy: delete its pods first, then do that to it. Do not rename or replace %[2]s while it is in use",
			strings.Join(files[1:], " "), files[0])
	}
	s.add(StaleMapping, files[1], hint, "%s", text)
}

// stale is about a device that is not what the metadata says.
func (s *side) stale() {
	d, v := s.device, s.volume
	var texts, hints []string
	wrong := func(hint, format string, a ...any) {
		texts = append(texts, fmt.Sprintf(format, a...))
		if hint != "" && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	if d.Broken != "" {
		wrong("look at the disks and at dmesg. A pod that has it mounted gets errors, until its disk is back and the volume was unmounted and deactivated", "%s", d.Broken)
	}
	for _, r := range d.Rivals {
		wrong(r.Hint+". Until then flexd mounts the volume for no further pod; if both were written, copy the data off first", "%s", r.Text)
	}
	if d.Suspended {
		wrong("every read and write of it waits. A snapshot or pvmove may be in progress. If pvmove was interrupted: pvmove --abort. If no command of LVM runs (ps ax | grep lv): dmsetup resume "+d.Kernel, "the device %s is suspended", s.deviceName())
	}
	if v != nil && v.Size > 0 && d.Size > 0 && v.Size != d.Size && d.Broken == "" {
		hint := "lvchange --refresh " + s.title()
		if !s.lvm() {
			hint = "ask for the size again (a larger PersistentVolumeClaim), or: losetup -c " + d.Path
		}
		wrong(hint, "the metadata says %s, and the device %s has %s", size(v.Size), s.deviceName(), size(d.Size))
	}
	if v != nil && s.lvm() && d.Name != v.Name {
		wrong("lvchange --refresh "+s.title()+", or dmsetup rename", "the metadata calls it %s, and the kernel %s", v.Name, d.Kernel)
	}
	if v != nil && s.lvm() && d.LinkBad && d.Name == v.Name {
		wrong("vgmknodes "+s.g.Name+" (flexd does it at the next mount)", "%s does not lead to %s", d.Link, d.Path)
	}
	if old := s.oldName(); old != "" && len(s.volumes) == 1 {
		back := "lvrename it back"
		if !s.lvm() {
			back = fmt.Sprintf("rename it back (mv -n %s %s)", s.file(v), s.file(&Volume{Name: old}))
		}
		wrong(fmt.Sprintf("pods that ask for %s/%s will not find it: %s, or change their volumeID", s.g.Name, old, back),
			"it was %s when flexd set it up, and was renamed to %s", old, v.Name)
	}
	if len(texts) > 0 {
		s.add(StaleMapping, "", strings.Join(hints, "; "), "%s", strings.Join(texts, "; "))
	}
}

// degraded is about a volume in use that lacks a disk or a copy of its data. A
// device that gives errors has been reported as such.
func (s *side) degraded() {
	d, v := s.device, s.volume
	if d.Broken != "" || len(s.claims)+len(s.mounts()) == 0 {
		return
	}
	var texts []string
	if d.Degraded != "" {
		texts = append(texts, "its RAID is degraded: "+d.Degraded)
	}
	if v != nil && v.Missing != "" {
		texts = append(texts, "a part of it is on a disk that LVM does not find ("+v.Missing+")")
	}
	if d.Differ != "" {
		texts = append(texts, d.Differ)
	}
	if len(texts) == 0 {
		return
	}
	hint := "bring the disk back (pvs, dmesg), or let LVM see it again (filter, devices file). Until then copy the data off while it can be read, and do not deactivate the volume: it could not be activated again"
	raid, refresh := cmp.Or(d.RAID, s.title()), cmp.Or(d.Refresh, s.title())
	switch {
	case d.Degraded != "" || v != nil && v.Missing != "" && v.RAID:
		hint = fmt.Sprintf("bring the disk back (pvs, dmesg), then lvchange --refresh %s; or give the group another disk, then lvconvert --repair %s", refresh, raid)
	case v == nil || v.Missing == "":
		hint = fmt.Sprintf("LVM cannot tell which copy is right: back the data up, and check it. Then lvchange --syncaction repair %s makes them equal, and lvchange --syncaction check %[1]s counts anew", raid)
	}
	s.add(Degraded, "", hint, "%s", strings.Join(texts, "; "))
}

// faulty is about a volume in use whose reads or writes fail, or will, although its
// disks are there.
func (s *side) faulty() bool {
	d := s.device
	if d.Broken != "" || len(s.claims)+len(s.mounts()) == 0 {
		return false
	}
	var texts, hints []string
	if d.Failed != "" {
		texts, hints = append(texts, d.Failed), append(hints, d.Remedy)
	}
	if text, hint := s.filesystem(); text != "" {
		texts, hints = append(texts, text), append(hints, hint)
	}
	if len(texts) > 0 {
		s.add(Faulty, "", strings.Join(hints, "; "), "%s", strings.Join(texts, "; "))
	}
	return len(texts) > 0
}

// filesystem says what is wrong with the mounted filesystem.
func (s *side) filesystem() (text, hint string) {
	fs, d := s.g.Filesystems[s.uuid], s.device
	for _, m := range s.mounts() {
		if fs.What == "" && m.Fault != "" {
			fs.What = m.Fault
		}
	}
	switch {
	case len(s.mounts()) == 0:
	case fs.Content == volume.Truncated:
		remedy := fmt.Sprintf("lvextend -L %db %s", fs.Size, s.title())
		if !s.lvm() {
			remedy = fmt.Sprintf("truncate -s %d %s, losetup -c %s", fs.Size, s.file(&Volume{Name: s.name()}), d.Path)
		}
		return fmt.Sprintf("its %s has %d bytes and its device %s only %d: the volume was made smaller than its filesystem", fs.Type, fs.Size, d.Path, d.Size),
			"stop writing to it, run no fsck, and give it its size back: " + remedy + "; what was beyond the end is only there if nothing else has used that space"
	case fs.What != "":
		return "its filesystem is in error: " + fs.What,
			"look at dmesg and at the disk, and back up what can be read. Then delete its pods: the next mount runs fsck, and says so if that does not suffice"
	}
	return "", ""
}

// readOnly is about a volume that was made read-only under a mount.
func (s *side) readOnly() {
	if !s.device.ReadOnly && (s.volume == nil || !s.volume.ReadOnly) {
		s.remounted()
		return
	}
	remedy := "lvchange -prw " + s.title()
	if !s.lvm() {
		remedy = "blockdev --setrw " + s.device.Path
	}
	for _, m := range s.mounts() {
		if !m.ReadOnly && !m.SuperReadOnly {
			s.add(ReadOnly, "", "if it is to be written: "+remedy+"; if not: delete the pod, and mount it with readOnly: true",
				"the logical volume is read-only, and %s is mounted read-write at %s%s: the kernel may fail its writes", m.What, m.Dir, s.claimedFor(m.Dir))
			return
		}
	}
}

// remounted is about mounts that were asked read-write and are read-only on a
// device that can be written. A superblock is reported once.
func (s *side) remounted() {
	for _, c := range s.claims {
		m, _, _ := s.at(c.Dir)
		if c.Phase != volume.Held || c.ReadOnly || m == nil || m.Over != "" {
			continue
		}
		if m.SuperReadOnly {
			s.add(ReadOnly, "", "look at dmesg. If it shows errors of the filesystem: delete the pods, then fsck. If it was remounted by hand: mount -o remount,rw "+c.Dir,
				"the filesystem at %s, for %s, is read-only on a writable device, and was asked read-write: every write to the volume fails", c.Dir, c.For)
			return
		}
		if m.ReadOnly {
			s.add(ReadOnly, c.Dir, "something has remounted it. If it is to be written: mount -o remount,bind,rw "+c.Dir,
				"the mount at %s, for %s, is read-only, and was asked read-write: writes there fail", c.Dir, c.For)
		}
	}
}

// oldName is how a claim or lease calls a volume that has another name by now.
func (s *side) oldName() string {
	if s.volume == nil {
		return ""
	}
	for _, c := range s.claims {
		if c.LV != "" && c.LV != s.volume.Name {
			return c.LV
		}
	}
	if s.lease != nil && s.lease.LV != "" && s.lease.LV != s.volume.Name {
		return s.lease.LV
	}
	return ""
}

// mountedUnknown is about mounts that no claim is about. Those that kubelet
// makes of its own (subPath) belong to one that has a claim.
func (s *side) mountedUnknown() {
	for _, m := range s.mounts() {
		noted := slices.ContainsFunc(s.claims, func(c Claim) bool { return c.Dir == m.Dir })
		switch {
		case m.Owner == volume.Elsewhere && !noted:
			s.add(MountedUnknown, m.Dir, "flexd mounts it for no further pod meanwhile. If it is not needed there: umount "+m.Dir,
				"%s is mounted at %s, which is none of flexd's directories", m.What, m.Dir)
		case m.Owner == volume.Ours && !noted:
			s.add(MountedUnknown, m.Dir, "flexd takes it up when it can write its notes: is there room in its runDir? Its log tells",
				"%s is mounted at %s, a directory of kubelet's, and flexd has no note of it", m.What, m.Dir)
		}
	}
}

// mergePending is about a volume in use into which a snapshot is merged later.
func (s *side) mergePending() {
	if s.volume == nil || s.volume.Merging == "" || s.device.Merges || s.device.Broken != "" || len(s.claims)+len(s.mounts()) == 0 {
		return
	}
	s.add(MergePending, "", fmt.Sprintf("if that is meant, delete its pods now; once it is inactive (lvchange -an %s), the next activation merges. If its present contents are needed: copy them off first", s.title()),
		"the snapshot %s is to be merged into it (lvconvert --merge) when it is activated next: what is written until then will be lost", s.volume.Merging)
}

// nested is about mounts below those of ours.
func (s *side) nested() {
	for _, m := range s.mounts() {
		if m.Owner != volume.Ours || len(m.Nested) == 0 || m.Over != "" {
			continue
		}
		last := slices.Clone(m.Nested)
		slices.Reverse(last)
		s.add(NestedMount, m.Dir, "if a container of the pod did it (mountPropagation: Bidirectional), it unmounts it at its end. If not: umount "+strings.Join(last, " "),
			"something is mounted at %s, below the mount at %s%s: until it is unmounted, flexd cannot unmount the volume, and kubelet cannot remove the directory", strings.Join(m.Nested, ", "), m.Dir, s.claimedFor(m.Dir))
	}
}

// unclaimed is about a device for which there is no reason of ours.
func (s *side) unclaimed() {
	if s.volume == nil || s.g.Keep || len(s.claims) > 0 || s.lease != nil || len(s.found) > 0 || len(s.mounts()) > 0 {
		return
	}
	text, hint := "it is active, and no pod has asked for it", "flexd leaves it so. It may have been activated at boot, or by hand; if nobody needs it: "
	if s.device.Open > 0 {
		text += fmt.Sprintf("; somebody has it open (%d times)", s.device.Open)
		hint = "flexd leaves it so: it is used by something else than a mount. Who: lsblk " + s.device.Path + ", fuser -v " + s.device.Path + "; once nobody does: "
	}
	if s.lvm() {
		hint += "lvchange -an " + s.title()
	} else {
		hint += "losetup -d " + s.device.Path
	}
	s.add(ActiveUnclaimed, "", hint, "%s", text)
}

// size writes bytes so that two that differ look different.
func size(bytes int64) string {
	if bytes%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d bytes", bytes)
}
