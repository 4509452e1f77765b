package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/spelling"
	"github.com/flexd/flexd/internal/volopts"
	"go.yaml.in/yaml/v3"
)

// An Error is one error in a file. Parse joins all of them.
type Error struct {
	File string
	Line int    // 0 = not about one line
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

// A reader walks the nodes of one file and collects all errors. It does not use the
// decoder, whose errors have neither the full key nor more than one mistake, and which
// follows aliases.
type reader struct {
	file   string
	errors []*Error
	lines  map[string]int // of every key in the file
}

// A key is a key of a mapping and how its value is read.
type key struct {
	name string
	read func(n *yaml.Node, at string)
}

func names(keys []key) (all []string) {
	for _, k := range keys {
		all = append(all, k.name)
	}
	return all
}

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

// plain refuses YAML features beyond plain data. An alias can make a small file huge, which
// its reader does not see.
func (r *reader) plain(n *yaml.Node, at string) bool {
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

func (r *reader) mapping(n *yaml.Node, at string, keys []key) {
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
		if name.Kind != yaml.ScalarNode {
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

func (r *reader) sequence(n *yaml.Node, at string, each func(n *yaml.Node, at string)) {
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

// text reads a string. The check returns its error, or "", and may normalize it.
func (r *reader) text(into *string, check func(*string) string) func(*yaml.Node, string) {
	return func(n *yaml.Node, at string) {
		switch {
		case null(n):
			r.fail(n.Line, at, "has no value; remove the key to use its default")
			return
		case n.Kind == yaml.ScalarNode && n.ShortTag() != "!!str":
			r.fail(n.Line, at, fmt.Sprintf("must be a string; YAML reads this as something else, so quote it: %q", short(n.Value)))
			return
		case n.Kind != yaml.ScalarNode:
			r.fail(n.Line, at, "must be a string, not "+shown(n))
			return
		}
		v := n.Value
		if wrong := check(&v); wrong != "" {
			r.fail(n.Line, at, wrong)
			return
		}
		*into = v
	}
}

func (r *reader) list(into *[]string, check func(*string) string) func(*yaml.Node, string) {
	return func(n *yaml.Node, at string) {
		if n.Kind == yaml.ScalarNode && !null(n) {
			r.fail(n.Line, at, fmt.Sprintf("must be a list: [%q]", short(n.Value)))
			return
		}
		values := []string{}
		errors := len(r.errors)
		r.sequence(n, at, func(n *yaml.Node, at string) {
			v := ""
			before := len(r.errors)
			if r.text(&v, check)(n, at); len(r.errors) > before {
				return
			}
			if slices.Contains(values, v) {
				r.fail(n.Line, at, fmt.Sprintf("%q is in this list twice", v))
				return
			}
			values = append(values, v)
		})
		if len(r.errors) == errors {
			*into = values
		}
	}
}

func (r *reader) truth(into *bool) func(*yaml.Node, string) {
	return func(n *yaml.Node, at string) {
		// Only the two words: YAML's other spellings (yes, on, y) mean something
		// else to every other reader.
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || n.Value != "true" && n.Value != "false" {
			r.fail(n.Line, at, "must be true or false, not "+shown(n))
			return
		}
		*into = n.Value == "true"
	}
}

func (r *reader) duration(into *time.Duration) func(*yaml.Node, string) {
	return func(n *yaml.Node, at string) {
		d, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" || err != nil {
			r.fail(n.Line, at, "must be a duration with its unit, such as 30s or 4m30s, not "+shown(n))
			return
		}
		if d <= 0 {
			r.fail(n.Line, at, "must be longer than 0s, not "+shown(n))
			return
		}
		*into = d
	}
}

// durationOrNever is a duration, or 0 for the word.
func (r *reader) durationOrNever(into *time.Duration) func(*yaml.Node, string) {
	return func(n *yaml.Node, at string) {
		if n.Kind == yaml.ScalarNode && n.Value == "never" {
			*into = 0
			return
		}
		r.duration(into)(n, at)
	}
}

func (r *reader) size(into *int64) func(*yaml.Node, string) {
	return func(n *yaml.Node, at string) {
		if n.Kind == yaml.ScalarNode && n.Value == "0" {
			*into = 0
			return
		}
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
			r.fail(n.Line, at, "must be a size with its unit, such as 500m, 10G or 1TiB, not "+shown(n))
			return
		}
		size, err := volopts.ParseSize(n.Value)
		if err != nil {
			r.fail(n.Line, at, err.Error())
			return
		}
		*into = size
	}
}

func (r *reader) count(into *int, most int) func(*yaml.Node, string) {
	return func(n *yaml.Node, at string) {
		v, err := strconv.Atoi(n.Value)
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil || v < 1 || v > most {
			r.fail(n.Line, at, fmt.Sprintf("must be a number from 1 to %d, not %s", most, shown(n)))
			return
		}
		*into = v
	}
}

func (r *reader) percent(into *int, least int) func(*yaml.Node, string) {
	return func(n *yaml.Node, at string) {
		number, ok := strings.CutSuffix(n.Value, "%")
		v, err := strconv.Atoi(number)
		if n.Kind != yaml.ScalarNode || !ok || err != nil || v < least || v > 100 {
			r.fail(n.Line, at, fmt.Sprintf("must be a percentage from %d%% to 100%%, not %s", least, shown(n)))
			return
		}
		*into = v
	}
}

func null(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// shown formats, for an error, the value found instead.
func shown(n *yaml.Node) string {
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

// short keeps an error readable whatever the file holds.
func short(s string) string {
	const most = 120
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "..."
	}
	return s
}

// oneLine makes a text one line, since each error is one line.
func oneLine(s string) string {
	return short(strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == 0x85 || c == 0x2028 || c == 0x2029 {
			return ' '
		}
		return c
	}, s))
}
