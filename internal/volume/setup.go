package volume

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// obstacle returns why this volume must not be set up at all; zero = it may be.
func (p *planner) obstacle(c Call) Refusal {
	lv, d := p.h.LV, p.h.Device
	switch {
	case c.Refusal.Reason != "":
		return c.Refusal
	case lv.Presence == PresenceUnknown:
		return refusal(Unknown, "the volume could not be looked up: %s", orUnknown(lv.Reason))
	case lv.Presence == Absent:
		return refusal(NotFound, "the volume does not exist%s", Because(lv.Reason))
	case lv.Presence == Foreign:
		return refusal(Unusable, "not usable: %s", orUnknown(lv.Reason))
	case d.Unusable:
		return refusal(Unusable, "its device is not usable: %s", orUnknown(d.Reason))
	case d.Activity == ActivityUnknown:
		return refusal(Unknown, "its device could not be inspected: %s", orUnknown(d.Reason))
	case d.Suspended && d.Loaded:
		return refusal(Busy, "its device %s stays suspended with a second table: a command of LVM changes it, and every read waits until that ends. If pvmove was interrupted: pvmove --abort. If no command of LVM runs (ps ax | grep lv), one has failed or was killed: flexd check says how to resume the device safely", cmp.Or(d.SuspendedBelow, d.Path))
	case d.Suspended:
		lvextend := " If lvextend was interrupted: repeat it."
		if lv.Size > d.Size { // it has written the metadata, and would do nothing
			lvextend = ""
		}
		return refusal(Busy, "its device %s stays suspended: a snapshot or pvmove may be in progress, and every read waits until that ends. If pvmove was interrupted: pvmove --abort.%s If no command of LVM runs: dmsetup resume %[1]s", cmp.Or(d.SuspendedBelow, d.Path), lvextend)
	}
	for _, cl := range p.w.Claims {
		if why := p.h.Targets[cl.Dir].Unknown; why != "" {
			return refusal(Unknown, "whether it is mounted at %s is unknown: %s", cl.Dir, why)
		}
	}
	for _, m := range p.h.Mounts {
		if m.Owner == Elsewhere && m.OtherDriver {
			return refusal(Busy, "it is mounted at %s by another driver of kubelet: delete the pod that uses it there, and kubelet unmounts it", m.Dir)
		}
		if m.Owner == Elsewhere && m.BindLeft {
			return refusal(Busy, "it is mounted at %s, as a subPath of a pod whose own mount of the volume is gone: delete that pod; if it is deleted already, restart kubelet, which unmounts it, or umount it there", m.Dir)
		}
		if m.Owner == Elsewhere && m.OtherRoot {
			return refusal(Busy, "it is mounted at %s, a path as below a root directory of kubelet, but below none of kubeletRoots: if a kubelet runs with that root (--root-dir), delete the pod that uses it there, and kubelet unmounts it; if not, umount it there", m.Dir)
		}
		if m.Owner == Elsewhere {
			return refusal(Busy, "it is mounted at %s by something else: umount it there first", m.Dir)
		}
	}
	return Refusal{}
}

// refusal returns a refusal without the call.
func refusal(code Code, f string, a ...any) Refusal {
	return Refusal{Code: code, Reason: fmt.Sprintf(f, a...)}
}

// Because returns a reason for the end of a text; "" = there is none.
func Because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

func orUnknown(s string) string { return cmp.Or(s, "unknown") }

func (p *planner) setUps() {
	var users, mounters []Call // the calls to serve, and those of them that need a mount
	for _, c := range p.w.Calls {
		switch c.Verb {
		case Check, Activate, Expand:
			if p.waits(c) {
				continue
			}
			if why := p.obstacle(c); why.Reason != "" {
				p.refuseWith(c, why)
				continue
			}
			if c.Verb == Expand {
				p.expand(c)
				continue
			}
			users = append(users, c)
		case Stage, Publish:
			if slices.Contains(p.dropped, c.Dir) {
				p.serving = true // a release of the same directory comes first
				continue
			}
			if p.mounted(c) || p.waits(c) {
				continue
			}
			if why := p.conflict(c); why.Reason != "" {
				p.refuseWith(c, why)
				continue
			}
			users = append(users, c)
			mounters = append(mounters, c)
		}
	}
	p.serving = p.serving || len(users) > 0
	p.activate(users)
	p.mount(mounters)
}

