package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/flexd/flexd/internal/config"
	"github.com/sirupsen/logrus"
)

// newLog builds the one logger; everything else gets an entry of it.
func newLog(cfg *config.Config, w io.Writer) (*logrus.Entry, error) {
	level, err := logrus.ParseLevel(cfg.LogLevel)
	if err != nil {
		return nil, err
	}
	l := logrus.New()
	l.SetOutput(w)
	l.SetLevel(level)
	l.SetFormatter(&textFormatter{})
	if cfg.LogFormat == "json" {
		l.SetFormatter(jsonFormatter{&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano}})
	}
	return logrus.NewEntry(l), nil
}

// logTimeout is the time that a caller waits until its log line is written.
const logTimeout = time.Second

// A logWriter keeps some lines, and drops further ones, while its writer is blocked, for example by
// a journald or a disk that hangs: no call may wait for them. The logger calls it from one goroutine at
// a time.
type logWriter struct {
	lines   chan logLine
	last    chan struct{} // closed when the last line is written
	dropped int
	format  func(*logrus.Entry) ([]byte, error)
}

type logLine struct {
	text    []byte
	written chan struct{}
}

// newLogWriter replaces the writer of a logger.
func newLogWriter(log *logrus.Logger) *logWriter {
	l := &logWriter{lines: make(chan logLine, 1000), last: make(chan struct{}), format: log.Formatter.Format}
	close(l.last)
	w := log.Out
	go func() {
		for line := range l.lines {
			_, _ = w.Write(line.text)
			close(line.written)
		}
	}()
	return l
}

func (l *logWriter) Write(text []byte) (int, error) {
	line := logLine{bytes.Clone(text), make(chan struct{})}
	if l.dropped > 0 {
		missing, _ := l.format(&logrus.Entry{Time: time.Now(), Level: logrus.WarnLevel,
			Message: fmt.Sprintf("%d lines are missing here: the log was not read", l.dropped)})
		line.text = append(missing, text...)
	}
	select {
	case l.lines <- line:
	default:
		l.dropped++
		return len(text), nil
	}
	l.dropped = 0
	before := l.last
	l.last = line.written
	select {
	case <-before:
	default:
		return len(text), nil // it is waited for no more, until the writer has caught up
	}
	// The writer runs now and is nearly always done then, without a timer, which costs a
	// call more than the line itself.
	runtime.Gosched()
	select {
	case <-line.written:
		return len(text), nil
	default:
	}
	timer := time.NewTimer(logTimeout)
	defer timer.Stop()
	select {
	case <-line.written:
	case <-timer.C:
	}
	return len(text), nil
}

// A jsonFormatter writes durations with their units, as the text has them.
type jsonFormatter struct{ *logrus.JSONFormatter }

func (f jsonFormatter) Format(e *logrus.Entry) ([]byte, error) {
	with := *e
	with.Data = maps.Clone(e.Data)
	for k, v := range with.Data {
		if d, ok := v.(time.Duration); ok {
			with.Data[k] = d.String()
		}
	}
	return f.JSONFormatter.Format(&with)
}

// A textFormatter writes one line per entry for people: the time, the level, the volume, call and
// step, the message, and the other fields.
type textFormatter struct{}

var leading = []string{"volume", "call", "step"}

func (*textFormatter) Format(e *logrus.Entry) ([]byte, error) {
	var b bytes.Buffer
	value := func(key string) {
		b.WriteString(" " + key + "=" + logValue(e.Data[key]))
	}
	level := strings.ToUpper(strings.TrimSuffix(e.Level.String(), "ing"))
	fmt.Fprintf(&b, "%s %-5.5s", e.Time.Format("2006-01-02T15:04:05.000Z07:00"), level)
	for _, k := range leading {
		if _, ok := e.Data[k]; ok {
			value(k)
		}
	}
	b.WriteString("  " + strings.Map(printable, e.Message))
	var rest []string
	for k := range e.Data {
		if !slices.Contains(leading, k) {
			rest = append(rest, k)
		}
	}
	slices.Sort(rest)
	for i, k := range rest {
		if i == 0 {
			b.WriteByte(' ')
		}
		value(k)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// logValue quotes a value that would not be recognizable as one.
func logValue(v any) string {
	s, text := v.(string)
	if !text {
		s = fmt.Sprint(v)
	}
	if s == "" || strings.ContainsFunc(s, func(c rune) bool { return c == ' ' || c == '"' || c == '=' || !unicode.IsPrint(c) }) {
		return strconv.Quote(s)
	}
	return s
}

// printable keeps an entry on one line, whatever the source of its message.
func printable(c rune) rune {
	if unicode.IsPrint(c) {
		return c
	}
	return ' '
}
