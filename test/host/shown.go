package host

import (
	"iter"
	"regexp"
	"strings"
)

var (
	devices   = regexp.MustCompile(`/dev/[-\w]+`)
	durations = regexp.MustCompile(`\b(\d+(\.\d+)?(ms|[smhd]))+\b`)
	answerID  = regexp.MustCompile(`\[[0-9a-f]{12}\]`)
	clock     = regexp.MustCompile(`\d\d:\d\d:\d\d`)
	took      = regexp.MustCompile(`(ok|failed), 1s\b`)
	callID    = regexp.MustCompile(`call [0-9a-f]{12}`)
	version   = regexp.MustCompile(`version \S+`)
	percents  = regexp.MustCompile(`\b\d+ %`)
	spaces    = regexp.MustCompile(`[ \t]+`)
)

// Alike compares a text that a page of the documentation shows with the printed one, both as
// Normal returns them. In one with "..." at the end of lines, further lines may be left out.
func Alike(shown, printed string) bool {
	shown, printed = Normal(shown), Normal(printed)
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

// Normal replaces what differs from run to run.
func Normal(text string) string {
	text = devices.ReplaceAllString(text, "/dev/X")
	text = strings.ReplaceAll(durations.ReplaceAllString(text, "1s"), "1s ago", "now")
	text = took.ReplaceAllString(text, "$1") // no duration is shown below a millisecond
	text = callID.ReplaceAllString(clock.ReplaceAllString(version.ReplaceAllString(text, "version X"), "12:00:00"), "call X")
	text = percents.ReplaceAllString(text, "50 %")
	text = answerID.ReplaceAllString(text, "[id]")
	text = strings.ReplaceAll(spaces.ReplaceAllString(text, " "), " \n", "\n")
	return strings.TrimSpace(text)
}