// waits reports whether nothing is planned for a call yet, because of Call.Waits or because the group's
// metadata, which all set-ups need, is not known.
func (p *planner) waits(c Call) bool {
	if c.Refusal.Reason != "" {
		return false
	}
	waits := c.Waits || p.h.LV.Pending
	p.v.Waiting = p.v.Waiting || c.Waits
	p.serving = p.serving || waits
	return waits
}

// mounted answers a Stage or Publish whose mount exists.
func (p *planner) mounted(c Call) bool {
	if !p.h.Targets[c.Dir].This {
		return false
	}
	for _, m := range p.h.Mounts {
		if m.Dir == c.Dir && c.Verb == Publish && m.ReadOnly != c.ReadOnly {
			p.refuse(c, Conflict, "it is already mounted %s at %s, and this call requests it %s: unmount it first", mode(m.ReadOnly), c.Dir, mode(c.ReadOnly))
			return true
		}
	}
	// settle() plans NoteHeld if the note has another phase.
	if cl := p.claim(c.Dir); cl != nil && cl.Phase == Held {
		p.done(c)
	}
	p.serving = true
	return true
}

func mode(readOnly bool) string {
	if readOnly {
		return "read-only"
	}
	return "read-write"
}

// conflict returns why the mount of c must not be made; zero = it may be.
func (p *planner) conflict(c Call) Refusal {
	if why := p.obstacle(c); why.Reason != "" {
		return why
	}
	if s := p.h.Targets[c.Dir]; s.Unknown != "" {
		return refusal(Unknown, "the volume mounted at %s is unknown: %s", c.Dir, s.Unknown)
	}
	if s := p.h.Targets[c.Dir]; s.Other != "" {
		return refusal(Busy, "%s is mounted at %s already", s.Other, c.Dir)
	}
	if c.Global != "" {
		if s := p.h.Targets[c.Global]; s.Under {
			return refusal(Busy, "kubelet's global mount %s is covered by %s: unmount that first", c.Global, s.Other)
		} else if s.Other != "" {
			return refusal(Conflict, "kubelet's global mount %s has another volume (%s): two inline volumes have the same name; give the pods' volumes different names, or use PVs, or the driver without attach", c.Global, s.Other)
		}
	}
	if c.Verb == Stage {
		for _, cl := range p.w.Claims {
			waiting := cl.Phase == Making && len(p.calls(cl.Dir, Stage)) > 0
			if cl.Kind == Staged && cl.Dir != c.Dir && (p.here(cl.Dir) || waiting && !p.younger(cl.Dir, c)) {
				return p.twoNames(cl.Dir)
			}
		}
		for _, m := range p.h.Mounts {
			if m.Owner == Ours && m.Kind == Staged && m.Dir != c.Dir {
				return p.twoNames(m.Dir)
			}
		}
	}
	if p.readOnlyLV() && !c.ReadOnly && c.Verb == Publish {
		if file := p.h.LV.File.Path; file != "" && !p.h.LV.ReadOnly {
			return refusal(Conflict, "its device is read-only, because its file was when it was attached, or by blockdev --setro: mount it with readOnly: true, or delete the pods that use it, and it is attached anew; if its group has `deactivate: never`: losetup -d %s", p.h.Device.Path)
		}
		if !p.h.LV.ReadOnly {
			return refusal(Conflict, "its device is read-only: mount it with readOnly: true, or make it writable: blockdev --setrw %s. If that has no effect, delete the pods that use it, and it is activated anew. If it is still read-only, remove it from activation/read_only_volume_list in lvm.conf", p.device())
		}
		if p.h.LV.External {
			return refusal(Conflict, "the logical volume is the external origin of a thin volume, and LVM never makes it writable: mount it with readOnly: true")
		}
		writable := "lvchange -prw " + p.h.LV.Name.String()
		if file := p.h.LV.File.Path; file != "" {
			writable = "chmod u+w " + Quote(file)
		}
		return refusal(Conflict, "the logical volume is read-only: mount it with readOnly: true, or make it writable: %s", writable)
	}
	live := p.live()
	if live == nil {
		return Refusal{}
	}
	switch {
	case p.h.FS.Content == FilesystemFailed:
		return failed(p.h.FS)
	case p.h.FS.Content == Truncated:
		return p.truncated()
	case live.SuperReadOnly && !p.readOnlyLV() && !c.ReadOnly: // a new global mount would keep it read-only
		return refusal(Conflict, "its %s is mounted read-only: the volume was read-only when it was mounted, or it was made read-only since (dmesg): mount it with readOnly: true, or delete the pods that use it or wait for it: the next mount is writable. An ext4 with the feature read-only is always mounted like that: tune2fs -O ^read-only", live.Type)
	case c.FSType != "" && c.FSType != live.Type:
		return otherType(live.Type, c.FSType)
	}
	if diff := optionsDiffer(c.Super, p.h.Mounts); diff != "" {
		return refusal(Conflict, "the filesystem is already mounted with other mount options (%s); all users of a volume share them", diff)
	}
	return Refusal{}
}

