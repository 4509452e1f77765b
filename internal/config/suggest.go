package config

import (
	"fmt"
	"strings"
)

// suggest names the key that was probably meant, or nothing.
func suggest(wrong string, keys []key) string {
	const near = 3 // edits; beyond it a suggestion is noise
	best, at := "", near+1
	for _, k := range keys {
		d := distance(fold(wrong), fold(k.name))
		// Half of a short word is not a slip of the fingers.
		if d < at && d*2 < len(k.name) {
			best, at = k.name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// fold makes run_dir, run-dir and RunDir one word.
func fold(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(short(s)))
}

// distance is the number of letters to add, drop or change.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
