package history

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/status"
)

// open opens a history that is closed at the end of the test.
func open(t testing.TB, dir string, size int64) *Log {
	log := logrus.New()
	log.SetOutput(io.Discard)
	l := Open(dir, size, logrus.NewEntry(log))
	t.Cleanup(func() {
		select {
		case <-l.ending:
		default:
			finish(l)
		}
	})
	return l
}

func finish(l *Log) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l.Close(ctx, nil)
}

func step(lv, name string, calls ...string) status.Event {
	return status.Event{Type: status.StepEvent, VG: "vg0", LV: lv, UUID: "uuid-" + lv, Step: name, CallIDs: calls, Duration: 0.01}
}

func call(lv, pod, id string) status.Event {
	return status.Event{Type: status.CallEvent, VG: "vg0", LV: lv, UUID: "uuid-" + lv, Verb: "mount", CallID: id,
		Pod: &status.EventPod{Namespace: "default", Name: pod, UID: "uid-" + pod}, Dir: "/pods/uid-" + pod}
}

// texts returns the volume, and the step or message, of each event.
func texts(d status.Events) (all []string) {
	for _, e := range d.Events {
		text := strings.TrimSpace(e.LV + " " + e.Verb + e.Step + e.Message)
		if e.Count > 1 {
			text += fmt.Sprintf(" x%d", e.Count)
		}
		all = append(all, text)
	}
	return all
}

func want(t *testing.T, l *Log, q status.EventQuery, want ...string) status.Events {
	t.Helper()
	d := l.Events(t.Context(), q)
	if diff := cmp.Diff(texts(d), want); diff != "" {
		t.Errorf("%+v: -got +want:\n%s", q, diff)
	}
	return d
}

// Events are there after a restart, and the ids increase.
func TestRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, 1<<20)
	l.Record(step("a", "activate", "1"))
	l.Record(call("a", "p", "1"))
	finish(l)
	before := want(t, l, status.EventQuery{}, "a activate", "a mount", "stops")
	for range 3 { // without an event of its own
		l = open(t, dir, 1<<20)
		finish(l)
	}
	l = open(t, dir, 1<<20)
	l.Record(step("b", "activate"))
	d := want(t, l, status.EventQuery{}, "a activate", "a mount", "stops", "stops", "stops", "stops", "b activate")
	if diff := cmp.Diff(d.Events[:3], before.Events); diff != "" {
		t.Error(diff)
	}
	if !slices.IsSortedFunc(d.Events, func(a, b status.Event) int { return int(a.ID) - int(b.ID) }) || d.Last != d.Events[6].ID {
		t.Errorf("the ids do not increase: %+v", d)
	}
	want(t, l, status.EventQuery{Limit: 2}, "stops", "b activate")
	want(t, l, status.EventQuery{After: d.Events[4].ID}, "stops", "b activate")
	want(t, l, status.EventQuery{Before: d.Events[1].ID}, "a activate")
	want(t, l, status.EventQuery{Since: time.Now().Add(time.Hour)})
	want(t, l, status.EventQuery{Since: d.Events[0].Time}, texts(d)...)
	want(t, l, status.EventQuery{After: d.Last + 1, Limit: 1}, "b activate") // an id of a history that is lost
	if d := want(t, l, status.EventQuery{Limit: 7}, texts(d)...); d.More || !d.Oldest.Equal(d.Events[0].Time) {
		t.Errorf("%+v", d)
	}
}

// The files are readable without a daemon, and show that flexd was killed.
func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, 1<<20)
	l.Started("1")
	l.Record(call("a", "p", "1"))
	for l.unwritten() != nil {
		time.Sleep(time.Millisecond)
	}
	next := open(t, dir, 1<<20) // of a flexd after kill -9
	next.Started("2")
	finish(next)
	last := open(t, dir, 1<<20)
	last.Started("3")
	finish(last)
	got, err := Read(t.Context(), dir, status.EventQuery{})
	if diff := cmp.Diff(texts(got), []string{"starts, version 1", "a mount", "starts, version 2; the last one was killed, or the node went down without it", "stops", "starts, version 3", "stops"}); diff != "" || err != nil {
		t.Errorf("%v, -got +want:\n%s", err, diff)
	}
	if got, err := Read(t.Context(), dir, status.EventQuery{Target: "default/p", Limit: 1}); len(got.Events) != 1 || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Read(t.Context(), filepath.Join(dir, "none"), status.EventQuery{}); err == nil {
		t.Error("a directory that does not exist is read")
	}
}

