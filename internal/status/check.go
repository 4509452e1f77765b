package status

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
)

// WriteCheck prints the findings of a check with their remedies: unknown groups and unreadable notes
// first, because the list is incomplete without them.
func WriteCheck(w io.Writer, c Check, now time.Time) error {
	p := &page{}
	for _, g := range c.Groups {
		if g.Unknown != "" {
			p.line(plain(g.VG) + "  unknown")
			p.line("  " + plain(g.Unknown))
			p.line("")
		}
	}
	for _, problem := range c.Problems {
		p.line("Problem: " + plain(problem))
		p.line("")
	}
	for _, d := range c.Findings {
		p.line(plain(d.volume()) + "  " + d.head(now))
		p.line("  " + plain(d.Message))
		p.line("  what to do: " + plain(d.Hint))
		p.line("")
	}
	for _, r := range c.RefusedCalls {
		p.line(r.name() + "  refused: " + r.head(now))
		p.line("  " + plain(r.Message))
		p.line("")
	}
	p.line(c.summary())
	_, err := io.WriteString(w, p.String())
	return err
}

// volume returns its name; only kubelet's name if the volume group is not known. A finding
// about the node has the path of a file, one about a whole volume group has its name.
func (d Finding) volume() string {
	if d.VG == "" {
		return cmp.Or(d.LV, d.Dir)
	}
	if d.LV == "" {
		return d.VG
	}
	return d.VG + "/" + d.LV
}

// head returns the class with its age.
func (d Finding) head(now time.Time) string {
	text := plain(d.Class)
	if d.Informational {
		text += " (nothing is wrong)"
	}
	return fmt.Sprintf("%s, first seen %s", text, ago(now.Sub(d.Since)))
}

// summary is the one line with the verdict.
func (c Check) summary() string {
	groups, volumes, active, unknown := 0, 0, 0, []string{}
	for _, g := range c.Groups {
		if g.Unknown != "" {
			unknown = append(unknown, plain(g.VG))
			continue
		}
		groups, volumes, active = groups+1, volumes+g.Volumes, active+g.Active
	}
	wrong, known := 0, 0
	for _, d := range c.Findings {
		if d.Informational {
			known++
		} else {
			wrong++
		}
	}
	var text string
	switch {
	case len(c.Groups) == 0:
		return fmt.Sprintf("Nothing to check on %s: no volume group is configured.", plain(c.Node))
	case wrong > 0:
		text = fmt.Sprintf("%s on %s", counted(wrong, "disagreement"), plain(c.Node))
	case len(unknown)+len(c.Problems) > 0:
		text = fmt.Sprintf("No disagreement on %s as far as it is known", plain(c.Node))
	default:
		text = fmt.Sprintf("All agree on %s: metadata, devices, mounts and claims", plain(c.Node))
	}
	if groups > 0 {
		text += fmt.Sprintf(" (%s in %s, %d active", counted(volumes, "volume"), counted(groups, "group"), active)
		if known > 0 {
			text += fmt.Sprintf(", %d of them unclaimed", known)
		}
		text += ")"
	}
	text += "."
	if len(unknown) > 0 {
		text += " Unknown: " + strings.Join(unknown, ", ") + "."
	}
	return text
}

// findings returns one line for each error, and one for all informational findings.
func (l List) findings(width int) []string {
	var lines, known []string
	for _, d := range l.Findings {
		name := plain(d.volume())
		if d.Informational {
			known = append(known, name)
			continue
		}
		lines = append(lines, fmt.Sprintf("Disagreement: %s %s: %s", name, plain(d.Class), plain(d.Message)))
	}
	if len(lines) > 0 {
		lines = append(lines, "What to do about it: flexd check")
	}
	if len(known) > 0 {
		const most = 3
		text := "Active, and no pod has asked for it: " + strings.Join(known[:min(most, len(known))], ", ")
		if len(known) > most {
			text += fmt.Sprintf(" and %d more", len(known)-most)
		}
		lines = append(lines, text)
	}
	for i, line := range lines {
		lines[i] = cut(line, width)
	}
	return lines
}

// pools is the table of the thin pools in use.
func (l List) pools(width int) []string {
	if len(l.Pools) == 0 {
		return nil
	}
	c := &columns{}
	c.row("THIN POOL", "DATA", "METADATA", "STATE")
	for _, p := range l.Pools {
		state := "ok"
		switch {
		case p.Problem != "":
			state = plain(p.Problem)
		case p.Warning != "":
			state = plain(p.Warning)
		case !p.Active:
			state = "inactive"
		}
		c.row(plain(p.VG+"/"+p.Name), usage(p.DataUsed, p.DataTotal), usage(p.MetadataUsed, p.MetadataTotal), state)
	}
	return c.lines("", width)
}

func usage(used, total int64) string {
	if total <= 0 {
		return "-"
	}
	return fmt.Sprintf("%s of %s (%s)", Size(used), Size(total), percent(used, total))
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
