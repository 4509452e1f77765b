package reconcile

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/flexd/flexd/internal/audit"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// Orphans lists the orphans for `flexd release`, with the steps for each. With targets (a
// directory, VG/LV or a uuid) it lists only these, and explains why a target is not an
// orphan. It changes nothing, and accesses no target: the client resolves paths.
func (n *Node) Orphans(ctx context.Context, targets []string) status.Orphans {
	list := status.Orphans{Node: n.Config.Get().NodeName, Version: n.Version}
	ctx, cancel := context.WithTimeoutCause(ctx, audit.Limit, audit.ErrLimit)
	defer cancel()
	select {
	case <-n.ready:
	case <-ctx.Done():
		list.Unknown = "flexd has not read its notes yet"
		return list
	}
	n.auditor.LookForOrphans()
	list.Unknown = n.auditor.PodsUnknown()
	findings, _ := n.auditor.Findings()
	matched := make([]bool, len(targets))
	for _, d := range findings {
		if !audit.Releasable(d) {
			continue
		}
		wanted := len(targets) == 0
		for i, t := range targets {
			if matches(t, d) {
				matched[i], wanted = true, true
			}
		}
		if wanted {
			o := status.Orphan{Finding: d}
			o.Plan, o.Refused = n.dryRun(ctx, d)
			list.Orphans = append(list.Orphans, o)
		}
	}
	for i, t := range targets {
		if !matched[i] {
			list.Refused = append(list.Refused, status.Refusal{Target: t, Message: n.noOrphanReason(ctx, t)})
		}
	}
	return list
}

// matches reports whether a target names that orphan.
func matches(target string, d status.Finding) bool {
	if !strings.HasPrefix(target, "/") {
		return target == d.UUID || target == d.VG+"/"+d.LV
	}
	return d.Dir != "" && filepath.Clean(target) == d.Dir
}

// dryRun returns the steps of a release of an orphan, or the reason of its refusal.
func (n *Node) dryRun(ctx context.Context, d status.Finding) (plan []string, refused string) {
	uuid, name := volume.UUID(d.UUID), volume.Name{VG: d.VG, LV: d.LV}
	l := n.laneOrIdle(uuid, name)
	w, c := l.want(), n.reclaimCall("rehearsal", name, d.Dir, false)
	w.Calls = append(w.Calls, c)
	t := l.target(w)
	table, err := n.Observer.LookAt(ctx, t.Dirs...)
	if err != nil {
		return nil, "the mount table cannot be read: " + err.Error()
	}
	h := n.Observer.Assemble(ctx, t, table)
	v := volume.Plan(w, h)
	for _, r := range v.Refused {
		if r.Call == c.ID {
			return nil, r.Reason
		}
	}
	for _, s := range v.Steps {
		if !slices.Contains(s.Calls, c.ID) {
			continue
		}
		switch s.Kind {
		case volume.Unmount:
			plan = append(plan, "umount "+s.Dir)
			h.Mounts = slices.DeleteFunc(h.Mounts, func(m volume.Mount) bool { return m.Dir == s.Dir })
		case volume.Deactivate:
			plan = append(plan, "deactivate the volume")
		case volume.Drop:
			plan = append(plan, "forget the claim")
			switch {
			case !s.Lease || w.NeverDeactivate:
			case len(h.Mounts) > 0:
				plan = append(plan, "leave the volume active: it is mounted at "+h.Mounts[0].Dir)
			case n.shared(name.VG):
				plan = append(plan, "deactivate the volume")
			default:
				plan = append(plan, fmt.Sprintf("deactivate the volume %s later, unless it is wanted again", n.Config.Get().Lease))
			}
		}
	}
	return plan, ""
}

