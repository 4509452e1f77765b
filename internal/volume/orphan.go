package volume

import (
	"fmt"
	"slices"
	"strings"
)

// An Orphan is a mount at one of kubelet's directories that, by the observed facts, no pod
// needs any more.
type Orphan struct {
	Kind Kind
	Dir  string
	Why  string // the evidence

	SubPaths []string // its pod's mounts of parts of the volume, which are unmounted first
}

// Orphans returns the orphans of one volume. life reports whether the pod of a directory
// still has a process, with the evidence. A directory with a waiting call, a claim in the
// phase making or an unknown fact is not an orphan.
func Orphans(w Want, h Have, life func(dir string) (Life, string)) (all []Orphan) {
	waits := slices.ContainsFunc(w.Calls, func(c Call) bool { return c.Verb != Reclaim })
	parts := subPaths(h)
	for _, m := range h.Mounts {
		i := slices.IndexFunc(w.Claims, func(c Claim) bool { return c.Dir == m.Dir })
		if m.Owner != Ours || i < 0 || w.Claims[i].Phase != Held || waits {
			continue
		}
		switch m.Kind {
		case Published:
			if l, why := life(m.Dir); l == Ended {
				all = append(all, Orphan{Published, m.Dir, why, parts[m.Pod]})
			}
		case Staged:
			if len(users(h, m.Dir)) == 0 {
				all = append(all, Orphan{Kind: Staged, Dir: m.Dir, Why: "no pod has the volume mounted"})
			}
		}
	}
	return all
}

// subPaths returns kubelet's mounts of parts of the volume, by the uid of their pod. While one is left without its
// pod's mount, the volume is given to no pod.
func subPaths(h Have) map[string][]string {
	parts := map[string][]string{}
	for _, m := range h.Mounts {
		if m.Owner == Kubelets || m.BindLeft {
			parts[m.Pod] = append(parts[m.Pod], m.Dir)
		}
	}
	return parts
}

// UnmountCommand returns the command that unmounts directories.
func UnmountCommand(dirs []string) string {
	command := "umount"
	for _, dir := range dirs {
		command += " " + Quote(dir)
	}
	return command
}

// users returns the mounts of the volume in kubelet's directories, without dir and other global mounts.
// While there is such a mount, a pod may need the global mount.
func users(h Have, dir string) (dirs []string) {
	for _, m := range h.Mounts {
		if m.Dir != dir && m.Owner != Elsewhere && m.Kind != Staged {
			dirs = append(dirs, m.Dir)
		}
	}
	return dirs
}

// reclaims plans the releases that `flexd release`, or flexd itself, requests. Unlike kubelet's releases
// they require an observation that no pod needs the mount.
func (p *planner) reclaims() {
	for _, call := range p.w.Calls {
		if call.Verb != Reclaim {
			continue
		}
		if call.Dir == "" {
			p.reclaimDevice(call)
			continue
		}
		spot, claim := p.h.Targets[call.Dir], p.claim(call.Dir)
		switch {
		case len(p.calls(call.Dir, Stage, Publish, Release)) > 0:
			p.refuse(call, Busy, "kubelet asks for %s just now", call.Dir)
		case spot.Unknown != "":
			p.refuse(call, Unknown, "the volume mounted at %s is unknown: %s", call.Dir, spot.Unknown)
		case spot.Other != "":
			p.refuse(call, Busy, "%s is mounted at %s in its place: unmount that first", spot.Other, call.Dir)
		case !spot.This && claim == nil:
			p.done(call)
		case slices.Contains(p.dropped, call.Dir): // by another call, or because its mount is gone
		default:
			if why := p.needed(call, spot); why != "" {
				p.refuse(call, Busy, "%s", why)
				continue
			}
			ids := p.calls(call.Dir, Reclaim)
			if spot.This {
				p.unmount(call.Dir, ids, p.alone(call.Dir))
			} else {
				p.drop(*claim, ids, "")
			}
		}
	}
}

// alone reports whether the release at dir requires that no other mount namespace has the
// device. An operator's release does not.
func (p *planner) alone(dir string) bool {
	return !slices.ContainsFunc(p.w.Calls, func(c Call) bool { return c.Verb == Reclaim && c.Dir == dir && !c.Alone })
}

