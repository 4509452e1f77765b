package volopts

import (
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
	return func(s string) bool {
		for _, w := range words {
			if s == w {
				return true
			}
		}
		return false
	}
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
	return func(s string) bool { return s != "" && len(s) <= max && plain(s) }
}

// list takes words separated by commas, each taken by k and none twice.
func list(k kind) kind {
	return func(s string) bool {
		words := strings.Split(s, ",")
		for i, w := range words {
			if !k(w) || among(words[:i]...)(w) {
				return false
			}
		}
		return true
	}
}

// features takes the named features, each possibly switched off by a ^.
func features(names string) kind {
	all := strings.Fields(names)
	return list(func(s string) bool { return among(all...)(strings.TrimPrefix(s, "^")) })
}

// A sub is one key of a list such as "su=64k,sw=2,noalign".
type sub struct {
	key   string
	value kind // nil = none
	bare  bool // the value is optional
}

// subs takes a list of the keys, each at most once.
func subs(keys ...sub) kind {
	return func(s string) bool {
		words := strings.Split(s, ",")
		seen := make([]string, 0, len(words))
		for _, w := range words {
			key, value, given := strings.Cut(w, "=")
			if among(seen...)(key) || !takes(keys, key, value, given) {
				return false
			}
			seen = append(seen, key)
		}
		return true
	}
}

func takes(keys []sub, key, value string, given bool) bool {
	for _, k := range keys {
		if k.key == key {
			if !given {
				return k.value == nil || k.bare
			}
			return k.value != nil && k.value(value)
		}
	}
	return false
}

// plain reports whether s is made of letters, digits, _ . - and starts with no -.
func plain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '.', c == '-' && i > 0:
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
