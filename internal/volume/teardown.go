package volume

import (
	"slices"
)

func (p *planner) releases() {
	seen := map[string]bool{}
	for _, call := range p.w.Calls {
		if call.Verb != Release {
			continue
		}
		spot, claim := p.h.Targets[call.Dir], p.claim(call.Dir)
		switch {
		case spot.Unknown != "":
			p.refuse(call, Unknown, "the volume mounted at %s is unknown: %s", call.Dir, spot.Unknown)
		case spot.Other != "":
			p.refuse(call, Busy, "%s is mounted at %s in its place: unmount that first", spot.Other, call.Dir)
		case spot.This && !seen[call.Dir]:
			p.unmount(call.Dir, p.calls(call.Dir, Release), false)
		case spot.This:
		case claim != nil && !seen[call.Dir]:
			p.drop(*claim, p.calls(call.Dir, Release), "")
		case claim == nil:
			p.done(call)
		}
		seen[call.Dir] = true
	}
}

// unmount plans the end of a mount and of its claim.
func (p *planner) unmount(dir string, calls []string, alone bool) {
	kind := p.kindOf(dir)
	if c := p.claim(dir); c == nil || c.Phase != Releasing {
		p.add(Step{Kind: NoteReleasing, Dir: dir, Claim: kind, Calls: calls})
	}
	p.add(Step{Kind: Unmount, Dir: dir, Claim: kind, Below: p.h.Targets[dir].Below, Alone: alone, Calls: calls})
	p.unmounts = append(p.unmounts, dir)
	p.drop(Claim{Kind: kind, Dir: dir}, calls, "")
}

// release plans the lease of a claim whose mount is gone, and the deactivation.
func (p *planner) release() {
	if p.serving || p.holding() {
		return
	}
	lease, d := p.w.Lease, p.h.Device
	for _, s := range p.v.Steps {
		if s.Lease || s.Kind == NoteLease {
			return
		}
	}
	switch {
	case !lease.Noted:
		missing := slices.ContainsFunc(p.w.Claims, func(c Claim) bool { return !slices.Contains(p.dropped, c.Dir) })
		if missing && d.Activity == Active && !p.w.NeverDeactivate {
			p.add(Step{Kind: NoteLease})
		}
	case lease.Live:
	case d.Released(), d.Activity == Active && p.w.NeverDeactivate && len(p.h.Mounts) == 0:
		p.add(Step{Kind: DropLease})
	case (d.Activity == Active || d.LockLeft) && len(p.h.Mounts) == 0 && Kept(d.Relatives) == "": // also a volume that must not be used any more
		p.add(Step{Kind: Deactivate})
		p.add(Step{Kind: DropLease})
	}
}
