package status

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// WriteVolumeDetail prints everything about one volume.
func WriteVolumeDetail(w io.Writer, s VolumeDetail, now time.Time) error {
	p := &page{}
	s.writeHead(p, now)
	s.writeClaims(p, now)
	s.writeLease(p, now)
	s.writeCalls(p, now)
	p.section("Observed")
	facts := &columns{}
	for _, f := range s.Observed {
		facts.row(plain(f.Name), plain(f.Value))
	}
	p.columns(facts, "nothing yet")
	p.list("Would do now", s.Plan, "nothing: all is as wanted")
	p.list("Would refuse now", s.Refused, "nothing")
	s.writeHistory(p, now)
	_, err := io.WriteString(w, p.String())
	return err
}

func (s VolumeDetail) writeHead(p *page, now time.Time) {
	head := fmt.Sprintf("%s  %s", plain(s.VG+"/"+s.LV), s.stateCell(now))
	if s.Size > 0 {
		head += ", " + Size(s.Size)
	}
	if s.Filesystem != "" {
		head += ", " + plain(s.Filesystem)
	}
	if s.Device != "" {
		head += " on " + plain(s.Device)
	}
	p.line(head)
	if s.UUID != "" {
		p.line("uuid " + plain(s.UUID))
	}
	if e := s.Error; e != nil && s.State != Refused {
		text := fmt.Sprintf("last error, %s: %s", ago(now.Sub(e.At)), e.text())
		if e.CallID != "" {
			text += fmt.Sprintf(" (call %s)", plain(e.CallID))
		}
		p.line(text)
		if !e.Next.IsZero() {
			p.line("flexd tries again by itself in " + age(e.Next.Sub(now)))
		}
	}
	if s.Waiting != nil {
		p.line(s.Waiting.text(now))
	}
	if c := s.Stuck; c != nil {
		text := fmt.Sprintf("stuck: %s, pid %d, has been running since %s (%s)", plain(c.Step), c.Pid, clock(c.Since, now), age(now.Sub(c.Since)))
		if c.Wchan != "" {
			text += fmt.Sprintf("; it waits in the kernel, in %s", plain(c.Wchan))
		}
		p.line(text)
		if c.Hint != "" {
			p.line("what to do: " + plain(c.Hint))
		}
	}
	for _, r := range s.RefusedCalls {
		p.line("refused: " + r.head(now))
		if r.Dir != "" {
			p.line("  at " + plain(r.Dir))
		}
		p.line(fmt.Sprintf("  %s (call %s)", plain(r.Message), plain(r.CallID)))
	}
	for _, d := range s.Findings {
		p.line(d.head(now))
		p.line("  " + plain(d.Message))
		p.line("  what to do: " + plain(d.Hint))
	}
}

func (s VolumeDetail) writeClaims(p *page, now time.Time) {
	p.section("Claims")
	if len(s.Claims) == 0 {
		p.line("  none: kubelet wants it mounted nowhere")
	}
	for _, c := range s.Claims {
		mounted := "mounted"
		if !c.Mounted {
			mounted = "not mounted"
		}
		text := fmt.Sprintf("  %s, %s for %s, %s", plain(c.Kind), plain(c.Phase), age(now.Sub(c.Since)), mounted)
		if c.Pod != nil {
			text += ", " + c.Pod.String()
		}
		if c.Name != "" {
			text += fmt.Sprintf(", as %q", plain(c.Name))
		}
		p.line(text)
		p.line("    " + plain(c.Dir))
		if c.Note != "" {
			p.line("    note: " + plain(c.Note))
		}
	}
}

func (s VolumeDetail) writeLease(p *page, now time.Time) {
	p.section("Lease")
	switch l := s.Lease; {
	case l == nil:
		p.line("  none")
	case l.Live:
		p.line(fmt.Sprintf("  kept active for another %s, until %s", age(l.Until.Sub(now)), clock(l.Until, now)))
	default:
		p.line(fmt.Sprintf("  ended %s; to be deactivated once nothing uses it", ago(now.Sub(l.Until))))
	}
}

func (s VolumeDetail) writeCalls(p *page, now time.Time) {
	p.section("Waiting calls")
	c := &columns{}
	for _, call := range s.Calls {
		c.row(plain(call.Verb), "for "+age(now.Sub(call.Since)), "gives up in "+age(call.Deadline.Sub(now)),
			"call "+plain(call.ID), plain(call.Dir))
	}
	p.columns(c, "none")
}

func (s VolumeDetail) writeHistory(p *page, now time.Time) {
	p.section("Last operations, newest first")
	c := &columns{}
	for _, o := range s.History {
		end := "ok"
		if o.Error != "" {
			end = "failed: " + plain(o.Error)
		}
		if len(o.CallIDs) > 0 {
			end += fmt.Sprintf(" (call %s)", plain(strings.Join(o.CallIDs, ", ")))
		}
		c.row(clock(o.Started, now), plain(o.Step), took(o.Seconds), end)
	}
	p.columns(c, "none since flexd started; flexd events has earlier ones")
}

// A page is text in sections.
type page struct {
	strings.Builder
}

func (p *page) line(s string) { p.WriteString(strings.TrimRight(s, " ") + "\n") }

func (p *page) section(title string) { p.WriteString("\n" + title + "\n") }

func (p *page) columns(c *columns, none string) {
	for _, line := range c.lines("  ", 0) {
		p.line(line)
	}
	if len(c.rows) == 0 {
		p.line("  " + none)
	}
}

func (p *page) list(title string, items []string, none string) {
	p.section(title)
	for _, item := range items {
		p.line("  - " + plain(item))
	}
	if len(items) == 0 {
		p.line("  " + none)
	}
}
