package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/status"
	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
)

// A story is a history of events with the ids 1, 2, ...
type story struct {
	mu      sync.Mutex
	last    uint64
	changed chan struct{}
	queries []status.EventQuery
}

func (s *story) Events(_ context.Context, q status.EventQuery) status.Events {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries = append(s.queries, q)
	d := status.Events{Node: "node-1", Last: s.last}
	for id := q.After + 1; id <= s.last; id++ {
		d.Events = append(d.Events, status.Event{ID: id, Type: status.StepEvent, Message: strings.Repeat("x", 1000)})
	}
	return d
}

func (*story) Resolve(*status.EventQuery) {}

func (s *story) EventsAfter(id uint64) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	c := s.changed
	if id < s.last {
		close(c)
		s.changed = nil
	}
	return c
}

func (s *story) add(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last += n
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// serveStory serves a history, and returns a client.
func serveStory(t *testing.T, past *story) (*http.Client, string) {
	path := socketPath(t)
	l, err := Listen(path, 0o660, "")
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&Status{Listener: l, Source: &source{}, History: past, Log: logrus.NewEntry(log), slowReader: 100 * time.Millisecond}).Serve(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}}, path
}

func TestEventQuery(t *testing.T) {
	t.Parallel()
	past := &story{}
	client, _ := serveStory(t, past)
	for _, row := range []struct {
		query string
		code  int
		want  status.EventQuery
	}{
		{"", 200, status.EventQuery{}},
		{"target=vg0/a%20b&limit=5", 200, status.EventQuery{Target: "vg0/a b", Limit: 5}},
		{"call=12&after=3&before=9", 200, status.EventQuery{Call: "12", After: 3, Before: 9}},
		{"since=2026-07-01T08:00:00Z", 200, status.EventQuery{Since: time.Date(2026, 7, 1, 8, 0, 0, 0, time.UTC)}},
		{"limit=99999999999999", 200, status.EventQuery{Limit: 1 << 20}},
		{"limit=-1", 400, status.EventQuery{}},
		{"after=x", 400, status.EventQuery{}},
		{"before=99999999999999999999", 400, status.EventQuery{}},
		{"since=yesterday", 400, status.EventQuery{}},
		{"follow=maybe", 400, status.EventQuery{}},
	} {
		past.queries = nil
		resp, err := client.Get("http://flexd/v1/events?" + row.query)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != row.code || !json.Valid(body) {
			t.Errorf("%s: %s %s", row.query, resp.Status, body)
		}
		if row.code == 200 {
			if diff := cmp.Diff(past.queries, []status.EventQuery{row.want}); diff != "" {
				t.Errorf("%s: -got +want:\n%s", row.query, diff)
			}
		}
	}
	resp, err := client.Post("http://flexd/v1/events", "", nil)
	if err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("%v, %v", resp, err)
	}
}

// Those who follow get each event once, take no request from others, and are bounded.
func TestFollow(t *testing.T) {
	t.Parallel()
	past := &story{last: 3}
	client, _ := serveStory(t, past)
	follow := func(after int) (*http.Response, func() uint64) {
		resp, err := client.Get(fmt.Sprintf("http://flexd/v1/events?follow=true&after=%d", after))
		if err != nil {
			t.Fatal(err)
		}
		dec := json.NewDecoder(resp.Body)
		return resp, func() uint64 {
			var e status.Event
			if err := dec.Decode(&e); err != nil {
				return 0
			}
			return e.ID
		}
	}
	var all []*http.Response
	var next []func() uint64
	for range userFollows {
		resp, id := follow(1)
		defer resp.Body.Close()
		all, next = append(all, resp), append(next, id)
	}
	for range 3 * userRequests { // followers take none
		resp, err := client.Get("http://flexd/healthz")
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v, %v", resp, err)
		}
		resp.Body.Close()
	}
	if resp, _ := follow(1); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one too many: %s", resp.Status)
	}
	go func() {
		for range 20 {
			past.add(5)
		}
	}()
	for _, id := range next {
		for want := uint64(2); want <= 103; want++ {
			if got := id(); got != want {
				t.Fatalf("event %d, want %d", got, want)
			}
		}
	}
	all[0].Body.Close() // makes room for another one
	resp, id := follow(102)
	defer resp.Body.Close()
	if got := id(); got != 103 {
		t.Errorf("%s, event %d", resp.Status, got)
	}
}

// A follower that takes nothing is disconnected, and its place is free again.
func TestSlowFollower(t *testing.T) {
	t.Parallel()
	past := &story{last: 5000} // 5 MB
	client, path := serveStory(t, past)
	for range userFollows {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "GET /v1/events?follow=true HTTP/1.1\r\nHost: flexd\r\n\r\n")
	}
	for {
		resp, err := client.Get("http://flexd/v1/events?follow=true&after=4999")
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		resp.Body.Close()
		if resp.StatusCode == 200 {
			if err != nil || !strings.Contains(line, `"id":5000`) {
				t.Errorf("%q, %v", line, err)
			}
			break
		}
	}
}
