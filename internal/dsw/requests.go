package dsw

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// A Request is a call that waits for its answer. Its exported fields do not change after
// Enter.
type Request struct {
	volume.Call
	Name    volume.Name   // the volume as the call names it
	Started time.Duration // when its caller started, on the boot clock
	Owner   any           // the caller's own data

	// Interrupt, if set, cancels the look-up of its volume. It is called when the request
	// is answered or its volume is known, with the lock held, and must not block.
	Interrupt func()

	answer  chan Answer // buffered: the sender does not wait for the receiver
	waiting bool
	volume  volume.UUID // "" = still being looked up
}

// An Answer is the result of a request.
type Answer struct {
	Device string
	Err    error
}

// Answered receives the answer of an entered request, once.
func (r *Request) Answered() <-chan Answer { return r.answer }

// Mounts reports whether the request wants a mount at its directory.
func (r *Request) Mounts() bool { return r.Verb == volume.Stage || r.Verb == volume.Publish }

// Reasons why a request is refused or a mount may not appear.
var (
	ErrSuperseded = volume.WithCode(volume.Superseded, errors.New("superseded: a newer call for this directory wants something else"))
	ErrTooOld     = volume.WithCode(volume.Superseded, errors.New("the call started more than ten minutes ago: flexd does not remember any more which calls for this directory came after it"))
	ErrNotWanted  = volume.WithCode(volume.Canceled, errors.New("no call waits for it any more"))
	ErrCommitted  = volume.WithCode(volume.Busy, errors.New("the mount of another volume at this directory is in progress"))
)

// Requests holds all waiting requests, and decides which of them are superseded. Each method
// is one critical section; the lock is never held over I/O.
type Requests struct {
	wake func(volume.UUID) // called without the lock for each volume that lost a request

	mu      sync.Mutex
	volumes map[volume.UUID][]*Request // in the order of arrival
	targets map[string]*target
	swept   time.Duration // time of the last sweep
}

// A target is a directory that calls want mounted or unmounted.
type target struct {
	waiting  []*Request
	setUp    time.Duration // start of the newest mount call
	name     volume.Name   // the volume that it names
	tearDown time.Duration // start of the newest unmount call

	// A mount is committed from Commit until it is observed to be absent, or until it is
	// observed to be present and every request for it is answered.
	committed volume.UUID // "" = none
	named     volume.Name // the committed volume's name in the calls
	appeared  bool        // the mount was observed
}

// targetMemory is how long the newest calls for a target are remembered: longer than any caller
// waits. A call that arrives later than this after its start is refused.
const targetMemory = 10 * time.Minute

// NewRequests returns an empty set.
func NewRequests(wake func(volume.UUID)) *Requests {
	return &Requests{wake: wake, volumes: map[volume.UUID][]*Request{}, targets: map[string]*target{}}
}

// Remember restores the start time of the newest mount call for a directory from the note
// of an earlier flexd.
func (q *Requests) Remember(dir string, name volume.Name, started time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.target(dir); started > t.setUp {
		t.setUp, t.name = started, name
	}
}

// RememberTeardown restores the start time of an unmount call that succeeded.
func (q *Requests) RememberTeardown(dir string, started time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.target(dir)
	t.tearDown = max(t.tearDown, started)
}

// RememberCommit marks a mount as committed that an earlier flexd may have permitted: its
// child may still complete it.
func (q *Requests) RememberCommit(dir string, uuid volume.UUID, name volume.Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.target(dir)
	t.committed, t.named = uuid, name
}

// target returns the state of a directory, which it creates if necessary. The caller holds
// q.mu.
func (q *Requests) target(dir string) *target {
	t := q.targets[dir]
	if t == nil {
		t = &target{}
		q.targets[dir] = t
	}
	return t
}

// ordered reports whether a request can supersede others and be superseded: a mount or an
// unmount, not an expansion or a release of an orphan.
func (r *Request) ordered() bool { return r.Mounts() || r.Verb == volume.Release }

