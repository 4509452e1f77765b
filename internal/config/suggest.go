package config

import (
	"fmt"
	"strings"

	"github.com/xrash/smetrics"
)

// suggest returns the key that was probably meant, or "".
func suggest(wrong string, keys []key) string {
	const near = 3 // edits; beyond it a suggestion is noise
	best, at := "", near+1
	for _, k := range keys {
		d := smetrics.WagnerFischer(fold(wrong), fold(k.name), 1, 1, 1)
		// A change of half of a short word is not a typo.
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
