package simulation

import (
	"fmt"
	"strings"
	"time"
)

// A decision is one line of a story.
type decision struct {
	what deed
	on   string        // a point, a pod, a directory, a volume
	pass time.Duration // for passes
}

// A deed is what a decision does.
type deed string

// What can happen.
const (
	lets        deed = "goes on:"
	kills       deed = "is killed:"                // a command where it stands
	fails       deed = "fails:"                    // likewise: after its effect it says so all the same
	garbles     deed = "goes on, answers by half:" // likewise
	busies      deed = "is answered EBUSY:"        // an umount
	diesOf      deed = "the flexdriver is killed of:"
	passes      deed = "time passes:"
	starts      deed = "pod is wanted:"
	stops       deed = "pod is deleted:"
	expands     deed = "volume is to grow:"
	strays      deed = "a late call:" // of a flexdriver that started before: its verb, its pod, before which of kubelet's attempts
	flexdDies   deed = "flexd is killed"
	cuts        deed = "flexd will be killed in the middle of a note, the next but:"
	kubeletDies deed = "kubelet is killed"
	reboots     deed = "the machine reboots"
	tears       deed = "the next look at the mount table is cut short"
	blinds      deed = "the next list of devices or files fails"
	umounts     deed = "operator unmounts:"
	covers      deed = "operator mounts a tmpfs at:"
	binds       deed = "operator binds kubelet's directory on itself"
	turns       deed = "the propagation of kubelet's directory changes"
	borrows     deed = "another driver mounts the volume at:"
	clears      deed = "operator takes away what others have mounted, and extends what was shrunk"
	freezes     deed = "a backup freezes:"
	shrinks     deed = "operator shrinks the volume:"
	makes       deed = "operator makes anew the volume:"
	writes      deed = "an owner writes to the device of the volume:"
	activates   deed = "operator activates the volume:"
	deactivates deed = "operator deactivates the volume:"
	attaches    deed = "operator has a device of his own for the volume:"
	opens       deed = "a process opens the device of the volume:"
	holds       deed = "a process works in:"
	frees       deed = "the processes end"
	hides       deed = "disk goes away with:"
	shows       deed = "the disks come back"
)

func (d decision) String() string {
	if d.what == passes {
		return fmt.Sprintf("%s %v", d.what, d.pass)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", d.what, d.on))
}

// A story is all the decisions of one life.
type story []decision

func (s story) String() string {
	var b strings.Builder
	for i, d := range s {
		fmt.Fprintf(&b, "%4d  %s\n", i+1, d)
	}
	return b.String()
}

// shorter cuts a failing story down: pieces of it are left out as long as it
// still fails, the larger ones first. It plays at most so many lives.
func shorter(s story, lives int, fails func(story) bool) story {
	for size := len(s) / 2; size >= 1; size /= 2 {
		for from := 0; from < len(s) && lives > 0; lives-- {
			without := append(append(story{}, s[:from]...), s[min(from+size, len(s)):]...)
			if fails(without) {
				s = without
			} else {
				from += size
			}
		}
	}
	return s
}