// The files keep their limit and have the newest events, in order and without a gap.
func TestBound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const size = 64 << 10
	l := open(t, dir, size)
	const n = 2000
	for i := range n {
		l.Record(step(fmt.Sprint(i), "activate", "1"))
		if i%50 == 0 {
			for l.unwritten() != nil {
				time.Sleep(time.Millisecond)
			}
			total := int64(0)
			files, _ := os.ReadDir(dir)
			for _, f := range files {
				if st, err := f.Info(); err == nil {
					total += st.Size()
				}
			}
			if total > size {
				t.Fatalf("%d bytes", total)
			}
		}
	}
	finish(l)
	l = open(t, dir, size)
	d := l.Events(t.Context(), status.EventQuery{})
	if len(d.Events) < 150 || len(d.Events) >= MaxEvents {
		t.Fatalf("%d events", len(d.Events))
	}
	for i, e := range d.Events[:len(d.Events)-1] {
		if e.LV != fmt.Sprint(n-len(d.Events)+1+i) {
			t.Fatalf("event %d is of %s", i, e.LV)
		}
	}
}

// What is no event is ignored, wherever it is, and the events around it are found.
func TestGarbage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, 1<<20)
	l.Record(step("a", "activate"))
	finish(l)
	good, err := os.ReadFile(l.file.newer())
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(good, []byte("\n")) // an empty one, the step, the stop
	for name, garbage := range map[string]string{
		"half a line":     `{"id":17,"type":"st`,
		"zeros":           strings.Repeat("\x00", 300<<10),
		"zeros, a line":   strings.Repeat("\x00", 64<<10-1) + "\n",
		"not JSON":        "hello\n{\"id\":}\n[1]\n{\"id\":18446744073709551616}\n{\"id\":5,\"time\":7}\n",
		"the last id":     "{\"id\":18446744073709551615}\n",
		"the same again":  string(lines[1]),
		"a wide newline":  "\r\n\n\n\r\n",
		"a line too long": `{"id":4,"message":"` + strings.Repeat("x", 200<<10) + "\"}\n",
	} {
		end := garbage
		if name == "the same again" {
			end = string(lines[2])
		}
		if err := os.WriteFile(l.file.newer(), slices.Concat(lines[1], []byte(garbage), []byte("\n"), lines[2], []byte(end)), 0o600); err != nil {
			t.Fatal(err)
		}
		next := open(t, dir, 1<<20)
		next.Record(step("b", "activate"))
		want(t, next, status.EventQuery{}, "a activate", "stops", "b activate")
		finish(next)
		third := open(t, dir, 1<<20)
		if d := want(t, third, status.EventQuery{}, "a activate", "stops", "b activate", "stops"); t.Failed() {
			t.Fatalf("%s: %+v", name, d)
		}
		finish(third)
	}
}

// While the files cannot be written the newest events are kept in memory, and the others
// are counted. Once they can be written, they are.
func TestNotWritable(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "gone")
	log := logrus.New()
	log.SetOutput(io.Discard)
	l := Open(dir, 1<<20, logrus.NewEntry(log))
	l.retry = time.Millisecond
	const n = 3 * keepUnsaved
	for i := range n {
		l.Record(step(fmt.Sprint(i), "activate"))
	}
	for l.Problem() == "" {
		time.Sleep(time.Millisecond)
	}
	d := l.Events(t.Context(), status.EventQuery{})
	if first, last := d.Events[0], d.Events[len(d.Events)-1]; first.Type != status.LostEvent || first.Count != n-keepUnsaved+1 || last.LV != fmt.Sprint(n-1) || len(d.Problems) != 1 {
		t.Errorf("%d events, the first is %+v, the last %+v; problems: %q", len(d.Events), first, last, d.Problems)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for l.Problem() != "" || l.unwritten() != nil {
		time.Sleep(time.Millisecond)
	}
	finish(l)
	l = open(t, dir, 1<<20)
	again := l.Events(t.Context(), status.EventQuery{})
	if diff := cmp.Diff(again.Events[:len(again.Events)-1], d.Events[1:]); diff != "" && len(again.Events) < MaxEvents {
		t.Error(diff)
	}
	var found bool
	l.file.read(func(line []byte) bool { found = found || bytes.Contains(line, []byte(`"type":"lost"`)); return true })
	if !found {
		t.Error("the files do not show that events are missing")
	}
}

