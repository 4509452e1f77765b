package reconcile

import (
	"context"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/volume"
)

// checkPause is the interval at which a lane that waits for its turn looks whether a call
// still waits for it.
const checkPause = time.Second

// waitsForCheck begins the step of a lane that waits for its turn.
const waitsForCheck = "waiting for "

// awaitCheck waits until fewer than maxChecks fsck and mkfs run in the volume group, as long as a call
// waits for the step. done must be called after the step; a child that hangs beyond its deadline is not
// counted any more, because it would block the others for ever.
func (l *lane) awaitCheck(ctx context.Context, s volume.Step) (done func(), err error) {
	running := l.n.checksOf(l.group())
	done = func() { <-running }
	select {
	case running <- struct{}{}:
		return done, nil
	default:
	}
	l.setStep(waitsForCheck + s.Kind.String())
	pause := time.NewTicker(checkPause)
	defer pause.Stop()
	for {
		select {
		case running <- struct{}{}:
			if l.waitingCall(s) == nil {
				done()
				return nil, dsw.ErrNotWanted
			}
			l.setStep(s.Kind.String())
			return done, nil
		case <-pause.C:
			if l.waitingCall(s) == nil {
				return nil, dsw.ErrNotWanted
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (n *Node) checksOf(vg string) chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.checking[vg] == nil {
		n.checking[vg] = make(chan struct{}, max(n.Config.Get().MaxChecks, 1))
	}
	return n.checking[vg]
}
