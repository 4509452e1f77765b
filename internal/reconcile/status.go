package reconcile

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/audit"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// List returns every volume that flexd knows, from the last observations. It waits only a moment, for the
// space.
func (n *Node) List() status.List {
	n.lookAtLocks()
	n.auditor.LookAtSpace()
	return n.Known()
}

// locksTimeout is how long an answer waits for the states of locks.
const locksTimeout = 500 * time.Millisecond

// lookAtLocks asks for the states of the locks of shared groups.
func (n *Node) lookAtLocks() {
	var shared []string
	for _, vg := range n.Config.Get().VolumeGroups {
		if vg.Shared {
			shared = append(shared, vg.Name)
		}
	}
	if n.Locks == nil || len(shared) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(n.ctx, locksTimeout)
	defer cancel()
	n.Locks.Observe(ctx, shared)
}

// Known is a List that starts nothing: the space is that of the last List.
func (n *Node) Known() status.List {
	list := status.List{Node: n.Config.Get().NodeName, Version: n.Version, Volumes: []status.Volume{}, Problems: n.problems(), Pools: n.auditor.PoolStates(), Goroutines: runtime.NumGoroutine()}
	list.Findings, _ = n.auditor.Findings()
	list.Groups = n.auditor.Groups()
	for i := range list.Groups {
		if n.Locks != nil && n.shared(list.Groups[i].Name) {
			list.Groups[i].Locks = new(n.Locks.State(list.Groups[i].Name))
		}
		if why := n.lostReason(list.Groups[i].Name); why != "" {
			list.Groups[i].State, list.Groups[i].Error = status.GroupUnusable, why
		}
	}
	findings := n.findingsByVolume()
	lanes := n.allLanes()
	last := map[volume.Name]time.Time{} // the last look at a volume that has that name
	for _, l := range lanes {
		if name, at := l.lastLook(); at.After(last[name]) && !l.gone(false) {
			last[name] = at
		}
	}
	for _, l := range lanes {
		if name, at := l.lastLook(); !l.gone(name.LV != "" && at.Before(last[name])) {
			list.Volumes = append(list.Volumes, l.view(findings).Volume)
		}
	}
	slices.SortFunc(list.Volumes, func(a, b status.Volume) int {
		return strings.Compare(a.VG+"/"+a.LV+"/"+a.UUID, b.VG+"/"+b.LV+"/"+b.UUID)
	})
	return list
}

// VolumeDetail returns everything about one volume, given by name or by "-"/uuid. If several volumes
// have one name, it returns the one that a pod would get; the others were deleted.
func (n *Node) VolumeDetail(vg, lv string) (found status.VolumeDetail, ok bool) {
	n.auditor.LookAtSpace()
	var (
		best *lane
		rank = 0
		seen time.Time
	)
	for _, l := range n.allLanes() {
		if string(l.uuid) == lv {
			return l.view(n.findingsByVolume()), true
		}
		name, at := l.lastLook()
		if name != (volume.Name{VG: vg, LV: lv}) {
			continue
		}
		r := 3
		if _, noted := n.Store.Lease(l.uuid); l.byName && noted { // its creation has not ended
			r = 4
		} else if h := n.Observer.Last(l.uuid); l.byName {
			r = 2
		} else if h != nil && h.LV.Presence == volume.Absent {
			r = 1
		}
		if r > rank || r == rank && at.After(seen) {
			best, rank, seen = l, r, at
		}
	}
	if best == nil {
		return found, false
	}
	return best.view(n.findingsByVolume()), true
}

// findingsByVolume returns the findings by volume.
func (n *Node) findingsByVolume() map[string][]status.Finding {
	findings, _ := n.auditor.Findings()
	all := map[string][]status.Finding{}
	for _, d := range append(n.takenLocks(), findings...) {
		all[d.UUID] = append(all[d.UUID], d)
	}
	return all
}

// Check audits every configured volume group again, and reports where the metadata, the
// kernel's devices, the mount table and flexd's claims disagree. It changes nothing.
func (n *Node) Check(ctx context.Context) status.Check {
	check := status.Check{Node: n.Config.Get().NodeName, Version: n.Version}
	n.noteProblems() // reads them again in the background
	ctx, cancel := context.WithTimeoutCause(ctx, audit.Limit, audit.ErrLimit)
	defer cancel()
	select {
	case <-n.ready:
	case <-ctx.Done():
	}
	check.Groups = n.auditor.Check(ctx)
	found, _ := n.auditor.Findings()
	taken := n.takenLocks()
	found = slices.DeleteFunc(slices.Clone(found), func(f status.Finding) bool { // its table is the fence
		return f.Class == string(join.StaleMapping) && slices.ContainsFunc(taken, func(t status.Finding) bool { return t.UUID == f.UUID })
	})
	check.Findings = slices.Concat(n.lostGroups(), taken, n.stuckSteps(), found)
	check.Problems = n.noteProblems()
	check.Verdict = check.Judge()
	return check
}

// Health returns the reasons why flexd cannot serve calls, and the reasons why it cannot serve those for
// some volume groups.
func (n *Node) Health() (failing, degraded []string) {
	_, degraded = n.auditor.Findings()
	for _, f := range n.lostGroups() {
		degraded = append(degraded, f.Message)
	}
	for _, f := range n.takenLocks() {
		degraded = append(degraded, f.VG+"/"+f.LV+": "+f.Message)
	}
	select {
	case <-n.ready:
	default:
		return []string{"flexd has not read its notes and the mount table yet"}, degraded
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tableError != "" {
		return []string{n.tableError}, degraded
	}
	return nil, degraded
}

func (n *Node) problems() []string {
	failing, degraded := n.Health()
	all := slices.Concat(failing, n.noteProblems(), degraded)
	for _, p := range n.auditor.PoolStates() {
		if p.Problem != "" {
			all = append(all, fmt.Sprintf("thin pool %s/%s: %s", p.VG, p.Name, p.Problem))
		}
	}
	return all
}

// noteProblems returns the notes and format records that cannot be read or written.
func (n *Node) noteProblems() []string { return append(n.Store.Problems(), n.Records.Problems()...) }

// allLanes returns the lanes that status lists.
func (n *Node) allLanes() []*lane {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.lanes))
	n.mu.Unlock()
	return slices.DeleteFunc(all, func(l *lane) bool { return !l.shown() })
}

// lastLook returns the volume's name, and the start of the last look at it.
func (l *lane) lastLook() (name volume.Name, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watched != nil {
		at = l.watched.began
	}
	return l.name, at
}

// gone reports whether a volume only exists in the memory of its lane: it was deleted, its group is
// not configured any more, or another volume has its name now and this one was not observed since.
func (l *lane) gone(replaced bool) bool {
	h := l.n.Observer.Last(l.uuid)
	return !l.byName && (replaced || h != nil && (h.LV.Presence == volume.Absent || l.n.Providers[h.LV.Name.VG] == nil)) && l.unused()
}
