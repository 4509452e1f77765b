package reconcile

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// A lane does everything that is done to one volume, one operation at a time.
// Its goroutine lives only while there is something to do.
type lane struct {
	n    *Node
	uuid volume.UUID
	lock string // held by a living child of this volume

	mu      sync.Mutex // guards what follows
	name    volume.Name
	awake   bool // the goroutine runs
	dirty   bool // it is to look again
	timer   *time.Timer
	parked  *parked
	retry   backoff
	grow    bool // the filesystem was found smaller than its device at a mount
	working string
	since   time.Time
	lastErr *failure
	history []operation // oldest first
	seen    *glimpse    // the mounts that the last look was about
	suspect suspicion
	broken  volume.FS // what is wrong with its mounted filesystem, until it is unmounted
	hurry   func()    // tells the look under way that somebody wants to unmount; nil = that is nothing to it

	// Only the goroutine uses these.
	facts volume.FS         // what children found in this turn
	disk  uint64            // the device the facts are about
	size  int64             // of that device, at the last look
	table *mounttable.Table // of the last look

	hurried bool // the group was not waited for in this turn
}

// A suspicion is that something is wrong with a mounted filesystem: the kernel
// complained. It says so before its own counters do, so one look is not enough.
type suspicion struct {
	looks int       // that are still to be taken
	next  time.Time // not before
}

const (
	suspiciousLooks = 4
	suspicionPause  = 2 * time.Second
)

// A failure is what went wrong last; it stands until something succeeds.
type failure struct {
	step string
	text string
	at   time.Time
	call string
}

// An operation is one step that was done.
type operation struct {
	step    string
	started time.Time
	took    time.Duration
	err     string
	calls   []string
}

// historySize is how many operations a lane remembers.
const historySize = 20

// call names a lane that has no name yet.
func (l *lane) call(name volume.Name) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.name.LV == "" {
		l.name = name
	}
}

func (l *lane) log() *logrus.Entry { return l.n.Log.WithField("volume", l.title()) }

// stepLog is for lines about a step. One without a call is flexd's own work.
func (l *lane) stepLog(step volume.Step) *logrus.Entry {
	fields := logrus.Fields{"volume": l.title(), "step": step.Kind.String()}
	if len(step.Calls) > 0 {
		fields["call"] = strings.Join(step.Calls, ",")
	}
	if step.Dir != "" {
		fields["dir"] = step.Dir
	}
	return l.n.Log.WithFields(fields)
}

// title is how people call the volume.
func (l *lane) title() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.name.LV == "" {
		return "uuid " + string(l.uuid)
	}
	return l.name.String()
}

// wake makes the lane look again.
func (l *lane) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakeLocked()
}

func (l *lane) wakeLocked() {
	l.dirty = true
	if l.awake || l.parked != nil || l.n.ctx.Err() != nil {
		return
	}
	l.awake = true
	go l.run()
}

func (l *lane) run() {
	for {
		l.mu.Lock()
		if !l.dirty || l.parked != nil || l.n.ctx.Err() != nil {
			l.awake = false
			l.mu.Unlock()
			return
		}
		l.dirty = false
		l.mu.Unlock()
		l.turn()
	}
}

// calls returns the calls that wait for the volume, in the order of their arrival.
func (l *lane) calls() []*call { return callsOf(l.n.requests.Of(l.uuid)) }

// joined wakes the lane for a request that waits for it now.
func (l *lane) joined(verb volume.Verb) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hurry != nil && verb == volume.Release {
		l.hurry()
		l.hurry = nil
	}
	l.wakeLocked()
}

// reclaiming says whether the lane works on nothing but what is to be released as
// an orphan.
func (l *lane) reclaiming() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.awake && !slices.ContainsFunc(l.n.requests.Of(l.uuid), func(r *dsw.Request) bool { return r.Verb != volume.Reclaim })
}

func (l *lane) group() string { return l.called().VG }