// If the disk hangs, events in memory are shown at once, or after a moment.
func TestHung(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, 1<<20)
	l.Record(step("a", "activate"))
	finish(l)
	l = open(t, dir, 1<<20)
	l.Record(step("b", "activate"))
	for range cap(readers) {
		readers <- struct{}{}
	}
	defer func() {
		for range cap(readers) {
			<-readers
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	d := l.Events(ctx, status.EventQuery{})
	if diff := cmp.Diff(texts(d), []string{"b activate"}); diff != "" || len(d.Problems) != 1 {
		t.Errorf("%s, problems %q", diff, d.Problems)
	}
	// A follower needs no files.
	if d := l.Events(ctx, status.EventQuery{After: d.Last - 1}); len(d.Events) != 1 || len(d.Problems) != 0 {
		t.Errorf("%+v", d)
	}
	if err := os.Remove(l.file.newer()); err != nil {
		t.Fatal(err)
	}
}

// A fifo in the place of a file blocks nothing.
func TestFifo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "events.jsonl"), 0o600); err != nil {
		t.Skip(err)
	}
	l := open(t, dir, 1<<20)
	l.Record(step("a", "activate"))
	for l.Problem() == "" {
		time.Sleep(time.Millisecond)
	}
	if d := want(t, l, status.EventQuery{}, "a activate"); len(d.Problems) != 2 {
		t.Errorf("%q", d.Problems)
	}
}

// Without files the newest events are kept.
func TestMemoryOnly(t *testing.T) {
	t.Parallel()
	l := open(t, "/nowhere", 0)
	for i := range 2 * keepUnsaved {
		l.Record(step(fmt.Sprint(i), "activate"))
	}
	d := l.Events(t.Context(), status.EventQuery{})
	if len(d.Events) != keepUnsaved || d.Events[0].LV != fmt.Sprint(keepUnsaved) || l.Problem() != "" || len(d.Problems) > 0 {
		t.Errorf("%d events, the first %+v, problems %q", len(d.Events), d.Events[0], d.Problems)
	}
}

// Targets select as in flexd status, and with a call its steps.
func TestTargets(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir(), 1<<20)
	l.Record(step("a", "activate", "1", "2"))
	l.Record(step("a", "fsck", "1"))
	l.Record(call("a", "p", "1"))
	l.Record(call("a", "q", "2"))
	l.Record(step("b", "activate", "3"))
	l.Record(call("b", "p", "3"))
	l.Record(step("a", "deactivate"))
	ofA := []string{"a activate", "a fsck", "a mount", "a mount", "a deactivate"}
	all := []string{"a activate", "a fsck", "a mount", "a mount", "b activate", "b mount", "a deactivate"}
	for target, found := range map[string][]string{
		"vg0": all, "": all, "vg0/a": ofA, "uuid-a": ofA,
		"default/q": {"a activate", "a mount"}, "uid-q": {"a activate", "a mount"}, "/pods/uid-q": {"a activate", "a mount"}, "/pods/uid-q/x": {"a activate", "a mount"},
		"default/p": {"a activate", "a fsck", "a mount", "b activate", "b mount"},
		"vg1":       nil, "default/r": nil, "/": nil, "/pods": nil,
	} {
		want(t, l, status.EventQuery{Target: target}, found...)
	}
	if d := l.Events(t.Context(), status.EventQuery{Target: "/dev/loop7", UUIDs: []string{"uuid-b"}}); len(d.Events) != 2 {
		t.Errorf("%+v", d.Events)
	}
}

