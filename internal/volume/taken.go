package volume

import "fmt"

// A Taken is a volume that is active on this node, but whose lock another node has taken over, because
// this node seemed dead.
type Taken struct {
	Name   Name
	UUID   UUID
	Number string // of its device
	Seq    uint64
	Holder Holder // zero = no host has the lock now
	Fenced bool   // all its reads and writes fail
}

// Reason describes the takeover.
func (t Taken) Reason() string {
	now := "which no host has now"
	if t.Holder.HostID != 0 {
		now = "which " + t.Holder.Name() + " has now"
	}
	return fmt.Sprintf("another host took over its lock, %s, while it was active here: was this node's time stopped (virsh suspend, a snapshot of its memory)?", now)
}

// A Used is an active volume of a group whose locks are lost, whether flexd has activated it or not.
type Used struct {
	Name Name
	UUID UUID
	Open int // how often its device is open
}