func (l *lane) called() volume.Name {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.name
}

// doubt makes the lane look at what is mounted from a device of that name, if
// that is its own and nothing is known to be wrong with it yet.
func (l *lane) doubt(device string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen != nil && l.broken.Content == volume.ContentUnknown && l.seen.path != "" && filepath.Base(l.seen.path) == device {
		l.suspect = suspicion{looks: suspiciousLooks}
		l.wakeLocked()
	}
}

// prune dismisses the calls whose caller is gone.
func (l *lane) prune() {
	for _, c := range callsOf(l.n.requests.Free(l.uuid)) {
		if !c.waiting() {
			err := errHungUp
			if cause := context.Cause(c.ctx); errors.Is(cause, errDeadline) {
				err = l.n.ended(c, "", cause) // the caller hears it
			}
			l.n.requests.Abandon(&c.Request, dsw.Answer{Err: err})
		}
	}
}

// turn observes, plans and acts until the volume is at rest, or until what is
// left has to wait.
func (l *lane) turn() {
	ctx := l.n.ctx
	l.facts, l.hurried = volume.FS{}, false
	defer func() { l.table = nil }() // a lane that rests keeps no table of all mounts alive
	if l.held() {
		return
	}
	var (
		last volume.Step
		h    volume.Have
		err  error
	)
	for ctx.Err() == nil {
		l.prune()
		// The want first, the look after it: whoever asks while we look is
		// answered from the next look.
		w := l.want()
		if last.Kind == volume.NoteLease && l.undisturbed() {
			// A lease is no change of what there is to see, and nobody has come.
		} else if h, err = l.observe(ctx, w); err != nil {
			if ids := l.undecided(); len(ids) > 0 {
				l.fail(ctx, volume.Step{Calls: ids}, "look", err)
			}
			l.fail(ctx, volume.Step{}, "look", err) // what flexd owes by itself is tried again
			return
		}
		l.patient(&w, h)
		v := l.settle(&w, h)
		if len(v.Steps) == 0 && v.Waiting {
			l.wakeIn(resumePause)
			return
		}
		if len(v.Steps) == 0 {
			l.rest(w, h)
			return
		}
		step := v.Steps[0]
		if len(step.Calls) == 0 && retried(step.Kind) && l.later() {
			return
		}
		if same(step, last) {
			// What a step says it did counts only when it is seen.
			l.fail(ctx, step, step.Kind.String(), errors.New("it ended well, but its effect is not seen; flexd does not repeat it blindly"))
			if last = (volume.Step{}); len(step.Calls) == 0 {
				return
			}
			continue
		}
		last = step
		l.begin(step)
		started := time.Now()
		err = l.act(ctx, step, &h)
		l.end(step, started, err)
		if err == nil {
			continue
		}
		if last = (volume.Step{}); l.park(step, err) || !l.fail(ctx, step, step.Kind.String(), err) {
			return
		}
	}
}

// undisturbed says whether nothing has happened to the lane since its turn began.
func (l *lane) undisturbed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.dirty
}

// How long a call waits for a suspended device, and how often the lane looks
// meanwhile.
const (
	resumePatience = 10 * time.Second
	resumePause    = 200 * time.Millisecond
)

// patient notes which calls still wait for a suspended device.
func (l *lane) patient(w *volume.Want, h volume.Have) {
	for _, c := range l.calls() {
		switch {
		case !h.Device.Suspended:
			c.suspended = time.Time{}
			continue
		case c.suspended.IsZero():
			c.suspended = time.Now()
		}
		i := slices.IndexFunc(w.Calls, func(o volume.Call) bool { return o.ID == c.ID })
		if i >= 0 {
			w.Calls[i].Patient = time.Since(c.suspended) < resumePatience
		}
	}
}

