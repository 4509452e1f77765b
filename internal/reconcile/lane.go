package reconcile

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/audit"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// A lane runs all operations on one volume, one at a time. Its goroutine lives only while
// there is something to do.
type lane struct {
	n    *Node
	uuid volume.UUID
	lock string // held by a living child of this volume

	byName bool // the volume is not identified: uuid is a nameKey

	published atomic.Pointer[audit.View] // for readers without the lock

	mu      sync.Mutex // guards the following fields, except turnState
	name    volume.Name
	dropped bool // the node has forgotten it: its volume has another lane, or none
	schedule
	progress
	mounted

	turnState
}

// A schedule determines when a lane's goroutine runs.
type schedule struct {
	awake   bool      // it runs
	dirty   bool      // it must observe again
	changed time.Time // when a change of its device was reported during its turn: a later look includes it
	timer   *time.Timer
	retry   backoff
	parked  *parked
	woken   context.CancelFunc // ends the wait for the group; nil = the lane does not wait for it
}

// progress has the present and the past steps of a lane, for status.
type progress struct {
	working string // the step
	since   time.Time
	waiting *waiting // nil = no step must wait
	lastErr *failure
	history []operation // oldest first
}

// mounted has the facts about its mounts that a lane keeps from one turn to the next.
type mounted struct {
	watched *watchedMounts // those of the last observation
	grow    bool           // the filesystem was found smaller than its device at a mount
	recheck recheck
	broken  volume.FS // the error of the filesystem, until it is unmounted
}

// A disk identifies a device: its number may be used again. Kernels before 5.15 have no sequence
// numbers.
type disk struct {
	number string
	seq    uint64
}

// A turnState has the fields that only the lane's goroutine uses.
type turnState struct {
	facts volume.FS         // the results of children in this turn
	disk  disk              // the device the facts are about
	size  int64             // of that device, at the last look
	table *mounttable.Table // of the last look
	acted time.Time         // when the last step ended

	pending  asw.Provider // of the group that has not answered in this turn; nil = it has
	answered *groupAnswer // after the last turn

	blocked *volume.WaitError // the result of the last look-up; nil = it need not wait
	waits   bool              // a call waits for the next try of a step

	recording chan error // the result of a record that no call waits for; nil = none is being written
}

// A recheck is pending after the kernel logged an error of a mounted filesystem. The kernel writes
// the log before the filesystem's error counters, so one check is not enough.
type recheck struct {
	left int       // the number of checks that are left
	next time.Time // not before
}

const (
	recheckCount = 4
	recheckPause = 2 * time.Second
)

// A failure is the last error; it is kept until an operation succeeds.
type failure struct {
	step string
	code volume.Code
	text string
	at   time.Time
	call string
}

func (l *lane) log() *logrus.Entry { return l.n.Log.WithField("volume", l.title()) }

// stepLog returns the log for lines about a step. A step without a call is flexd's own work.
func (l *lane) stepLog(step volume.Step) *logrus.Entry {
	fields := logrus.Fields{"volume": l.title(), "step": step.Kind.String()}
	if len(step.Calls) > 0 {
		fields["call"] = strings.Join(step.Calls, ",")
	}
	if step.Dir != "" {
		fields["dir"] = step.Dir
	}
	if p := l.podOf(step).String(); p != "" {
		fields["pod"] = p
	}
	return l.n.Log.WithFields(fields)
}

// title returns the volume's name for people.
func (l *lane) title() string {
	name := l.nameNow()
	if name.LV == "" {
		return "uuid " + string(l.uuid)
	}
	return name.String()
}

// wake makes the lane observe again or, if its volume has got another lane, that lane.
func (l *lane) wake() {
	l.mu.Lock()
	dropped, name := l.dropped, l.name
	if !dropped {
		l.wakeLocked()
	}
	l.mu.Unlock()
	if dropped {
		l.n.lane(l.uuid, name).wake()
	}
}

func (l *lane) wakeLocked() {
	l.dirty = true
	if l.woken != nil {
		l.woken()
	}
	if l.awake || l.n.ctx.Err() != nil {
		return
	}
	l.awake = true
	go l.run()
}

// deviceChanged makes the lane look at its device, whose change was reported at that time. A
// working lane may look anyway: the end of its turn checks that. A lane that the node has dropped
// meanwhile must not run beside the next one, which looks later anyway.
func (l *lane) deviceChanged(heard time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed = heard; !l.dropped && l.mustLook() && (!l.awake || l.woken != nil) {
		l.wakeLocked()
	}
}

// mustLook reports whether the lane was woken since its turn began, or its device has
// changed since its last look began. The caller holds l.mu.
func (l *lane) mustLook() bool {
	return l.dirty || !l.changed.IsZero() && (l.watched == nil || l.watched.began.Before(l.changed))
}

func (l *lane) run() {
	for {
		l.mu.Lock()
		if !l.mustLook() || l.n.ctx.Err() != nil {
			l.awake = false
			l.mu.Unlock()
			l.n.rest(l)
			return
		}
		l.dirty, l.changed = false, time.Time{}
		l.mu.Unlock()
		l.turn()
		for l.awaitGroup() {
			l.turn()
		}
	}
}

// calls returns the calls that wait for the volume, in the order of their arrival.
func (l *lane) calls() []*call { return callsOf(l.n.requests.Of(l.uuid)) }

func (l *lane) group() string { return l.nameNow().VG }

func (l *lane) nameNow() volume.Name {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.name
}

// scheduleRecheck makes the lane check its mounted filesystem again if the device is
// its own and no error is known yet.
func (l *lane) scheduleRecheck(device string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watched != nil && l.broken.Content == volume.ContentUnknown && l.watched.path != "" && filepath.Base(l.watched.path) == device {
		l.recheck = recheck{left: recheckCount}
		l.wakeLocked()
	}
}
