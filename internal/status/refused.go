package status

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// recent is the age up to which a failed call is likely to be repeated: kubelet's longest pause is two
// minutes.
const recent = 5 * time.Minute

// of reports whether the call is for the volume.
func (r RefusedCall) of(v Volume) bool { return r.VG == v.VG && r.LV == v.LV }

// AddRefused adds the refused calls. A volume that is known only from them gets a row of its
// own while they are recent.
func (l *List) AddRefused(calls []RefusedCall, now time.Time) {
	l.RefusedCalls = calls
	for _, r := range calls {
		if r.LV != "" && now.Sub(r.Last) < recent && !slices.ContainsFunc(l.Volumes, r.of) {
			l.Volumes = append(l.Volumes, r.volume())
		}
	}
	slices.SortStableFunc(l.Volumes, func(a, b Volume) int { return strings.Compare(a.VG+"/"+a.LV+"/"+a.UUID, b.VG+"/"+b.LV+"/"+b.UUID) })
}

// volume returns the row of a volume that flexd knows only from the call.
func (r RefusedCall) volume() Volume {
	return Volume{VG: r.VG, LV: r.LV, State: Refused, Error: &Error{Step: r.Verb, Code: r.Code, Message: r.Message, At: r.Last, CallID: r.CallID}}
}

// Refusals returns the refused calls for a volume.
func Refusals(calls []RefusedCall, v Volume) []RefusedCall {
	return slices.DeleteFunc(slices.Clone(calls), func(r RefusedCall) bool { return !r.of(v) })
}

// RefusedDetail returns the detail of a volume that is known only from refused calls, the newest first.
func RefusedDetail(calls []RefusedCall) VolumeDetail {
	return VolumeDetail{Volume: calls[0].volume(), RefusedCalls: calls}
}

// head returns the verb and pod of the calls, their number and their times.
func (r RefusedCall) head(now time.Time) string {
	s := plain(r.Verb)
	if r.Pod != nil {
		s += " for " + r.Pod.String()
	}
	if r.Count > 1 {
		return fmt.Sprintf("%s, %d times in %s, last %s", s, r.Count, age(r.Last.Sub(r.First)), ago(now.Sub(r.Last)))
	}
	return s + ", " + ago(now.Sub(r.Last))
}

// name returns the volume, or the directory of a call that does not name it.
func (r RefusedCall) name() string {
	if r.LV == "" {
		return plain(r.Dir)
	}
	return plain(r.VG + "/" + r.LV)
}

// refused returns a line for each refused call whose volume has no row because of it.
func (l List) refused(now time.Time, width int) (lines []string) {
	for _, r := range l.RefusedCalls {
		if slices.ContainsFunc(l.Volumes, func(v Volume) bool { return r.of(v) && v.Error != nil && v.Error.CallID == r.CallID }) {
			continue
		}
		lines = append(lines, cut(fmt.Sprintf("Refused: %s %s: %s", r.name(), r.head(now), plain(r.Message)), width))
	}
	return lines
}
