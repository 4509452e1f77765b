package simulation

import (
	"fmt"
	"strings"
	"time"
)

// A decision is one line of a story.
type decision struct {
	what action
	on   string        // a point, a pod, a directory, a volume
	pass time.Duration // for passes
}

// An action is what a decision does.
type action string

// What can happen.
const (
	lets        action = "goes on:"
	kills       action = "is killed:"                // a command where it stands
	fails       action = "fails:"                    // likewise: after its effect it says so all the same
	garbles     action = "goes on, answers by half:" // likewise
	busies      action = "is answered EBUSY:"        // an umount
	diesOf      action = "the flexdriver is killed of:"
	passes      action = "time passes:"
	starts      action = "pod is wanted:"
	stops       action = "pod is deleted:"
	expands     action = "volume is to grow:"
	strays      action = "a late call:" // of a flexdriver that started before: its verb, its pod, before which of kubelet's attempts
	flexdDies   action = "flexd is killed"
	cuts        action = "flexd will be killed in the middle of a note, the next but:"
	kubeletDies action = "kubelet is killed"
	reboots     action = "the machine reboots"
	tears       action = "the next look at the mount table is cut short"
	blinds      action = "the next list of devices or files fails"
	umounts     action = "operator unmounts:"
	covers      action = "operator mounts a tmpfs at:"
	binds       action = "operator binds kubelet's directory on itself"
	turns       action = "the propagation of kubelet's directory changes"
	borrows     action = "another driver mounts the volume at:"
	clears      action = "operator takes away what others have mounted, and extends what was shrunk"
	freezes     action = "a backup freezes:"
	shrinks     action = "operator shrinks the volume:"
	makes       action = "operator makes anew the volume:"
	writes      action = "an owner writes to the device of the volume:"
	activates   action = "operator activates the volume:"
	deactivates action = "operator deactivates the volume:"
	attaches    action = "operator has a device of his own for the volume:"
	opens       action = "a process opens the device of the volume:"
	holds       action = "a process works in:"
	frees       action = "the processes end"
	hides       action = "disk goes away with:"
	shows       action = "the disks come back"
)

func (d decision) String() string {
	if d.what == passes {
		return fmt.Sprintf("%s %v", d.what, d.pass)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", d.what, d.on))
}

// A scenario is all the decisions of one life.
type scenario []decision

func (s scenario) String() string {
	var b strings.Builder
	for i, d := range s {
		fmt.Fprintf(&b, "%4d  %s\n", i+1, d)
	}
	return b.String()
}

// shorter cuts a failing story down: pieces of it are left out as long as it
// still fails, the larger ones first. It plays at most so many lives.
func shorter(s scenario, lives int, fails func(scenario) bool) scenario {
	for size := len(s) / 2; size >= 1; size /= 2 {
		for from := 0; from < len(s) && lives > 0; lives-- {
			without := append(append(scenario{}, s[:from]...), s[min(from+size, len(s)):]...)
			if fails(without) {
				s = without
			} else {
				from += size
			}
		}
	}
	return s
}
