package reconcile

import "time"

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

func (b *backoff) succeeded() { *b = backoff{} }
