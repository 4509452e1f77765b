package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/flexd/flexd/internal/flex"
	"github.com/flexd/flexd/internal/volume"
)

// A call is a FlexVolume call that waits for its answer.
type call struct {
	volume.Call
	verb     string        // kubelet's word for it
	started  time.Duration // its flexdriver's start, on the boot-time clock
	since    time.Time
	deadline time.Time
	opts     flex.Options
	root     string // kubelet's root directory that Dir lies below
	lane     *lane  // nil until it has come there; guarded by Node.mu until then
	taken    func() // ends its way there
	title    string // the volume, as people call it

	ctx    context.Context // done when the connection is closed
	pid    int             // of flexdriver, 0 = not known
	parent *parent         // of flexdriver at its start, nil = not known

	// landing is set when its mount is let go: from there on the only answer
	// is what comes of it. Guarded by lane.mu.
	landing bool
	done    chan result // of size one: the lane never waits
}

type result struct {
	device string
	err    error
}

// errSuperseded is the answer to the older of two opposite wishes.
var errSuperseded = errors.New("superseded: a newer call for this directory wants the opposite")

// errHungUp is for the log: nobody hears it.
var errHungUp = errors.New("the caller hung up")

// waiting says whether somebody still wants the answer: the connection is open,
// and flexdriver is still the child of the kubelet that started it.
func (c *call) waiting() bool {
	if c.ctx.Err() != nil {
		return false
	}
	return c.parent.holds(c.pid)
}

// mountsAt says whether it wants a mount at dir.
func (c *call) mountsAt(dir string) bool {
	return c.Dir == dir && (c.Verb == volume.Stage || c.Verb == volume.Publish)
}
