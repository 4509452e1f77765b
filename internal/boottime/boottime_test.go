package boottime

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestNow(t *testing.T) {
	text, err := os.ReadFile("/proc/uptime") // seconds on CLOCK_BOOTTIME, but for a time namespace's offset
	if err != nil {
		t.Skip(err)
	}
	up, err := time.ParseDuration(strings.Fields(string(text))[0] + "s")
	if err != nil {
		t.Fatal(err)
	}
	first := Now()
	if d := first - up; d < -time.Second || d > 10*time.Second {
		t.Errorf("boot time %v, uptime %v", first, up)
	}
	if Now() < first {
		t.Error("goes backwards")
	}
}

func TestStarted(t *testing.T) {
	for range 3 {
		time.Sleep(3 * tick) // the process is older than its tick
		if s, now := Started(), Now(); s <= 0 || s > now-2*tick || s != Started() {
			t.Errorf("started %v, now %v", s, now)
		}
	}
	for stat, want := range map[string]time.Duration{
		"7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 100 20\n": 101 * tick,
		"7 (a) S 1 2 3": time.Second,
		"":              time.Second,
		"7 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x 20\n": time.Second,
		"7 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 0 20\n": time.Second,
	} {
		if got := parse(stat, time.Second); got != want {
			t.Errorf("%q: %v, want %v", stat, got, want)
		}
	}
}
