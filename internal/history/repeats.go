package history

import (
	"slices"
	"time"

	"github.com/flexd/flexd/internal/status"
)

// repeats recognizes the repeated events of a volume that fails: kubelet retries a call every two
// minutes, for days. It records the first event. Of the events that differ from it only in time,
// duration and call, it records one after a minute, two, four, ... and each hour, with their number.
// It records all steps of a volume without failures.
type repeats struct {
	failing map[volumeKey]time.Time // when the volume had its last failure
	seen    map[eventKey]*repeat
	swept   time.Time
}

type volumeKey struct{ vg, lv, dir string }

type eventKey struct {
	volumeKey
	kind                           status.EventType
	dir, verb, step, code, message string
}

type repeat struct {
	last     status.Event // of those that are not recorded
	count    int          // of these
	first    time.Time
	calls    []string
	at       time.Time // of the last event, recorded or not
	recorded time.Time
	pause    time.Duration
}

const (
	forget       = 10 * time.Minute // an event is a repetition within this time: longer than kubelet's longest pause
	firstPause   = time.Minute
	longestPause = time.Hour
	maxRepeats   = 1000
)

func newRepeats() repeats {
	return repeats{failing: map[volumeKey]time.Time{}, seen: map[eventKey]*repeat{}}
}

// pass returns the event that is recorded for e, if there is one.
func (r *repeats) pass(e status.Event, now time.Time) (status.Event, bool) {
	if e.Type == status.FlexdEvent {
		return e, true
	}
	v := volumeKey{e.VG, e.LV, ""}
	if e.LV == "" {
		v.dir = e.Dir
	}
	if e.Code != "" {
		r.failing[v] = now
	} else if at, ok := r.failing[v]; !ok || now.Sub(at) > forget {
		return e, true
	}
	key := eventKey{v, e.Type, e.Dir, e.Verb, e.Step, e.Code, withoutNumbers(e.Message)}
	known := r.seen[key]
	if known == nil {
		r.seen[key] = &repeat{at: now, recorded: now, pause: firstPause}
		return e, true
	}
	if known.count++; known.count == 1 {
		known.first, known.calls = e.Time, nil
	}
	known.last, known.at = e, now
	known.calls = append(known.calls, calls(e)...)
	known.calls = slices.Delete(known.calls, 0, max(0, len(known.calls)-maxCalls))
	if now.Sub(known.recorded) < known.pause {
		return e, false
	}
	e = known.event()
	known.count, known.recorded, known.pause = 0, now, min(2*known.pause, longestPause)
	return e, true
}

// event returns the event that represents the unrecorded ones.
func (r *repeat) event() status.Event {
	e := r.last
	if r.count > 1 {
		e.Count, e.First = r.count, r.first
		e.CallIDs = slices.Clone(r.calls)
	}
	return e
}

// pending returns an event for each unrecorded repetition.
func (r *repeats) pending() (all []status.Event) {
	for _, known := range r.seen {
		if known.count > 0 {
			all = append(all, known.event())
		}
	}
	return sorted(all)
}

// sweep forgets the events that are not repeated any more, and returns the events to be recorded.
func (r *repeats) sweep(now time.Time) (record []status.Event) {
	if len(r.seen) > maxRepeats || len(r.failing) > maxRepeats {
		return r.flush()
	}
	if now.Sub(r.swept) < firstPause {
		return nil
	}
	r.swept = now
	for v, at := range r.failing {
		if now.Sub(at) > forget {
			delete(r.failing, v)
		}
	}
	for key, known := range r.seen {
		if now.Sub(known.at) > forget {
			delete(r.seen, key)
			if known.count > 0 {
				record = append(record, known.event())
			}
		}
	}
	return sorted(record)
}

// flush forgets everything, and returns the events to be recorded.
func (r *repeats) flush() []status.Event {
	record := r.pending()
	*r = newRepeats()
	return record
}

func sorted(all []status.Event) []status.Event {
	slices.SortFunc(all, func(a, b status.Event) int { return a.Time.Compare(b.Time) })
	return all
}

func calls(e status.Event) []string {
	if len(e.CallIDs) == 0 && e.CallID != "" {
		return []string{e.CallID}
	}
	return e.CallIDs
}

// withoutNumbers removes times and pids, which differ from one failure to the next.
func withoutNumbers(s string) string {
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		if c := s[i]; c < '0' || c > '9' {
			b = append(b, c)
		}
	}
	return string(b)
}