// reclaimCall returns a call that releases an orphan.
func (n *Node) reclaimCall(id string, name volume.Name, dir string, alone bool) volume.Call {
	c := volume.Call{ID: id, Verb: volume.Reclaim, Dir: dir, Alone: alone}
	switch vg := n.Config.VG(name.VG); {
	case dir != "": // mounts are released even if the group is not configured
	case vg == nil:
		c.Refusal = volume.Refusal{Code: volume.NotAllowed, Reason: fmt.Sprintf("volume group %q is not configured", name.VG)}
	case !vg.AllowsVolume(name.LV):
		c.Refusal = volume.Refusal{Code: volume.NotAllowed, Reason: fmt.Sprintf("the configuration of volume group %s does not allow volume %q: flexd leaves it alone", name.VG, name.LV)}
	}
	return c
}

// noOrphanReason returns why there is nothing to release at a target.
func (n *Node) noOrphanReason(ctx context.Context, target string) string {
	if !strings.HasPrefix(target, "/") {
		findings := n.findingsByVolume()
		for _, l := range n.allLanes() {
			if s := l.view(findings); target == s.UUID || target == s.VG+"/"+s.LV {
				return fmt.Sprintf("no part of it is an orphan: its state is %s. Details: flexd status %s/%s", s.State, s.VG, s.LV)
			}
		}
		return "flexd knows no such volume, and none that is active without a claim; name it as VG/LV or by its uuid"
	}
	dir := filepath.Clean(target)
	claims := n.Store.At(dir)
	if len(claims) == 0 {
		return "flexd has no claim to that directory, and no orphan is there"
	}
	cl := claims[0]
	title := volume.Name{VG: cl.VG, LV: cl.LV}.String()
	plan, refused := n.dryRun(ctx, status.Finding{VG: cl.VG, LV: cl.LV, UUID: string(cl.UUID), Dir: dir})
	switch {
	case refused != "":
		return fmt.Sprintf("%s, for %s: %s", title, cl.User(), refused)
	case len(plan) > 0:
		return fmt.Sprintf("%s, for %s: it seems unused, and becomes an orphan after %s: ask again then", title, cl.User(), audit.OrphanSettle)
	}
	return fmt.Sprintf("%s, for %s: it is in use", title, cl.User())
}

// serveReclaim serves `flexd release --yes` for one orphan that its caller has listed.
func (n *Node) serveReclaim(c *call) error {
	uuid, dir := c.asked.UUID, c.asked.Target.Dir
	n.auditor.LookForOrphans()
	findings, _ := n.auditor.Findings()
	i := slices.IndexFunc(findings, func(d status.Finding) bool {
		return audit.Releasable(d) && d.UUID == string(uuid) && d.Dir == dir
	})
	if i < 0 {
		return volume.Errorf(volume.NotFound, "it is not an orphan, or not any more")
	}
	name := volume.Name{VG: findings[i].VG, LV: findings[i].LV}
	c.Call = n.reclaimCall(c.ID, name, dir, false)
	l := n.lane(uuid, name)
	c.title = l.title()
	err := n.await(c, l)
	n.auditor.LookForOrphans() // so that the orphan is not listed any more
	return err
}

var reclaims atomic.Int64

// reclaim releases an orphan on flexd's own behalf.
func (n *Node) reclaim(ctx context.Context, uuid volume.UUID, name volume.Name, dir string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, n.Config.Get().CallDeadline, ErrDeadline)
	defer cancel()
	c := n.newCall(ctx, Request{Title: "release", Caller: Caller{Started: n.Boot()}})
	id := fmt.Sprintf("orphan-%s-%d", strconv.FormatInt(int64(n.Boot()), 36), reclaims.Add(1)) // unique in the history
	c.Call = n.reclaimCall(id, name, dir, true)
	l, pod := n.lane(uuid, name), n.podOf(c)
	err := n.await(c, l)
	e := l.event(status.CallEvent)
	e.Verb, e.CallID, e.Dir, e.Pod, e.Duration = "release by flexd", id, dir, EventPod(pod), time.Since(c.since).Seconds()
	if err != nil {
		e.Code, e.Message = string(volume.CodeOf(err)), err.Error()
	}
	if n.ctx.Err() == nil {
		n.Record(e)
	}
	return err
}
