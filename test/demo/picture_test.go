package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the picture of the recording")

const (
	cast    = "../../docs/demo.cast"
	picture = "../../docs/demo.svg"
)

// docs/demo.svg is made of docs/demo.cast. `make test` compares that with the output of make
// demo.
func TestPicture(t *testing.T) {
	all, err := readCast(cast)
	if err != nil {
		t.Fatal(err)
	}
	want := svg(all)
	if *update {
		if err := os.WriteFile(picture, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(picture); err != nil || string(got) != want {
		t.Errorf("%s is not of %s: go test ./test/demo -run Picture -update (%v)", picture, cast, err)
	}
	if len(want) > 60_000 {
		t.Errorf("%s has %d bytes", picture, len(want))
	}
}

// Recordings are compared without the parts that differ in each run.
func TestSame(t *testing.T) {
	was := []line{{0, "flexd looks after the volumes of one node. This is such a node in /tmp/a (below: ~),"},
		{0, `     {"status":"Success","capabilities":{"attach":true,`}, {0, `     "fsGroup":true}}   (6 ms)`}, {0, "   \x1b[32m✓\x1b[0m the shared volume is xfs"},
		{0, "     demo/data  320 MiB  mounted  7 %   /dev/loop4  xfs  default/web-0, default/rep…"}}
	is := []line{{0, "flexd looks after the volumes of one node. This is such a node in /tmp/other (below: ~),"},
		{0, `     {"status":"Success","capabilities":{"attach":true,"fsGroup":true}}   (11 ms)`}, {0, "   ✓ the shared volume is ext4"},
		{0, "     demo/data  1.50 GiB  mounted  -  /dev/loop12  ext4  default/web-0  -"}}
	if d := same(was, is); d != "" {
		t.Error(d)
	}
	for i, changed := range []string{"flexd looks", `     {"status":"Failure"}   (1 ms)`, "   ✓ the shared volume is gone", "     demo/data  320 MiB  idle"} {
		other := append([]line{}, is...)
		other[i].text = changed
		if same(was, other) == "" {
			t.Errorf("%q is not noticed", changed)
		}
	}
	if same(was, is[:3]) == "" {
		t.Error("the end is not noticed")
	}
}

const (
	lineHeight = 18
	charWidth  = 8.4
	margin     = 14
	lastly     = 6 * time.Second // the end is shown that long
)

// svg returns a picture of a terminal in which a recording runs in a loop: one long text that scrolls behind
// a window.
func svg(all []line) string {
	all = append([]line{{0, "\x1b[1m# make demo\x1b[0m"}}, all...)
	width, height := margin*2+int(charWidth*castWidth), margin*2+lineHeight*castHeight
	length := all[len(all)-1].at + lastly
	offset := func(shown int) int { return (castHeight - shown) * lineHeight }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d">
<title>make demo: kubelet's calls for a pod's life, and what flexd does</title>
<style>
svg { --back: #f6f8fa; --edge: #d0d7de; --text: #1f2328; --dim: #656d76; --green: #1a7f37; --red: #cf222e }
@media (prefers-color-scheme: dark) { svg { --back: #0d1117; --edge: #30363d; --text: #e6edf3; --dim: #8b949e; --green: #3fb950; --red: #f85149 } }
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--text); white-space: pre }
.b { font-weight: bold } .d { fill: var(--dim) } .g { fill: var(--green) } .r { fill: var(--red) }
#all { transform: translateY(%dpx); animation: play %.1fs steps(1, end) infinite }
@media (prefers-reduced-motion: reduce) { #all { animation: none } }
@keyframes play {
`, width, height, offset(len(all)), length.Seconds())
	for i, l := range all {
		fmt.Fprintf(&b, "%.2f%%{transform:translateY(%dpx)}\n", 100*l.at.Seconds()/length.Seconds(), offset(i+1))
	}
	fmt.Fprintf(&b, `}
</style>
<rect x=".5" y=".5" width="%d" height="%d" rx="6" fill="var(--back)" stroke="var(--edge)"/>
<svg x="%d" y="%[3]d" width="%d" height="%d">
<g id="all">
`, width-1, height-1, margin, width-2*margin, lineHeight*castHeight)
	style, text := "", ""
	for i, l := range all {
		if text, style = spans(l.text, style); text != "" {
			fmt.Fprintf(&b, "<text y=\"%d\">%s</text>\n", i*lineHeight+lineHeight-5, text)
		}
	}
	b.WriteString("</g>\n</svg>\n</svg>\n")
	return b.String()
}

var (
	color  = regexp.MustCompile(`\x1b\[(\d+)m`)
	class  = map[string]string{"1": "b", "2": "d", "32": "g", "31": "r"}
	escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
)

// spans turns the colors of a terminal into elements. A color lasts until the next one, which
// may be in another line.
func spans(text, last string) (elements, now string) {
	var b strings.Builder
	write := func(text string) {
		switch text = escape.Replace(text); {
		case text == "":
		case last == "":
			b.WriteString(text)
		default:
			fmt.Fprintf(&b, `<tspan class="%s">%s</tspan>`, last, text)
		}
	}
	for m := color.FindStringSubmatchIndex(text); m != nil; m = color.FindStringSubmatchIndex(text) {
		write(text[:m[0]])
		last, text = class[text[m[2]:m[3]]], text[m[1]:]
	}
	write(text)
	return b.String(), last
}
