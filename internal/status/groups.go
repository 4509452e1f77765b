package status

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
)

// A GroupList is the part of a List that `flexd status --groups` shows.
type GroupList struct {
	Node    string  `json:"node"`
	Version string  `json:"version"`
	Groups  []Group `json:"groups"`
}

// WriteGroups prints a line for each volume group, with its thin pools below it, and the
// reasons of their states. A wide table has the disks as well.
func WriteGroups(w io.Writer, l GroupList, now time.Time, how Layout) error {
	c := &columns{}
	c.row("GROUP", "STATE", "SIZE", "FREE", "USED", "LARGEST VOLUME", "PROVIDER", "OBSERVED")
	const state, red, yellow, green = 1, "31", "33", "32"
	color := func(code string) {
		if how.Color {
			c.color(len(c.rows)-1, state, code)
		}
	}
	var notes []string
	note := func(name, text string) {
		if text != "" {
			notes = append(notes, plain(name+": "+text))
		}
	}
	for _, g := range l.Groups {
		seen, size, free, largest, used := "never", "-", "-", "-", "-"
		if !g.ObservedAt.IsZero() {
			seen, size, free, used = ago(now.Sub(g.ObservedAt)), Size(g.Size), Size(g.Free), percent(g.Size-g.Free, g.Size)
			if g.LargestVolume != nil {
				largest = Size(*g.LargestVolume)
			}
		}
		c.row(plain(g.Name), plain(g.State), size, free, used, largest, plain(g.Provider), seen)
		if g.State == GroupOK {
			color(green)
		} else {
			color(red)
			note(g.Name, g.Error)
		}
		if k := g.Locks; k != nil {
			code, kind, seen := red, cmp.Or(k.Type, "locks"), "never"
			switch k.State {
			case "started":
				code = green
			case "starting", "stopping":
				code = yellow
			}
			if k.HostID != 0 {
				kind += fmt.Sprintf(", host id %d", k.HostID)
			}
			if !k.ObservedAt.IsZero() {
				seen = ago(now.Sub(k.ObservedAt))
			}
			c.row("  locks", plain(k.State), "-", "-", "-", "-", plain(kind), seen)
			color(code)
			if k.Reason != g.Error {
				note(g.Name+" locks", k.Reason)
			}
		}
		for _, p := range g.ThinPools {
			state, code := plain(p.State), red
			switch {
			case p.State == PoolOK && p.Warning != "":
				state, code = "nearly full", yellow
			case p.State == PoolOK:
				code = green
			case p.State == PoolInactive:
				code = ""
			}
			free, used := "-", "-"
			if p.State != PoolInactive {
				free, used = Size(max(p.Size-p.Used, 0)), percent(p.Used, p.Size)
				if m := p.MetadataSize; m > 0 && (how.Wide || float64(p.MetadataUsed)/float64(m) > float64(p.Used)/float64(max(p.Size, 1))) {
					used += ", metadata " + percent(p.MetadataUsed, m)
				}
			}
			c.row("  "+plain(p.Name), state, Size(p.Size), free, used, "-", "thin pool", seen)
			if code != "" {
				color(code)
			}
			note(g.Name+"/"+p.Name, p.Problem+p.Warning)
		}
		for _, d := range g.Disks {
			if d.Problem != "" && d.Device != "" { // the reason of the group's state names a missing one
				note(g.Name, "disk "+d.name()+": "+d.Problem)
			}
			if how.Wide {
				c.row("  "+plain(d.name()), "-", Size(d.Size), Size(d.Free), percent(d.Size-d.Free, d.Size), "-", "disk", seen)
			}
		}
	}
	width := how.Width
	if how.Wide {
		width = 0
	}
	var b strings.Builder
	if len(l.Groups) == 0 {
		b.WriteString("The configuration has no volume groups.\n")
	} else {
		b.WriteString(strings.Join(c.lines("", width), "\n") + "\n")
	}
	if len(notes) > 0 {
		b.WriteString("\n" + strings.Join(notes, "\n") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (d Disk) name() string { return cmp.Or(d.Device, "(missing)") }

func percent(used, total int64) string {
	if total <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(used)/float64(total))
}
