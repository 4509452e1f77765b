package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

// A line of the output, without its end.
type line struct {
	at   time.Duration
	text string
}

// listen redirects os.Stdout through a pipe, and records its lines. heard ends that, and returns them.
func listen() (heard func() []line, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	stdout, begin, done := os.Stdout, time.Now(), make(chan []line)
	os.Stdout = w
	go func() {
		var all []line
		for in := bufio.NewReader(r); ; {
			text, err := in.ReadString('\n')
			fmt.Fprint(stdout, text)
			if err != nil {
				done <- all
				return
			}
			all = append(all, line{time.Since(begin), strings.TrimSuffix(text, "\n")})
		}
	}()
	return func() []line {
		w.Close()
		os.Stdout = stdout
		return <-done
	}, nil
}

// The terminal of a recording.
const (
	castWidth, castHeight = 100, 32
	leastPause            = 150 * time.Millisecond // between two lines, which may be read
)

// writeCast writes a recording: asciicast, version 2.
func writeCast(file string, all []line) error {
	var b strings.Builder
	fmt.Fprintf(&b, `{"version": 2, "width": %d, "height": %d, "title": "flexd: make demo"}`+"\n", castWidth, castHeight)
	at := time.Duration(0)
	for i, l := range append([]line{{0, "# make demo"}}, all...) {
		if i > 0 {
			at = max(l.at, at+leastPause)
		}
		text, err := json.Marshal(l.text + "\r\n")
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "[%.2f, \"o\", %s]\n", at.Seconds(), strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(text)))
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

// readCast reads the output of writeCast, without its first line.
func readCast(file string) (all []line, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	_, events, _ := strings.Cut(string(text), "\n")
	for l := range strings.Lines(events) {
		var event []any
		if err := json.Unmarshal([]byte(l), &event); err != nil || len(event) != 3 {
			return nil, fmt.Errorf("%s: %q is no event (%v)", file, l, err)
		}
		seconds, _ := event[0].(float64)
		text, _ := event[2].(string)
		all = append(all, line{time.Duration(seconds * float64(time.Second)), strings.TrimSuffix(text, "\r\n")})
	}
	if len(all) < 2 {
		return nil, fmt.Errorf("%s is no recording", file)
	}
	return all[1:], nil
}

// varying matches the parts that differ between runs and machines.
var varying = []struct {
	text *regexp.Regexp
	is   string
}{
	{regexp.MustCompile(`\x1b\[\d+m`), ""},
	{regexp.MustCompile(`(?m)^flexd looks after .* node in \S+`), "flexd looks after the volumes of one node in DIR"},
	{regexp.MustCompile(`(?m)^     VOLUME .*$`), "     VOLUME"}, // as many columns as fit
	{regexp.MustCompile(`(?m)^(     demo/\w+) +([\d.]+ \w+) +(\w+).*$`), "$1 $3"},
	{regexp.MustCompile(`(?s)\n   \(Here .*?\)\n`), ""},
	{regexp.MustCompile(`(?s)     Lease\n.*?\n\n`), ""},
	{regexp.MustCompile(`(?s)     Last operations.*?(   ✓)`), "$1"},
	{regexp.MustCompile(`\b(xfs|ext4)\b`), "FS"},
	{regexp.MustCompile(`0x[0-9a-f]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{12,16}\b`), "0"},
	{regexp.MustCompile(`\d[\d.:]*( ?([KMG]i?B?|bytes|%|m?s)\b)?`), "0"},
	{regexp.MustCompile(`,\s+`), ","}, // a line may be broken there
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(`([^\s:✓])\n +([^\s✓$])`), "$1 $2"}, // likewise
}

// same returns the first difference between two runs, or "".
func same(recorded, run []line) string {
	items := func(all []line) []string {
		var b strings.Builder
		for _, l := range all {
			b.WriteString(l.text + "\n")
		}
		text := b.String()
		for _, v := range varying {
			text = v.text.ReplaceAllString(text, v.is)
		}
		return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
	}
	was, is := items(recorded), items(run)
	for i := range max(len(was), len(is)) {
		if a, b := at(was, i), at(is, i); a != b {
			return fmt.Sprintf("was: %s\nis:  %s", a, b)
		}
	}
	return ""
}

func at(all []string, i int) string {
	if i >= len(all) {
		return "(nothing)"
	}
	return all[i]
}
