package volume

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A WaitError reports that a step cannot succeed yet, and will without a change of its
// request: another host has the volume active, or the locks of its shared volume group are
// being started. Requests for the volume wait, and the step is tried again.
type WaitError struct {
	Reason string        // what the step waits for, with the remedy if there is one and no Holder; without the volume's name
	Holder *Holder       // the host that has the volume active, if that is the reason
	Retry  time.Duration // when the step is worth another try; 0 = after a second
	Err    error         // the cause; it has the code
}

// Error is the reason, with the known facts about the holder and the remedy.
func (e *WaitError) Error() string {
	if e.Holder == nil {
		return e.Reason
	}
	return e.Reason + ": " + e.Holder.String()
}

func (e *WaitError) Unwrap() error { return e.Err }

// A Holder is another host that has a volume of a shared volume group active.
type Holder struct {
	HostID  int       // sanlock's; 0 = unknown
	Host    string    // the name that it gave itself; "" = unknown
	Since   time.Time // when this node first saw it; the lock manager keeps no time
	State   string    // of its lease, see the constants
	Renewed time.Time // when its lease was renewed last, on this node's clock; zero = unknown
	Shared  bool      // for reading: other hosts may hold it for reading, too
	FreeAt  time.Time // when the lock can be taken over if the host is dead; zero = unknown or live
}

// The states of a host's lease.
const (
	LeaseLive    = "live"
	LeaseFailing = "failing" // it is not renewed any more
	LeaseDead    = "dead"
	LeaseUnknown = "unknown"
)

// deletePod is what frees a volume of a host that lives. The pod may be known to that host only: after
// a forced detach, or a forced deletion.
const deletePod = "delete the pod that uses the volume there; if there is none, check that kubelet runs there, or power that host off"

// Name is the name of the host, with its host id.
func (h *Holder) Name() string {
	switch {
	case h.Host == "" && h.HostID == 0:
		return "an unknown host"
	case h.Host == "":
		return "host id " + strconv.Itoa(h.HostID)
	case h.HostID == 0:
		return "host " + h.Host
	}
	return "host " + h.Host + " (host id " + strconv.Itoa(h.HostID) + ")"
}

// String describes the holder and its lease, with the remedy.
func (h *Holder) String() string {
	var b strings.Builder
	b.WriteString(h.Name())
	at := func(f string, t time.Time) {
		if !t.IsZero() {
			fmt.Fprintf(&b, f, t.Format(time.TimeOnly))
		}
	}
	at(", seen since %s", h.Since)
	switch h.State {
	case LeaseLive:
		b.WriteString(", its lease is live")
		at(" (renewed at %s)", h.Renewed)
		b.WriteString(": " + deletePod)
	case LeaseFailing:
		b.WriteString(", it does not renew its lease")
		at(" (renewed last at %s)", h.Renewed)
		b.WriteString(": if that host is dead, the lock manager frees the volume")
		at(" at %s", h.FreeAt)
		b.WriteString("; if it lives, look at its disks and its network")
	case LeaseDead:
		b.WriteString(", its lease has ended")
		at(" (renewed last at %s)", h.Renewed)
		b.WriteString(": the lock manager frees the volume")
		at(" at %s", h.FreeAt)
	default:
		b.WriteString(", the state of its lease is unknown: " + deletePod + "; if that host is dead, the lock manager frees the volume once its lease has ended")
	}
	return b.String()
}
