package audit

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// PodEvents reports when pods get their first process or lose their last.
type PodEvents interface {
	// Follow replaces the watched files; false = not all of them could be watched.
	Follow(files []string) bool
	Each(ctx context.Context, notify func()) error
}

const (
	// OrphanSettle is how long a mount must be an orphan in all observations before it is reported:
	// the mount of a pod that starts or ends seems to be one for a moment.
	OrphanSettle = 25 * time.Second
	// orphanSoon is the time between a change and a search for orphans.
	orphanSoon = 2 * time.Second
	// orphanRetry is the first pause after a failed automatic release.
	orphanRetry = time.Minute
)

// The classes of orphaned mounts; package join has the other classes.
const (
	OrphanedPod    = "orphaned-pod"
	OrphanedGlobal = "orphaned-global"
)

// strayFiles is the class of directories that kubelet cannot remove.
const strayFiles = "stray-files"

// Classes returns the classes of all findings.
func Classes() []string {
	all := []string{OrphanedPod, OrphanedGlobal, strayFiles}
	for _, c := range join.Classes {
		all = append(all, string(c))
	}
	return all
}

// orphans are the mounts that no pod seems to need any more. The search runs while pods start and end; without
// changes there is no timer.
type orphans struct {
	a *Auditor

	looking       sync.Mutex // held during a search
	mu            sync.Mutex // guards the fields below
	timer         *time.Timer
	due           time.Time // when timer fires; zero = it does not run
	seen          map[string]*orphanCandidate
	unknownReason string // why the processes of pods are unknown
	strays        []status.Finding
}

// An orphanCandidate is a mount that was an orphan in every search since its first. Its age counts from the
// start of flexd, on the monotonic clock.
type orphanCandidate struct {
	volume.Orphan
	uuid     volume.UUID
	name     volume.Name
	claim    dsw.Claim
	since    time.Time
	reported bool

	trying bool
	next   time.Time // when flexd may try to release it automatically
	pause  time.Duration
}

// schedule schedules a search for orphans within that time.
func (o *orphans) schedule(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.scheduleLocked(d)
}

func (o *orphans) scheduleLocked(d time.Duration) {
	at := time.Now().Add(d)
	if o.a.ctx.Err() != nil || !o.due.IsZero() && !at.Before(o.due) {
		return
	}
	if o.timer != nil {
		o.timer.Stop()
	}
	o.due = at
	o.timer = time.AfterFunc(d, o.look)
}

// look searches for orphans, and schedules the next search.
func (o *orphans) look() {
	o.looking.Lock()
	defer o.looking.Unlock()
	if o.a.ctx.Err() != nil {
		return
	}
	o.mu.Lock()
	o.due = time.Time{}
	o.mu.Unlock()
	views := o.a.Views()
	dirs, releasing := map[string]bool{}, map[volume.UUID]bool{}
	for _, v := range views {
		releasing[v.UUID] = v.Releasing
		for _, c := range v.Claims {
			dirs[c.Dir] = true
		}
	}
	found, running, unknown := o.find(views)
	strays := strays(o.a.Observer, dirs)

	o.mu.Lock()
	defer o.mu.Unlock()
	o.unknownReason = unknown
	o.storeStrays(strays)
	now := time.Now()
	for dir, s := range o.seen {
		if _, still := found[dir]; !still {
			if releasing[s.uuid] && dirs[dir] { // its release may still fail
				o.scheduleLocked(orphanSoon)
				continue
			}
			if s.reported {
				o.a.Log.WithField("volume", s.name.String()).WithField("dir", dir).Info("no longer an orphan, or unknown")
				o.a.record(status.ResolvedEvent, s.finding())
			}
			delete(o.seen, dir)
		}
	}
	for dir, f := range found {
		s := o.seen[dir]
		if s == nil || s.uuid != f.uuid || s.Kind != f.Kind {
			f.since = now
			o.seen[dir] = f
			s = f
		}
		s.Orphan, s.name, s.claim = f.Orphan, f.name, f.claim
		o.judge(s, now)
	}
	if running { // no event will report their end
		o.scheduleLocked(OrphanSettle)
	}
}

