package e2e

import (
	"iter"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A page of the documentation has commands and what they print in indented blocks.
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

// showsAs compares what a page shows, from the line that begins with first, with what was
// printed.
func showsAs(t *testing.T, blocks []docBlock, page, first, printed string) string {
	t.Helper()
	for _, b := range blocks {
		if b.page == page && strings.HasPrefix(b.shown, first) {
			if !alike(normal(b.shown), normal(printed)) {
				t.Errorf("%s shows\n%s\nand this is printed:\n%s", page, normal(b.shown), normal(printed))
			}
			return b.shown
		}
	}
	t.Errorf("%s shows nothing that begins %q", page, first)
	return ""
}

var (
	devices   = regexp.MustCompile(`/dev/[-\w]+`)
	durations = regexp.MustCompile(`\b(\d+(ms|[smhd]))+\b`)
	answerID  = regexp.MustCompile(`\[[0-9a-f]{12}\]`)
	clock     = regexp.MustCompile(`\d\d:\d\d:\d\d`)
	took      = regexp.MustCompile(`(ok|failed), 1s\b`)
	callID    = regexp.MustCompile(`call [0-9a-f]{12}`)
	version   = regexp.MustCompile(`version \S+`)
	percents  = regexp.MustCompile(`\b\d+ %`)
	spaces    = regexp.MustCompile(` +`)
)

// alike compares a text that a page shows with the printed one. In one with "..." at the end of
// lines, further lines may be left out.
func alike(shown, printed string) bool {
	if !strings.Contains(shown, "...\n") && !strings.HasSuffix(shown, "...") {
		return shown == printed
	}
	next, end := iter.Pull(strings.Lines(printed))
	defer end()
	for line := range strings.Lines(shown) {
		words := strings.TrimSuffix(strings.TrimRight(line, "\n"), "...")
		for {
			got, ok := next()
			if !ok {
				return false
			}
			if strings.HasPrefix(got, words) {
				break
			}
		}
	}
	return true
}

// normal replaces what differs from run to run.
func normal(text string) string {
	text = devices.ReplaceAllString(text, "/dev/X")
	text = durations.ReplaceAllString(text, "1s")
	text = took.ReplaceAllString(text, "$1") // no duration is shown below a millisecond
	text = callID.ReplaceAllString(clock.ReplaceAllString(version.ReplaceAllString(text, "version X"), "12:00:00"), "call X")
	text = percents.ReplaceAllString(text, "50 %")
	text = answerID.ReplaceAllString(text, "[id]")
	text = spaces.ReplaceAllString(text, " ")
	return strings.TrimSpace(text)
}
