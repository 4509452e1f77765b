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
