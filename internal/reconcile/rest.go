package reconcile

import (
	"container/list"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// maxResting is how many lanes without work are kept for status.
const maxResting = 256

// resting holds the lanes without work, in the order in which their work ended. Some may have work
// again: that is checked before they are dropped.
type resting struct {
	list.List // of restingLane
	elements  map[*lane]*list.Element
	timer     *time.Timer // drops the first ones; nil = there are none
}

type restingLane struct {
	*lane
	since time.Time
}

// rest is called when a lane may have no work any more. It removes the lock file of such a lane,
// and drops the lane: after failedAge if status can show its history, at once otherwise.
func (n *Node) rest(l *lane) {
	if !l.unused() {
		return
	}
	if err := run.RemoveLock(l.lock); err != nil {
		l.log().WithError(err).Warn("its lock file cannot be removed")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lanes[l.uuid] != l {
		return
	}
	r := &n.resting
	if e := r.elements[l]; e != nil {
		r.Remove(e)
	} else if r.elements == nil {
		r.elements = map[*lane]*list.Element{}
	}
	r.elements[l] = r.PushBack(restingLane{l, time.Now()})
	for r.Len() > maxResting {
		n.drop(r.Front())
	}
	if !l.hasHistory() {
		n.drop(r.elements[l])
	}
	if r.timer == nil && r.Len() > 0 {
		r.timer = time.AfterFunc(failedAge, n.dropOld)
	}
}

// dropOld drops the lanes that have rested for failedAge.
func (n *Node) dropOld() {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := &n.resting
	for e := r.Front(); e != nil; e = r.Front() {
		if left := failedAge - time.Since(e.Value.(restingLane).since); left > 0 {
			r.timer = time.AfterFunc(left, n.dropOld)
			return
		}
		n.drop(e)
	}
	r.timer = nil
}

// drop drops a resting lane if it still has no work. The caller holds n.mu.
func (n *Node) drop(e *list.Element) {
	if e == nil {
		return
	}
	l := n.resting.Remove(e).(restingLane).lane
	delete(n.resting.elements, l)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.unusedLocked() {
		return
	}
	l.dropped = true
	if l.timer != nil {
		l.timer.Stop()
	}
	delete(n.lanes, l.uuid)
	n.Observer.Forget(l.uuid)
}

func (l *lane) unused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unusedLocked()
}

// unusedLocked reports whether the lane has nothing to do, and no claim, lease, mount or
// active device of its volume can wake it. The caller holds l.mu.
func (l *lane) unusedLocked() bool {
	if l.awake || l.mustLook() || l.parked != nil || l.n.ctx.Err() != nil || len(l.n.requests.Of(l.uuid)) > 0 {
		return false
	}
	_, leased := l.n.Store.Lease(l.uuid)
	if l.byName {
		return !leased
	}
	h := l.n.Observer.Last(l.uuid)
	return !leased && len(l.n.Store.Claims(l.uuid)) == 0 &&
		(h == nil || h.Device.Activity == volume.Inactive && len(h.Mounts) == 0)
}

// hasHistory reports whether status can show a history of the lane.
func (l *lane) hasHistory() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastErr != nil || !l.byName && len(l.history) > 0
}

// wakeLane wakes the lane of a volume that lost a request, if it has one.
func (n *Node) wakeLane(uuid volume.UUID) {
	if l := n.laneOf(uuid); l != nil {
		l.wake()
	}
}

// lockFile returns the lock file of a lane's children.
func (n *Node) lockFile(id string) string {
	clean := strings.Map(func(r rune) rune {
		if r == '/' || r < ' ' {
			return '_'
		}
		return r
	}, id)
	return filepath.Join(n.Config.Get().RunDir, "lanes", clean)
}

// removeLocks removes the lock files of an earlier flexd that no lane needs and no child holds.
func (n *Node) removeLocks() {
	dir := filepath.Join(n.Config.Get().RunDir, "lanes")
	files, err := os.ReadDir(dir)
	if err != nil {
		return // the directory is created for the first child
	}
	n.mu.Lock()
	needed := map[string]bool{}
	for _, l := range n.lanes {
		needed[l.lock] = true
	}
	n.mu.Unlock()
	for _, f := range files {
		lock := filepath.Join(dir, f.Name())
		if needed[lock] || strings.HasPrefix(f.Name(), "vg-") { // lock files of volume groups are few
			continue
		}
		if err := run.RemoveLock(lock); err != nil {
			n.Log.WithError(err).Warn("a lock file of an earlier flexd cannot be removed")
		}
	}
}