// settle plans, answers the calls that the plan answered, and plans again for
// those that are left, all from one look.
func (l *lane) settle(w *volume.Want, h volume.Have) volume.Verdict {
	for {
		v := volume.Plan(*w, h)
		if len(v.Done)+len(v.Refused) == 0 {
			return v
		}
		answered := l.answer(v, h)
		w.Calls = slices.DeleteFunc(w.Calls, func(c volume.Call) bool { return slices.Contains(answered, c.ID) })
	}
}

func (l *lane) answer(v volume.Verdict, h volume.Have) (ids []string) {
	l.renew(v.Done)
	l.noteStarts(v.Done)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range v.Done {
		l.n.requests.Answer(l.uuid, id, dsw.Answer{Device: h.Device.Link})
		ids = append(ids, id)
	}
	if len(v.Refused) > 0 {
		l.facts.Use = volume.UseUnknown // the next call may come because that use has ended
	}
	for _, r := range v.Refused {
		l.lastErr = &failure{step: "refused", text: r.Reason, at: time.Now(), call: r.Call}
		l.n.requests.Answer(l.uuid, r.Call, dsw.Answer{Err: errors.New(r.Reason)})
		ids = append(ids, r.Call)
	}
	if len(v.Done) > 0 {
		l.lastErr = nil
	}
	return ids
}

// renew starts the lease anew for a waitforattach or attach that found one.
func (l *lane) renew(done []string) {
	for _, r := range l.n.requests.Of(l.uuid) {
		if r.Verb != volume.Check && r.Verb != volume.Activate || !slices.Contains(done, r.ID) {
			continue
		}
		lease, ok := l.n.Store.Lease(l.uuid)
		if left := lease.Until - l.n.Boot(); !ok || left > l.n.Config.Lease*9/10 {
			continue
		}
		lease.Until = l.n.Boot() + l.n.Config.Lease
		l.warn(volume.Step{Kind: volume.NoteLease}, l.n.Store.PutLease(lease))
	}
}

// noteStarts notes the start of mount calls that found their mount.
func (l *lane) noteStarts(done []string) {
	starts := map[string]time.Duration{} // by directory
	for _, r := range l.n.requests.Of(l.uuid) {
		if r.Mounts() && slices.Contains(done, r.ID) {
			starts[r.Dir] = max(starts[r.Dir], r.Started)
		}
	}
	if len(starts) == 0 {
		return
	}
	for _, c := range l.n.Store.Claims(l.uuid) {
		if c.Started < starts[c.Dir] {
			c.Started = starts[c.Dir]
			l.warn(volume.Step{Kind: volume.NoteHeld}, l.n.Store.Put(c))
		}
	}
}

// retried says whether flexd's own step of that kind waits after a failure. A
// note does not: the steps of a call that waits may come after it.
func retried(k volume.StepKind) bool {
	switch k {
	case volume.NoteHeld, volume.Drop, volume.NoteLease, volume.DropLease:
		return false
	}
	return true
}

// same says whether a step is the very one that was just taken.
func same(a, b volume.Step) bool {
	switch a.Kind {
	case 0, volume.NoteHeld:
		return false
	case volume.NoteLease:
		return false // a detach may have ended the lease meanwhile
	}
	return a.Kind == b.Kind && a.Dir == b.Dir && a.Size == b.Size
}

// rest ends a turn in which nothing is left to do, or nothing can be done as
// long as something is not known.
func (l *lane) rest(w volume.Want, h volume.Have) {
	if owes(w, h) {
		l.mu.Lock()
		if l.retry.next.Before(time.Now()) {
			l.retry.failed(time.Now())
		}
		l.mu.Unlock()
		l.later()
		return
	}
	l.mu.Lock()
	l.retry.succeeded()
	if w.Suspect { // and there is nothing to look at
		l.suspect = suspicion{}
	}
	looks, next := l.suspect.looks, l.suspect.next
	l.mu.Unlock()
	if looks > 0 {
		l.wakeIn(max(time.Until(next), 0)) // the end of a lease is found then, too
		return
	}
	// It may have ended since the want was made up: then the next turn is due now.
	if lease, ok := l.n.Store.Lease(l.uuid); ok && w.Lease.Live {
		l.wakeIn(max(lease.Until-l.n.Boot(), 0))
	}
}