// superseded reports whether a newer call wants something else at the target.
func (t *target) superseded(r *Request) bool {
	if r.Mounts() {
		return t.tearDown > r.Started || t.setUp > r.Started && t.name != r.Name
	}
	return t.setUp > r.Started
}

// isCommitted reports whether the request wants the committed mount. Only the outcome of
// that mount may answer it.
func (t *target) isCommitted(r *Request) bool {
	return t != nil && r.Mounts() && r.volume != "" && r.volume == t.committed
}

// Enter adds a request, unless a newer call supersedes it or it arrives too late. It answers
// the requests that the new one supersedes, except those whose mount is committed. It returns
// the volume of a committed mount at the target, which an unmount must wait for.
func (q *Requests) Enter(r *Request, now time.Duration) (committed volume.UUID, err error) {
	r.answer, r.waiting = make(chan Answer, 1), true
	if !r.ordered() {
		return "", nil
	}
	q.mu.Lock()
	q.sweep(now)
	t := q.target(r.Dir)
	switch {
	case t.superseded(r):
		err = ErrSuperseded
	case now-r.Started > targetMemory:
		err = ErrTooOld
	}
	if err != nil {
		r.waiting = false
		q.mu.Unlock()
		return "", err
	}
	switch {
	case !r.Mounts():
		t.tearDown = max(t.tearDown, r.Started)
	case r.Started >= t.setUp:
		t.setUp, t.name = r.Started, r.Name
	}
	t.waiting = append(t.waiting, r)
	lost := q.answerSuperseded(t)
	if t.committed != "" && r.Mounts() && r.Name == t.named {
		q.bind(r, t.committed)
		lost = append(lost, t.committed)
	}
	committed = t.committed
	q.mu.Unlock()
	q.wakeAll(lost)
	return committed, nil
}

// answerSuperseded answers the superseded requests of a target, except those whose mount is
// committed, and returns their volumes. The caller holds q.mu.
func (q *Requests) answerSuperseded(t *target) (lost []volume.UUID) {
	for _, r := range slices.Clone(t.waiting) {
		if t.superseded(r) && !t.isCommitted(r) {
			lost = append(lost, r.volume)
			q.end(r, Answer{Err: ErrSuperseded})
		}
	}
	return lost
}

func (q *Requests) wakeAll(volumes []volume.UUID) {
	for _, uuid := range volumes {
		if uuid != "" {
			q.wake(uuid)
		}
	}
}

// sweep deletes the targets whose calls started more than targetMemory ago: Enter refuses
// every older call anyway. The caller holds q.mu.
func (q *Requests) sweep(now time.Duration) {
	if now-q.swept < targetMemory/10 {
		return
	}
	q.swept = now
	for dir, t := range q.targets {
		if len(t.waiting) == 0 && t.committed == "" && now-max(t.setUp, t.tearDown) > targetMemory {
			delete(q.targets, dir)
		}
	}
}

// Bind sets the volume of a request whose look-up has ended, unless the request was answered
// or Commit has set its volume. It returns the volume of the request.
func (q *Requests) Bind(r *Request, uuid volume.UUID) volume.UUID {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.waiting && r.volume == "" {
		q.bind(r, uuid)
	}
	return r.volume
}

func (q *Requests) bind(r *Request, uuid volume.UUID) {
	r.volume = uuid
	q.volumes[uuid] = append(q.volumes[uuid], r)
	if r.Interrupt != nil {
		r.Interrupt()
	}
}

// Bound returns the volume that a request waits for, "" while it is looked up.
func (q *Requests) Bound(r *Request) volume.UUID {
	q.mu.Lock()
	defer q.mu.Unlock()
	return r.volume
}

// Of returns the requests that wait for a volume, in the order of their arrival.
func (q *Requests) Of(uuid volume.UUID) []*Request {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.volumes[uuid])
}

