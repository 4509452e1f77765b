package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
)

// A demo is a play in scenes: what it does it shows, and what it claims it has
// checked.
type demo struct {
	*host.Node
	ctx                          context.Context
	begin                        time.Time
	scenes                       int
	checks                       int
	ground                       ground
	shared                       sharing
	device                       string // of the shared volume, from the answer to waitforattach
	scratch                      string // the volume of the killed call
	blob                         string // the last that was shown whole
	width                        int
	bold, dim, green, red, plain string
}

// newDemo returns a play for the terminal of that many columns, or the one that
// the output is (0).
func newDemo(ctx context.Context, n *host.Node, g ground, s sharing, columns int) *demo {
	d := &demo{Node: n, ctx: ctx, ground: g, shared: s, begin: time.Now(), width: 100}
	if columns == 0 {
		size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return d // no terminal: no colours
		}
		columns = int(size.Col)
	}
	if columns > 40 {
		d.width = min(columns, 120)
	}
	d.bold, d.dim, d.green, d.red, d.plain = "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[31m", "\x1b[0m"
	return d
}

// A broken claim ends the play.
type broken struct{ claim string }

func (b broken) Error() string { return b.claim }

// scene begins a scene.
func (d *demo) scene(title string) {
	d.scenes++
	fmt.Printf("\n%s%d. %s%s\n", d.bold, d.scenes, title, d.plain)
}

// say explains.
func (d *demo) say(format string, a ...any) {
	fmt.Println()
	d.wrap("   ", "   ", d.short(fmt.Sprintf(format, a...)), "")
}

// check claims something that was just looked at.
func (d *demo) check(ok bool, format string, a ...any) {
	claim := d.short(fmt.Sprintf(format, a...))
	if !ok {
		panic(broken{claim})
	}
	d.checks++
	d.wrap("   "+d.green+"✓"+d.plain+" ", "     ", claim, "")
}

// must is for what is no claim, but has to work.
func (d *demo) must(err error) {
	if err != nil {
		panic(broken{err.Error()})
	}
}

func (d *demo) failed(err error) {
	fmt.Printf("   %s✗ %v%s\n\nThe last that flexd said:\n%s\n", d.red, err, d.plain, d.LogTail(25))
}

func (d *demo) end() {
	fmt.Printf("\n%d claims checked in %.0f s.\n", d.checks, time.Since(d.begin).Seconds())
	if d.shared.fixed != "" {
		d.wrap("", "", "Left out: a volume that grows under its pods, since "+d.shared.fixed+".", "")
	}
}

// print shows a command and what came of it.
func (d *demo) print(command, output string) {
	fmt.Println()
	d.wrap("   "+d.dim+"$ "+d.plain, "       ", d.short(command), "")
	if output == "" {
		return
	}
	for line := range strings.SplitSeq(strings.TrimRight(output, "\n"), "\n") {
		line = d.short(line)
		if m := operation.FindStringSubmatch(line); m != nil { // aligned for the whole paths
			line = fmt.Sprintf("%-66s %s", m[1], m[2])
		}
		if r := []rune(line); len(r) > d.width-5 && strings.HasPrefix(command, "flexd status") {
			line = string(r[:d.width-6]) + "…" // as on a terminal of this width
		}
		fmt.Println(strings.TrimRight("     "+line, " "))
	}
}

// operation is a line of a volume's history: what was done, and how it went.
var operation = regexp.MustCompile(`^( +\d\d:\d\d:\d\d  .*\S)  +(\S+ +(?:ok|failed).*)$`)

// call is kubelet calling the driver; the answer must be the wanted status.
func (d *demo) call(status string, args ...string) host.Answer {
	d.must(d.ctx.Err())
	started := time.Now()
	a, err := d.Call(d.ctx, args...)
	d.must(err)
	d.answered(a, time.Since(started), args)
	if a.Status != status {
		panic(broken{fmt.Sprintf("%s answers %s, not %s", args[0], a.Status, status)})
	}
	return a
}

func (d *demo) answered(a host.Answer, took time.Duration, args []string) {
	fmt.Println()
	words := make([]string, len(args))
	for i, w := range args {
		switch {
		case w == "":
			w = `""`
		case w == d.blob:
			w = "{the same options}"
		case strings.HasPrefix(w, "{"):
			d.blob = w
		}
		words[i] = w
	}
	d.wrap("   "+d.dim+"$ "+d.plain+"lvm ", "       ", d.short(strings.Join(words, " ")), "")
	d.wrap("     "+d.dim, "     ", d.short(a.Text)+fmt.Sprintf("   (%d ms)", took.Milliseconds()), d.plain)
}

var kubernetesKey = regexp.MustCompile(`"kubernetes\.io/`)

// short leaves out what makes a line long and says nothing.
func (d *demo) short(s string) string {
	s = strings.ReplaceAll(s, d.Root+"/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/", "KUBELET/plugins/…/mounts/")
	s = strings.ReplaceAll(s, d.Root+"/", "KUBELET/")
	s = strings.ReplaceAll(s, d.Dir+"/", "~/")
	s = strings.ReplaceAll(s, "/volumes/flexd~lvm/", "/…/")
	return kubernetesKey.ReplaceAllString(s, `"…/`)
}

// wrap prints text in lines, the first and the others behind a prefix. It breaks
// after a space or, in JSON, after a comma.
func (d *demo) wrap(first, other, text, end string) {
	prefix := first
	for line := range lines(text, d.width-len(other)) {
		fmt.Print(prefix, line, "\n")
		prefix = other
	}
	fmt.Print(end)
}

// lines cuts a text into lines of at most width characters, where it can.
func lines(text string, width int) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		r := []rune(text)
		for len(r) > width {
			cut := width
			for i := width; i > width/2; i-- {
				if c := r[i-1]; c == ' ' || c == ',' {
					cut = i
					break
				}
			}
			if !yield(strings.TrimRight(string(r[:cut]), " ")) {
				return
			}
			r = r[cut:]
		}
		yield(string(r))
	}
}
