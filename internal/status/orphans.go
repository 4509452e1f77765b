package status

import (
	"fmt"
	"io"
	"time"
)

// WriteOrphan prints one orphan: the reason, and the steps of a release or its result.
func WriteOrphan(w io.Writer, o Orphan, now time.Time) error {
	p := &page{}
	p.line(plain(o.VG+"/"+o.LV) + "  " + o.head(now))
	p.line("  " + plain(o.Message))
	switch {
	case o.Refused != "":
		p.line("  refused: " + plain(o.Refused))
	case o.Error != "":
		p.line("  not released: " + plain(o.Error))
	case o.Released:
		p.line("  released")
	case len(o.Plan) == 0:
		p.line("  nothing is left to do")
	default:
		for _, step := range o.Plan {
			p.line("  would " + plain(step))
		}
	}
	p.line("")
	_, err := io.WriteString(w, p.String())
	return err
}

// WriteOrphansEnd prints the refused targets, and the next command.
func WriteOrphansEnd(w io.Writer, o Orphans, done bool) error {
	p := &page{}
	for _, r := range o.Refused {
		p.line(plain(r.Target) + "  nothing to release")
		p.line("  " + plain(r.Message))
		p.line("")
	}
	open := 0
	for _, one := range o.Orphans {
		if one.Refused == "" {
			open++
		}
	}
	switch {
	case len(o.Orphans)+len(o.Refused) == 0:
		p.line(fmt.Sprintf("No orphans on %s.", plain(o.Node)))
	case !done && open > 0:
		p.line("Nothing was done. To do it: flexd release --yes, and the directory, VG/LV or uuid.")
	}
	if o.Unknown != "" {
		p.line("Mounts of dead pods are unknown: " + plain(o.Unknown) + ".")
	}
	_, err := io.WriteString(w, p.String())
	return err
}
