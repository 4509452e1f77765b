package status

import (
	"slices"
	"strings"
)

// A Selection restricts a list of volumes. An empty field restricts nothing.
type Selection struct {
	Target    string   // VG, VG/LV, LV, a uuid, NAMESPACE/POD, a pod's uid, a device, a directory of kubelet
	States    []string // one of these
	VG        string
	Namespace string // of one of the pods
}

// Of returns the list with the selected volumes, and everything about them. Findings may be about
// volumes that are not listed, or of unknown groups.
func (s Selection) Of(l List) List {
	if s.Target == "" && s.VG == "" && s.Namespace == "" && len(s.States) == 0 {
		return l
	}
	l.Volumes = slices.DeleteFunc(slices.Clone(l.Volumes), func(v Volume) bool { return !s.has(v) })
	selected := func(v Volume) bool {
		return s.has(v) || slices.ContainsFunc(l.Volumes, func(o Volume) bool { return o.VG == v.VG && o.LV == v.LV })
	}
	l.Findings = slices.DeleteFunc(slices.Clone(l.Findings), func(d Finding) bool {
		return !selected(Volume{VG: d.VG, LV: d.LV, UUID: d.UUID, Pods: []Pod{{Dir: d.Dir}}})
	})
	l.RefusedCalls = slices.DeleteFunc(slices.Clone(l.RefusedCalls), func(r RefusedCall) bool {
		v := Volume{VG: r.VG, LV: r.LV}
		if r.Pod != nil {
			v.Pods = []Pod{*r.Pod}
		}
		return !selected(v)
	})
	l.Groups = slices.DeleteFunc(slices.Clone(l.Groups), func(g Group) bool {
		return g.Name != s.Target && !slices.ContainsFunc(l.Volumes, func(v Volume) bool { return v.VG == g.Name })
	})
	l.Pools = slices.DeleteFunc(slices.Clone(l.Pools), func(p Pool) bool {
		return !slices.ContainsFunc(l.Volumes, func(v Volume) bool { return v.VG == p.VG })
	})
	return l
}

func (s Selection) has(v Volume) bool {
	pod := func(is func(Pod) bool) bool { return slices.ContainsFunc(v.Pods, is) }
	switch {
	case s.VG != "" && v.VG != s.VG:
		return false
	case len(s.States) > 0 && !slices.Contains(s.States, string(v.State)):
		return false
	case s.Namespace != "" && !pod(func(p Pod) bool { return p.Namespace == s.Namespace }):
		return false
	case s.Target == "" || s.Target == v.VG || s.Target == v.VG+"/"+v.LV || s.Target == v.LV || s.Target == v.UUID || s.Target == v.Device && v.Device != "":
		return true
	}
	return pod(func(p Pod) bool {
		return s.Target == p.UID || p.Name != "" && s.Target == p.Namespace+"/"+p.Name || p.Dir != "" && (s.Target == p.Dir || strings.HasPrefix(s.Target, p.Dir+"/"))
	})
}

// OfGroups returns the selected groups: the target is the name of one, of one of its thin
// pools (GROUP/POOL), of a disk of it, or its directory.
func (s Selection) OfGroups(all []Group) []Group {
	return slices.DeleteFunc(slices.Clone(all), func(g Group) bool {
		switch {
		case s.VG != "" && g.Name != s.VG, len(s.States) > 0 && !slices.Contains(s.States, g.State):
			return true
		case s.Target == "" || s.Target == g.Name || s.Target == g.Directory:
			return false
		}
		return !slices.ContainsFunc(g.ThinPools, func(p ThinPool) bool { return s.Target == g.Name+"/"+p.Name }) &&
			!slices.ContainsFunc(g.Disks, func(d Disk) bool { return s.Target == d.Device })
	})
}