// storeStrays replaces the stored strays, and logs new and resolved ones. The caller holds the lock.
func (o *orphans) storeStrays(strays []status.Finding) {
	gone := map[string]status.Finding{}
	for _, s := range o.strays {
		gone[s.Dir] = s
	}
	for i, s := range strays {
		if last, known := gone[s.Dir]; known {
			strays[i].Since = last.Since
			delete(gone, s.Dir)
		} else {
			o.a.Log.WithField("dir", s.Dir).WithField("hint", s.Hint).Warn("disagreement: " + s.Message)
			o.a.record(status.FoundEvent, strays[i])
		}
	}
	for _, s := range o.strays {
		if _, over := gone[s.Dir]; over {
			o.a.Log.WithField("dir", s.Dir).WithField("class", s.Class).Info("the disagreement is over, or unknown now")
			o.a.record(status.ResolvedEvent, s)
		}
	}
	o.strays = strays
}

// judge reports an orphan after OrphanSettle, and releases it when the configuration allows it. The caller
// holds the lock.
func (o *orphans) judge(s *orphanCandidate, now time.Time) {
	age := now.Sub(s.since)
	if age < OrphanSettle {
		o.scheduleLocked(OrphanSettle - age)
		return
	}
	if !s.reported {
		s.reported = true
		o.a.Log.WithField("volume", s.name.String()).WithField("dir", s.Dir).Warn("orphan: " + s.Why)
		o.a.record(status.FoundEvent, s.finding())
	}
	grace := o.a.Config.Get().ReleaseOrphansAfter
	if grace == 0 || s.trying {
		return
	}
	if left := max(grace-age, s.next.Sub(now)); left > 0 {
		o.scheduleLocked(left)
		return
	}
	s.trying = true
	go o.reclaim(s)
}

// reclaim releases an orphan like `flexd release`, but only if it is proven that no other mount namespace has
// its device.
func (o *orphans) reclaim(s *orphanCandidate) {
	err := o.a.Release(o.a.ctx, s.uuid, s.name, s.Dir)
	o.mu.Lock()
	defer o.mu.Unlock()
	s.trying = false
	if err == nil || o.a.ctx.Err() != nil {
		return
	}
	s.pause = min(max(2*s.pause, orphanRetry), max(o.a.Config.Get().ReleaseOrphansAfter, orphanRetry))
	s.next = time.Now().Add(s.pause)
	o.scheduleLocked(s.pause)
	o.a.Log.WithField("volume", s.name.String()).WithField("dir", s.Dir).WithField("again", s.pause).WithError(err).Warn("the orphan is not released")
}

// find returns the orphans by the claims and kubelet's control groups. running reports whether a pod runs whose
// end causes no event.
func (o *orphans) find(views []*View) (found map[string]*orphanCandidate, running bool, unknown string) {
	events := o.a.PodEvents
	found = map[string]*orphanCandidate{}
	if !slices.ContainsFunc(views, func(v *View) bool { return len(v.Claims) > 0 }) {
		if events != nil {
			events.Follow(nil)
		}
		return found, false, ""
	}
	life := func(string) (volume.Life, string) {
		return volume.LifeUnknown, "the processes of pods cannot be observed here"
	}
	if ob := o.a.Observer; ob.Pods != nil {
		pods := ob.Pods()
		var files []string
		ours := map[string]bool{}
		for _, v := range views {
			for _, c := range v.Claims {
				uid := ob.Place(c.Dir).Pod
				ours[uid] = true
				if uid != "" && c.Phase == volume.Held {
					files = append(files, pods.Events(uid)...)
				}
			}
		}
		pods.Forget(ours)
		// Follow comes first, so that the end of a pod after the search causes an event.
		unwatched := events == nil || !events.Follow(files)
		life = func(dir string) (volume.Life, string) {
			uid := ob.Place(dir).Pod
			l, why := pods.Life(uid)
			running = running || l == volume.Running && (unwatched || len(pods.Events(uid)) == 0)
			if l == volume.LifeUnknown {
				unknown = why
			}
			return l, why
		}
	}
	for _, v := range views {
		if v.Have == nil {
			continue
		}
		for _, one := range volume.Orphans(v.Want, *v.Have, life) {
			found[one.Dir] = &orphanCandidate{Orphan: one, uuid: v.UUID, name: v.Name, claim: v.claim(one.Dir)}
		}
	}
	return found, running, unknown
}

