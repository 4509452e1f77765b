package reconcile

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// PodEvents reports when pods get their first process or lose their last.
type PodEvents interface {
	// Follow replaces the watched files; false = not all of them could be watched.
	Follow(files []string) bool
	Each(ctx context.Context, hear func()) error
}

const (
	// orphanSettle is how long something must be seen without a pause before it
	// is called an orphan: a pod that starts or ends looks the same for a moment.
	orphanSettle = 25 * time.Second
	// orphanSoon is how long after a change orphans are looked for.
	orphanSoon = 2 * time.Second
	// orphanRetry is the first pause after flexd could not let one go by itself.
	orphanRetry = time.Minute
)

// The classes of orphans that are mounts; those of others are internal/join's.
const (
	orphanedPod    = "orphaned-pod"
	orphanedGlobal = "orphaned-global"
)

// strayFiles is the class of directories that kubelet cannot remove.
const strayFiles = "stray-files"

// orphans are the mounts that no pod seems to need any more. They are searched for
// while pods start and end; at rest there is no timer.
type orphans struct {
	n *Node

	looking       sync.Mutex // one look at a time
	mu            sync.Mutex // guards what follows
	timer         *time.Timer
	due           time.Time // of the timer; zero = it does not run
	seen          map[string]*orphanCandidate
	unknownReason string // why the processes of pods are unknown
	strays        []status.Finding
}

// An orphanCandidate is an orphan that was seen at every look since then. Its age is
// counted in this life of flexd, on the monotonic clock.
type orphanCandidate struct {
	volume.Orphan
	uuid     volume.UUID
	name     volume.Name
	since    time.Time
	reported bool

	trying bool
	next   time.Time // when flexd may try to let it go by itself
	pause  time.Duration
}

func (s *orphanCandidate) class() string {
	if s.Kind == volume.Staged {
		return orphanedGlobal
	}
	return orphanedPod
}

// schedule has orphans looked for within that time.
func (o *orphans) schedule(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.scheduleLocked(d)
}

func (o *orphans) scheduleLocked(d time.Duration) {
	at := time.Now().Add(d)
	if o.n.ctx.Err() != nil || !o.due.IsZero() && !at.Before(o.due) {
		return
	}
	if o.timer != nil {
		o.timer.Stop()
	}
	o.due = at
	o.timer = time.AfterFunc(d, o.look)
}

