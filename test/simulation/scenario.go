package simulation

import (
	"fmt"
	"strings"
	"time"
)

// A decision is one line of a sequence.
type decision struct {
	what action
	on   string        // a point, a pod, a directory, a volume
	pass time.Duration // for passes
	node int           // its number in a cluster; 0 = there is one node
}

// An action is what a decision does.
type action string

// The actions.
const (
	lets        action = "continues:"
	kills       action = "is killed:"                                // a command at its point
	fails       action = "fails:"                                    // likewise: it reports an error, also after its effect
	garbles     action = "continues, and writes half of its answer:" // likewise
	busies      action = "is answered EBUSY:"                        // an umount
	diesOf      action = "the flexdriver is killed for:"
	passes      action = "time passes:"
	starts      action = "pod is wanted:"
	stops       action = "pod is deleted:"
	expands     action = "volume is to grow:"
	strays      action = "a late call:" // of a flexdriver that started earlier: its verb, its pod, the number of kubelet's attempt before which it started
	flexdDies   action = "flexd is killed"
	cuts        action = "flexd will be killed while it writes a note, after this number of notes:"
	kubeletDies action = "kubelet is killed"
	reboots     action = "the machine reboots"
	tears       action = "the next read of the mount table is cut short"
	blinds      action = "the next list of devices or files fails"
	umounts     action = "operator unmounts:"
	covers      action = "operator mounts a tmpfs at:"
	binds       action = "operator bind mounts kubelet's directory on itself"
	turns       action = "the propagation of kubelet's directory changes"
	borrows     action = "another driver mounts the volume at:"
	clears      action = "operator unmounts the mounts of others, and extends the volumes that were shrunk"
	freezes     action = "a backup freezes:"
	shrinks     action = "operator shrinks the volume:"
	makes       action = "operator replaces the volume:"
	writes      action = "an owner writes to the device of the volume:"
	activates   action = "operator activates the volume:"
	deactivates action = "operator deactivates the volume:"
	attaches    action = "operator attaches another device to the volume:"
	opens       action = "a process opens the device of the volume:"
	holds       action = "a process has its working directory in:"
	frees       action = "the processes end"
	hides       action = "the disk disappears of volume:"
	shows       action = "the disks are back"
)

func (d decision) String() string {
	if d.what == passes {
		return fmt.Sprintf("%s %v", d.what, d.pass)
	}
	if d.node > 0 {
		return strings.TrimSpace(fmt.Sprintf("n%d: %s %s", d.node, d.what, d.on))
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", d.what, d.on))
}

// A scenario is the sequence of decisions of one run.
type scenario []decision

func (s scenario) String() string {
	var b strings.Builder
	for i, d := range s {
		fmt.Fprintf(&b, "%4d  %s\n", i+1, d)
	}
	return b.String()
}

// shorter reduces a failing sequence: it removes parts as long as the sequence
// still fails, the larger ones first. It makes at most so many runs.
func shorter(s scenario, runs int, fails func(scenario) bool) scenario {
	for size := len(s) / 2; size >= 1; size /= 2 {
		for from := 0; from < len(s) && runs > 0; runs-- {
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
