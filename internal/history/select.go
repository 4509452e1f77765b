package history

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/status"
)

// MaxEvents is the largest number of events in one answer.
const MaxEvents = 1000

// readers limits the concurrent readers of the files: they stay if the disk hangs.
var readers = make(chan struct{}, 4)

// readLimit is how long the files may take.
const readLimit = 5 * time.Second

// Events returns the events that a query selects: the newest ones.
func (l *Log) Events(ctx context.Context, q status.EventQuery) status.Events {
	s := &selection{EventQuery: q, calls: map[string]bool{}, seen: map[uint64]bool{}}
	if s.Limit <= 0 || s.Limit > MaxEvents {
		s.Limit = MaxEvents
	}
	l.mu.Lock()
	recent := slices.Clone(l.recent)
	var pending, waiting []status.Event
	if q.Before == 0 && q.After == 0 {
		pending = l.repeats.pending()
		for e := range l.waiting {
			waiting = append(waiting, *e)
		}
	}
	if s.doc.Last = l.next - 1; q.After > s.doc.Last { // of a history that is lost
		q.After, s.After = 0, 0
	}
	first := l.next // id
	l.mu.Unlock()
	if len(recent) > 0 {
		first = recent[0].ID
	}

	for i := range waiting {
		e := &waiting[i]
		e.Duration = time.Since(e.Time).Round(time.Millisecond).Seconds()
		e.Time = e.Time.UTC().Truncate(time.Millisecond)
		if s.begins(e) {
			s.doc.Waiting = append(s.doc.Waiting, *e)
		}
	}
	s.doc.Waiting = sorted(s.doc.Waiting)
	more := true
	takePending := func(until time.Time) {
		for n := len(pending); n > 0 && !pending[n-1].Time.Before(until); n-- {
			more = more && s.take(&pending[n-1])
			pending = pending[:n-1]
		}
	}
	for _, e := range slices.Backward(recent) {
		takePending(e.Time)
		more = more && s.take(e)
	}
	takePending(time.Time{})
	if more && l.file != nil && first > q.After+1 {
		s = l.readFiles(ctx, s, first)
	}
	slices.Reverse(s.doc.Events)
	if p := l.Problem(); p != "" {
		s.doc.Problems = append(s.doc.Problems, p)
	}
	if !s.doc.More {
		s.doc.Oldest = s.oldest
	}
	return s.doc
}

// readFiles continues with the events in the files, which are before that id. If they cannot be
// read in time, it returns the selection unchanged.
func (l *Log) readFiles(ctx context.Context, s *selection, before uint64) *selection {
	failed := func(why string) *selection {
		s.doc.Problems = append(s.doc.Problems, "the history in "+l.file.dir+" cannot be read: "+why)
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	select {
	case readers <- struct{}{}:
	case <-ctx.Done():
		return failed("it is being read by too many others, or hangs")
	}
	result := make(chan error, 1)
	own := s.clone()
	go func() {
		defer func() { <-readers }()
		result <- l.file.read(func(line []byte) bool {
			id := lineID(line)
			if id == 0 || id >= before || own.Before > 0 && id >= own.Before {
				return ctx.Err() == nil
			}
			if id <= own.After {
				return false
			}
			var e status.Event
			if json.Unmarshal(line, &e) != nil || e.ID != id {
				return ctx.Err() == nil
			}
			return own.take(&e) && ctx.Err() == nil
		})
	}()
	select {
	case err := <-result:
		if err == nil {
			err = ctx.Err()
		}
		if s = own; err != nil {
			return failed(err.Error())
		}
		return s
	case <-ctx.Done():
		return failed("it does not answer")
	}
}

// lineID returns the id of an event in JSON without parsing the rest, 0 = it has none.
func lineID(line []byte) (id uint64) {
	digits, ok := bytes.CutPrefix(line, []byte(`{"id":`))
	if !ok {
		return 0
	}
	for i, c := range digits {
		if c < '0' || c > '9' || i > 18 {
			break
		}
		id = id*10 + uint64(c-'0')
	}
	return id
}

// A selection collects events, the newest first.
type selection struct {
	status.EventQuery
	calls  map[string]bool // that selected events served
	seen   map[uint64]bool // ids: an event may be in a file twice
	spans  []span          // in which the call of the query waited
	oldest time.Time       // of all events
	older  int             // events in succession that are before Since
	doc    status.Events
}

// A span is the time in which a call waited for a volume.
type span struct {
	vg, lv   string
	from, to time.Time
}

func (s *selection) clone() *selection {
	own := *s
	own.calls, own.seen = maps.Clone(s.calls), maps.Clone(s.seen)
	own.spans, own.doc.Events = slices.Clone(s.spans), slices.Clone(s.doc.Events)
	return &own
}

// take adds the event if it is selected. It returns false if no further event is needed.
func (s *selection) take(e *status.Event) bool {
	if e.ID != 0 && (e.ID <= s.After || s.Before > 0 && e.ID >= s.Before) {
		return true
	}
	s.oldest = e.Time
	if e.Time.Before(s.Since) {
		// Earlier events are older, too, unless the clock was set back.
		s.older++
		return s.older < MaxEvents
	}
	s.older = 0
	if s.seen[e.ID] || !s.has(e) {
		return true
	}
	if len(s.doc.Events) == s.Limit {
		s.doc.More = true
		return false
	}
	if e.ID != 0 {
		s.seen[e.ID] = true
	}
	s.doc.Events = append(s.doc.Events, *e)
	return true
}

// has reports whether the event is selected. A call's steps come after it, since the newest
// event comes first.
func (s *selection) has(e *status.Event) bool {
	if s.Call != "" {
		return s.ofCall(e)
	}
	if s.Target == "" {
		return true
	}
	of := calls(*e)
	if e.UUID != "" && slices.Contains(s.UUIDs, e.UUID) || (status.Selection{Target: s.Target}).HasEvent(e) {
		for _, c := range of {
			s.calls[c] = true
		}
		return true
	}
	return e.Type == status.StepEvent && slices.ContainsFunc(of, func(c string) bool { return s.calls[c] })
}

// ofCall reports whether the event belongs to the call: its answer, the steps for it, and the other
// events of its volume, or of flexd, while it waited.
func (s *selection) ofCall(e *status.Event) bool {
	if e.ServedCall(s.Call) {
		if e.Type == status.CallEvent {
			if e.Answer == s.Call {
				s.Call = e.CallID // the newest call with this answer
			}
			s.spans = append(s.spans, span{e.VG, e.LV, e.Time.Add(-seconds(e.Duration)), e.Time})
		}
		return true
	}
	return e.Type != status.CallEvent && slices.ContainsFunc(s.spans, func(p span) bool {
		began := e.Time.Add(-seconds(e.Duration))
		return !e.Time.Before(p.from) && !began.After(p.to) && (e.Type == status.FlexdEvent || e.LV != "" && e.VG == p.vg && e.LV == p.lv)
	})
}

// begins reports whether a call that waits is selected.
func (s *selection) begins(e *status.Event) bool {
	if s.Call == "" {
		return s.has(e)
	}
	if e.CallID != s.Call {
		return false
	}
	s.spans = append(s.spans, span{e.VG, e.LV, e.Time, time.Now()})
	return true
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
