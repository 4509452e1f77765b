package flexvolume

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A scanner reads one JSON text strictly: no duplicate keys, no invalid UTF-8, no lone
// surrogates, nothing after the value. encoding/json accepts all of these and does not
// report the wrong key. With it (and package net, see sock) a call took 1.35 times as long
// as a Go hello world, without them 1.14, and the executable was 2.6 MB instead of 1.5 MB.
// Errors never quote the text, which may contain secrets.
type scanner struct {
	s string
	i int
}

// maxDepth limits the nesting of skipped values.
const maxDepth = 32

func (p *scanner) fail(what string) error {
	return errors.New(what + " at byte " + strconv.Itoa(p.i))
}

func (p *scanner) space() {
	for p.i < len(p.s) {
		switch p.s[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

// peek returns the next byte other than white space, 0 at the end.
func (p *scanner) peek() byte {
	p.space()
	if p.i < len(p.s) {
		return p.s[p.i]
	}
	return 0
}

func (p *scanner) take(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.i++
	return true
}

// end refuses anything but white space after the value.
func (p *scanner) end() error {
	p.space()
	if p.i != len(p.s) {
		return p.fail("text after the JSON value")
	}
	return nil
}

// object reads an object; field reads the value of each key.
func (p *scanner) object(field func(key string) error) error {
	if !p.take('{') {
		return p.fail("not a JSON object")
	}
	if p.take('}') {
		return nil
	}
	seen := make(map[string]struct{}, 8)
	for {
		key, err := p.str()
		if err != nil {
			return err
		}
		if _, twice := seen[key]; twice {
			return errors.New("the key " + quote(key) + " is given twice")
		}
		seen[key] = struct{}{}
		if !p.take(':') {
			return p.fail("no colon after the key " + quote(key))
		}
		if err := field(key); err != nil {
			return err
		}
		switch {
		case p.take(','):
		case p.take('}'):
			return nil
		default:
			return p.fail("the JSON object is cut off or malformed after the key " + quote(key))
		}
	}
}

// array reads an array; elem reads each element.
func (p *scanner) array(elem func() error) error {
	if !p.take('[') {
		return p.fail("not a JSON array")
	}
	if p.take(']') {
		return nil
	}
	for {
		if err := elem(); err != nil {
			return err
		}
		switch {
		case p.take(','):
		case p.take(']'):
			return nil
		default:
			return p.fail("the JSON array is cut off or malformed")
		}
	}
}

func (p *scanner) str() (string, error) {
	if !p.take('"') {
		return "", p.fail("not a JSON string")
	}
	start := p.i
	for p.i < len(p.s) {
		switch c := p.s[p.i]; {
		case c == '"':
			s := p.s[start:p.i]
			if !utf8.ValidString(s) {
				return "", p.fail("invalid UTF-8")
			}
			p.i++
			return s, nil
		case c == '\\':
			return p.escaped(start)
		case c < ' ':
			return "", p.fail("a control character in a JSON string")
		}
		p.i++
	}
	return "", p.fail("the JSON string is cut off")
}

// escaped reads the rest of a string from its first backslash on.
func (p *scanner) escaped(start int) (string, error) {
	b := append(make([]byte, 0, p.i-start+64), p.s[start:p.i]...)
	for p.i < len(p.s) {
		c := p.s[p.i]
		p.i++
		switch {
		case c == '"':
			if !utf8.Valid(b) {
				return "", p.fail("invalid UTF-8")
			}
			return string(b), nil
		case c < ' ':
			return "", p.fail("a control character in a JSON string")
		case c != '\\':
			b = append(b, c)
			continue
		}
		if p.i >= len(p.s) {
			break
		}
		c = p.s[p.i]
		p.i++
		switch c {
		case '"', '\\', '/':
			b = append(b, c)
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r, ok := p.hex4()
			if ok && 0xd800 <= r && r < 0xe000 { // one half of a surrogate pair
				low := rune(0)
				if r < 0xdc00 && p.i+1 < len(p.s) && p.s[p.i] == '\\' && p.s[p.i+1] == 'u' {
					p.i += 2
					low, ok = p.hex4()
				}
				ok = ok && 0xdc00 <= low && low < 0xe000
				r = 0x10000 + (r-0xd800)<<10 + (low - 0xdc00)
			}
			if !ok {
				return "", p.fail("a bad \\u escape in a JSON string")
			}
			b = utf8.AppendRune(b, r)
		default:
			return "", p.fail("a bad escape in a JSON string")
		}
	}
	return "", p.fail("the JSON string is cut off")
}

func (p *scanner) hex4() (rune, bool) {
	if p.i+4 > len(p.s) {
		return 0, false
	}
	var r rune
	for range 4 {
		c := p.s[p.i]
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
		p.i++
	}
	return r, true
}

// integer reads an int64 without fraction and exponent.
func (p *scanner) integer() (int64, error) {
	p.space()
	at := p.i
	for p.i < len(p.s) && (p.s[p.i] == '-' || '0' <= p.s[p.i] && p.s[p.i] <= '9') {
		p.i++
	}
	s := p.s[at:p.i]
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != s {
		p.i = at
		return 0, p.fail("not a whole number")
	}
	return n, nil
}

func (p *scanner) boolean() (bool, error) {
	switch {
	case p.word("true"):
		return true, nil
	case p.word("false"):
		return false, nil
	}
	return false, p.fail("neither true nor false")
}

func (p *scanner) word(w string) bool {
	p.space()
	if len(p.s)-p.i < len(w) || p.s[p.i:p.i+len(w)] != w {
		return false
	}
	p.i += len(w)
	return true
}

// skip reads any value and discards it.
func (p *scanner) skip(depth int) error {
	if depth > maxDepth {
		return p.fail("JSON nested too deeply")
	}
	switch c := p.peek(); {
	case c == '{':
		return p.object(func(string) error { return p.skip(depth + 1) })
	case c == '[':
		return p.array(func() error { return p.skip(depth + 1) })
	case c == '"':
		_, err := p.str()
		return err
	case p.word("true"), p.word("false"), p.word("null"):
		return nil
	case c == '-' || '0' <= c && c <= '9':
		return p.number()
	}
	return p.fail("not a JSON value")
}

// number skips a number of JSON's grammar.
func (p *scanner) number() error {
	digits := func() bool {
		at := p.i
		for p.i < len(p.s) && '0' <= p.s[p.i] && p.s[p.i] <= '9' {
			p.i++
		}
		return p.i > at
	}
	next := func(set string) bool {
		if p.i == len(p.s) || strings.IndexByte(set, p.s[p.i]) < 0 {
			return false
		}
		p.i++
		return true
	}
	next("-")
	if !next("0") && !digits() {
		return p.fail("a malformed number")
	}
	if next(".") && !digits() {
		return p.fail("a malformed number")
	}
	if next("eE") {
		next("+-")
		if !digits() {
			return p.fail("a malformed number")
		}
	}
	return nil
}

// appendString appends s, which must be valid UTF-8, as a JSON string. Unlike encoding/json
// it does not escape <, > and &: people read the messages.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\t':
			b = append(b, '\\', 't')
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// quote quotes at most 64 bytes of s for a message of one line.
func quote(s string) string {
	if len(s) > 64 {
		return strconv.QuoteToASCII(cut(s, 64))
	}
	return strconv.QuoteToASCII(s)
}

// cut shortens s to at most n bytes, ending in "..." and never inside a rune.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n -= len("...")
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}
