package reconcile

import (
	"context"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/volume"
)

// A call is a request that waits for its answer.
type call struct {
	dsw.Request
	asked Request
	since time.Time
	title string          // the volume's name for messages
	lane  *lane           // the last lane that the call waited for
	ctx   context.Context // done when the caller does not wait any longer

	// Only the goroutine of the call's lane uses these fields.
	suspended time.Time // the first look that found the device suspended; zero = the last one did not
	retry     time.Time // the next try of a step that must wait; zero = no step must wait
	visible   bool      // the last check before the mount found that the caller would see it
}

// part returns the part of a call that waits in one lane: the lane of the volume's name before its
// creation, or of one of several volumes at its directory.
func (c *call) part(ctx context.Context, verb volume.Verb) *call {
	part := &call{
		Request: dsw.Request{Call: c.Call, Name: c.Name, Started: c.Started},
		asked:   c.asked, since: c.since, ctx: ctx,
	}
	part.Verb = verb
	return part
}

// callsOf returns the calls of requests.
func callsOf(requests []*dsw.Request) (calls []*call) {
	for _, r := range requests {
		calls = append(calls, r.Owner.(*call))
	}
	return calls
}

// callerAlive reports whether the caller still waits.
func (c *call) callerAlive() bool {
	return c.ctx.Err() == nil && (c.asked.Caller.Alive == nil || c.asked.Caller.Alive())
}
