package config

import (
	"fmt"
	"strings"
)

// Commented returns a configuration file with the default and meaning of every key. Parse returns
// Default for it.
func Commented() string {
	var b strings.Builder
	b.WriteString(head)
	write(&b, (&reader{}).schema(defaults()), "", "")
	return b.String()
}

const head = `# flexd's configuration. Every key is optional; the values here are the defaults,
# and those that are commented out are examples. Durations are written 30s, 4m30s, 1h;
# sizes 500MiB, 10GiB, 1TiB (powers of 1024). flexd refuses keys that it does not know.
# Check a file with: flexd config --check FILE
`

// write writes keys as lines of a file. item is "- " before the first key of a list element, or "".
func write(b *strings.Builder, keys []key, indent, item string) {
	for _, k := range keys {
		fmt.Fprintln(b, strings.TrimRight(indent, " "))
		for _, text := range []string{plain(k.about), k.notes()} {
			for _, line := range wrap(text, 84-len(indent)) {
				fmt.Fprintln(b, indent+"# "+line)
			}
		}
		switch {
		case k.show == nil:
			fmt.Fprintf(b, "%s%s:\n", indent, k.name)
			write(b, k.keys, indent+"  ", "")
			continue
		case k.keys != nil:
			fmt.Fprintln(b, indent+"# An entry, with its defaults:")
			write(b, k.keys, indent+"#   ", "- ")
		}
		line := k.name + ": "
		switch {
		case k.without == "":
			line += k.show()
		case strings.HasPrefix(k.without, required):
			line += k.example
		default:
			line = "# " + line + k.example
		}
		fmt.Fprintln(b, indent+item+line)
		if item != "" {
			indent, item = indent+"  ", ""
		}
	}
}

// notes returns the type of a key, its default if the value does not show it, and whether it needs a restart.
func (k key) notes() string {
	notes := ""
	if k.form != "" {
		notes = "Value: " + k.form + "."
	}
	switch {
	case strings.HasPrefix(k.without, required):
		notes += " " + strings.ToUpper(k.without[:1]) + plain(k.without[1:]) + "."
	case k.without != "":
		notes += " Default: " + plain(k.without) + "."
	}
	if k.restart {
		notes += " A change needs a restart."
	}
	return strings.TrimSpace(notes)
}

const link = `\[([^]]+)\]\([^)]+\)`

var (
	markdownLink = lazily(link)
	reference    = lazily(`,? \(?see ` + link + `\)?`)
)

// plain removes Markdown, and references to sections of the page.
func plain(text string) string {
	return strings.ReplaceAll(markdownLink().ReplaceAllString(reference().ReplaceAllString(text, ""), "$1"), "`", "")
}

func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
