package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/volume"
)

// groupTimeout is how long the observations of a turn wait for the metadata of the volume's group.
// Afterwards operations that do not need the metadata continue: an unmount, or the answer to a
// mount that has appeared.
const groupTimeout = time.Second

var errGroupTimeout = errors.New("the volume group has not answered within a second")

// shared reports whether other nodes use a volume group, too.
func (n *Node) shared(vg string) bool {
	g := n.Config.VG(vg)
	return g != nil && g.Shared
}

// A groupAnswer is the result of a look-up that arrived after a turn had continued without it.
type groupAnswer struct {
	name volume.Name
	lv   volume.LV
	err  error
}

// lookUp looks the volume up in its group's metadata, for the observations of a turn.
func (l *lane) lookUp(ctx context.Context, p asw.Provider, name volume.Name) (volume.LV, error) {
	lv, err := l.lookUpSoon(ctx, p, name)
	if l.blocked = waitingFor(err); l.blocked != nil {
		return volume.LV{Name: name, Pending: true, Reason: err.Error()}, nil
	}
	return lv, err
}

// lookUpSoon is LookUp that waits at most groupTimeout, or not at all if the turn has waited
// already.
func (l *lane) lookUpSoon(ctx context.Context, p asw.Provider, name volume.Name) (volume.LV, error) {
	if a := l.answered; a != nil && a.name == name {
		l.answered = nil
		return a.lv, a.err
	}
	timeout := groupTimeout
	if l.pending != nil {
		timeout = 0
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errGroupTimeout)
	defer cancel()
	lv, err := p.LookUp(ctx, name)
	if err != nil && errors.Is(context.Cause(ctx), errGroupTimeout) {
		l.pending = p
		return volume.LV{Name: name, Pending: true, Reason: errGroupTimeout.Error()}, nil
	}
	return lv, err
}

// awaitGroup waits after a turn for the answer of the group, if the turn continued without
// it. It reports false if there is none, or if the lane is woken before.
func (l *lane) awaitGroup() bool {
	l.mu.Lock()
	if l.pending == nil || l.mustLook() || l.parked != nil {
		l.mu.Unlock()
		return false
	}
	ctx, woken := context.WithCancel(l.n.ctx)
	defer woken()
	l.woken = woken
	name := l.name
	l.mu.Unlock()
	lv, err := l.pending.LookUp(ctx, name)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.woken = nil
	if ctx.Err() != nil {
		return false
	}
	l.answered = &groupAnswer{name, lv, err}
	return true
}
