package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/audit"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// failedAge is how long a failure without a further call is the volume's state:
// longer than kubelet's longest pause between two attempts.
const failedAge = 5 * time.Minute

// errorAge is how long a failure that nothing has repeated is shown, as that of a refused call.
const errorAge = time.Hour

// List returns every volume that flexd knows. It reads the last observations and
// waits for no work, except for a moment for the space.
func (n *Node) List() status.List {
	n.lookAtLocks()
	n.auditor.LookAtSpace()
	return n.Known()
}

// locksPatience is how long an answer waits for the states of locks.
const locksPatience = 500 * time.Millisecond

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
	ctx, cancel := context.WithTimeout(n.ctx, locksPatience)
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
			locks := n.Locks.State(list.Groups[i].Name)
			list.Groups[i].Locks = &locks
		}
		if why := n.lostReason(list.Groups[i].Name); why != "" {
			list.Groups[i].State, list.Groups[i].Error = status.GroupUnusable, why
		}
	}
	differ := n.findingsByVolume()
	lanes := n.allLanes()
	last := map[volume.Name]time.Time{} // the last look at a volume of that name
	for _, l := range lanes {
		if name, at := l.looked(); at.After(last[name]) {
			last[name] = at
		}
	}
	for _, l := range lanes {
		if name, at := l.looked(); !l.gone(name.LV != "" && at.Before(last[name])) {
			list.Volumes = append(list.Volumes, l.view(differ).Volume)
		}
	}
	slices.SortFunc(list.Volumes, func(a, b status.Volume) int {
		return strings.Compare(a.VG+"/"+a.LV+"/"+a.UUID, b.VG+"/"+b.LV+"/"+b.UUID)
	})
	return list
}

// VolumeDetail returns everything about one volume, given by name or by "-"/uuid. Of
// several with one name it returns the one that a pod would get: the others are deleted.
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
		name, at := l.looked()
		if name != (volume.Name{VG: vg, LV: lv}) {
			continue
		}
		r := 3
		if h := n.Observer.Last(l.uuid); l.byName {
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
	differ, _ := n.auditor.Findings()
	all := map[string][]status.Finding{}
	for _, d := range append(n.takenLocks(), differ...) {
		all[d.UUID] = append(all[d.UUID], d)
	}
	return all
}

// Check audits every configured volume group anew, and reports where the metadata, the
// kernel's devices, the mount table and flexd's claims disagree. It changes nothing.
func (n *Node) Check(ctx context.Context) status.Check {
	check := status.Check{Node: n.Config.Get().NodeName, Version: n.Version}
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
	check.Findings = slices.Concat(n.lostGroups(), taken, found)
	check.Verdict = check.Judge()
	return check
}

// Health returns the reasons why flexd cannot serve calls, and those why it cannot for some
// volume groups.
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
	all := slices.Concat(failing, n.Store.Problems(), n.Records.Problems(), degraded)
	for _, p := range n.auditor.PoolStates() {
		if p.Problem != "" {
			all = append(all, fmt.Sprintf("thin pool %s/%s: %s", p.VG, p.Name, p.Problem))
		}
	}
	return all
}

// allLanes returns those that status lists.
func (n *Node) allLanes() []*lane {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.lanes))
	n.mu.Unlock()
	return slices.DeleteFunc(all, func(l *lane) bool { return !l.shown() })
}

// looked returns the volume's name, and when the last look at it began.
func (l *lane) looked() (name volume.Name, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watched != nil {
		at = l.watched.began
	}
	return l.name, at
}

// gone reports whether nothing is left of the volume but what the lane remembers: it has been
// deleted, its group is not configured any more, or, what has not been observed of it, its
// name is that of another volume now.
func (l *lane) gone(replaced bool) bool {
	h := l.n.Observer.Last(l.uuid)
	return !l.byName && (replaced || h != nil && (h.LV.Presence == volume.Absent || l.n.Providers[h.LV.Name.VG] == nil)) && l.unused()
}

