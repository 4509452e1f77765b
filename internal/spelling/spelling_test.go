package spelling

import (
	"strings"
	"testing"
)

func TestSuggest(t *testing.T) {
	words := []string{"status", "check", "config", "runDir", "vg", "release"}
	for wrong, want := range map[string]string{
		"stauts":                     "status",
		"chekc":                      "check",
		"run_dir":                    "runDir",
		"RELAESE":                    "release",
		"lv":                         "", // half of the word
		"xyzzy":                      "",
		"":                           "",
		strings.Repeat("s", 100_000): "",
	} {
		got := Suggest(wrong, words)
		if want != "" {
			want = `; did you mean "` + want + `"?`
		}
		if got != want {
			t.Errorf("%.20q: %q, want %q", wrong, got, want)
		}
	}
}
