// Package join compares four sources about one volume group: the metadata, the kernel's devices, the mount
// table, and flexd's own claims. It returns each disagreement with a remedy. It is pure: the caller passes
// the observed facts, and which facts are unknown.
package join

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/flexd/flexd/internal/volume"
)

// Findings returns the disagreements, by volume. An unknown fact causes none.
func Findings(g Group) []Finding {
	volumes := map[volume.UUID]*facts{}
	of := func(uuid volume.UUID) *facts {
		if volumes[uuid] == nil {
			volumes[uuid] = &facts{g: &g, uuid: uuid}
		}
		return volumes[uuid]
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
	g.creating = map[string]bool{}
	for i, l := range g.Leases {
		of(l.UUID).lease = &g.Leases[i]
		g.creating[l.LV] = g.creating[l.LV] || l.ByName
	}
	var all []Finding
	g.byDir, g.byDevice = map[string][]*Mount{}, map[string][]*Mount{}
	for i := range g.Mounts {
		m := &g.Mounts[i]
		g.byDir[m.Dir] = append(g.byDir[m.Dir], m)
		g.byDevice[m.Device] = append(g.byDevice[m.Device], m)
	}
	for uuid, s := range volumes {
		g.older = g.older || s.device != nil && g.Metadata == "" && uuid != "" && !g.Busy[uuid] && !s.device.Left && !s.device.Namesake && (len(s.volumes) == 0 || s.device.Misplaced != "")
	}
	for uuid, s := range volumes {
		s.chooseVolume()
		if uuid == "" || g.Busy[uuid] || s.volume != nil && s.volume.Making {
			continue
		}
		switch {
		case !s.unread():
			s.judge()
		case s.device != nil && s.device.Unknown == "": // the errors of its device and of its mounts are known
			s.faulty()
		}
		all = append(all, s.found...)
	}
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.LV, b.LV), cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Dir, b.Dir))
	})
	return slices.CompactFunc(all, Finding.Same) // stacked mounts have the same finding
}

// facts are the facts of all sources about one volume.
type facts struct {
	g      *Group
	uuid   volume.UUID
	volume *Volume // the one of volumes that is in use, nil = there is none
	device *Device
	claims []Claim
	lease  *Lease
	found  []Finding

	volumes []*Volume // several where a file was copied with its attributes
}

// chooseVolume sets the volume: that of the device, or else of a claim or the lease.
func (s *facts) chooseVolume() {
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

// unread reports whether the file of a volume could not be read.
func (s *facts) unread() bool {
	has := func(name string) bool { return s.g.Unread[name] != "" }
	return s.device != nil && has(s.device.Name) || s.lease != nil && has(s.lease.LV) ||
		slices.ContainsFunc(s.claims, func(c Claim) bool { return has(c.LV) })
}

func (s *facts) judge() {
	if s.device != nil && s.volume == nil && s.g.Metadata == "" {
		s.dmOnly()
		return
	}
	missing, stale := s.claimed()
	if s.volume != nil && s.volume.Into != "" {
		s.merged()
		return
	}
	s.elsewhere()
	s.copied()
	s.cutOff()
	switch {
	case s.device != nil && s.device.Unknown != "":
		s.mountedUnknown()
	case s.device != nil:
		s.stale()
		s.degraded()
		if !s.faulty() { // otherwise the kernel may have made it read-only
			s.readOnly()
		}
		s.flags()
		s.mountedUnknown()
		s.mergePending()
		s.nested()
		s.kept()
		s.unclaimed()
	case s.volume != nil && s.g.Kernel == "" && !missing:
		s.lvOnly(stale)
	}
}

func (s *facts) add(c Class, dir, hint, format string, a ...any) {
	s.found = append(s.found, Finding{Class: c, LV: s.name(), UUID: s.uuid, Dir: dir, Text: fmt.Sprintf(format, a...), Hint: hint})
}

// name returns the volume's name for messages.
func (s *facts) name() string {
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

// title returns the volume as an argument of the provider's commands.
func (s *facts) title() string { return s.g.Name + "/" + s.name() }

func (s *facts) lvm() bool { return s.g.Kind == "lvm" }

// mounts returns the mounts of the volume's device.
func (s *facts) mounts() []*Mount {
	if s.device == nil {
		return nil
	}
	return s.g.byDevice[s.device.Number]
}

// at returns the mounts at a directory: of this volume, of a removed device, and others.
func (s *facts) at(dir string) (ours, gone, other *Mount) {
	for _, m := range s.g.byDir[dir] {
		switch {
		case m.Part && !m.Gone:
			other = m
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

func (s *facts) deviceName() string {
	if s.device.Kernel == "" || s.device.Kernel == s.device.Path {
		return s.device.Path
	}
	return s.device.Path + " (" + s.device.Kernel + ")"
}

func (s *facts) claimedFor(dir string) string {
	for _, c := range s.claims {
		if c.Dir == dir {
			return " for " + c.For
		}
	}
	return ""
}

// file returns the path of a volume's file in a loopdev group.
func (s *facts) file(v *Volume) string { return s.g.Directory + "/" + v.Name }