// needed returns why the mount at a directory may still be needed; "" = it is not.
func (p *planner) needed(call Call, spot TargetState) string {
	switch kind := p.kindOf(call.Dir); {
	case kind == Published && spot.Pod == Running:
		return "its pod still runs (" + spot.PodReason + "): delete the pod; kubelet then unmounts it"
	case kind == Published && spot.Pod == LifeUnknown && spot.This:
		return fmt.Sprintf("whether its pod still runs is unknown (%s). If it does not: umount %s; flexd notices", orUnknown(spot.PodReason), call.Dir)
	case kind == Published:
		if parts := subPaths(p.h)[spot.PodUID]; len(parts) > 0 {
			return fmt.Sprintf("a subPath of its pod is still mounted, and keeps the volume from other pods after the release: restart kubelet, which unmounts the pod's volumes; if it does not, first: %s", UnmountCommand(parts))
		}
	case kind == Staged && spot.This && p.h.Device.Activity != Active:
		return "whether a pod has the volume mounted is unknown: " + orUnknown(p.h.Device.Reason)
	case kind == Staged && spot.This && slices.ContainsFunc(p.w.Calls, func(c Call) bool { return c.Verb == Stage || c.Verb == Publish }):
		return "kubelet sets the volume up for a pod just now"
	case kind == Staged && spot.This:
		if by := p.needing(call.Dir); len(by) > 0 {
			return "pods have the volume mounted: " + strings.Join(by, ", ")
		}
	}
	return ""
}

// needing returns the mounts that may need the global mount at dir.
func (p *planner) needing(dir string) []string {
	by := users(p.h, dir)
	for _, c := range p.w.Claims {
		if c.Kind == Published && p.here(c.Dir) && !slices.Contains(by, c.Dir) {
			by = append(by, c.Dir)
		}
	}
	return by
}

// reclaimDevice plans the deactivation of a volume without a claim. Without a call, flexd deactivates only
// volumes that it has activated.
func (p *planner) reclaimDevice(call Call) {
	d := p.h.Device
	switch {
	case call.Refusal.Reason != "":
		p.refuseWith(call, call.Refusal)
	case len(p.w.Claims) > 0:
		p.refuse(call, Busy, "it is claimed at %s", p.w.Claims[0].Dir)
	case len(p.h.Mounts) > 0:
		p.refuse(call, Busy, "it is mounted at %s", p.h.Mounts[0].Dir)
	case slices.ContainsFunc(p.w.Calls, func(c Call) bool { return c.Verb != Reclaim }):
		p.refuse(call, Busy, "kubelet asks for it just now")
	case p.h.LV.Pending:
		p.serving, p.v.Waiting = true, p.v.Waiting || call.Waits
	case p.h.LV.Presence != Present:
		p.refuse(call, Unknown, "its metadata is unknown: %s", orUnknown(p.h.LV.Reason))
	case d.Activity == ActivityUnknown:
		p.refuse(call, Unknown, "its device could not be inspected: %s", orUnknown(d.Reason))
	case d.Released() && !p.w.Lease.Noted:
		p.done(call)
	case d.Activity == Active && Kept(d.Relatives) != "":
		if slices.ContainsFunc(d.Relatives, func(r Relative) bool { return r.Lost }) {
			p.refuse(call, Busy, "%s", Kept(d.Relatives))
			return
		}
		p.refuse(call, Busy, "%s; if none of them is needed: lvchange -an %s", Kept(d.Relatives), p.h.LV.Name)
	case d.Activity == Active && p.w.NeverDeactivate:
		p.refuse(call, NotAllowed, "its volume group says `deactivate: never`")
	case p.serving: // an earlier call has planned it
	default:
		p.serving = true // so that release plans nothing
		if d.Activity == Active || d.LockLeft {
			p.add(Step{Kind: Deactivate, Calls: p.calls("", Reclaim)})
		}
		if p.w.Lease.Noted {
			p.add(Step{Kind: DropLease, Calls: p.calls("", Reclaim)})
		}
	}
}
