package volume

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A WaitError reports that a step cannot succeed yet, but can later without a change of the request:
// another host has the volume active, or the locks of its shared volume group are being started.
// Requests for the volume wait, and the step is tried again.
type WaitError struct {
	Reason string        // without the volume's name; with the remedy, if there is one and no Holder
	Holder *Holder       // the host that has the volume active, if that is the reason
	Retry  time.Duration // the time until the next try; 0 = a second
	Err    error         // the cause, with the code
}

// Error returns the reason, with the known facts about the holder and the remedy.
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
	Host    string    // its own name; "" = unknown
	Since   time.Time // when this node first saw it, since the lock manager stores no time
	State   string    // of its lease, see the constants
	Renewed time.Time // the last renewal of its lease, on this node's clock; zero = unknown
	Shared  bool      // it holds the volume for reading, as other hosts may, too
	FreeAt  time.Time // when the lock can be taken over if the host is dead; zero = unknown or live
}

// The states of a host's lease.
const (
	LeaseLive    = "live"
	LeaseFailing = "failing" // it is not renewed any more
	LeaseDead    = "dead"
	LeaseUnknown = "unknown"
)

// deletePod is the remedy for a volume that a live host has active. After a forced detach or a forced
// deletion only that host may know the pod.
const deletePod = "delete the pod that uses the volume there; if there is none, check that kubelet runs there, or power that host off"

// Name returns the name of the host with its host id.
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
		at(" (last renewed at %s)", h.Renewed)
		b.WriteString(": if that host is dead, the lock manager frees the volume")
		at(" at %s", h.FreeAt)
		b.WriteString("; if it is alive, look at its disks and its network")
	case LeaseDead:
		b.WriteString(", its lease has ended")
		at(" (last renewed at %s)", h.Renewed)
		b.WriteString(": the lock manager frees the volume")
		at(" at %s", h.FreeAt)
	default:
		b.WriteString(", the state of its lease is unknown: " + deletePod + "; if that host is dead, the lock manager frees the volume once its lease has ended")
	}
	return b.String()
}
