package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
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
	calls   []*call // in the order of their arrival
	awake   bool    // the goroutine runs
	dirty   bool    // it is to look again
	timer   *time.Timer
	parked  *parked
	retry   backoff
	grow    bool // the filesystem was found smaller than its device at a mount
	working string
	since   time.Time
	lastErr *failure
	history []operation // oldest first
	seen    []int       // the mounts that the last look was about, by ID

	// Only the goroutine uses these.
	after asw.Mark  // looks count only if they began after it
	facts volume.FS // what children found in this turn
	disk  uint64    // the device the facts are about
}

// A parked lane has a child that does not end. Nothing is done to its volume
// until it has.
type parked struct {
	step  string
	pid   int
	wchan string
	since time.Time
}

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

func (l *lane) rename(name volume.Name) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name.LV != "" {
		l.name = name
	}
}

func (l *lane) log() *logrus.Entry { return l.n.Log.WithField("volume", l.title()) }

// stepLog is for lines about a step. One without a call is flexd's own work.
func (l *lane) stepLog(step volume.Step) *logrus.Entry {
	log := l.log().WithField("step", step.Kind.String())
	if len(step.Calls) > 0 {
		log = log.WithField("call", strings.Join(step.Calls, ","))
	}
	if step.Dir != "" {
		log = log.WithField("dir", step.Dir)
	}
	return log
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

// join adds a call and wakes the lane.
func (l *lane) join(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
	l.wakeLocked()
}

// dismiss answers a call whose wish is over, unless its mount is landing: then
// the answer is what comes of that.
func (l *lane) dismiss(c *call, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.calls, c)
	if i < 0 || c.landing {
		return
	}
	l.calls = slices.Delete(l.calls, i, i+1)
	c.done <- result{err: err}
	l.wakeLocked() // its claim goes with it
}

// answerLocked ends a call.
func (l *lane) answerLocked(id string, r result) {
	for i, c := range l.calls {
		if c.ID == id {
			l.calls = slices.Delete(l.calls, i, i+1)
			c.done <- r
			return
		}
	}
}

// prune dismisses the calls whose caller is gone.
func (l *lane) prune() {
	l.mu.Lock()
	waiting := slices.Clone(l.calls)
	l.mu.Unlock()
	for _, c := range waiting {
		if !c.waiting() {
			l.dismiss(c, errHungUp)
		}
	}
}

