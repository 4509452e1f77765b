package volume

import "slices"

// Plan returns the steps that lead from h to w, in order: releases, set-ups, then flexd's own work. It
// refuses a call that needs an unknown fact, or that conflicts with the observed state. After Inspect it
// plans nothing more for that call, because the next step depends on the result. After every step the
// caller observes and plans again, so a crash may interrupt a plan at any step.
//
// Without a waiting call Plan never sets up a volume.
func Plan(w Want, h Have) Verdict {
	p := planner{w: w, h: h}
	p.settle()
	p.releases()
	p.reclaims()
	p.creations()
	p.setUps()
	p.growth()
	p.record()
	p.release()
	return p.v
}

type planner struct {
	w Want
	h Have
	v Verdict

	dropped  []string // directories whose claim is dropped in this plan
	unmounts []string // directories unmounted in this plan
	serving  bool     // a set-up call is being served
	leased   bool     // a lease is noted in this plan
}

func (p *planner) add(s Step)  { p.v.Steps = append(p.v.Steps, s) }
func (p *planner) done(c Call) { p.v.Done = append(p.v.Done, c.ID) }

func (p *planner) refuse(c Call, code Code, f string, a ...any) {
	p.refuseWith(c, refusal(code, f, a...))
}

func (p *planner) refuseWith(c Call, why Refusal) {
	why.Call = c.ID
	p.v.Refused = append(p.v.Refused, why)
}

func (p *planner) claim(dir string) *Claim {
	for i := range p.w.Claims {
		if p.w.Claims[i].Dir == dir {
			return &p.w.Claims[i]
		}
	}
	return nil
}

// calls returns the IDs of the calls with these verbs for dir; "" = those without a directory.
func (p *planner) calls(dir string, verbs ...Verb) (ids []string) {
	for _, c := range p.w.Calls {
		if c.Dir == dir && slices.Contains(verbs, c.Verb) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// here reports whether this volume is, or may be, mounted at dir, on top or covered.
func (p *planner) here(dir string) bool {
	s := p.h.Targets[dir]
	return s.This || s.Under || s.Unknown != ""
}

// isCopy reports whether the mount at a directory is a copy, by propagation, of a mount of flexd's at another one:
// then it is not among the mounts, which are known only while the device is.
func (p *planner) isCopy(dir string) bool {
	return p.h.Device.Activity == Active &&
		slices.ContainsFunc(p.h.Mounts, func(m Mount) bool { return m.Owner == Ours }) &&
		!slices.ContainsFunc(p.h.Mounts, func(m Mount) bool { return m.Dir == dir })
}

// Adopted is the reason in the note of a mount that flexd did not make, or whose note was lost.
const Adopted = "adopted from the mount table"

// settle corrects the notes that differ from the mount table.
func (p *planner) settle() {
	for _, c := range p.w.Claims {
		var (
			here    = p.here(c.Dir)
			setUp   = p.calls(c.Dir, Stage, Publish)
			release = p.calls(c.Dir, Release, Reclaim)
		)
		if len(release) > 0 || p.h.Targets[c.Dir].Unknown != "" {
			continue // releases() plans it, or it is unknown
		}
		switch {
		case here && c.Phase == Making:
			// Its mount has appeared, so it is held, whatever the result of the call.
			p.add(Step{Kind: NoteHeld, Dir: c.Dir, Claim: c.Kind, Calls: setUp})
		case here && c.Phase == Releasing:
			// Kubelet may already use the mount for a new pod.
			p.add(Step{Kind: NoteHeld, Dir: c.Dir, Claim: c.Kind, Calls: setUp, Why: "release failed"})
		case c.Phase == Held && p.h.Targets[c.Dir].This && p.isCopy(c.Dir):
			p.drop(c, nil, "its mount is a copy of one at another path")
		case here || len(setUp) > 0:
		case c.Phase != Held:
			p.drop(c, nil, "")
		case p.h.Targets[c.Dir].Gone:
			p.drop(c, nil, "its directory is gone")
		}
	}
	for _, m := range p.h.Mounts {
		if m.Owner == Ours && p.claim(m.Dir) == nil && len(p.calls(m.Dir, Release, Reclaim)) == 0 {
			p.add(Step{Kind: NoteHeld, Dir: m.Dir, Claim: m.Kind, Why: Adopted,
				Calls: p.calls(m.Dir, Stage, Publish)})
		}
	}
}

// drop plans the end of a claim. A lease follows the last claim, and is noted first, so that an active
// volume of flexd always has a claim or a lease.
func (p *planner) drop(c Claim, calls []string, why string) {
	p.dropped = append(p.dropped, c.Dir)
	p.add(Step{Kind: Drop, Dir: c.Dir, Claim: c.Kind, Calls: calls, Why: why, Lease: !p.h.Device.Released() && !p.holding()})
}

// holding reports whether anything except a lease keeps the volume active.
func (p *planner) holding() bool {
	for _, c := range p.w.Claims {
		if slices.Contains(p.dropped, c.Dir) {
			continue
		}
		if p.here(c.Dir) && !slices.Contains(p.unmounts, c.Dir) || c.Phase != Held || p.h.Targets[c.Dir].Moved {
			return true // Moved: its filesystem can be moved back to the device
		}
	}
	for _, m := range p.h.Mounts {
		if m.Owner == Ours && !slices.Contains(p.unmounts, m.Dir) {
			return true
		}
	}
	return false
}

func (p *planner) kindOf(dir string) Kind {
	if c := p.claim(dir); c != nil {
		return c.Kind
	}
	for _, m := range p.h.Mounts {
		if m.Dir == dir && m.Kind != "" {
			return m.Kind
		}
	}
	return Published
}

// readOnlyLV reports whether nothing may be written to the volume at all.
func (p *planner) readOnlyLV() bool { return p.h.LV.ReadOnly || p.h.Device.ReadOnly }

// live returns a mount of the volume, or nil. Every further mount shares its superblock.
func (p *planner) live() *Mount {
	for i := range p.h.Mounts {
		if !slices.Contains(p.unmounts, p.h.Mounts[i].Dir) {
			return &p.h.Mounts[i]
		}
	}
	return nil
}

func (p *planner) planned(k StepKind, dir string) bool {
	return slices.ContainsFunc(p.v.Steps, func(s Step) bool { return s.Kind == k && s.Dir == dir })
}
