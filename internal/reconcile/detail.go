package reconcile

import (
	"cmp"
	"fmt"
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

// errorAge is how long a failure without a retry is shown, for example of a refused call.
const errorAge = time.Hour

// view returns the volume's detail as of the last observation.
func (l *lane) view(findings map[string][]status.Finding) status.VolumeDetail {
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
		Volume: status.Volume{VG: cmp.Or(l.name.VG, "-"), LV: cmp.Or(l.name.LV, string(l.uuid)), UUID: string(l.uuid), Size: have.LV.Size, Pods: []status.Pod{}},
		Claims: []status.Claim{}, Calls: []status.Call{}, Observed: observed(have), Plan: []string{}, Refused: []string{},
		History: []status.Operation{}, Findings: append([]status.Finding{}, findings[string(l.uuid)]...),
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
		l.addUsage(&s)
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
	l.addPlan(&s, want, have)
	l.addProgress(&s, now)
	s.State = l.state(&s, have, now)
	return s
}

// addUsage adds the used space of the mounted filesystem.
func (l *lane) addUsage(s *status.VolumeDetail) {
	f, at, ok := l.n.auditor.Filling(l.uuid)
	if !ok {
		return
	}
	value := "unknown: " + f.Unknown
	if f.Unknown == "" {
		s.FilesystemSize, s.FilesystemUsed, s.FilesystemFree, s.Inodes, s.InodesUsed, s.FilesystemObservedAt = f.Size, f.Used, f.Free, f.Inodes, f.InodesUsed, at
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

// addProgress adds the lane's present step, its history and its last error. The caller holds l.mu.
func (l *lane) addProgress(s *status.VolumeDetail, now time.Time) {
	for _, op := range slices.Backward(l.history) {
		s.History = append(s.History, status.Operation{Step: op.step, Started: op.started, Seconds: op.took.Seconds(), Error: op.err, CallIDs: op.calls})
	}
	if l.working != "" {
		s.Step, s.StepSince = l.working, l.since
	}
	if w := l.waiting; w != nil && (l.working == "" || strings.HasPrefix(l.working, w.stepName())) { // its step may be running
		s.Waiting = w.view()
		s.Step, s.StepSince = s.Waiting.Step, s.Waiting.Since
	}
	if l.parked != nil {
		s.Step, s.StepSince = l.parked.step, l.parked.since
		s.Stuck = &status.Child{Step: l.parked.step, Pid: l.parked.pid, Wchan: cmp.Or(l.parked.wchan, procfs.Wchan(l.parked.pid)), Since: l.parked.since, Hint: l.parked.text()}
	}
	if f := l.lastErr; f != nil && (now.Sub(f.at) < errorAge || l.retry.next.After(now)) {
		s.Error = &status.Error{Step: f.step, Code: string(f.code), Message: f.text, At: f.at, CallID: f.call}
		if next := l.retry.next; next.After(now) {
			s.Error.Next = next
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
	case c.Phase == volume.Held && missing && h.Targets[c.Dir].Other != "":
		v.Note = claimedMissing + ": " + h.Targets[c.Dir].Other + " is mounted there"
	case c.Phase == volume.Held && missing:
		v.Note = claimedMissing + ": something other than flexd unmounted it; it holds nothing; delete the pod"
	case mounted && h.Targets[c.Dir].Under:
		v.Note = "covered by another mount: " + h.Targets[c.Dir].Other
	}
	return v
}

// addPlan adds the steps and refusals that follow from the last observation.
func (l *lane) addPlan(s *status.VolumeDetail, w volume.Want, h volume.Have) {
	again := ""
	if left := time.Until(l.retry.next); left > 0 {
		again = fmt.Sprintf(" (again in %s)", left.Round(time.Second))
	}
	if l.byName && w.Lease.Noted && len(w.Calls) == 0 {
		s.Plan = append(s.Plan, "deactivate what an interrupted creation has left"+again)
	}
	v := volume.Plan(w, h)
	for i, step := range v.Steps {
		text := step.String()
		if i == 0 && len(step.Calls) == 0 {
			text += again
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
	// The refusals that a further call would get now.
	probe := w
	next := volume.Call{ID: "next", Verb: volume.Publish, Dir: "/"}
	for _, m := range h.Mounts {
		if m.AskedKnown {
			next.Super = m.Asked // the options of the present mounts
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
	case s.Error != nil && !mounted && (!s.Error.Next.IsZero() || now.Sub(s.Error.At) < failedAge):
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
