package e2e

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	testhost "github.com/flexd/flexd/test/host"
)

// A docBlock is an indented block of a page, with commands and their output.
type docBlock struct {
	page     string
	commands []string
	shown    string // what follows them
}

// programs begin a command of the pages.
var programs = regexp.MustCompile(`^(?:[#$] )?(flexd |curl |scripts/|make |go |vi |systemctl |touch |ssh |journalctl |kubectl |jq |promtool )`)

// pagesOf returns the texts of the documentation.
func pagesOf(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	all := map[string]string{}
	for _, file := range append(files, "../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(file, "../../")] = string(text)
	}
	return all
}

// docBlocks returns the indented blocks of the pages, but not the lists of messages.
func docBlocks(t *testing.T) (all []docBlock) {
	t.Helper()
	pages := pagesOf(t)
	for _, page := range slices.Sorted(maps.Keys(pages)) {
		if page == "docs/getting-started.md" || page == "docs/operations.md" {
			continue // test/node types these on a whole node
		}
		body, _, _ := strings.Cut(pages[page], "\n## Messages\n")
		var b docBlock
		end := func() {
			if b.shown = strings.TrimRight(b.shown, "\n"); len(b.commands) > 0 || b.shown != "" {
				all = append(all, b)
			}
			b = docBlock{page: page}
		}
		b.page = page
		above, more := "", false // the line before; a command that continues
		for line := range strings.Lines(body + "\n") {
			line = strings.TrimRight(line, "\n")
			code, indented := strings.CutPrefix(line, "    ")
			switch {
			case line == "":
				if b.shown != "" {
					b.shown += "\n"
				}
			case !indented || above != "" && len(b.commands) == 0 && b.shown == "": // text, or an item of a list
				end()
			case more:
				b.commands[len(b.commands)-1] = strings.TrimSuffix(b.commands[len(b.commands)-1], "\\") + " " + strings.TrimSpace(code)
			case programs.MatchString(code) && b.shown == "":
				b.commands = append(b.commands, strings.TrimLeft(code, "#$ "))
			default:
				b.shown += code + "\n"
			}
			more = len(b.commands) > 0 && b.shown == "" && (strings.HasSuffix(line, "&&") || strings.HasSuffix(line, "\\"))
			above = line
		}
		end()
	}
	return all
}

// showsAs compares a page, from the line that begins with first, with an output.
func showsAs(t *testing.T, blocks []docBlock, page, first, printed string) string {
	t.Helper()
	for _, b := range blocks {
		if b.page == page && strings.HasPrefix(b.shown, first) {
			if !testhost.Alike(b.shown, printed) {
				t.Errorf("%s shows\n%s\nand this is printed:\n%s", page, testhost.Normal(b.shown), testhost.Normal(printed))
			}
			return b.shown
		}
	}
	t.Errorf("%s shows nothing that begins %q", page, first)
	return ""
}