// twoNames refuses a second global mount. Kubelet may have forgotten the one at dir, and its name, if it was
// restarted before the unmount.
func (p *planner) twoNames(dir string) Refusal {
	if p.h.Targets[dir].This && len(p.needing(dir)) == 0 {
		return refusal(Conflict, "it is already staged at %s, and no pod has it mounted: if a PV or pod still has that name, use one PV (or one inline volume name) for one logical volume, since kubelet would never unmount either of two; if none has it any more, kubelet has forgotten that mount: flexd release --yes %s", dir, Quote(dir))
	}
	return refusal(Conflict, "it is already staged at %s: kubelet has two names for it, and would then never unmount either mount; use one PV (or one inline volume name) for one logical volume", dir)
}

// younger reports whether the call of the claim at dir arrived after c.
func (p *planner) younger(dir string, c Call) bool {
	for _, o := range p.w.Calls {
		if o.ID == c.ID {
			return true
		}
		if o.Dir == dir && o.Verb == Stage {
			return false
		}
	}
	return false
}

func failed(fs FS) Refusal {
	return refusal(Damaged, "its %s is in error (%s): look at dmesg and at the disk, and back up what can be read; then delete the pods that use it: the next mount runs fsck", cmp.Or(fs.Type, "filesystem"), orUnknown(fs.What))
}

// truncated refuses a filesystem that is larger than its device. It does not advise fsck, which would
// discard the blocks beyond the end.
func (p *planner) truncated() Refusal {
	name, fs, d := p.h.LV.Name, p.h.FS, p.h.Device
	remedy := CutLV(fs.Size, p.h.LV.Size, name)
	if file := p.h.LV.File.Path; file != "" {
		remedy = CutFile(fs.Size, p.h.LV.Size, file, d.Path)
	}
	if p.h.LV.Size < fs.Size { // else only the device is too small: a larger backup was restored in its file
		remedy = "the volume was made smaller than its filesystem. Stop writing to it: " + remedy
	}
	return refusal(Damaged, "its %s has %s and its device %s only %s: %s", fs.Type, Bytes(fs.Size), p.device(), Bytes(d.Size), remedy)
}

// CutLV returns the remedy for a filesystem of that size on a smaller device of a logical volume; lv is
// the volume's size in the metadata (0 = unknown). An extension may use other extents than before.
func CutLV(size, lv int64, name Name) string {
	switch {
	case lv >= size:
		return "do not run fsck; the metadata has that size, so: lvchange --refresh " + name.String()
	case lv == 0:
		return fmt.Sprintf("do not run fsck. If lvs shows at least %d bytes: lvchange --refresh %s. If not, %s", size, name, restoreCut(size, name))
	}
	return "do not run fsck; " + restoreCut(size, name)
}

func restoreCut(size int64, name Name) string {
	return fmt.Sprintf("restore the metadata that has its extents, if nothing else in %[2]s was changed since: cp /etc/lvm/backup/%[2]s . (the next change overwrites it); vgcfgrestore --list %[2]s; vgcfgrestore -f FILE %[2]s, with the FILE from *before* the lvreduce, or, if older metadata was restored, the newest one (also that copy) in which it has this size; lvchange --refresh %[3]s. If something else was changed, give it the same extents that FILE has (docs/operations.md): lvextend -L %[1]db %[3]s PV:FIRST-LAST. If they are not free, another volume has them, and only a backup has the end of the filesystem. Without PV:FIRST-LAST lvextend uses other extents, which damages the filesystem, except in a thin pool", size, name.VG, name)
}

