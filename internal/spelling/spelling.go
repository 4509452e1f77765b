// Package spelling finds the word that a misspelled one was meant to be.
package spelling

import (
	"fmt"
	"slices"
	"strings"

	"github.com/xrash/smetrics"
)

// Suggest returns a question with the word that was probably meant, to append to a message,
// or "".
func Suggest(wrong string, words []string) string {
	const near = 3 // edits; beyond it a suggestion is noise
	best, at := "", near+1
	for _, w := range slices.Sorted(slices.Values(words)) {
		d := smetrics.WagnerFischer(fold(wrong), fold(w), 1, 1, 1)
		// A change of half of a short word is not a typo.
		if d < at && d*2 < len(w) {
			best, at = w, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// longest bounds the work for a word of any length.
const longest = 100

// fold makes run_dir, run-dir and RunDir one word.
func fold(s string) string {
	s = s[:min(len(s), longest)]
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(s))
}
