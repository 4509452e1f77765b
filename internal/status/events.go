package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// An EventTable prints events, also as they come.
type EventTable struct {
	Dated  bool // all times have dates
	Follow bool // events come one by one: the columns are wide from the beginning

	today  string
	widths [3]int // of the columns but the last
}

// Write prints further events. Once one of them is of another day, all times have dates.
func (t *EventTable) Write(w io.Writer, events []Event, now time.Time) error {
	if len(events) == 0 {
		return nil
	}
	t.Dated = t.Dated || otherDay(events, now) || t.today != "" && t.today != now.Format(time.DateOnly)
	var rows [][4]string
	if t.today == "" {
		if t.Follow {
			t.widths = [3]int{8, 16, 32}
		}
		t.today = now.Format(time.DateOnly)
		rows = append(rows, [4]string{"TIME", "VOLUME", "EVENT", "RESULT"})
	}
	for _, e := range events {
		rows = append(rows, [4]string{stamp(e.Time, now, t.Dated), e.volume(), e.subject(), e.result(now, t.Dated)})
	}
	for _, row := range rows {
		for i := range t.widths {
			t.widths[i] = max(t.widths[i], min(utf8.RuneCountInString(row[i]), 60))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			if i < len(t.widths) {
				line.WriteString(strings.Repeat(" ", max(0, t.widths[i]-utf8.RuneCountInString(cell))+2))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// otherDay reports whether an event is of another day than now.
func otherDay(events []Event, now time.Time) bool {
	return slices.ContainsFunc(events, func(e Event) bool {
		return e.Time.In(now.Location()).Format(time.DateOnly) != now.Format(time.DateOnly)
	})
}

func stamp(t, now time.Time, dated bool) string {
	if dated {
		return t.In(now.Location()).Format(time.DateTime)
	}
	return t.In(now.Location()).Format(time.TimeOnly)
}

// volume returns the volume or group of an event.
func (e *Event) volume() string {
	switch {
	case e.LV != "":
		return plain(e.VG + "/" + e.LV)
	case e.VG != "":
		return plain(e.VG)
	}
	return cmp.Or(plain(e.UUID), "-")
}

// subject describes the step, call or class of an event, and its pod.
func (e *Event) subject() string {
	words := []string{string(e.Type), plain(e.Verb + e.Step)}
	if e.Type == FoundEvent {
		words = append(words, plain(e.Code))
	}
	if e.Pod != nil && (e.Type != StepEvent || e.Dir != "") { // other steps are for all pods
		words = append(words, e.Pod.String())
	}
	return strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), " ")
}

// result describes the outcome of an event, its repetitions and its call; a message comes last.
func (e *Event) result(now time.Time, dated bool) string {
	words := []string{e.outcome()}
	if e.Duration >= 0.0005 {
		words = append(words, took(e.Duration))
	}
	if e.Count > 1 && !e.First.IsZero() {
		words = append(words, fmt.Sprintf("%d times since %s", e.Count, stamp(e.First, now, dated)))
	}
	if e.CallID != "" {
		call := "call " + plain(e.CallID)
		switch n := len(e.CallIDs); {
		case n == 2:
			call += " and another one"
		case n > 2:
			call += fmt.Sprintf(" and %d others", n-1)
		}
		words = append(words, call)
	}
	text := strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), ", ")
	if e.Message == "" {
		return text
	}
	return strings.TrimPrefix(text+": "+e.message(), ": ")
}

// waits reports whether it is a call without an answer.
func (e *Event) waits() bool { return e.Type == CallEvent && e.ID == 0 && e.Count == 0 && e.Code == "" }

// outcome returns the result of a call or step.
func (e *Event) outcome() string {
	switch {
	case e.waits():
		return "waits"
	case e.Type != CallEvent && e.Type != StepEvent:
		return ""
	case e.Code == "":
		return "ok"
	}
	return "failed"
}

// message returns the message of an event, with the code of a failure.
func (e *Event) message() string {
	if e.Code != "" && e.Code != "failed" && (e.Type == CallEvent || e.Type == StepEvent) {
		return plain(e.Code + ": " + e.Message)
	}
	return plain(e.Message)
}