// view is the volume's detail as of the last observation.
func (l *lane) view(differ map[string][]status.Finding) status.VolumeDetail {
	var (
		have   = volume.Have{}
		want   = l.want()
		claims = l.n.Store.Claims(l.uuid)
		now    = time.Now()
	)
	h := l.n.Observer.Last(l.uuid)
	if h != nil {
		have = *h
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := status.VolumeDetail{
		Volume: status.Volume{VG: l.name.VG, LV: l.name.LV, UUID: string(l.uuid), Size: have.LV.Size, Pods: []status.Pod{}},
		Claims: []status.Claim{}, Calls: []status.Call{}, Observed: observed(have), Plan: []string{}, Refused: []string{},
		History: []status.Operation{}, Findings: append([]status.Finding{}, differ[string(l.uuid)]...),
	}
	switch {
	case l.byName:
		s.UUID = ""
	case h == nil: // as just after the start
		s.Step = "observe"
	}
	if have.Device.Activity == volume.Active {
		s.Device = have.Device.Path
		s.Size = max(s.Size, have.Device.Size)
	}
	if len(have.Mounts) > 0 {
		s.Filesystem = have.Mounts[0].Type
		l.filled(&s)
	}
	for _, c := range claims {
		v := claimView(c, h)
		s.Claims = append(s.Claims, v)
		if c.Kind == volume.Published && !strings.HasPrefix(v.Note, claimedMissing) && v.Pod != nil {
			s.Pods = append(s.Pods, *v.Pod)
		}
	}
	if lease, ok := l.n.Store.Lease(l.uuid); ok {
		left := lease.Until - l.n.Boot()
		s.Lease = &status.Lease{Until: now.Add(left).Truncate(time.Second), Live: left > 0}
	}
	for _, c := range l.calls() {
		deadline, _ := c.ctx.Deadline()
		s.Calls = append(s.Calls, status.Call{ID: c.ID, Verb: c.asked.Title, Dir: c.Dir, Since: c.since, Deadline: deadline})
	}
	l.planned(&s, want, have)
	l.worked(&s, now)
	s.State = l.state(&s, have, now)
	return s
}

// filled fills in how full the mounted filesystem is.
func (l *lane) filled(s *status.VolumeDetail) {
	f, at, ok := l.n.auditor.Filling(l.uuid)
	if !ok {
		return
	}
	value := "unknown: " + f.Unknown
	if f.Unknown == "" {
		s.FilesystemSize, s.FilesystemUsed, s.FilesystemFree, s.Inodes, s.InodesUsed, s.FilesystemObservedAt = f.Size, f.Used, f.Free, f.Inodes, f.InodesUsed, &at
		value = fmt.Sprintf("%s of %s used, %s free", status.Size(f.Used), status.Size(f.Size), status.Size(f.Free))
		if f.Inodes > 0 {
			value += fmt.Sprintf(", and %d of %d inodes", f.InodesUsed, f.Inodes)
		}
		if why := f.Full(); why != "" {
			value += ": full, " + why + "; remove files, or give the volume a larger size"
		}
	}
	s.Observed = append(s.Observed, status.Fact{Name: "space", Value: value})
}

// worked fills in what the lane does, and did. The caller holds l.mu.
func (l *lane) worked(s *status.VolumeDetail, now time.Time) {
	for _, op := range slices.Backward(l.history) {
		s.History = append(s.History, status.Operation{Step: op.step, Started: op.started, Seconds: op.took.Seconds(), Error: op.err, CallIDs: op.calls})
	}
	if l.working != "" {
		since := l.since
		s.Step, s.StepSince = l.working, &since
	}
	if w := l.waiting; w != nil && (l.working == "" || strings.HasPrefix(l.working, w.stepName())) { // which may be tried at this moment
		s.Waiting = w.view()
		s.Step, s.StepSince = s.Waiting.Step, &s.Waiting.Since
	}
	if l.parked != nil {
		since := l.parked.since
		s.Step, s.StepSince = l.parked.step, &since
		s.Stuck = &status.Child{Step: l.parked.step, Pid: l.parked.pid, Wchan: cmp.Or(l.parked.wchan, procfs.Wchan(l.parked.pid)), Since: since, Hint: l.parked.text()}
	}
	if f := l.lastErr; f != nil && (now.Sub(f.at) < errorAge || l.retry.next.After(now)) {
		s.Error = &status.Error{Step: f.step, Code: string(f.code), Message: f.text, At: f.at, CallID: f.call}
		if next := l.retry.next; next.After(now) {
			s.Error.Next = &next
		}
	}
}

// claimedMissing begins the note of a claim that is held and has no mount.
const claimedMissing = "claimed-missing"

// mountState reports whether a claim's mount was observed, or observed to be missing. Both
// are false before the first observation, and while it is unknown.
func mountState(dir string, h *volume.Have) (mounted, missing bool) {
	if h == nil {
		return false, false
	}
	spot, looked := h.Targets[dir]
	mounted = spot.This || spot.Under || slices.ContainsFunc(h.Mounts, func(m volume.Mount) bool { return m.Dir == dir })
	return mounted, looked && !mounted && spot.Unknown == ""
}

func claimView(c dsw.Claim, h *volume.Have) status.Claim {
	mounted, missing := mountState(c.Dir, h)
	v := status.Claim{Kind: string(c.Kind), Phase: string(c.Phase), Dir: c.Dir, Since: c.Since, Mounted: mounted, Name: c.Name, Note: c.Note}
	if c.Pod != nil {
		v.Pod = &status.Pod{Namespace: c.Pod.Namespace, Name: c.Pod.Name, UID: c.Pod.UID, Dir: c.Dir, ReadOnly: c.ReadOnly}
	}
	switch {
	case c.Phase == volume.Held && missing:
		v.Note = claimedMissing + ": something other than flexd unmounted it; it holds nothing; delete the pod"
	case mounted && h.Targets[c.Dir].Under:
		v.Note = "covered by another mount: " + h.Targets[c.Dir].Other
	}
	return v
}

// planned sets the steps and refusals that follow from the last observation.
func (l *lane) planned(s *status.VolumeDetail, w volume.Want, h volume.Have) {
	v := volume.Plan(w, h)
	for i, step := range v.Steps {
		text := step.String()
		if i == 0 && len(step.Calls) == 0 {
			if left := time.Until(l.retry.next); left > 0 {
				text += fmt.Sprintf(" (again in %s)", left.Round(time.Second))
			}
		}
		s.Plan = append(s.Plan, text)
	}
	if w.Lease.Live && len(v.Steps) == 0 && len(w.Claims) == 0 && h.Device.Activity == volume.Active && !w.NeverDeactivate && s.Lease != nil {
		s.Plan = append(s.Plan, fmt.Sprintf("deactivate (when the lease ends, in %s)", time.Until(s.Lease.Until).Round(time.Second)))
	}
	for _, r := range v.Refused {
		s.Refused = append(s.Refused, r.Reason)
	}
	if l.byName {
		return
	}
	// The answer that a call of kubelet's would get now.
	probe := w
	next := volume.Call{ID: "next", Verb: volume.Publish, Dir: "/"}
	for _, m := range h.Mounts {
		if m.AskedKnown {
			next.Super = m.Asked // of the same volume as those that have it
		}
	}
	probe.Calls = []volume.Call{next}
	for _, r := range volume.Plan(probe, h).Refused {
		if !slices.Contains(s.Refused, r.Reason) {
			s.Refused = append(s.Refused, "a further mount: "+r.Reason)
		}
	}
}

func (l *lane) state(s *status.VolumeDetail, h volume.Have, now time.Time) status.State {
	mounted, missing := false, false
	for _, c := range s.Claims {
		mounted = mounted || c.Mounted
		missing = missing || strings.HasPrefix(c.Note, claimedMissing)
	}
	filling, _, _ := l.n.auditor.Filling(l.uuid)
	orphaned := map[string]bool{} // by directory
	faulty := h.FS.Content == volume.FilesystemFailed || h.FS.Content == volume.Truncated
	for _, d := range s.Findings {
		faulty = faulty || d.Class == string(join.Faulty)
		if d.Class == audit.OrphanedPod || d.Class == audit.OrphanedGlobal {
			orphaned[d.Dir] = true
		}
	}
	alive := slices.ContainsFunc(s.Pods, func(p status.Pod) bool { return !orphaned[p.Dir] })
	switch {
	case s.Stuck != nil:
		return status.Stuck
	case s.Waiting != nil:
		return status.Waiting
	case s.Step != "":
		return status.Working
	case s.Error != nil && !mounted && (s.Error.Next != nil || now.Sub(s.Error.At) < failedAge):
		return status.Failed
	case h.LV.Presence == volume.PresenceUnknown && h.LV.Now == (volume.Name{}) || h.Device.Activity == volume.ActivityUnknown:
		return status.Uncertain
	case missing || h.LV.Presence != volume.Present && h.LV.Presence != volume.Foreign && h.Device.Activity == volume.Active:
		return status.Missing
	case mounted && faulty:
		return status.Faulty
	case mounted && len(orphaned) > 0 && !alive:
		return status.Orphaned
	case mounted && filling.Full() != "":
		return status.Full
	case mounted:
		return status.Mounted
	case h.Device.Activity == volume.Active:
		return status.Active
	}
	return status.Idle
}