// turn observes, plans and acts until the volume is at rest, or until what is
// left has to wait.
func (l *lane) turn() {
	ctx := l.n.ctx
	l.after = l.n.Observer.Now()
	l.facts = volume.FS{}
	var last volume.Step
	for ctx.Err() == nil {
		if l.held() {
			return
		}
		l.prune()
		h, err := l.observe(ctx)
		if err != nil {
			l.fail(ctx, volume.Step{Calls: l.callIDs()}, "look", err)
			l.fail(ctx, volume.Step{}, "look", err) // what flexd owes by itself is tried again
			return
		}
		v := volume.Plan(l.want(), h)
		if l.settle(v, h) {
			continue // the want is another one now
		}
		if len(v.Steps) == 0 {
			l.rest()
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
		l.after = l.n.Observer.Now()
		l.end(step, started, err)
		if err == nil {
			continue
		}
		if last = (volume.Step{}); l.park(step, err) || !l.fail(ctx, step, step.Kind.String(), err) {
			return
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

// held says whether a child of an earlier life still works on the volume. What
// the mount table shows meanwhile is half a truth: an unmount leaves it before
// its data is written.
func (l *lane) held() bool {
	free, pids, err := run.LockFree(l.lock)
	if err != nil || free {
		return false
	}
	e := &run.LockedError{Step: "wait", Lock: l.lock, Pids: pids, Done: run.LockDone(l.lock)}
	return l.park(volume.Step{}, e)
}

// park stops the lane until a child has ended, if that is what err says.
func (l *lane) park(step volume.Step, err error) bool {
	p := &parked{step: step.Kind.String(), since: time.Now()}
	var done <-chan struct{}
	var stuck *run.StuckError
	var locked *run.LockedError
	switch {
	case errors.As(err, &stuck):
		p.pid, p.wchan, p.since, done = stuck.Pid, stuck.Wchan, stuck.Since, stuck.Done
	case errors.As(err, &locked):
		if done = locked.Done; step.Kind == 0 {
			p.step = "a child of an earlier flexd"
		}
		if len(locked.Pids) > 0 {
			p.pid = locked.Pids[0]
		}
	default:
		return false
	}
	l.log().WithField("step", p.step).WithError(err).Warn("parked: nothing is done to this volume until the child has ended")
	l.mu.Lock()
	l.parked = p
	l.mu.Unlock()
	go func() {
		select {
		case <-done:
		case <-l.n.ctx.Done():
			return
		}
		l.log().WithField("step", p.step).Info("the child has ended")
		l.mu.Lock()
		l.parked = nil
		for _, c := range l.calls {
			c.landing = false // what came of it is seen at the next look
		}
		l.wakeLocked()
		l.mu.Unlock()
	}()
	return true
}

// observe looks at the volume. Facts that children found do not outlive the
// device they are about.
func (l *lane) observe(ctx context.Context) (volume.Have, error) {
	t := l.target()
	h, err := l.n.Observer.Observe(ctx, t, l.after)
	if err != nil {
		return h, err
	}
	if h.Device.Seq != l.disk {
		l.disk, l.facts = h.Device.Seq, volume.FS{}
		h.FS = volume.FS{}
	}
	table := l.n.Observer.Last().Table
	l.mu.Lock()
	l.seen = fingerprint(table, t.Dirs, h.Device)
	if h.LV.Name.LV != "" {
		l.name = h.LV.Name
	}
	l.mu.Unlock()
	return h, nil
}

// target says what is to be looked at. Only the lane's goroutine may ask.
func (l *lane) target() asw.Target {
	t := asw.Target{UUID: l.uuid, FS: l.facts, Asked: map[string][]string{}, Dirs: l.dirs()}
	for _, c := range l.n.Store.Claims(l.uuid) {
		if c.Super != nil && c.Phase != volume.Making {
			t.Asked[c.Dir] = c.Super
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Name = l.name
	return t
}

// dirs are the directories of claims and calls.
func (l *lane) dirs() []string {
	var dirs []string
	for _, c := range l.n.Store.Claims(l.uuid) {
		dirs = append(dirs, c.Dir)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		for _, dir := range []string{c.Dir, c.Global} {
			if dir != "" && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// fingerprint names the mounts that a look was about, so that the lane is only
// woken when one of them changed.
func fingerprint(table *mount.Table, dirs []string, d volume.Device) []int {
	var ids []int
	for _, dir := range dirs {
		for _, e := range table.At(dir) {
			ids = append(ids, e.ID)
		}
	}
	if d.Number != "" {
		for _, e := range table.OfDevice(d.Number, d.Path) {
			ids = append(ids, e.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// moved says whether the volume's mounts are others than at its last look.
func (l *lane) moved(table *mount.Table) bool {
	h := l.n.Observer.Last().Volumes[l.uuid]
	if h == nil {
		return false // its first look is still to come
	}
	dirs := l.dirs()
	l.mu.Lock()
	defer l.mu.Unlock()
	return !slices.Equal(l.seen, fingerprint(table, dirs, h.Device))
}

// want is all that may cause a step.
func (l *lane) want() volume.Want {
	var w volume.Want
	for _, c := range l.n.Store.Claims(l.uuid) {
		w.Claims = append(w.Claims, volume.Claim{Kind: c.Kind, Dir: c.Dir, Phase: c.Phase})
	}
	if lease, ok := l.n.Store.Lease(l.uuid); ok {
		w.Lease = volume.Lease{Noted: true, Live: l.n.Boot() < lease.Until}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if vg := l.n.Config.VG(l.name.VG); vg != nil {
		w.NeverDeactivate = vg.NeverDeactivate
	}
	w.Grow = l.grow
	for _, c := range l.calls {
		w.Calls = append(w.Calls, c.Call)
	}
	return w
}

func (l *lane) callIDs() (ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		ids = append(ids, c.ID)
	}
	return ids
}

// settle answers the calls that the plan answered.
func (l *lane) settle(v volume.Verdict, h volume.Have) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range v.Done {
		l.answerLocked(id, result{device: h.Device.Link})
	}
	for _, r := range v.Refused {
		l.lastErr = &failure{step: "refused", text: r.Reason, at: time.Now(), call: r.Call}
		l.answerLocked(r.Call, result{err: errors.New(r.Reason)})
	}
	if len(v.Done) > 0 {
		l.lastErr = nil
	}
	return len(v.Done)+len(v.Refused) > 0
}

// rest ends a turn in which nothing is left to do.
func (l *lane) rest() {
	l.mu.Lock()
	l.retry.succeeded()
	l.mu.Unlock()
	if lease, ok := l.n.Store.Lease(l.uuid); ok {
		if left := lease.Until - l.n.Boot(); left > 0 {
			l.wakeIn(left)
		}
	}
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
	l.stepLog(step).Debug("begins")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.working, l.since = step.Kind.String(), time.Now()
}

func (l *lane) end(step volume.Step, started time.Time, err error) {
	op := operation{step: step.String(), started: started, took: time.Since(started), calls: step.Calls}
	log := l.stepLog(step).WithField("took", op.took.Round(time.Millisecond/10))
	if err != nil {
		op.err = err.Error()
		log.WithError(err).Warn("failed")
	} else {
		log.Info("done")
	}
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

// fail answers the calls that waited for a step, or backs off if it was flexd's
// own. It says whether the turn may go on.
func (l *lane) fail(ctx context.Context, step volume.Step, what string, err error) bool {
	if ctx.Err() != nil {
		return false // flexd stops: the callers will ask the next one
	}
	l.mu.Lock()
	f := &failure{step: what, text: err.Error(), at: time.Now()}
	if l.lastErr = f; len(step.Calls) > 0 {
		f.call = step.Calls[0]
		if !strings.HasPrefix(f.text, what+": ") { // a child says its step itself
			err = fmt.Errorf("%s: %w", what, err)
		}
		for _, id := range step.Calls {
			l.answerLocked(id, result{err: err})
		}
		l.mu.Unlock()
		return true
	}
	l.retry.failed(time.Now())
	l.mu.Unlock()
	l.later()
	return false
}
