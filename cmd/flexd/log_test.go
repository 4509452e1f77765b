package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/config"
)

func TestTextLog(t *testing.T) {
	for _, row := range []struct {
		fields  logrus.Fields
		message string
		want    string
	}{
		{nil, "flexd is ready", "INFO   flexd is ready"},
		{logrus.Fields{"took": 12 * time.Millisecond, "step": "mkfs", "call": "c1", "volume": "vg0/a"}, "done", "INFO  volume=vg0/a call=c1 step=mkfs  done  took=12ms"},
		{logrus.Fields{"error": errors.New("a \"b\"\nc"), "empty": ""}, "one\nline\x1b[31m", `INFO   one line [31m  empty="" error="a \"b\"\nc"`},
	} {
		log, written := quiet(t)
		log.WithFields(row.fields).Info(row.message)
		_, line, _ := strings.Cut(strings.TrimSuffix(written.String(), "\n"), " ")
		if d := cmp.Diff(row.want, line); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
}

func TestJSONLog(t *testing.T) {
	var b strings.Builder
	log, err := newLog(&config.Config{Log: config.Log{LogLevel: "info", LogFormat: "json"}}, &b)
	if err != nil {
		t.Fatal(err)
	}
	log.WithFields(logrus.Fields{"took": 1500 * time.Millisecond, "pods": 3}).WithError(errors.New("a")).Info("done")
	var line map[string]any
	if err := json.Unmarshal([]byte(b.String()), &line); err != nil {
		t.Fatal(err)
	}
	delete(line, "time")
	if d := cmp.Diff(map[string]any{"took": "1.5s", "pods": 3., "error": "a", "level": "info", "msg": "done"}, line); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// A log that is not read blocks no goroutine; it counts the lines that it drops.
func TestLogNotRead(t *testing.T) {
	r, w := io.Pipe()
	log, err := newLog(&config.Config{Log: config.Log{LogLevel: "info", LogFormat: "json"}}, w)
	if err != nil {
		t.Fatal(err)
	}
	log.Logger.SetOutput(newLogWriter(log.Logger))
	const written = 1100
	for i := range written {
		log.Infof("line %d", i)
	}
	lines := json.NewDecoder(r)
	next := func() string {
		var line struct{ Msg string }
		if err := lines.Decode(&line); err != nil {
			t.Fatal(err)
		}
		return line.Msg
	}
	for i := range 1000 {
		if got, want := next(), fmt.Sprintf("line %d", i); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	go log.Info("later")
	kept := 1000
	got := next()
	for ; got == fmt.Sprintf("line %d", kept); got = next() {
		kept++
	}
	if got != fmt.Sprintf("%d lines are missing here: the log was not read", written-kept) {
		t.Errorf("got %q after %d lines", got, kept)
	}
	if got := next(); got != "later" {
		t.Errorf("got %q", got)
	}
}
