package join

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/volume"
)

// claimed checks held claims. missing reports that a claim has no mount; stale are the mounts of a device
// that is gone.
func (s *facts) claimed() (missing bool, stale []Mount) {
	for _, c := range s.claims {
		if c.Phase != volume.Held || c.VG != "" {
			continue
		}
		ours, gone, other := s.at(c.Dir)
		switch {
		case ours != nil && ours.Over != "":
			s.add(Covered, c.Dir, "unmount what covers it, the last mounted first (umount DIRECTORY); until then flexd can neither unmount nor mount the volume there",
				"its mount at %s, for %s, is covered by %s: a lookup of that directory does not reach the volume", c.Dir, c.For, ours.Over)
			continue
		case ours != nil:
			if slices.ContainsFunc(s.g.byDir[c.Dir], func(m *Mount) bool { return m.Again }) {
				s.add(Covered, c.Dir, "no action is needed: when kubelet asks for the unmount, flexd unmounts all mounts there. To do it earlier: umount "+c.Dir,
					"its mount at %s, for %s, is covered by another mount of the same volume", c.Dir, c.For)
			}
			if ours.Deleted {
				s.add(Faulty, c.Dir, "delete the pod, so that kubelet mounts the volume anew, with its present default subvolume (btrfs subvolume get-default). Only a snapshot has the data of the deleted one",
					"the btrfs subvolume that is mounted at %s, for %s, was deleted", c.Dir, c.For)
			}
			continue
		case gone != nil && s.device == nil && s.volume != nil && s.g.Kernel == "":
			stale = append(stale, *gone)
			continue
		case gone != nil:
			s.add(StaleMapping, c.Dir, "the disk is gone; nothing can be read or written there. Delete the pod; kubelet unmounts it, and mounts the volume anew where it is",
				"the mount at %s, for %s, is of the device %s, which the kernel does not have any more", c.Dir, c.For, gone.Device)
			continue
		case other != nil && (other.Unknown || s.device == nil && s.g.Kernel != ""):
			continue // it may be the volume
		}
		missing = true
		if other != nil && other.FSID != "" && other.FSID == c.FSID && (s.device == nil || other.Device != s.device.Number) {
			s.add(ClaimedMissing, c.Dir, s.moveBack(c.Dir, other.Source),
				"the filesystem that flexd mounted at %s, for %s, is on %s now, not on the volume's device, as after btrfs replace", c.Dir, c.For, other.Source)
			continue
		}
		text := fmt.Sprintf("something other than flexd unmounted it at %s, for %s", c.Dir, c.For)
		hint := "the mounts of its pods are not affected; kubelet makes this one again when the pods are deleted and created anew"
		if pod, ok := strings.CutPrefix(c.For, "pod "); ok {
			const moveAway = "; what its containers wrote there since then is on the node's disk, in that directory: move it away"
			release := "flexd release --yes " + c.Dir
			switch c.Life {
			case volume.Ended:
				text += ", which has no process any more"
				hint = "delete the pod if it still exists. If kubelet does not ask for the unmount then: " + release + moveAway
			case volume.Running:
				text = fmt.Sprintf("pod %s writes to the node's disk, now or when a container restarts: something other than flexd unmounted the volume at %s", pod, c.Dir)
				hint = "delete the pod, so that kubelet mounts it anew" + moveAway
			default:
				text = fmt.Sprintf("pod %s, unless it has ended, writes to the node's disk, now or when a container restarts: something other than flexd unmounted the volume at %s", pod, c.Dir)
				hint = "delete the pod, so that kubelet mounts it anew; if it has ended, and kubelet does not ask for the unmount: " + release + moveAway
			}
		}
		if other != nil {
			what := other.What
			if other.Name.LV != "" && !other.Part {
				what = fmt.Sprintf("volume %s (%s)", other.Name, what)
			}
			text = fmt.Sprintf("%s is mounted at %s in place of the volume, for %s, by something other than flexd", what, c.Dir, c.For)
			hint = "what was written there since then is in that mount: copy it to another place, umount " + c.Dir + ", then delete the pods that use it"
			if slices.ContainsFunc(s.g.Claims, func(o Claim) bool { return o.Dir == c.Dir && o.UUID == other.UUID }) {
				text = fmt.Sprintf("%s is mounted at %s, for another claim of flexd; its own mount, for %s, is gone", what, c.Dir, c.For)
				hint = "delete the pods that use " + c.Dir + ", so that kubelet unmounts it"
			}
		}
		var left []string
		for _, m := range s.mounts() {
			if m.BindLeft && m.Pod == c.Pod {
				left = append(left, m.Dir)
			}
		}
		if len(left) > 0 {
			hint += "; if a subPath of the pod is mounted after its end: " + volume.UnmountCommand(left)
		}
		switch {
		case s.g.Metadata == "" && s.volume == nil:
			text += "; the volume itself is gone, too"
		case s.volume != nil && s.device == nil && s.g.Kernel == "":
			text += "; the volume is inactive"
		}
		s.add(ClaimedMissing, c.Dir, hint, "%s", text)
	}
	return missing, stale
}

