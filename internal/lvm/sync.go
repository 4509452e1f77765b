package lvm

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/sysfs"
)

// A syncState is the kernel's state of the RAIDs of a volume, the volume itself or below it.
type syncState struct {
	reshaped string // a RAID that is being reshaped
	syncing  string // a RAID that must stay active until it is in sync
	lost     string // why a RAID has lost data
}

// sync reads "raid1 2 Aa 8192/16384 recover 0 0 -" of each RAID: a leg is in sync (A), not in sync
// (a), has failed (D) or is missing (-).
func (t *tree) sync(m devmapper.Mapped) (s syncState) {
	t.walk(m, func(n *node, _ bool) {
		if !n.has("raid") {
			return
		}
		state, _ := t.status(n)
		for i, target := range state {
			w := strings.Fields(target.Params)
			if target.Type != "raid" || len(w) < 5 || i >= len(n.Targets) {
				continue
			}
			switch w[4] {
			case "reshape":
				s.reshaped = n.volume()
			case "recover":
				s.syncing = n.volume()
			case "resync":
				if parity(w[0]) {
					s.syncing = n.volume()
				}
			}
			s.lost = cmp.Or(s.lost, t.lostLegs(n, n.Targets[i], w))
		}
	})
	return s
}

// lostLegs returns why a RAID has lost data: a disk is gone, and legs on other disks are not in sync. The
// kernel does not mark the last leg of a raid1 in sync as failed, so the disks are checked. During the
// first synchronization or a reshape the letters do not show whether data is missing.
func (t *tree) lostLegs(n *node, table devmapper.Target, state []string) string {
	kind, letters, action := state[0], state[2], state[4]
	devices := strings.Fields(table.Params) // the last words are the metadata and data devices of each leg
	if len(devices) < 2*len(letters) || action == "resync" || action == "reshape" {
		return ""
	}
	devices = devices[len(devices)-2*len(letters):]
	gone, behind, lost := 0, 0, map[string]bool{}
	for i, letter := range letters {
		switch number := devices[2*i+1]; {
		case letter == 'D', letter == '-', number == "-", t.fails(number):
			gone++
		case letter == 'a':
			behind++
		default:
			continue
		}
		lost[strconv.Itoa(i)] = true
	}
	if gone == 0 || behind == 0 || survives(kind, len(letters), lost) {
		return ""
	}
	return fmt.Sprintf("the %s %s has lost data: of its %d legs (%s) %d have failed or are on a missing disk, and %d others were not in sync. Bring the disk back (pvs, dmesg) before any repair", kind, n.volume(), len(letters), letters, gone, behind)
}

// fails reports whether a part of a device is on a missing disk.
func (t *tree) fails(number string) bool {
	n := t.at(number)
	return n.err == nil && slices.ContainsFunc(n.Targets, func(target devmapper.Target) bool {
		return target.Type == "error" || slices.ContainsFunc(strings.Fields(target.Params), func(word string) bool {
			_, _, ok := sysfs.SplitNumber(word)
			return ok && (slices.Contains(n.below, word) && t.fails(word) || !slices.Contains(n.below, word) && t.isGone(word))
		})
	})
}

// parity reports whether a RAID has parity: the kernel does not start it if it is neither in sync nor complete.
func parity(kind string) bool {
	return strings.HasPrefix(kind, "raid4") || strings.HasPrefix(kind, "raid5") || strings.HasPrefix(kind, "raid6")
}

// survives reports whether a RAID of that kind has all its data without some of its legs.
func survives(kind string, legs int, lost map[string]bool) bool {
	switch {
	case strings.HasPrefix(kind, "raid10"): // the copies of a stripe are on adjacent legs
		const copies = 2
		stripes := map[int]int{}
		for number := range lost {
			n, _ := strconv.Atoi(number)
			if stripes[n/copies]++; stripes[n/copies] == copies {
				return false
			}
		}
		return true
	case kind == "raid1":
		return len(lost) < legs
	case strings.HasPrefix(kind, "raid6"):
		return len(lost) <= 2
	}
	return len(lost) <= 1
}