// Free returns the requests that wait for a volume and whose mount is not committed: these
// may be abandoned.
func (q *Requests) Free(uuid volume.UUID) []*Request {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(q.volumes[uuid]), func(r *Request) bool { return q.targets[r.Dir].isCommitted(r) })
}

// Answer answers the request with that id, which waits for the volume.
func (q *Requests) Answer(uuid volume.UUID, id string, a Answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.IndexFunc(q.volumes[uuid], func(r *Request) bool { return r.ID == id }); i >= 0 {
		q.end(q.volumes[uuid][i], a)
	}
}

// Refuse answers the request with an error. A request whose mount is committed and not yet
// observed is not answered: it waits for the outcome.
func (q *Requests) Refuse(uuid volume.UUID, id string, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.volumes[uuid], func(r *Request) bool { return r.ID == id })
	if i < 0 {
		return
	}
	r := q.volumes[uuid][i]
	if t := q.targets[r.Dir]; t.isCommitted(r) && !t.appeared {
		return
	}
	q.end(r, Answer{Err: err})
}

// Abandon answers a request that is no longer to be served, unless it was answered already
// or its mount is committed: then the outcome is its answer.
func (q *Requests) Abandon(r *Request, a Answer) {
	q.mu.Lock()
	if !r.waiting || q.targets[r.Dir].isCommitted(r) {
		q.mu.Unlock()
		return
	}
	q.end(r, a)
	uuid := r.volume
	q.mu.Unlock()
	q.wakeAll([]volume.UUID{uuid}) // its claim may have to be dropped
}

// Leave removes a request whose caller has stopped waiting, even if its mount is committed.
func (q *Requests) Leave(r *Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.end(r, Answer{})
}

// end answers and removes a request. The caller holds q.mu.
func (q *Requests) end(r *Request, a Answer) {
	if !r.waiting {
		return
	}
	r.waiting = false
	r.answer <- a
	if r.Interrupt != nil {
		r.Interrupt()
	}
	isIt := func(o *Request) bool { return o == r }
	if left := slices.DeleteFunc(q.volumes[r.volume], isIt); len(left) > 0 {
		q.volumes[r.volume] = left
	} else {
		delete(q.volumes, r.volume)
	}
	if t := q.targets[r.Dir]; t != nil && r.ordered() {
		t.waiting = slices.DeleteFunc(t.waiting, isIt)
		t.endCommit()
	}
}

// endCommit ends the commit if its mount was observed and its requests are answered.
func (t *target) endCommit() {
	if t.appeared && !slices.ContainsFunc(t.waiting, t.isCommitted) {
		t.committed, t.appeared = "", false
	}
}

// Commit permits the mount of a volume at a directory, if a request waits for it at this
// moment and is not superseded. Requests for this mount whose volume is still being looked up
// are bound to the volume and wait for the outcome.
func (q *Requests) Commit(uuid volume.UUID, name volume.Name, dir string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.targets[dir]
	switch {
	case t == nil || !slices.ContainsFunc(t.waiting, func(r *Request) bool { return r.Mounts() && r.volume == uuid && !t.superseded(r) }):
		return ErrNotWanted
	case t.committed != "" && t.committed != uuid:
		return ErrCommitted
	}
	t.committed, t.named, t.appeared = uuid, name, false
	for _, r := range t.waiting {
		if r.Mounts() && r.volume == "" && r.Name == name {
			q.bind(r, uuid)
		}
	}
	return nil
}

// Observed records whether a mount was observed at a directory. It has no effect if no mount
// of that volume is committed there.
func (q *Requests) Observed(uuid volume.UUID, dir string, mounted bool) {
	q.mu.Lock()
	t := q.targets[dir]
	if t == nil || t.committed != uuid {
		q.mu.Unlock()
		return
	}
	var lost []volume.UUID
	if t.appeared = mounted; mounted {
		t.endCommit()
	} else {
		t.committed = ""
		lost = q.answerSuperseded(t)
	}
	q.mu.Unlock()
	q.wakeAll(lost)
}