// moveBack returns the remedy for a btrfs that was moved from the volume's device to another one. Without -f btrfs
// refuses a device that has another filesystem.
func (s *facts) moveBack(dir, source string) string {
	const id = "with the devid for ID that btrfs filesystem show lists"
	switch {
	case s.device != nil:
		return fmt.Sprintf("move it back while it is mounted: btrfs replace start ID %s %s, %s. Or copy its data off, delete the pods that use it, and umount %[2]s", s.device.Path, dir, id)
	case s.volume == nil:
		return fmt.Sprintf("copy its data off, delete the pods that use it, and umount %s", dir)
	case s.lvm():
		return fmt.Sprintf("the volume is inactive: lvchange -ay %s. Then flexd check says how to move it back", s.title())
	}
	file := volume.Quote(s.file(s.volume))
	return fmt.Sprintf("the volume is inactive: delete the pods that use it, and umount %[1]s. If %[2]s is attached to %[3]s, then: losetup -d %[2]s. If not, move it back: L=$(losetup -f --show %[3]s); mount %[2]s /mnt && btrfs replace start -B ID $L /mnt && umount /mnt && losetup -d $L, %[4]s", dir, source, file, id)
}

// lvOnly checks a volume that needs a device and has none.
func (s *facts) lvOnly(stale []Mount) {
	var why []string
	for _, m := range stale {
		why = append(why, fmt.Sprintf("%s is mounted from its device %s%s", m.Dir, m.Device, s.claimedFor(m.Dir)))
	}
	if len(why) == 0 && s.lease != nil && s.lease.Live {
		why = append(why, "a lease of flexd keeps it active")
	}
	if len(why) == 0 {
		return
	}
	hint := "it was not deactivated by flexd. No action is needed: flexd activates it when kubelet asks for it"
	if len(stale) > 0 {
		hint = "its device was removed by force. Delete the pod; kubelet mounts the volume anew"
	}
	s.add(LVOnly, "", hint, "%s, but the kernel has no device of it", strings.Join(why, ", "))
}

