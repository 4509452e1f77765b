// Package play prints what a demonstration does: scenes with commands and their output, and claims
// that were checked.
package play

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
)

// A Play prints a demonstration for a terminal.
type Play struct {
	Short  func(string) string // leaves out what makes a line long and says nothing
	Prompt string              // before a command

	begin                        time.Time
	scenes                       int
	checks                       int
	blob                         string // the last that was shown whole
	width                        int
	bold, dim, green, red, plain string
}

// New returns a play for a terminal of that many columns, or the one that the output is (0).
func New(columns int, short func(string) string) *Play {
	p := &Play{Short: short, Prompt: "$ ", begin: time.Now(), width: 100}
	if columns == 0 {
		size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return p // no terminal: no colours
		}
		columns = int(size.Col)
	}
	if columns > 40 {
		p.width = min(columns, 120)
	}
	p.bold, p.dim, p.green, p.red, p.plain = "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[31m", "\x1b[0m"
	return p
}

// A Broken claim ends the play.
type Broken struct{ Claim string }

func (b Broken) Error() string { return b.Claim }

// Perform plays it until its end, or until a claim is broken.
func (p *Play) Perform(scenes func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			b, ok := r.(Broken)
			if !ok {
				panic(r)
			}
			err = b
		}
	}()
	scenes()
	return nil
}

// Scene begins a scene.
func (p *Play) Scene(title string) {
	p.scenes++
	fmt.Printf("\n%s%d. %s%s\n", p.bold, p.scenes, title, p.plain)
}

// Say explains.
func (p *Play) Say(format string, a ...any) {
	fmt.Println()
	p.Wrap("   ", "   ", p.Short(fmt.Sprintf(format, a...)), "")
}

// Check claims something that was just looked at.
func (p *Play) Check(ok bool, format string, a ...any) {
	claim := p.Short(fmt.Sprintf(format, a...))
	if !ok {
		panic(Broken{claim})
	}
	p.checks++
	p.Wrap("   "+p.green+"✓"+p.plain+" ", "     ", claim, "")
}

// Must is for what is no claim, but has to work.
func (p *Play) Must(err error) {
	if err != nil {
		panic(Broken{err.Error()})
	}
}

// Failed ends a play with a broken claim, and shows the end of flexd's log.
func (p *Play) Failed(err error, log string) {
	fmt.Printf("   %s✗ %v%s\n\nThe last that flexd said:\n%s\n", p.red, err, p.plain, log)
}

// End ends a play.
func (p *Play) End() {
	fmt.Printf("\n%d claims checked in %.0f s.\n", p.checks, time.Since(p.begin).Seconds())
}

// Print shows a command and what came of it.
func (p *Play) Print(command, output string) {
	fmt.Println()
	p.Wrap("   "+p.dim+p.Prompt+p.plain, "       ", p.Short(command), "")
	if output == "" {
		return
	}
	for line := range strings.SplitSeq(strings.TrimRight(output, "\n"), "\n") {
		line = p.Short(line)
		if m := operation.FindStringSubmatch(line); m != nil { // aligned for the whole paths
			line = fmt.Sprintf("%-66s %s", m[1], m[2])
		}
		switch r := []rune(line); {
		case len(r) <= p.width-5 || !strings.HasPrefix(command, "flexd status"):
		case strings.Contains(command, "|"): // a few lines, and all of them matter
			p.Wrap("     ", "     ", line, "")
			continue
		default:
			line = string(r[:p.width-6]) + "…" // as on a terminal of this width
		}
		fmt.Println(strings.TrimRight("     "+line, " "))
	}
}

// operation is a line of a volume's history: what was done, and how it went.
var operation = regexp.MustCompile(`^( +\d\d:\d\d:\d\d  .*\S)  +(\S+ +(?:ok|failed).*)$`)

// Answered prints a call of flexdriver and its answer.
func (p *Play) Answered(a host.Answer, took time.Duration, args []string) {
	fmt.Println()
	words := make([]string, len(args))
	for i, w := range args {
		switch {
		case w == "":
			w = `""`
		case w == p.blob:
			w = "{the same options}"
		case strings.HasPrefix(w, "{"):
			p.blob = w
		}
		words[i] = w
	}
	p.Wrap("   "+p.dim+p.Prompt+p.plain+"lvm ", "       ", p.Short(strings.Join(words, " ")), "")
	p.Wrap("     "+p.dim, "     ", p.Short(a.Text)+fmt.Sprintf("   (%d ms)", took.Milliseconds()), p.plain)
}

// Wrap prints text in lines, the first and the others behind a prefix. It breaks
// after a space or, in JSON, after a comma.
func (p *Play) Wrap(first, other, text, end string) {
	prefix := first
	for line := range lines(text, p.width-len(other)) {
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
