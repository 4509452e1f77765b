package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// States has every state, most urgent first.
var States = []State{Stuck, Failed, Refused, Uncertain, Missing, Faulty, Orphaned, Full, Waiting, Working, Mounted, Active, Idle}

// trouble is the number of these, from the first one, that need an operator.
const trouble = 8

// A Layout has the settings of a table.
type Layout struct {
	Width int  // of the terminal; 0 = unlimited
	Wide  bool // with the uuid, and all pods
	Color bool // of the states
}

// WriteTable prints one line per volume and the problems of the node. A table
// that is wider than the terminal names fewer pods, has its errors on lines of their
// own, and is cut where that does not suffice.
func WriteTable(w io.Writer, l List, now time.Time, how Layout) error {
	var b strings.Builder
	width := how.Width
	if len(l.Volumes) == 0 {
		fmt.Fprintf(&b, "No volumes on %s. A volume appears here when a pod first asks for it.\n", plain(l.Node))
	} else {
		for _, line := range l.rows(now, how) {
			b.WriteString(line + "\n")
		}
		b.WriteString("\n" + l.summary() + "\n")
	}
	for _, p := range l.Problems {
		fmt.Fprintf(&b, "Problem: %s\n", plain(p))
	}
	for _, g := range l.Groups {
		if g.State == GroupFull || g.State == GroupUnusable { // the problems name the others
			b.WriteString(plain(fmt.Sprintf("Volume group %s is %s: %s", g.Name, g.State, g.Error)) + "\n")
		}
	}
	for _, line := range append(l.refused(now, width), l.findings(width)...) {
		b.WriteString(line + "\n")
	}
	if pools := l.pools(width); len(pools) > 0 {
		b.WriteString("\n" + strings.Join(pools, "\n") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (l List) rows(now time.Time, how Layout) []string {
	width := how.Width
	if how.Wide {
		width = 0
	}
	pods, heading := 2, []string{"VOLUME", "SIZE", "STATE", "USED", "DEVICE", "FS", "PODS", "LAST ERROR"}
	if how.Wide {
		pods, heading = 1000, append(heading, "UUID")
	}
	c := &columns{}
	c.row(heading...)
	for _, v := range l.Volumes {
		cells := append(v.cells(now, pods), v.lastCell(now))
		if how.Wide {
			cells = append(cells, cmp.Or(plain(v.UUID), "-"))
		}
		c.row(cells...)
	}
	tooWide := func(line string) bool { return utf8.RuneCountInString(line) > width }
	if width <= 0 || !slices.ContainsFunc(c.lines("", 0), tooWide) {
		l.color(c, how)
		return c.lines("", 0)
	}

	c = &columns{}
	c.row("VOLUME", "SIZE", "STATE", "USED", "DEVICE", "FS", "PODS")
	for _, v := range l.Volumes {
		c.row(v.cells(now, 1)...)
	}
	l.color(c, how)
	var narrow []string
	for i, line := range c.lines("", width) {
		narrow = append(narrow, line)
		if i == 0 { // the heading
			continue
		}
		if v := l.Volumes[i-1]; v.Waiting != nil {
			narrow = append(narrow, cut("  waits: "+plain(v.Waiting.Reason), width))
		} else if v.Error != nil {
			narrow = append(narrow, cut("  last error "+v.Error.cell(now), width))
		}
	}
	return narrow
}

// color colors the states: red = needs an operator.
func (l List) color(c *columns, how Layout) {
	if !how.Color {
		return
	}
	const state, red, yellow, green = 2, "31", "33", "32"
	for i, v := range l.Volumes {
		switch at := slices.Index(States, v.State); {
		case at >= 0 && at < trouble:
			c.color(i+1, state, red)
		case v.State == Working || v.State == Waiting:
			c.color(i+1, state, yellow)
		case v.State == Mounted:
			c.color(i+1, state, green)
		}
	}
}

// cells returns the columns up to the pods, with at most so many pods.
func (v Volume) cells(now time.Time, pods int) []string {
	size := "-"
	if v.Size > 0 {
		size = Size(v.Size)
	}
	return []string{plain(v.VG + "/" + v.LV), size, v.stateCell(now), v.usedCell(), cmp.Or(plain(v.Device), "-"),
		cmp.Or(plain(v.Filesystem), "-"), podsCell(v.Pods, pods)}
}

// usedCell returns the usage of the filesystem: of its inodes, if these are scarce.
func (v Volume) usedCell() string {
	space, inodes := 0.0, 0.0
	if all := v.FilesystemUsed + v.FilesystemFree; all > 0 {
		space = float64(v.FilesystemUsed) / float64(all)
	}
	if v.Inodes > 0 {
		inodes = float64(v.InodesUsed) / float64(v.Inodes)
	}
	switch {
	case v.FilesystemSize <= 0:
		return "-"
	case inodes > space && inodes >= 0.8:
		return fmt.Sprintf("%.0f %% inodes", 100*inodes)
	}
	return fmt.Sprintf("%.0f %%", 100*space)
}

// summary returns the number of volumes in each state, and the command that explains the worst one.
func (l List) summary() string {
	count := map[State]int{}
	first := map[State]Volume{}
	states := slices.Clone(States)
	for _, v := range l.Volumes {
		if count[v.State]++; count[v.State] == 1 {
			first[v.State] = v
		}
		if !slices.Contains(states, v.State) { // of a newer flexd
			states = append(states, v.State)
		}
	}
	var parts []string
	worst := ""
	for i, s := range states {
		if count[s] == 0 {
			continue
		}
		parts = append(parts, fmt.Sprintf("%d %s", count[s], plain(string(s))))
		if i < trouble && worst == "" {
			worst = plain(first[s].VG + "/" + first[s].LV)
		}
	}
	text := fmt.Sprintf("%s on %s: %s.", counted(len(l.Volumes), "volume"), plain(l.Node), strings.Join(parts, ", "))
	if worst != "" {
		text += fmt.Sprintf(" Why: flexd status %s", worst)
	}
	return text
}

// stateCell returns the state, and the age of the present step.
func (v Volume) stateCell(now time.Time) string {
	s := plain(string(v.State))
	if v.Step == "" {
		return s
	}
	s += ": " + plain(v.Step)
	if !v.StepSince.IsZero() {
		s += " " + age(now.Sub(v.StepSince))
	}
	return s
}

func podsCell(pods []Pod, most int) string {
	var names []string
	for i, p := range pods {
		if i == most {
			return fmt.Sprintf("%s +%d", strings.Join(names, ", "), len(pods)-i)
		}
		names = append(names, p.String())
	}
	return cmp.Or(strings.Join(names, ", "), "-")
}

// String returns the name of the pod, or its uid if the name is not known.
func (p Pod) String() string {
	s := "pod " + p.UID
	if p.Name != "" {
		s = p.Namespace + "/" + p.Name
	}
	if p.ReadOnly {
		s += " (ro)"
	}
	return plain(s)
}

// lastCell returns the reason of the volume's wait, or its last error.
func (v Volume) lastCell(now time.Time) string {
	if v.Waiting != nil {
		return plain(v.Waiting.Reason)
	}
	return v.Error.cell(now)
}

// text returns the step, the time that it has waited, and the reason.
func (w *Wait) text(now time.Time) string {
	return plain(fmt.Sprintf("%s waits for %s: %s", w.Step, age(now.Sub(w.Since)), w.Reason))
}

func (e *Error) cell(now time.Time) string {
	if e == nil {
		return "-"
	}
	when := ago(now.Sub(e.At))
	if !e.Next.IsZero() {
		when += ", again in " + age(e.Next.Sub(now))
	}
	return when + ": " + e.text()
}

// text returns the step and the message, unless the message begins with the step.
func (e *Error) text() string {
	if e.Step == "" || strings.HasPrefix(e.Message, e.Step+":") {
		return plain(e.Message)
	}
	return plain(e.Step + ": " + e.Message)
}