// mountedUnknown checks mounts without a claim. Kubelet's own mounts (subPath) belong to a
// mount with a claim.
func (s *facts) mountedUnknown() {
	for _, m := range s.mounts() {
		noted := slices.ContainsFunc(s.claims, func(c Claim) bool { return c.Dir == m.Dir })
		switch {
		case m.Owner == volume.Elsewhere && m.Other && noted:
			s.add(MountedUnknown, m.Dir, "flexd mounts it for no further pod meanwhile. Delete that pod, and kubelet unmounts it",
				"%s is mounted at %s%s, a directory of another driver of kubelet, as after a change of `driver` in flexd's configuration", m.What, m.Dir, s.claimedFor(m.Dir))
		case m.Owner == volume.Elsewhere && m.Other:
			s.add(MountedUnknown, m.Dir, "flexd mounts it for no further pod meanwhile. Do not unmount it by hand: a pod may use it. Delete that pod, and kubelet unmounts it. If flexd is to replace that driver: docs/migrate.md",
				"%s is mounted at %s by another driver of kubelet", m.What, m.Dir)
		case m.Owner == volume.Elsewhere && !noted && m.BindLeft:
			s.add(MountedUnknown, m.Dir, "flexd mounts it for no further pod meanwhile. Delete that pod. If it is deleted already, restart kubelet, which unmounts it; if that does not help: umount "+m.Dir,
				"%s is mounted at %s, as a subPath of a pod whose own mount of the volume is gone", m.What, m.Dir)
		case m.Owner == volume.Elsewhere && !noted && m.OtherRoot:
			s.add(MountedUnknown, m.Dir, "flexd mounts it for no further pod meanwhile. If a kubelet runs with that root (--root-dir), delete the pod that uses it there, and kubelet unmounts it. If not: umount "+m.Dir,
				"%s is mounted at %s, a path as below a root directory of kubelet, but below none of kubeletRoots", m.What, m.Dir)
		case m.Owner == volume.Elsewhere && !noted:
			s.add(MountedUnknown, m.Dir, "flexd mounts it for no further pod meanwhile. If it is not needed there: umount "+m.Dir,
				"%s is mounted at %s, which is not one of flexd's directories", m.What, m.Dir)
		case m.Owner == volume.Ours && noted && m.Outside:
			s.add(MountedUnknown, m.Dir, "kubelet unmounts it only in its own directories. Correct kubeletRoots, or the link, and restart flexd; if kubelet was moved for good: umount "+m.Dir,
				"%s is mounted at %s%s, and that is not in kubelet's directories (kubeletRoots) now", m.What, m.Dir, s.claimedFor(m.Dir))
		case m.Owner == volume.Ours && !noted:
			s.add(MountedUnknown, m.Dir, "flexd adopts it when it can write its notes: check for free space in its runDir, and look at its log",
				"%s is mounted at %s, a directory of kubelet's, and flexd has no note of it", m.What, m.Dir)
		}
	}
}

// nested checks for mounts below those of flexd.
func (s *facts) nested() {
	for _, m := range s.mounts() {
		if m.Owner != volume.Ours || len(m.Nested) == 0 || m.Over != "" {
			continue
		}
		last := slices.Clone(m.Nested)
		slices.Reverse(last)
		s.add(NestedMount, m.Dir, "if a container of the pod mounted it (mountPropagation: Bidirectional), the container unmounts it when it ends. If not: umount "+strings.Join(last, " "),
			"something is mounted at %s, below the mount at %s%s: until it is unmounted, flexd cannot unmount the volume, and kubelet cannot remove the directory", strings.Join(m.Nested, ", "), m.Dir, s.claimedFor(m.Dir))
	}
}

// kept checks a device whose deactivation fails.
func (s *facts) kept() {
	if s.lease == nil || s.lease.Kept == "" || len(s.claims)+len(s.found) > 0 {
		return
	}
	s.add(StillActive, "", "end that use, or remove the cause; flexd tries again within about two minutes",
		"no pod has it mounted, and it cannot be deactivated: %s", s.lease.Kept)
}

// unclaimed checks a device without a claim, a lease or a mount.
func (s *facts) unclaimed() {
	if s.volume == nil || s.g.Keep || len(s.claims) > 0 || s.lease != nil || s.g.creating[s.volume.Name] || len(s.found) > 0 || len(s.mounts()) > 0 {
		return
	}
	text, hint := "it is active, and no pod has asked for it", "flexd leaves it active. It may have been activated at boot, or by hand; if it is not needed: "
	if s.device.Open > 0 {
		text += fmt.Sprintf("; it is open (%d times)", s.device.Open)
		hint = "flexd leaves it active: something other than a mount uses it. List its users: lsblk " + s.device.Path + ", fuser -v " + s.device.Path + "; once it is closed: "
	}
	if s.lvm() {
		hint += "lvchange -an " + s.title()
	} else {
		hint += "losetup -d " + s.device.Path
	}
	s.add(ActiveUnclaimed, "", s.beforeDeactivation(hint), "%s", text)
}