// The story of a call has what it waited for: its steps, those for other calls, and flexd's
// restart. It is there before the answer.
func TestStory(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir(), 1<<20)
	ended := l.Begin(call("a", "p", "1"))
	l.Record(step("a", "activate", "2"))
	l.Record(step("b", "activate", "3"))
	l.Record(status.Event{Type: status.FlexdEvent, Message: "starts"})
	l.Record(step("a", "mount", "1"))
	l.Record(call("a", "q", "2"))
	if d := want(t, l, status.EventQuery{Call: "1"}, "a activate", "starts", "a mount"); len(d.Waiting) != 1 || d.Waiting[0].CallID != "1" {
		t.Errorf("%+v", d)
	}
	if d := l.Events(t.Context(), status.EventQuery{Target: "default/p"}); len(d.Waiting) != 1 {
		t.Errorf("%+v", d)
	}
	if d := l.Events(t.Context(), status.EventQuery{Target: "vg0/b"}); len(d.Waiting) != 0 {
		t.Errorf("%+v", d)
	}
	answer := call("a", "p", "1")
	answer.Duration, answer.Code, answer.Message, answer.Answer = 10, "failed", ": no", "abc"
	l.Record(answer)
	ended()
	l.Record(step("a", "deactivate"))
	for _, id := range []string{"1", "abc"} {
		if d := want(t, l, status.EventQuery{Call: id}, "a activate", "starts", "a mount", "a mount: no"); len(d.Waiting) != 0 {
			t.Errorf("%+v", d)
		}
	}
	want(t, l, status.EventQuery{Call: "4"})
}

// A failure that kubelet repeats is counted. It is recorded at once, and then ever more
// seldom. What differs is recorded.
func TestRepeats(t *testing.T) {
	t.Parallel()
	r := newRepeats()
	now := time.Now()
	recorded, total := 0, 0
	attempt := func(events ...status.Event) {
		for _, e := range events {
			if e, ok := r.pass(e, now); ok {
				recorded++
				total += max(e.Count, 1)
			}
		}
	}
	failure := call("a", "p", "1")
	failure.Code, failure.Message = "busy", "pid 1 has it since 12:00"
	for i := range 7 * 24 * 30 { // a week, every two minutes
		failure.Message = fmt.Sprintf("pid %d has it since 12:%02d", i, i%60)
		attempt(step("a", "activate", "1"), failure, step("a", "deactivate"))
		now = now.Add(2 * time.Minute)
	}
	if most := 3 * (7*24 + 10); recorded > most || recorded < most/2 {
		t.Errorf("%d events of one volume in a week, at most %d are expected", recorded, most)
	}
	for _, e := range r.flush() {
		total += max(e.Count, 1)
	}
	if total != 3*7*24*30 {
		t.Errorf("%d of %d attempts are counted", total, 3*7*24*30)
	}

	recorded = 0
	attempt(failure)
	failure.Message = "something else"
	attempt(failure, failure)
	if recorded != 2 {
		t.Errorf("%d of two different failures are recorded", recorded)
	}
	recorded = 0
	for range 100 {
		attempt(step("b", "activate"), call("b", "p", "1"))
	}
	if recorded != 200 {
		t.Errorf("%d of 200 events of a volume without failures are recorded", recorded)
	}
	now = now.Add(2 * forget)
	if all := r.sweep(now); len(all) != 1 || len(r.seen)+len(r.failing) > 0 {
		t.Errorf("after the failures: %+v, %+v", all, r)
	}
	for i := range 3 * maxRepeats {
		failure.LV = fmt.Sprint(i)
		r.sweep(now)
		attempt(failure, failure)
		if len(r.seen) > maxRepeats+2 {
			t.Fatalf("%d repetitions are kept", len(r.seen))
		}
	}
}

// A repetition that is only counted is shown, and has the ids of its calls.
func TestPending(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, 1<<20)
	for i := range 4 {
		failure := call("a", "p", fmt.Sprint("c", i))
		failure.Code = "busy"
		l.Record(failure)
	}
	time.Sleep(2 * time.Millisecond)
	l.Record(step("b", "activate"))
	want(t, l, status.EventQuery{}, "a mount", "a mount x3", "b activate")
	want(t, l, status.EventQuery{Call: "c2"}, "a mount x3")
	finish(l)
	l = open(t, dir, 1<<20)
	want(t, l, status.EventQuery{Call: "c2"}, "a mount x3")
}

