package flexvolume

import (
	"strings"
	"unicode/utf8"
)

// IsComponent reports whether s can be a component of a path of kubelet.
func IsComponent(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= 255 && !strings.Contains(s, "/") && IsPrintable(s)
}

// IsPrintable reports whether s is valid UTF-8 without control characters.
func IsPrintable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r < ' ' || 0x7f <= r && r < 0xa0 || r == 0x2028 || r == 0x2029 {
			return false
		}
	}
	return true
}

// isWord reports whether s has 1 to 64 characters, all of them ASCII letters, digits or others.
func isWord(s, others string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte(others, c) >= 0:
		default:
			return false
		}
	}
	return true
}
