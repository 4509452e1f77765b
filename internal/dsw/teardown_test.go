package dsw

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

func TestTeardowns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "notes")
	file := filepath.Join(filepath.Dir(dir), "teardowns")
	s, now := open(t, dir), time.Hour
	down := func(dir string, started time.Duration) {
		t.Helper()
		if err := s.TornDown(dir, started, now); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(when string, want map[string]time.Duration) {
		t.Helper()
		if got := s.Teardowns(now); !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
	}
	down("/a", now-3*time.Minute)
	down("/a", now-2*time.Minute)
	down("/a", now-5*time.Minute) // a late one
	down("/b", now)
	want := map[string]time.Duration{"/a": now - 2*time.Minute, "/b": now}
	holds("in memory", want)
	s = open(t, dir)
	holds("after a restart", want)

	// Killed at any point of writing: what was written before stands, and what is
	// written next is not lost in a torn line.
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) + 1 {
		if err := os.WriteFile(file, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir)
		before := s.Teardowns(now)
		if lines := strings.Count(string(whole[:n]), "\n"); lines == 3 && !maps.Equal(before, want) || lines >= 1 && before["/a"] == 0 {
			t.Errorf("cut after %d bytes: %v", n, before)
		}
		down("/c", now)
		down("/d", now)
		before["/c"], before["/d"] = now, now
		s = open(t, dir)
		holds(fmt.Sprint("cut after ", n), before)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	down("/e", now)
	if s = open(t, dir); s.Teardowns(now)["/e"] != now {
		t.Error("the file was removed, and is not written again")
	}
	if other, err := Open(dir, "another boot"); err != nil || len(other.Teardowns(now)) > 0 {
		t.Errorf("another boot: %v, %v", other.Teardowns(now), err)
	}
	now += targetMemory + time.Second
	holds("when no flexdriver can be so late", map[string]time.Duration{})
}

// A teardown that could not be written, because runDir was full, is written when there is room
// again: at the next change, or when the problems are asked for. An older mount call must not win
// after a restart.
func TestTeardownsUnwritten(t *testing.T) {
	now := time.Hour
	for _, row := range []struct {
		about string
		then  func(s *Store) error
	}{
		{"another unmount", func(s *Store) error { return s.TornDown("/b", now, now) }},
		{"the same call again", func(s *Store) error { return s.TornDown("/a", now, now) }},
		{"a late unmount", func(s *Store) error { return s.TornDown("/a", now-time.Minute, now) }},
		{"another note", func(s *Store) error { return s.Put(claim(volume.Held)) }},
		{"in the background", func(s *Store) error {
			if problems := s.Problems(); len(problems) > 0 {
				return fmt.Errorf("%q", problems)
			}
			return nil
		}},
	} {
		for _, block := range []string{"teardowns", "teardowns.tmp"} { // a directory there prevents an append, or a rewrite
			dir := filepath.Join(t.TempDir(), "notes")
			block = filepath.Join(filepath.Dir(dir), block)
			s := open(t, dir)
			if filepath.Ext(block) == "" {
				if err := errors.Join(s.TornDown("/first", now, now), os.Remove(block)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Mkdir(block, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := s.TornDown("/a", now, now); err == nil {
				t.Fatal("it was written")
			}
			if problems := s.Problems(); len(problems) != 1 || !strings.Contains(problems[0], "teardowns cannot be written: ") {
				t.Errorf("%s: problems %q", row.about, problems)
			}
			if err := errors.Join(os.Remove(block), row.then(s)); err != nil {
				t.Errorf("%s: %v", row.about, err)
			}
			if got := open(t, dir).Teardowns(now)["/a"]; got != now {
				t.Errorf("%s, %s: after a restart %v, want %v", row.about, filepath.Base(block), got, now)
			}
		}
	}
}

// The file does not grow with the number of calls, but with those that still count.
func TestTeardownsBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "notes")
	s, now := open(t, dir), time.Hour
	for i := range 5000 {
		now += 10 * time.Second
		if err := s.TornDown(fmt.Sprint("/pods/", i), now, now); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "teardowns"))
	if lines := strings.Count(string(data), "\n"); err != nil || lines > 400 || lines < 60 {
		t.Errorf("%d lines, %v", lines, err)
	}
	s = open(t, dir)
	if got := len(s.Teardowns(now)); got < 60 || got > 62 {
		t.Errorf("%d count", got)
	}
}

func BenchmarkTornDown(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "notes")
	s, err := Open(dir, boot)
	if err != nil {
		b.Fatal(err)
	}
	now := time.Hour
	for i := 0; b.Loop(); i++ {
		now += time.Second
		if err := s.TornDown(fmt.Sprintf("/var/lib/kubelet/pods/%036d/volumes/flexd~lvm/pv", i%1000), now, now); err != nil {
			b.Fatal(err)
		}
	}
}
