package lockspace

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// whyNot returns why sanlock has not joined a lockspace, by sanlock's log: LVM does not report it.
func (m *Manager) whyNot(vg string) error {
	out, _ := m.command("sanlock log", "sanlock", "client", "log_dump") // its exit status is never 0
	why := cmp.Or(parseLog(out, "lvm_"+vg), "sanlock's log does not say why")
	return unusable("the lockspace of volume group %s does not start: %s (journalctl -u sanlock -u lvmlockd)", vg, why)
}

// results maps sanlock's results to words (its source: sanlock_rv.h).
var results = map[int]string{
	-2:   "the device of its leases does not exist",
	-5:   "the device of its leases has I/O errors",
	-17:  "sanlock still has the lockspace of an earlier lvmlockd",
	-202: "the device of its leases does not answer within the io timeout",
	-203: "sanlock gets no watchdog: " + watchdogRemedy,
	-223: "leases are missing on its disks: docs/shared.md, Recovery, says how to make new ones",
	-224: "its leases have another version than this sanlock",
	-226: "its leases belong to another lockspace: was the volume group renamed or copied?",
	-229: "its leases are damaged: docs/shared.md, Recovery, says how to make new ones",
}

// parseLog returns the reason of the last failure to join a lockspace in sanlock's log.
func parseLog(out, name string) string {
	number, call, why, busy := "", "", "", ""
	for line := range strings.Lines(out) {
		_, text, ok := strings.Cut(strings.TrimSpace(line), "]: ")
		w := strings.Fields(text)
		if !ok || len(w) < 3 {
			continue
		}
		ours := strings.HasPrefix(w[2], name+":")
		switch {
		case w[0] == "cmd_add_lockspace" && ours: // CALL NAME:ID:PATH:OFFSET
			number, call, why, busy = "", w[1], "", ""
		case w[1] == "lockspace" && ours: // s1 lockspace NAME:ID:PATH:OFFSET
			number = w[0]
		case w[0] == number && w[1] == "delta_acquire" && len(w) >= 9 && strings.HasPrefix(w[4], "busy"): // host_id 1 busy1 ID GENERATION TIME HOST
			busy = fmt.Sprintf("host id %s is used by %s: give this node another local/host_id in /etc/lvm/lvmlocal.conf", w[3], w[8])
		case w[0] == "cmd_add_lockspace" && w[1] == call && w[2] == "done" && len(w) == 4: // CALL done RESULT
			result, err := strconv.Atoi(w[3])
			call = ""
			if err == nil && result < 0 {
				why = cmp.Or(busy, results[result], "sanlock failed with "+w[3])
			}
		}
	}
	return why
}
