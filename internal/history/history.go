// Package history keeps the events of volumes, across restarts and within a limit: the newest ones
// in memory, from which they are written to two files. No caller waits for these files, which may be
// on a disk that is full or hangs.
package history

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/boottime"
	"github.com/flexd/flexd/internal/status"
)

const (
	maxMessage  = 2000 // bytes, as the next ones
	maxPath     = 4096
	maxWord     = 200
	maxCalls    = 32   // of one event
	keepWritten = 200  // events in memory that are in the files, too: for clients that follow
	keepUnsaved = 1000 // events in memory that are not
)

// A Log is the history.
type Log struct {
	log    *logrus.Entry
	file   *file         // nil = memory only
	cut    bool          // the last flexd recorded no end
	retry  time.Duration // after an attempt to write has failed; it doubles
	wakeUp chan struct{}
	ending chan struct{}
	ended  chan struct{}

	mu      sync.Mutex             // guards the following fields; never held over I/O
	next    uint64                 // id
	recent  []*status.Event        // never change; the oldest first
	written uint64                 // the newest id in the files
	writing time.Time              // since when the files are being written; zero = they are not
	failed  error                  // of the last attempt to write
	waiting map[*status.Event]bool // calls without an answer
	repeats repeats
	changed chan struct{} // closed at the next event; nil = nothing waits for it
}

// Open returns the history in the files of a directory, which together have at most size
// bytes; 0 = it is kept in memory only.
func Open(dir string, size int64, log *logrus.Entry) *Log {
	l := &Log{
		log: log, retry: time.Second, wakeUp: make(chan struct{}, 1), ending: make(chan struct{}), ended: make(chan struct{}),
		next: uint64(boottime.Now().Milliseconds()) + 1, waiting: map[*status.Event]bool{}, repeats: newRepeats(),
	}
	if size == 0 {
		close(l.ended)
		return l
	}
	l.file = newFile(dir, size)
	newest, last, err := l.file.last()
	if err != nil {
		log.WithError(err).Warn("the history of earlier times cannot be read")
	}
	// Without an earlier history the ids begin at the time since boot: they are above those
	// of an earlier flexd, which a client may still have.
	if last > 0 {
		l.next, l.cut = last+1, !orderlyEnd(newest)
	}
	l.written = l.next - 1
	go l.write()
	return l
}

// Read returns the events that a query selects in the files of a directory, without a daemon.
func Read(ctx context.Context, dir string, q status.EventQuery) (status.Events, error) {
	if _, err := os.Stat(dir); err != nil {
		return status.Events{}, err
	}
	l := &Log{file: newFile(dir, 0), next: 1<<63 - 1}
	d := l.Events(ctx, q)
	d.Last = 0
	return d, nil
}

// The events of flexd itself. The next start records that the end is missing.
const (
	starts = "starts, version "
	stops  = "stops"
	ends   = "ends: "
)

// Started records the start of flexd.
func (l *Log) Started(version string) {
	text := starts + version
	if l.cut {
		text += "; the last one was killed, or the node went down without it"
	}
	l.Record(status.Event{Type: status.FlexdEvent, Message: text})
}

// orderlyEnd reports whether an event is the last one of an orderly end.
func orderlyEnd(e status.Event) bool {
	return e.Type == status.FlexdEvent && (e.Message == stops || strings.HasPrefix(e.Message, ends))
}