// owes says whether flexd has something to let go of, or to find out, and only
// does not know enough: no event tells when it can be known.
func owes(w volume.Want, h volume.Have) bool {
	if len(w.Claims) == 0 && (!w.Lease.Noted || w.Lease.Live) {
		return false
	}
	for _, s := range h.Spots {
		if s.Unknown != "" {
			return true
		}
	}
	return w.Lease.Noted && !w.Lease.Live && h.Device.Activity == volume.ActivityUnknown
}

// later says whether flexd's own work has to wait after it failed.
func (l *lane) later() bool {
	l.mu.Lock()
	left := time.Until(l.retry.next)
	l.mu.Unlock()
	if left <= 0 {
		return false
	}
	l.wakeIn(left)
	return true
}

// wakeIn replaces the lane's one timer.
func (l *lane) wakeIn(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.AfterFunc(d+time.Millisecond, l.wake)
}

func (l *lane) begin(step volume.Step) {
	if l.n.Log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		l.stepLog(step).Debug("begins")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.working, l.since = step.Kind.String(), time.Now()
}

func (l *lane) end(step volume.Step, started time.Time, err error) {
	op := operation{step: step.String(), started: started, took: time.Since(started), calls: step.Calls}
	took := op.took.Round(time.Millisecond / 10)
	if err != nil {
		op.err = err.Error()
		l.stepLog(step).WithField("took", took).WithError(err).Warn("failed")
	} else if level := levelOf(step.Kind); l.n.Log.Logger.IsLevelEnabled(level) {
		l.stepLog(step).WithField("took", took).Log(level, "done")
	}
	defer func() { l.n.stir(l.group()) }() // not under the lock: it takes others
	l.mu.Lock()
	defer l.mu.Unlock()
	l.working = ""
	if l.history = append(l.history, op); len(l.history) > historySize {
		l.history = slices.Delete(l.history, 0, len(l.history)-historySize)
	}
	if err == nil && l.lastErr != nil && l.lastErr.step == step.Kind.String() {
		l.lastErr = nil
	}
}

// levelOf is how much a step matters to who reads the log: notes are flexd's own
// affair, and what they are for follows.
func levelOf(k volume.StepKind) logrus.Level {
	switch k {
	case volume.NoteMaking, volume.NoteHeld, volume.NoteReleasing, volume.NoteLease:
		return logrus.DebugLevel
	}
	return logrus.InfoLevel
}

// fail answers the calls that waited for a step, or backs off if it was flexd's
// own. It says whether the turn may go on.
func (l *lane) fail(ctx context.Context, step volume.Step, what string, err error) bool {
	if ctx.Err() != nil {
		return false // flexd stops: the callers will ask the next one
	}
	err = l.n.advised(err)
	l.mu.Lock()
	f := &failure{step: what, text: err.Error(), at: time.Now()}
	if l.lastErr = f; len(step.Calls) > 0 {
		f.call = step.Calls[0]
		if !strings.HasPrefix(f.text, what+": ") { // a child says its step itself
			err = fmt.Errorf("%s: %w", what, err)
		}
		for _, id := range step.Calls {
			l.n.requests.Answer(l.uuid, id, dsw.Answer{Err: err})
		}
		l.mu.Unlock()
		return true
	}
	l.retry.failed(time.Now())
	l.mu.Unlock()
	l.later()
	return false
}

// undecided returns the calls that a look which failed may answer: not one whose
// mount is committed and may have appeared.
func (l *lane) undecided() (ids []string) {
	for _, r := range l.n.requests.Free(l.uuid) {
		ids = append(ids, r.ID)
	}
	return ids
}
