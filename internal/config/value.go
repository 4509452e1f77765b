package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/volopts"
)

// A value is the type of a key, and the field that holds it.
type value struct {
	form string // the type with its limits
	into any    // a pointer to the field
	read func(n *node, at string)
	show func() string // the field in the form of the file
}

// A rule checks a string.
type rule struct {
	form   string               // "an absolute path"
	is     func(string) bool    // whether it has this form
	refuse func(*string) string // returns another error, or ""; may normalize the string
}

// A limit checks a number.
type limit[T any] struct {
	text string // "at least 5m"
	ok   func(T) bool
}

func (l limit[T]) of(form string) string {
	if l.text == "" {
		return form
	}
	return form + ", " + l.text
}

// allows checks a value, and reports an error.
func (l limit[T]) allows(r *reader, n *node, at string, v T) bool {
	if l.ok == nil || l.ok(v) {
		return true
	}
	r.fail(n.Line, at, fmt.Sprintf("must be %s; not %s", l.text, oneLine(short(n.Value))))
	return false
}

func (r *reader) text(into *string, rule rule) value {
	return value{form: rule.form, into: into, show: func() string { return quoted(*into) }, read: func(n *node, at string) {
		switch {
		case null(n):
			r.fail(n.Line, at, "has no value; remove the key to use its default")
			return
		case n.Kind == scalar && n.ShortTag() != "!!str":
			r.fail(n.Line, at, fmt.Sprintf("must be a string; YAML reads this as something else, so quote it: %q", short(n.Value)))
			return
		case n.Kind != scalar:
			r.fail(n.Line, at, "must be a string, not "+shown(n))
			return
		case !rule.is(n.Value):
			r.fail(n.Line, at, fmt.Sprintf("must be %s, not %q", rule.form, short(n.Value)))
			return
		}
		v := n.Value
		if rule.refuse != nil {
			if wrong := rule.refuse(&v); wrong != "" {
				r.fail(n.Line, at, wrong)
				return
			}
		}
		*into = v
	}}
}

func (r *reader) list(into *[]string, rule rule) value {
	return value{form: "a list; each is " + rule.form, into: into, show: func() string {
		var all []string
		for _, v := range *into {
			all = append(all, quoted(v))
		}
		return "[" + strings.Join(all, ", ") + "]"
	}, read: func(n *node, at string) {
		if n.Kind == scalar && !null(n) {
			r.fail(n.Line, at, fmt.Sprintf("must be a list: [%q]", short(n.Value)))
			return
		}
		values := []string{}
		errors := len(r.errors)
		r.sequence(n, at, func(n *node, at string) {
			v := ""
			before := len(r.errors)
			if r.text(&v, rule).read(n, at); len(r.errors) > before {
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
	}}
}

func (r *reader) boolean(into *bool) value {
	const form = "true or false"
	return value{form: form, into: into, show: func() string { return strconv.FormatBool(*into) }, read: func(n *node, at string) {
		// Other readers do not accept YAML's other spellings (yes, on, y).
		if n.Kind != scalar || n.ShortTag() != "!!bool" || n.Value != "true" && n.Value != "false" {
			r.fail(n.Line, at, "must be "+form+", not "+shown(n))
			return
		}
		*into = n.Value == "true"
	}}
}

// word reads one of two words; no means false.
func (r *reader) word(into *bool, no, yes string) value {
	word := func() string {
		if *into {
			return yes
		}
		return no
	}
	rule := oneOf(no, yes)
	return value{form: rule.form, into: into, show: word, read: func(n *node, at string) {
		v := word()
		r.text(&v, rule).read(n, at)
		*into = v == yes
	}}
}

func (r *reader) duration(into *time.Duration, limit limit[time.Duration]) value {
	const form = "a duration"
	return value{form: limit.of(form), into: into, show: into.String, read: func(n *node, at string) {
		d, err := time.ParseDuration(n.Value)
		if n.Kind != scalar || n.ShortTag() != "!!str" || err != nil {
			r.fail(n.Line, at, "must be "+form+" with its unit, such as 30s or 4m30s, not "+shown(n))
			return
		}
		if d <= 0 {
			r.fail(n.Line, at, "must be longer than 0s, not "+shown(n))
			return
		}
		if limit.allows(r, n, at, d) {
			*into = d
		}
	}}
}

// durationOrNever reads a duration, or "never" as 0.
func (r *reader) durationOrNever(into *time.Duration, limit limit[time.Duration]) value {
	v := r.duration(into, limit)
	duration, show := v.read, v.show
	v.read = func(n *node, at string) {
		if n.Kind == scalar && n.Value == "never" {
			*into = 0
			return
		}
		duration(n, at)
	}
	v.show = func() string {
		if *into == 0 {
			return "never"
		}
		return show()
	}
	return v
}

func (r *reader) size(into *int64, limit limit[int64]) value {
	const form = "a size"
	return value{form: limit.of(form), into: into, show: func() string { return formatBytes(*into) }, read: func(n *node, at string) {
		var size int64
		var err error
		switch {
		case n.Kind == scalar && n.Value == "0":
		case n.Kind != scalar || n.ShortTag() != "!!str":
			r.fail(n.Line, at, "must be "+form+" with its unit, such as 500m, 10G or 1TiB, not "+shown(n))
			return
		default:
			if size, err = volopts.ParseSize(n.Value); err != nil {
				r.fail(n.Line, at, err.Error())
				return
			}
		}
		if limit.allows(r, n, at, size) {
			*into = size
		}
	}}
}

func (r *reader) count(into *int, most int) value {
	form := fmt.Sprintf("a number from 1 to %d", most)
	return value{form: form, into: into, show: func() string { return strconv.Itoa(*into) }, read: func(n *node, at string) {
		v, err := strconv.Atoi(n.Value)
		if n.Kind != scalar || n.ShortTag() != "!!int" || err != nil || v < 1 || v > most {
			r.fail(n.Line, at, "must be "+form+", not "+shown(n))
			return
		}
		*into = v
	}}
}

func (r *reader) percent(into *int, least int) value {
	form := fmt.Sprintf("a percentage from %d%% to 100%%", least)
	return value{form: form, into: into, show: func() string { return strconv.Itoa(*into) + "%" }, read: func(n *node, at string) {
		number, ok := strings.CutSuffix(n.Value, "%")
		v, err := strconv.Atoi(number)
		if n.Kind != scalar || !ok || err != nil || v < least || v > 100 {
			r.fail(n.Line, at, "must be "+form+", not "+shown(n))
			return
		}
		*into = v
	}}
}

// quoted returns a string in YAML.
func quoted(s string) string {
	if s == "" || strings.ContainsAny(s, `*:#{}[]&!|>'"%@,`+"`") {
		return strconv.Quote(s)
	}
	return s
}

// formatBytes writes a size in the largest unit that divides it.
func formatBytes(n int64) string {
	units := []string{"", "KiB", "MiB", "GiB", "TiB"}
	for n != 0 && n%1024 == 0 && len(units) > 1 {
		n, units = n/1024, units[1:]
	}
	return strconv.FormatInt(n, 10) + units[0]
}