// Record adds an event. It returns at once.
func (l *Log) Record(e status.Event) {
	now := time.Now()
	e.Time = now.UTC().Truncate(time.Millisecond)
	e.Duration = math.Round(e.Duration*1e4) / 1e4
	e.Message, e.Dir = clip(e.Message, maxMessage), clip(e.Dir, maxPath)
	e.Verb, e.CallID = clip(e.Verb, maxWord), clip(e.CallID, maxWord)
	if e.CallID == "" && len(e.CallIDs) > 0 {
		e.CallID = e.CallIDs[0]
	}
	if e.CallIDs = e.CallIDs[:min(len(e.CallIDs), maxCalls)]; len(e.CallIDs) == 1 {
		e.CallIDs = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.repeats.sweep(now) {
		l.add(e)
	}
	if e, ok := l.repeats.pass(e, now); ok {
		l.add(e)
	}
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}

// add needs mu.
func (l *Log) add(e status.Event) {
	e.ID = l.next
	l.next++
	l.recent = append(l.recent, &e)
	if l.file == nil {
		l.written = e.ID
	}
	l.trim()
	select {
	case l.wakeUp <- struct{}{}:
	default:
	}
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// trim bounds the events in memory. It needs mu.
func (l *Log) trim() {
	keep, n := keepWritten, 0
	if l.file == nil {
		keep = keepUnsaved
	}
	for len(l.recent)-n > keep && l.recent[n].ID <= l.written {
		n++
	}
	l.recent = slices.Delete(l.recent, 0, n)
	if len(l.recent) <= max(keep, keepUnsaved) {
		return
	}
	// One event replaces the lost ones, with the id of the last one.
	lost := status.Event{Type: status.LostEvent, Code: "lost", Time: l.recent[0].Time, ID: l.recent[1].ID, Count: 2}
	if first := l.recent[0]; first.Type == status.LostEvent && first.ID > l.written {
		lost.Count = first.Count + 1
	}
	lost.Message = fmt.Sprintf("%d events are missing here: they could not be written", lost.Count)
	l.recent = slices.Delete(l.recent, 0, 1)
	l.recent[0] = &lost
}

// Begin shows a call that waits for its answer, until done is called.
func (l *Log) Begin(e status.Event) (done func()) {
	e.Type, e.Time = status.CallEvent, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[&e] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiting, &e)
	}
}

// Changed returns a channel that is closed when there is an event after the one with this
// id.
func (l *Log) Changed(after uint64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next-1 > after {
		return ended
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

var ended = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// write writes the events until Close.
func (l *Log) write() {
	defer close(l.ended)
	pause := time.Duration(0)
	for end := false; ; {
		batch := l.unwritten()
		if len(batch) == 0 {
			if end {
				return
			}
			select {
			case <-l.wakeUp:
			case <-l.ending:
				end = true // the last event was recorded before
			}
			continue
		}
		err := l.file.append(batch)
		l.wrote(batch, err)
		if err == nil {
			pause = 0
			continue
		}
		pause = min(max(2*pause, l.retry), time.Minute)
		select {
		case <-time.After(pause):
		case <-l.ending:
			return
		}
	}
}

// maxBatch is the number of events that are written at once.
const maxBatch = 100

// unwritten returns the oldest events that are not in the files.
func (l *Log) unwritten() []*status.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.recent, func(e *status.Event) bool { return e.ID > l.written })
	if i < 0 {
		return nil
	}
	l.writing = time.Now()
	return slices.Clone(l.recent[i:min(i+maxBatch, len(l.recent))])
}

// wrote records the result of an attempt to write.
func (l *Log) wrote(batch []*status.Event, err error) {
	l.mu.Lock()
	before := l.failed
	l.failed, l.writing = err, time.Time{}
	if err == nil {
		l.written = batch[len(batch)-1].ID
		l.trim()
	}
	l.mu.Unlock()
	switch {
	case err != nil && before == nil:
		l.log.WithError(err).Warn("the history cannot be written: new events are kept in memory")
	case err == nil && before != nil:
		l.log.Info("the history can be written again")
	}
}

// slowWrite is how long an attempt to write lasts before it is a problem.
const slowWrite = 5 * time.Second

// Problem returns why events cannot be written, or "".
func (l *Log) Problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.failed != nil:
		return fmt.Sprintf("the history (flexd events) cannot be written: %v; the newest %d events are kept in memory", l.failed, keepUnsaved)
	case !l.writing.IsZero() && time.Since(l.writing) > slowWrite:
		return fmt.Sprintf("the history (flexd events) cannot be written: %s has not answered since %s; the newest %d events are kept in memory",
			l.file.dir, l.writing.Format(time.TimeOnly), keepUnsaved)
	}
	return ""
}

// Close records the end of flexd and writes the unwritten events, if the disk takes them before ctx
// ends.
func (l *Log) Close(ctx context.Context, why error) {
	last := status.Event{Type: status.FlexdEvent, Message: stops}
	if why != nil {
		last.Code, last.Message = "failed", ends+why.Error()
	}
	l.mu.Lock()
	for _, e := range l.repeats.flush() {
		l.add(e)
	}
	l.mu.Unlock()
	l.Record(last)
	close(l.ending)
	select {
	case <-l.ended:
	case <-ctx.Done():
	}
}
