package volopts

import (
	"slices"
	"strconv"
	"strings"
)

// A kind is the type of an option's value; the zero kind takes none.
type kind func(value string) bool

// number takes decimal digits that make a value from low to high.
func number(low, high uint64) kind {
	return func(s string) bool {
		n, ok := decimal(s)
		return ok && low <= n && n <= high
	}
}

// power takes powers of two from low to high.
func power(low, high uint64) kind {
	return func(s string) bool {
		n, ok := decimal(s)
		return ok && n&(n-1) == 0 && low <= n && n <= high
	}
}

// size takes digits and at most one unit letter of units.
func size(units string) kind {
	return func(s string) bool {
		if s != "" && strings.IndexByte(units, s[len(s)-1]) >= 0 {
			s = s[:len(s)-1]
		}
		n, ok := decimal(s)
		return ok && n > 0
	}
}

// among takes one of the words.
func among(words ...string) kind {
	return func(s string) bool { return slices.Contains(words, s) }
}

// bit takes 0 or 1.
func bit(s string) bool { return s == "0" || s == "1" }

// percent takes 0 to 50, with at most two decimals.
func percent(s string) bool {
	whole, fraction, dot := strings.Cut(s, ".")
	if dot && (fraction == "" || len(fraction) > 2 || strings.Trim(fraction, "0123456789") != "") {
		return false
	}
	n, ok := decimal(whole)
	return ok && (n < 50 || n == 50 && strings.Trim(fraction, "0") == "")
}

// label takes a plain name of at most max bytes.
func label(max int) kind {
	return func(s string) bool { return s != "" && len(s) <= max && s[0] != '-' && madeOf(s, "_.-") }
}

// list takes words separated by commas, each taken by k and none twice.
func list(k kind) kind {
	return func(s string) bool {
		words := strings.Split(s, ",")
		for i, w := range words {
			if !k(w) || slices.Contains(words[:i], w) {
				return false
			}
		}
		return true
	}
}

// features takes the named features, each possibly switched off by a ^.
func features(names string) kind {
	all := strings.Fields(names)
	return list(func(s string) bool { return slices.Contains(all, strings.TrimPrefix(s, "^")) })
}

// subs takes a list such as "su=64k,sw=2,noalign" of the words, each key at most once.
func subs(allowed ...word) kind {
	return func(s string) bool {
		words := strings.Split(s, ",")
		seen := make([]string, 0, len(words))
		for _, w := range words {
			known, ok := findWord(allowed, w)
			if !ok || slices.Contains(seen, known.key) {
				return false
			}
			seen = append(seen, known.key)
		}
		return true
	}
}

// madeOf reports whether s has only letters, digits and the others.
func madeOf(s, others string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte(others, c) >= 0:
		default:
			return false
		}
	}
	return true
}

// decimal reads digits only: no sign, no leading zero before another digit.
func decimal(s string) (uint64, bool) {
	if s == "" || len(s) > 18 || s[0] < '0' || s[0] > '9' || s[0] == '0' && len(s) > 1 {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}
