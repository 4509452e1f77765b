package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/spelling"
	"go.yaml.in/yaml/v3"
)

// An Error is one error in a file. Parse joins all of them.
type Error struct {
	File string
	Line int    // 0 = none
	Key  string // in full: "volumeGroups[0].directory"; "" = the document
	Text string // "must be an absolute path, not ..."
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Key != "" {
		b.WriteString(": " + e.Key)
	}
	return b.String() + ": " + e.Text
}

// A reader walks the nodes of one file and collects all errors. yaml's decoder reports only the first
// error, without the full key, and follows aliases.
type reader struct {
	file   string
	errors []*Error
	lines  map[string]int // of every key in the file
}

type node = yaml.Node

const scalar = yaml.ScalarNode

func (r *reader) fail(line int, at, text string) {
	r.errors = append(r.errors, &Error{File: r.file, Line: line, Key: at, Text: text})
}

func (r *reader) err() error {
	slices.SortStableFunc(r.errors, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
	joined := make([]error, len(r.errors))
	for i, e := range r.errors {
		joined[i] = e
	}
	return errors.Join(joined...)
}

// plain refuses anchors and aliases, which can make a small file huge.
func (r *reader) plain(n *node, at string) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		r.fail(n.Line, at, fmt.Sprintf("is an alias (*%s); write the value out", oneLine(n.Value)))
	case n.Anchor != "":
		r.fail(n.Line, at, fmt.Sprintf("has an anchor (&%s); write the value out where it is needed", oneLine(n.Anchor)))
	default:
		return true
	}
	return false
}

func (r *reader) mapping(n *node, at string, keys []key) {
	if !r.plain(n, at) {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n.Line, at, "must be a mapping (lines of `key: value`), not "+shown(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if !r.plain(name, at) {
			continue
		}
		if name.Kind != scalar {
			r.fail(name.Line, at, "has a key that is not a word")
			continue
		}
		full := name.Value
		if at != "" {
			full = at + "." + name.Value
		}
		full = oneLine(full)
		if first, twice := seen[name.Value]; twice {
			r.fail(name.Line, full, fmt.Sprintf("is repeated; it is first in line %d", first))
			continue
		}
		seen[name.Value] = name.Line
		k := slices.IndexFunc(keys, func(k key) bool { return k.name == name.Value })
		if k < 0 {
			r.fail(name.Line, full, "unknown key"+spelling.Suggest(name.Value, names(keys)))
			continue
		}
		r.lines[full] = name.Line
		if r.plain(value, full) {
			keys[k].read(value, full)
		}
	}
	r.lines[at] = n.Line
}

func (r *reader) sequence(n *node, at string, each func(n *node, at string)) {
	if n.Kind != yaml.SequenceNode {
		r.fail(n.Line, at, "must be a list, not "+shown(n))
		return
	}
	for i, item := range n.Content {
		full := fmt.Sprintf("%s[%d]", at, i)
		r.lines[full] = item.Line
		if r.plain(item, full) {
			each(item, full)
		}
	}
}

func null(n *node) bool { return n.Kind == scalar && n.ShortTag() == "!!null" }

// shown formats a wrong value for an error.
func shown(n *node) string {
	switch {
	case null(n):
		return "nothing"
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.ShortTag() == "!!str":
		return fmt.Sprintf("%q", short(n.Value))
	}
	return oneLine(short(n.Value))
}

// short truncates a text from the file for an error.
func short(s string) string {
	const most = 120
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "..."
	}
	return s
}

// oneLine converts a text to one line for an error.
func oneLine(s string) string {
	return short(strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == 0x85 || c == 0x2028 || c == 0x2029 {
			return ' '
		}
		return c
	}, s))
}