// WriteEvents prints the answer of GET /v1/events.
func WriteEvents(w io.Writer, d Events, now time.Time) error {
	if d.More {
		if _, err := fmt.Fprintln(w, "Older events are not shown: -n 0 shows all."); err != nil {
			return err
		}
	}
	t := &EventTable{}
	all := slices.Concat(d.Events, d.Waiting)
	if err := t.Write(w, all, now); err != nil {
		return err
	}
	text := ""
	if len(all) == 0 {
		text = "No such event.\n"
		if !d.Oldest.IsZero() {
			text = "No such event since " + clock(d.Oldest, now) + ", when the history begins.\n"
		}
	}
	_, err := io.WriteString(w, text+d.problems())
	return err
}

func (d Events) problems() (text string) {
	for _, p := range d.Problems {
		text += "Problem: " + plain(p) + "\n"
	}
	return text
}

// WriteCall prints the events of one call in order.
func WriteCall(w io.Writer, id string, d Events, now time.Time) error {
	var b strings.Builder
	all := slices.Concat(d.Events, d.Waiting)
	dated := otherDay(all, now)
	calls := slices.DeleteFunc(slices.Clone(all), func(e Event) bool { return e.Type != CallEvent })
	for i, c := range calls {
		if i > 0 && c.CallID == calls[i-1].CallID && c.Verb == calls[i-1].Verb {
			continue // flexdriver has asked the next flexd again
		}
		head := plain(c.Verb)
		if c.VG != "" {
			head += " of " + c.volume()
		}
		if c.Pod != nil {
			head += " for " + c.Pod.String()
		}
		fmt.Fprintf(&b, "Call %s: %s\n", plain(c.CallID), head)
		if c.Dir != "" {
			fmt.Fprintf(&b, "at %s\n", plain(c.Dir))
		}
		if c.Count > 1 && !c.First.IsZero() {
			fmt.Fprintf(&b, "%d calls failed alike from %s to %s; the last one:\n", c.Count, stamp(c.First, now, dated), stamp(c.Time, now, dated))
		}
	}
	own := id
	for _, c := range calls {
		if c.Answer == id {
			own = c.CallID
		}
	}
	type line struct {
		at   time.Time
		text string
	}
	var lines []line
	for _, e := range all {
		if e.Type != CallEvent {
			lines = append(lines, line{e.Time, e.forCall(own)})
			continue
		}
		begun := e.Time
		if !e.waits() {
			begun = e.Time.Add(-time.Duration(e.Duration * float64(time.Second)))
		}
		i := len(lines)
		for i > 0 && lines[i-1].at.After(begun) {
			i--
		}
		lines = slices.Insert(lines, i, line{begun, "received"})
		switch {
		case e.waits():
			lines = append(lines, line{now, "has waited " + took(now.Sub(begun).Seconds()) + " for its answer" + also(e.message())})
		case e.Code == "":
			lines = append(lines, line{e.Time, "answered after " + took(e.Duration) + ": ok"})
		default:
			lines = append(lines, line{e.Time, fmt.Sprintf("answered after %s, in kubelet's event [%s]: %s", took(e.Duration), plain(e.Answer), e.message())})
		}
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "%s%s  %s\n", stamp(l.at, now, dated), l.at.Format(".000"), strings.TrimRight(l.text, " "))
	}
	b.WriteString(d.problems())
	_, err := io.WriteString(w, b.String())
	return err
}

func also(text string) string {
	if text == "" {
		return ""
	}
	return "; " + text
}

// forCall describes an event among those of the call own.
func (e *Event) forCall(own string) string {
	if e.Type == FlexdEvent {
		return "flexd " + e.message()
	}
	text := plain(e.Step)
	switch e.Type {
	case StepEvent:
	case FoundEvent:
		text = "found " + plain(e.Code)
	default:
		text = strings.TrimSpace(string(e.Type) + " " + text)
	}
	if o := e.outcome(); o != "" {
		text += " " + o
	}
	if e.Duration >= 0.0005 {
		text += ", " + took(e.Duration)
	}
	others := slices.DeleteFunc(slices.Clone(e.CallIDs), func(c string) bool { return c == own })
	switch {
	case e.Type != StepEvent:
	case e.ServedCall(own) && len(others) > 0:
		text += fmt.Sprintf(" (also for call %s)", plain(strings.Join(others, ", ")))
	case e.ServedCall(own):
	case e.CallID != "":
		text += fmt.Sprintf(" (for call %s)", plain(e.CallID))
	default:
		text += " (by flexd itself)"
	}
	if e.Message != "" {
		text += ": " + e.message()
	}
	return text
}
