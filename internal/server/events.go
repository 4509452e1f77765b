package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/flexd/flexd/internal/status"
)

// A History provides the events. Its methods are called concurrently.
type History interface {
	// Resolve finds the volumes that the target of a query names.
	Resolve(q *status.EventQuery)
	Events(ctx context.Context, q status.EventQuery) status.Events
	// EventsAfter returns a channel that is closed when there is an event after that id.
	EventsAfter(id uint64) <-chan struct{}
}

// The limits of readers of the history: for each user of the status socket, and for all but root.
const (
	userReads, otherReads     = 2, 1 // a search through all of it takes a processor for a second
	userFollows, otherFollows = 4, 8
)

// slowReader is how long a client that follows may not take an event before it is disconnected.
const slowReader = 10 * time.Second

// events answers with a part of the history, and with later events if the client follows.
func (s *Status) events(w http.ResponseWriter, r *http.Request, free func()) {
	q, follow, err := eventQuery(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	follow = follow && r.Method == http.MethodGet
	if follow {
		free() // it must not count as a request for hours
		release, ok := take(w, r, &s.follows)
		if !ok {
			return
		}
		defer release()
	}
	release, ok := take(w, r, &s.reads)
	if !ok {
		return
	}
	var doc status.Events
	func() {
		defer release() // also after a panic, and before a slow reader
		s.History.Resolve(&q)
		doc = s.History.Events(r.Context(), q)
	}()
	if follow {
		s.follow(w, r, q, doc)
		return
	}
	write(w, http.StatusOK, doc)
}

// follow writes the events as they happen, until the client or the daemon ends.
func (s *Status) follow(w http.ResponseWriter, r *http.Request, q status.EventQuery, doc status.Events) {
	ctl := http.NewResponseController(w)
	ctl.SetReadDeadline(time.Time{}) // of the whole request: the end of the client is noticed without
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	for {
		if doc.More && q.After > 0 {
			doc.Events = append([]status.Event{{Type: status.LostEvent, Code: "lost", Time: time.Now(), Message: "older events are not shown here: there were too many"}}, doc.Events...)
		}
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		for _, e := range doc.Events {
			if e.ID > 0 || e.Type == status.LostEvent { // a repetition that is still counted comes later
				enc.Encode(e)
			}
		}
		ctl.SetWriteDeadline(time.Now().Add(cmp.Or(s.slowReader, slowReader)))
		if _, err := w.Write(b.Bytes()); err != nil || ctl.Flush() != nil {
			return
		}
		q.After, q.Since, q.Limit = doc.Last, time.Time{}, 0
		select {
		case <-s.History.EventsAfter(doc.Last):
		case <-r.Context().Done():
			return
		}
		doc = s.History.Events(r.Context(), q)
	}
}

// eventQuery reads the parameters of a request.
func eventQuery(v url.Values) (q status.EventQuery, follow bool, err error) {
	number := func(name string) (n uint64) {
		if text := v.Get(name); text != "" && err == nil {
			if n, err = strconv.ParseUint(text, 10, 63); err != nil {
				err = fmt.Errorf("%s must be a number, not %q", name, text)
			}
		}
		return n
	}
	q.Target, q.Call = v.Get("target"), v.Get("call")
	q.After, q.Before, q.Limit = number("after"), number("before"), int(min(number("limit"), 1<<20))
	if text := v.Get("since"); text != "" && err == nil {
		if q.Since, err = status.ParseSince(text, time.Now()); err != nil {
			err = fmt.Errorf("since %w", err)
		}
	}
	if text := v.Get("follow"); text != "" && err == nil {
		if follow, err = strconv.ParseBool(text); err != nil {
			err = fmt.Errorf("follow must be true or false, not %q", text)
		}
	}
	return q, follow, err
}