// CutFile returns the remedy for a filesystem of that size on a smaller loop device. The space beyond the
// end of its file would be zeros, which fsck -p of a clean ext4 does not detect.
func CutFile(size, file int64, path, loop string) string {
	if file >= size {
		return "its file has that size: losetup -c " + loop
	}
	return fmt.Sprintf("the data beyond the end of its file is lost, so restore a backup of %[2]s. Without one, copy off what can be read; then, without pods, truncate -s %[1]d %[2]s, and check all of it (e2fsck -f, xfs_repair or btrfs check) before it is used again: parts of its files may be zeros", size, Quote(path))
}

// KeepLoop is the beginning of a remedy that needs a loop device. The kernel ends one in use after losetup -d
// at its last close, which the remedy would cause.
func KeepLoop(loop string, ending bool) string {
	if ending {
		return fmt.Sprintf("losetup -d was run on %[1]s, so the kernel detaches it when nothing uses it any more. If its data may be needed, keep it open first: exec 9<%[1]s in a shell, and exec 9<&- there after the last step. Then delete the pods that use it (lsblk %[1]s)", loop)
	}
	return fmt.Sprintf("flexd keeps %[1]s. Delete the pods that use it (lsblk %[1]s)", loop)
}

func otherType(found, wanted string) Refusal {
	return refusal(Conflict, "it holds %s, and fsType asks for %s: correct fsType; flexd never formats over data", found, wanted)
}

// optionsDiffer compares the wanted superblock options with the live superblock: with the options that
// were requested at its mount or, without a note of them, with the mount table, which does not show
// every default.
func optionsDiffer(want []string, mounts []Mount) string {
	for _, m := range mounts {
		if m.AskedKnown {
			if slices.Equal(want, m.Asked) {
				return ""
			}
			return fmt.Sprintf("wanted %s, mounted with %s", list(want), list(m.Asked))
		}
	}
	for _, o := range want {
		if !slices.Contains(mounts[0].Super, o) {
			return fmt.Sprintf("wanted %s, the mount table shows %s", list(want), list(mounts[0].Super))
		}
	}
	return ""
}

func list(options []string) string {
	if len(options) == 0 {
		return "none"
	}
	return strings.Join(options, ",")
}

// activate plans the note of a lease, and then the activation, for the users of the device.
func (p *planner) activate(users []Call) {
	var ids, heal []string
	for _, c := range users {
		switch c.Verb {
		case Stage, Publish:
			ids = append(ids, c.ID)
			cl := p.claim(c.Dir)
			if cl == nil || cl.Phase != Making {
				if !p.planned(NoteMaking, c.Dir) {
					p.add(Step{Kind: NoteMaking, Dir: c.Dir, Claim: kindFor(c), Calls: p.calls(c.Dir, Stage, Publish)})
				}
			}
		case Check, Activate:
			if c.Verb == Activate {
				ids = append(ids, c.ID)
			}
			switch {
			case !p.w.Lease.Noted || !p.w.Lease.Live:
				if !p.leased {
					p.leased = true
					p.add(Step{Kind: NoteLease, Calls: p.calls("", Check, Activate)})
				}
			case c.Verb == Check || p.h.Device.Activity == Active && p.h.Device.Link != "" && !p.h.Device.Unlocked:
				p.done(c)
			case p.h.Device.Activity == Active && !p.h.Device.Unlocked:
				heal = append(heal, c.ID)
			}
		}
	}
	switch {
	case len(ids) > 0 && p.h.Device.Activity == Inactive:
		p.add(Step{Kind: ActivateDevice, Calls: ids})
	case len(ids) > 0 && p.h.Device.Unlocked:
		p.add(Step{Kind: ActivateDevice, Calls: ids, Why: "its lock is not known to be held"})
	case len(heal) > 0:
		p.add(Step{Kind: ActivateDevice, Calls: heal, Why: "its link is missing"})
	}
}
