package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/history"
	"github.com/flexd/flexd/internal/server"
	"github.com/flexd/flexd/internal/status"
)

// A recorded is a daemon with nothing but a history.
type recorded struct {
	server.Source
	*history.Log
}

func (recorded) Resolve(*status.EventQuery)              {}
func (r recorded) EventsAfter(id uint64) <-chan struct{} { return r.Changed(id) }

// More events than one answer has are all printed, once and in order, from the daemon and
// from its files.
func TestEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := logrus.New()
	log.SetOutput(io.Discard)
	past := history.Open(dir, 16<<20, logrus.NewEntry(log))
	const n = 2*history.MaxEvents + 10
	for i := range n {
		past.Record(status.Event{Type: status.StepEvent, VG: "vg0", LV: fmt.Sprint("lv", i), Step: "activate", CallID: fmt.Sprint("c", i)})
		for i%500 == 0 || i == n-1 { // no more than are kept in memory until they are written
			d, err := history.Read(t.Context(), dir, status.EventQuery{Limit: 1})
			if err != nil {
				t.Fatal(err)
			}
			if len(d.Events) == 1 && d.Events[0].CallID == fmt.Sprint("c", i) {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	socket := filepath.Join(dir, "s")
	l, err := server.Listen(socket, 0o600, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&server.Status{Listener: l, History: recorded{nil, past}, Log: logrus.NewEntry(log)}).Serve(ctx)
	}()
	ask := func(args ...string) (lines []string, stderr string, code int) {
		var out, errs strings.Builder
		code = run(append([]string{"flexd"}, args...), &out, &errs)
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line, "activate") {
				lines = append(lines, line)
			}
		}
		return lines, errs.String(), code
	}
	for _, source := range [][]string{{"--socket", socket}, {"--state-dir", dir}} {
		for args, want := range map[string]int{"-n 0": n, "-n 1500": 1500, "": 100, "-n 7": 7, "--since 1h": n, "--since 1h -n 3": 3, "vg0/lv7": 1, "vg0": 100, "vg1": 0} {
			got, stderr, code := ask(append(append([]string{"events"}, source...), strings.Fields(args)...)...)
			if code != 0 || len(got) != want {
				t.Errorf("%v %s: exit status %d, %d events, want %d: %s", source, args, code, len(got), want, stderr)
				continue
			}
			if strings.HasPrefix(args, "vg0/") || want == 0 {
				continue
			}
			for i, line := range got {
				if !strings.Contains(line, fmt.Sprintf(" vg0/lv%d ", n-want+i)) {
					t.Fatalf("%v %s: line %d is %s", source, args, i, line)
				}
			}
		}
		if got, stderr, code := ask(append([]string{"logs", "c5"}, source...)...); code != 0 || len(got) != 1 {
			t.Errorf("%v: exit status %d: %v %s", source, code, got, stderr)
		}
		if _, stderr, code := ask(append([]string{"logs", "none"}, source...)...); code != exitFailed || !strings.Contains(stderr, "the history has no call none; it begins ") {
			t.Errorf("%v: exit status %d: %s", source, code, stderr)
		}
	}
	for args, want := range map[string]string{
		"events -n -1": "must not be negative", "events --since yesterday": "must be a duration", "events a b": "unexpected argument", "logs": "name a call",
		"events -f --state-dir " + dir: "needs a daemon",
	} {
		if _, stderr, code := ask(strings.Fields(args)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit status %d: %s", args, code, stderr)
		}
	}
	cancel()
	<-ended
	if _, stderr, code := ask("events", "--socket", socket); code != exitUnknown || !strings.Contains(stderr, "--state-dir /var/lib/flexd") {
		t.Errorf("exit status %d: %s", code, stderr)
	}
	past.Close(context.Background(), nil)
}
