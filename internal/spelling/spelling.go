// Package spelling finds the word that a misspelled one was meant to be. It imports the
// standard library only, and not fmt, as flexdriver's packages do.
package spelling

import (
	"slices"
	"strconv"
	"strings"
)

// Suggest returns a question with the word that was probably meant, to append to a message,
// or "".
func Suggest(wrong string, words []string) string {
	const near = 3 // edits; beyond it a suggestion is noise
	best, at := "", near+1
	for _, w := range slices.Sorted(slices.Values(words)) {
		d := distance(fold(wrong), fold(w))
		// A change of half of a short word is not a typo.
		if d < at && d*2 < len(w) {
			best, at = w, d
		}
	}
	if best == "" || best == wrong || "no"+best == wrong || best == "no"+wrong { // or the opposite
		return ""
	}
	return "; did you mean " + strconv.Quote(best) + "?"
}

// distance is the least number of bytes to insert, remove or replace (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1) // from a[:i] to b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// longest bounds the work for a word of any length.
const longest = 100

// fold makes run_dir, run-dir and RunDir one word.
func fold(s string) string {
	s = s[:min(len(s), longest)]
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(s))
}