// Those who follow get each event once.
func TestChanged(t *testing.T) {
	t.Parallel()
	l := open(t, t.TempDir(), 1<<20)
	const n = 5000
	last := l.Events(t.Context(), status.EventQuery{}).Last
	var read atomic.Int64
	go func() {
		for i := range n {
			l.Record(step(fmt.Sprint(i), "activate"))
			if i%100 == 0 {
				for l.unwritten() != nil || int(read.Load()) < i-MaxEvents/2 { // an answer has no more
					time.Sleep(time.Millisecond)
				}
			}
		}
	}()
	for got := 0; got < n; {
		<-l.Changed(last)
		d := l.Events(t.Context(), status.EventQuery{After: last})
		for _, e := range d.Events {
			if e.LV != fmt.Sprint(got) {
				t.Fatalf("event %d is of %s", got, e.LV)
			}
			got++
		}
		last = d.Last
		read.Store(int64(got))
	}
}

// A file of a size that it does not have room for delays neither the start nor a query.
func TestSparse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, 1<<20)
	l.Record(step("a", "activate"))
	finish(l)
	lines, err := os.ReadFile(l.file.newer())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(l.file.newer(), 1<<40-int64(len(lines))); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(l.file.newer(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(lines); err != nil {
		t.Fatal(err)
	}
	f.Close()
	begun := time.Now()
	next := open(t, dir, 1<<20)
	for len(next.Events(t.Context(), status.EventQuery{}).Events) == 0 && time.Since(begun) < 2*time.Minute { // a query ends after a few seconds, on a busy machine without a result
		time.Sleep(time.Second)
	}
	want(t, next, status.EventQuery{}, "a activate", "stops")
	finish(next)
	if took := time.Since(begun); took > 2*time.Minute { // the whole file takes longer
		t.Errorf("it took %v", took)
	}
}

// FuzzBackwards reads any file backwards: it has the lines that a reader from the beginning
// has, but for those that are too long.
func FuzzBackwards(f *testing.F) {
	f.Add([]byte("a\nb\n"), uint16(0))
	f.Add([]byte("{\"id\":1}\n\n{\"id\":2"), uint16(1<<15))
	f.Fuzz(func(t *testing.T, data []byte, repeat uint16) {
		if len(data) > 1000 {
			return
		}
		data = bytes.Repeat(data, 1+int(repeat)%300)
		var got, want []string
		if _, err := backwards(bytes.NewReader(data), func(line []byte) bool {
			got = append(got, string(line))
			lineID(line)
			return true
		}); err != nil {
			t.Fatal(err)
		}
		long := false
		for line := range bytes.SplitSeq(data, []byte("\n")) {
			long = long || len(line) > maxLine
			if len(line) > 0 {
				want = append(want, string(line))
			}
		}
		slices.Reverse(got)
		if diff := cmp.Diff(got, want); diff != "" && !long {
			t.Error(diff)
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	l := open(b, b.TempDir(), 16<<20)
	e := step("a", "activate", "1")
	b.ReportAllocs()
	for b.Loop() {
		l.Record(e)
	}
}

// The newest events of a large history, and a search through all of it.
func BenchmarkEvents(b *testing.B) {
	dir := b.TempDir()
	l := open(b, dir, 16<<20)
	for i := range 60000 {
		l.Record(call("a", fmt.Sprint(i), "1"))
		if i%500 == 0 {
			for l.unwritten() != nil {
				time.Sleep(time.Millisecond)
			}
		}
	}
	for name, q := range map[string]status.EventQuery{"newest": {Limit: 100}, "all": {Target: "none"}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				l.Events(b.Context(), q)
			}
		})
	}
}

// The end of flexd is in the files, whatever the writer waits for at that moment: otherwise the
// next start reports a kill.
func TestEndWritten(t *testing.T) {
	for range 200 {
		l := open(t, t.TempDir(), 1<<20)
		finish(l)
		if newest, _, err := l.file.last(); err != nil || !orderlyEnd(newest) {
			t.Fatalf("the last event is %+v, %v", newest, err)
		}
	}
}
