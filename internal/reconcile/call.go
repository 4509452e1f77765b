package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/flexvolume"
)

// A call is a FlexVolume call that waits for its answer.
type call struct {
	dsw.Request
	verb     string // kubelet's word for it
	since    time.Time
	deadline time.Time
	opts     flexvolume.Options
	root     string // kubelet's root directory that Dir lies below
	title    string // the volume, as people call it

	ctx    context.Context // done when the connection is closed
	pid    int             // of flexdriver, 0 = not known
	parent *parent         // of flexdriver at its start, nil = not known

	// suspended is since when the device has been seen suspended; zero = it was not
	// at the last look. Only the goroutine of its lane uses it.
	suspended time.Time
}

// callsOf returns the calls that requests were made of.
func callsOf(requests []*dsw.Request) (calls []*call) {
	for _, r := range requests {
		calls = append(calls, r.Owner.(*call))
	}
	return calls
}

// errCallerGone is only logged: the caller is gone.
var errCallerGone = errors.New("the caller hung up")

// callerAlive reports whether the caller still waits: the connection is open, and
// flexdriver is still the child of the kubelet that started it.
func (c *call) callerAlive() bool {
	if c.ctx.Err() != nil {
		return false
	}
	return c.parent.alive(c.pid)
}
