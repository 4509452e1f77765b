package dsw

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
