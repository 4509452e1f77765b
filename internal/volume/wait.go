package volume

import "time"

// A WaitError reports that a step cannot succeed yet, and will without a change of its
// request: another host has the volume active, or the locks of its shared volume group are
// being started. Requests for the volume wait, and the step is tried again.
type WaitError struct {
	Reason string        // what the step waits for, with the remedy if there is one; without the volume's name
	Holder *Holder       // the host that has the volume active, if that is the reason
	Retry  time.Duration // when the step is worth another try; 0 = after a second
	Err    error         // the cause; it has the code
}

func (e *WaitError) Error() string { return e.Reason }

func (e *WaitError) Unwrap() error { return e.Err }

// A Holder is another host that has a volume of a shared volume group active.
type Holder struct {
	HostID  int       // sanlock's; 0 = unknown
	Host    string    // the name that it gave itself; "" = unknown
	Since   time.Time // when this node first saw it; the lock manager keeps no time
	State   string    // of its lease: "live", "failing", "dead", "unknown"
	Renewed time.Time // when its lease was renewed last, on this node's clock; zero = unknown
	FreeAt  time.Time // when the lock can be taken over if the host is dead; zero = unknown or live
}
