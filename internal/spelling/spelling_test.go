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
		"check":                      "", // it was no typo
		"nostatus":                   "", // the opposite
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

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"same", "same", 0}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("%q, %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