// Served restarts the age of orphaned mounts, because kubelet has just set up their volume by that name of its own ("" =
// unknown): of the pod's mount at dir, or of all pods' mounts for the empty dir, since some calls do not tell the pod; and
// of the global mount. It leaves mounts by another name: no pod is set up from these by the call.
func (a *Auditor) Served(uuid volume.UUID, name, dir string) {
	o := &a.orphans
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.seen {
		other := name != "" && s.claim.Name != "" && s.claim.Name != name
		if s.uuid == uuid && !other && (dir == "" || dir == s.Dir || s.Kind == volume.Staged) {
			s.since = time.Now()
			o.scheduleLocked(OrphanSettle)
		}
	}
}

// listed returns the reported orphans as findings.
func (o *orphans) listed() (all []status.Finding) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all = append(all, o.strays...)
	for _, s := range o.seen {
		if s.reported && time.Since(s.since) >= OrphanSettle {
			all = append(all, s.finding())
		}
	}
	return all
}

// finding returns the orphan as a finding.
func (s *orphanCandidate) finding() status.Finding {
	now := time.Now()
	d := status.Finding{VG: s.name.VG, LV: s.name.LV, UUID: string(s.uuid), Dir: s.Dir,
		Since: now.Add(-now.Sub(s.since)), // by the present wall clock, even if it was set since
		Hint:  "flexd release " + s.Dir + " shows what it would do, and does it with --yes"}
	if s.Kind == volume.Staged {
		d.Class, d.Message = OrphanedGlobal, "kubelet's global mount at "+s.Dir+" is left: "+s.Why
	} else {
		d.Class, d.Message = OrphanedPod, "the mount at "+s.Dir+", for "+s.claim.User()+", is left: "+s.Why+", and kubelet has not asked for the unmount"
		if len(s.SubPaths) > 0 {
			d.Hint = "first: " + volume.UnmountCommand(s.SubPaths) + " (a subPath of the pod), then: " + d.Hint
		}
		d.Hint = "restart kubelet: it unmounts the volumes of deleted pods if it finds the driver. If it does not, " + d.Hint
	}
	return d
}

// strays returns kubelet's directories of volumes that are not empty, although nothing is mounted there. It
// omits directories with a claim, whose missing mount is reported.
func strays(o *asw.Observer, claimed map[string]bool) (all []status.Finding) {
	table := o.LastTable()
	for _, s := range o.Strays() {
		if claimed[s.Dir] {
			continue
		}
		whose := "kubelet's global directory"
		if s.Kind != volume.Staged {
			whose = "the directory of pod uid " + s.Pod
		}
		hint := "look at these files: they were written while nothing was mounted there. Move them away (mv); kubelet removes the directory at its next attempt, within about two minutes, or after its restart"
		for _, name := range s.Names {
			if at := filepath.Join(s.Dir, name); table != nil && table.Top(at) != nil {
				hint = "umount " + at + "; then " + hint
			}
		}
		all = append(all, status.Finding{Class: strayFiles, LV: s.Name, Dir: s.Dir, Since: time.Now(), Hint: hint,
			Message: fmt.Sprintf("%s, %s, is not empty and nothing is mounted there (%s): kubelet cannot remove it", s.Dir, whose, strings.Join(s.Names, ", "))})
	}
	return all
}

// Releasable reports whether `flexd release` handles a finding.
func Releasable(d status.Finding) bool {
	switch d.Class {
	case OrphanedPod, OrphanedGlobal, string(join.ClaimedMissing), string(join.ActiveUnclaimed):
		return true
	}
	return false
}
