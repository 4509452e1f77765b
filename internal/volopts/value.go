package volopts

import (
	"slices"
	"strconv"
	"strings"
)

// A kind accepts the values of an option; nil accepts none.
type kind func(value string) bool

// number accepts a decimal number from low to high.
func number(low, high uint64) kind {
	return func(s string) bool {
		n, ok := decimal(s)
		return ok && low <= n && n <= high
	}
}

// powerOfTwo accepts powers of two from low to high.
func powerOfTwo(low, high uint64) kind {
	return func(s string) bool {
		n, ok := decimal(s)
		return ok && n&(n-1) == 0 && low <= n && n <= high
	}
}

// size accepts a positive number, followed by at most one letter of units.
func size(units string) kind {
	return func(s string) bool {
		if s != "" && strings.IndexByte(units, s[len(s)-1]) >= 0 {
			s = s[:len(s)-1]
		}
		n, ok := decimal(s)
		return ok && n > 0
	}
}

// oneOf accepts the words.
func oneOf(words ...string) kind {
	return func(s string) bool { return slices.Contains(words, s) }
}

func zeroOrOne(s string) bool { return s == "0" || s == "1" }

// percent accepts 0 to 50, with at most two decimals.
func percent(s string) bool {
	whole, fraction, dot := strings.Cut(s, ".")
	if dot && (fraction == "" || len(fraction) > 2 || strings.Trim(fraction, "0123456789") != "") {
		return false
	}
	n, ok := decimal(whole)
	return ok && (n < 50 || n == 50 && strings.Trim(fraction, "0") == "")
}

// label accepts a plain name of at most max bytes.
func label(max int) kind {
	return func(s string) bool { return s != "" && len(s) <= max && s[0] != '-' && consistsOf(s, "_.-") }
}

// list accepts different words that k accepts, separated by commas.
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

// features accepts a list of the named features, with ^ for off.
func features(names string) kind {
	all := strings.Fields(names)
	return list(func(s string) bool { return slices.Contains(all, strings.TrimPrefix(s, "^")) })
}

// subOptions accepts a list of the words, such as "su=64k,sw=2,noalign", each key at most once.
func subOptions(allowed ...word) kind {
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

// consistsOf reports whether s has only letters, digits and others.
func consistsOf(s, others string) bool {
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