// look looks for orphans, and again when what it saw may have become one.
func (o *orphans) look() {
	n := o.n
	o.looking.Lock()
	defer o.looking.Unlock()
	if n.ctx.Err() != nil {
		return
	}
	o.mu.Lock()
	o.due = time.Time{}
	o.mu.Unlock()
	found, reclaiming, running, unknown := o.find()
	strays := n.strays()

	o.mu.Lock()
	defer o.mu.Unlock()
	o.unknownReason = unknown
	now := time.Now()
	since := map[string]time.Time{}
	for _, s := range o.strays {
		since[s.Dir] = s.Since
	}
	for i, s := range strays {
		if at, known := since[s.Dir]; known {
			strays[i].Since = at
		} else {
			n.Log.WithField("dir", s.Dir).WithField("hint", s.Hint).Warn("disagreement: " + s.Message)
		}
	}
	o.strays = strays
	for dir, s := range o.seen {
		if _, still := found[dir]; !still {
			if reclaiming[s.uuid] && len(n.Store.At(dir)) > 0 {
				o.scheduleLocked(orphanSoon)
				continue
			}
			if s.reported {
				n.Log.WithField("volume", s.name.String()).WithField("dir", dir).Info("no longer an orphan, or unknown")
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
		s.Why, s.name = f.Why, f.name
		o.judge(s, now)
	}
	if running { // and there is no event for their end
		o.scheduleLocked(orphanSettle)
	}
}

// judge reports an orphan once it has settled, and releases it once that is
// allowed. The caller holds the lock.
func (o *orphans) judge(s *orphanCandidate, now time.Time) {
	age := now.Sub(s.since)
	if age < orphanSettle {
		o.scheduleLocked(orphanSettle - age)
		return
	}
	if !s.reported {
		s.reported = true
		o.n.Log.WithField("volume", s.name.String()).WithField("dir", s.Dir).Warn("orphan: " + s.Why)
	}
	grace := o.n.Config.ReleaseOrphansAfter
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

// reclaim releases an orphan as `flexd release` would, but only with the proof
// that no other mount namespace has its device.
func (o *orphans) reclaim(s *orphanCandidate) {
	err := o.n.reclaim(o.n.ctx, s.uuid, s.name, s.Dir)
	o.mu.Lock()
	defer o.mu.Unlock()
	s.trying = false
	if err == nil || o.n.ctx.Err() != nil {
		return
	}
	s.pause = min(max(2*s.pause, orphanRetry), max(o.n.Config.ReleaseOrphansAfter, orphanRetry))
	s.next = time.Now().Add(s.pause)
	o.scheduleLocked(s.pause)
	o.n.Log.WithField("volume", s.name.String()).WithField("dir", s.Dir).WithField("again", s.pause).WithError(err).Warn("the orphan is not released")
}

// find looks at every volume's claims and at kubelet's control groups. A release
// that is under way, of which it names the volumes, is no proof that a pod
// needs the volume. running reports whether a pod runs whose end causes no event.
func (o *orphans) find() (found map[string]*orphanCandidate, reclaiming map[volume.UUID]bool, running bool, unknown string) {
	n := o.n
	found, reclaiming = map[string]*orphanCandidate{}, map[volume.UUID]bool{}
	claims := n.Store.All()
	if len(claims) == 0 {
		if n.PodEvents != nil {
			n.PodEvents.Follow(nil)
		}
		return found, reclaiming, false, ""
	}
	life := func(string) (volume.Life, string) {
		return volume.LifeUnknown, "the processes of pods cannot be observed here"
	}
	if n.Observer.Pods != nil {
		pods := n.Observer.Pods()
		var files []string
		ours := map[string]bool{}
		for _, c := range claims {
			uid := n.Observer.Place(c.Dir).Pod
			if ours[uid] = true; uid != "" && c.Phase == volume.Held {
				files = append(files, pods.Events(uid)...)
			}
		}
		pods.Forget(ours)
		// First the ears, then the eyes: an end that falls between is heard of.
		deaf := n.PodEvents == nil || !n.PodEvents.Follow(files)
		life = func(dir string) (volume.Life, string) {
			uid := n.Observer.Place(dir).Pod
			l, why := pods.Life(uid)
			running = running || l == volume.Running && (deaf || len(pods.Events(uid)) == 0)
			if l == volume.LifeUnknown {
				unknown = why
			}
			return l, why
		}
	}
	for _, l := range n.allLanes() {
		// Asked before as well as after: it may begin or end in between.
		before := l.reclaiming()
		if h := n.Observer.Last(l.uuid); h != nil {
			for _, one := range volume.Orphans(l.want(), *h, life) {
				l.mu.Lock()
				name := l.name
				l.mu.Unlock()
				found[one.Dir] = &orphanCandidate{Orphan: one, uuid: l.uuid, name: name}
			}
		}
		reclaiming[l.uuid] = before || l.reclaiming()
	}
	return found, reclaiming, running, unknown
}

// listed are the orphans that have settled, as disagreements.
func (o *orphans) listed() (all []status.Finding) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	all = append(all, o.strays...)
	for _, s := range o.seen {
		if !s.reported {
			continue
		}
		d := status.Finding{Class: s.class(), VG: s.name.VG, LV: s.name.LV, UUID: string(s.uuid), Dir: s.Dir,
			Since: now.Add(-now.Sub(s.since)), // right by today's wall clock, wherever it stood then
			Hint:  "flexd release " + s.Dir + " says what it would do, and does it with --yes"}
		switch s.Kind {
		case volume.Staged:
			d.Message = "kubelet's global mount at " + s.Dir + " is left: " + s.Why
		default:
			d.Message = "the mount at " + s.Dir + ", for " + o.n.podAt(s.uuid, s.Dir) + ", is left: " + s.Why + ", and kubelet has not asked for the unmount"
			d.Hint = "restart kubelet: it unmounts what pods left that are deleted, if it finds the driver. Where it does not, " + d.Hint
		}
		all = append(all, d)
	}
	return all
}

// strays are kubelet's directories for volumes that are not empty although nothing is
// mounted there, and that no claim is about: of a claim, the missing mount is reported.
func (n *Node) strays() (all []status.Finding) {
	table := n.Observer.LastTable()
	for _, s := range n.Observer.Strays() {
		if len(n.Store.At(s.Dir)) > 0 {
			continue
		}
		whose := "kubelet's global directory"
		if s.Kind != volume.Staged {
			whose = "the directory of pod uid " + s.Pod
		}
		hint := "look at them: they were written while nothing was mounted there. Move them away (mv); kubelet removes the directory at its next attempt, within about two minutes, or after its restart"
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

// podAt says in words for whom the claim at a directory is.
func (n *Node) podAt(uuid volume.UUID, dir string) string {
	i := slices.IndexFunc(n.Store.Claims(uuid), func(c dsw.Claim) bool { return c.Dir == dir })
	if i < 0 {
		return "a pod"
	}
	return claimant(n.Store.Claims(uuid)[i])
}

// releasable says whether a disagreement is one that `flexd release` handles.
func releasable(d status.Finding) bool {
	switch d.Class {
	case orphanedPod, orphanedGlobal, string(join.ClaimedMissing), string(join.ActiveUnclaimed):
		return true
	}
	return false
}
