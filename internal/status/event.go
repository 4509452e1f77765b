package status

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An EventType is the kind of an event.
type EventType string

// The types of events.
const (
	CallEvent     EventType = "call"     // a call was answered, or waits
	StepEvent     EventType = "step"     // a step ended
	StuckEvent    EventType = "stuck"    // a child does not end
	EndedEvent    EventType = "ended"    // that child has ended
	WaitingEvent  EventType = "waiting"  // a step must wait, and is tried again
	WaitedEvent   EventType = "waited"   // that wait has ended
	FoundEvent    EventType = "found"    // a new disagreement
	ResolvedEvent EventType = "resolved" // a disagreement that is over, or unknown now
	FlexdEvent    EventType = "flexd"    // flexd starts, stops, or reads its configuration
	LostEvent     EventType = "lost"     // events that could not be kept
)

// An Event is an entry of the history.
type Event struct {
	ID       uint64    `json:"id"`   // increases, also across restarts; 0 = a call that waits
	Time     time.Time `json:"time"` // when it ended
	Type     EventType `json:"type"`
	VG       string    `json:"vg,omitempty"`
	LV       string    `json:"lv,omitempty"`
	UUID     string    `json:"uuid,omitempty"`
	Pod      *EventPod `json:"pod,omitempty"`
	Dir      string    `json:"dir,omitempty"`
	Verb     string    `json:"verb,omitempty"` // of a call
	Step     string    `json:"step,omitempty"`
	Code     string    `json:"code,omitempty"` // of a failure, or the class of a disagreement; "" = success
	Message  string    `json:"message,omitempty"`
	CallID   string    `json:"callID,omitempty"`   // of the call; of a step, the first call that it served
	CallIDs  []string  `json:"callIDs,omitempty"`  // all of them, if there are several
	Answer   string    `json:"answer,omitempty"`   // of a failed call: the id in kubelet's event
	Duration float64   `json:"duration,omitempty"` // seconds

	// An event may represent several that differ only in time, duration and call.
	Count int       `json:"count,omitempty"` // how many, if several
	First time.Time `json:"first,omitzero"`  // when the first of them was
}

// An EventPod is the pod of an event.
type EventPod struct {
	Namespace string `json:"namespace,omitempty"` // "" = unknown, as for the next
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid"`
}

// String returns the pod's name, or its uid if the name is not known.
func (p *EventPod) String() string {
	if p.Name == "" {
		return plain("pod " + p.UID)
	}
	return plain(p.Namespace + "/" + p.Name)
}

// Events is the answer of GET /v1/events.
type Events struct {
	Node     string    `json:"node"`
	Events   []Event   `json:"events"`          // the oldest first
	Waiting  []Event   `json:"waiting"`         // the calls without an answer, likewise
	More     bool      `json:"more"`            // older ones are selected, too
	Oldest   time.Time `json:"oldest,omitzero"` // where the history begins, unless More
	Last     uint64    `json:"last"`            // the newest id that was searched
	Problems []string  `json:"problems"`        // why events may be missing
}

// An EventQuery selects events. A zero field restricts nothing.
type EventQuery struct {
	Target string // as in Selection
	Call   string // a call: its id, or the id in kubelet's event
	Since  time.Time
	After  uint64 // ids above this one
	Before uint64 // ids below this one
	Limit  int    // the newest ones

	UUIDs []string // of the volumes that the target names now: their events may have earlier names
}

// Resolve sets UUIDs to the volumes whose present name or device is the target.
func (q *EventQuery) Resolve(l List) {
	for _, v := range l.Volumes {
		if v.UUID != "" && (q.Target == v.VG+"/"+v.LV || v.Device != "" && q.Target == v.Device) {
			q.UUIDs = append(q.UUIDs, v.UUID)
		}
	}
}

// Values returns the parameters of a request for the events.
func (q EventQuery) Values() url.Values {
	v := url.Values{}
	text := func(name, s string) {
		if s != "" {
			v.Set(name, s)
		}
	}
	number := func(name string, n uint64) {
		if n > 0 {
			v.Set(name, strconv.FormatUint(n, 10))
		}
	}
	text("target", q.Target)
	text("call", q.Call)
	number("after", q.After)
	number("before", q.Before)
	number("limit", uint64(q.Limit))
	if !q.Since.IsZero() {
		v.Set("since", q.Since.Format(time.RFC3339))
	}
	return v
}

// AddSteps adds the running steps of their volumes to the waiting calls.
func (d *Events) AddSteps(l List, now time.Time) {
	for i := range d.Waiting {
		e := &d.Waiting[i]
		for _, v := range l.Volumes {
			if v.VG != e.VG || v.LV != e.LV {
				continue
			}
			if v.Waiting != nil {
				e.Message = v.Waiting.text(now)
			} else if v.Step != "" && !v.StepSince.IsZero() {
				e.Message = fmt.Sprintf("%s runs for %s", v.Step, age(now.Sub(v.StepSince)))
			}
		}
	}
}

// HasEvent reports whether an event is about something that is selected.
func (s Selection) HasEvent(e *Event) bool {
	v := Volume{VG: e.VG, LV: e.LV, UUID: e.UUID}
	if e.Pod != nil {
		v.Pods = append(v.Pods, Pod{Namespace: e.Pod.Namespace, Name: e.Pod.Name, UID: e.Pod.UID, Dir: e.Dir})
	} else if e.Dir != "" {
		v.Pods = append(v.Pods, Pod{Dir: e.Dir})
	}
	return s.has(v)
}

// ServedCall reports whether the event is about the call with this id, or whether kubelet's
// event of it has this id.
func (e *Event) ServedCall(id string) bool {
	if e.CallID == id || e.Answer == id {
		return id != ""
	}
	return slices.Contains(e.CallIDs, id)
}

// ParseSince reads a time, or an age.
func ParseSince(s string, now time.Time) (time.Time, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, -int(n)), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{time.TimeOnly, "15:04"} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location()), nil
		}
	}
	return time.Time{}, fmt.Errorf("must be a duration such as 90m or 2d, or a time such as 15:04 or \"2006-01-02 15:04\", not %q", s)
}
