// Package volopts parses the options of a volume: its size, mkfs options and mount options.
// Allow-lists decide which text of a pod's author becomes typed data; the rest is refused.
//
// flexdriver links this package, so it imports the standard library only, and not fmt.
package volopts

import (
	"strconv"
	"unicode/utf8"
)

// FSTypes are the filesystems that flexd supports; the first is the default.
func FSTypes() []string { return []string{"ext4", "xfs", "btrfs"} }

// quote quotes at most 64 bytes of s for a message of one line.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		end := most - len("...")
		for end > 0 && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end] + "..."
	}
	return strconv.QuoteToASCII(s)
}
