package reconcile

import (
	"context"
	"time"
)

// The parameters of kubelet's own exponential backoff, for flexd's own retries.
const (
	firstBackoff = 500 * time.Millisecond
	lastBackoff  = 2*time.Minute + 2*time.Second
)

// A backoff is the time of the next attempt. Its zero value is now.
type backoff struct {
	wait time.Duration
	next time.Time
}

func (b *backoff) failed(now time.Time) {
	if b.wait *= 2; b.wait == 0 {
		b.wait = firstBackoff
	}
	b.wait = min(b.wait, lastBackoff)
	b.next = now.Add(b.wait)
}

// pause waits after a failure until the next attempt, or until ctx is done.
func (b *backoff) pause(ctx context.Context) {
	b.failed(time.Now())
	select {
	case <-time.After(b.wait):
	case <-ctx.Done():
	}
}
