package status

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Size returns a number of bytes in binary units, with three significant digits.
func Size(bytes int64) string {
	if bytes < 1024 {
		return fmt.Sprintf("%d B", bytes)
	}
	v, unit := float64(bytes), -1
	for v >= 1023.5 && unit < 5 { // 1023.5 would be shown as 1024
		v /= 1024
		unit++
	}
	decimals := 0
	switch {
	case v < 9.995:
		decimals = 2
	case v < 99.95:
		decimals = 1
	}
	return fmt.Sprintf("%.*f %ciB", decimals, v, "KMGTPE"[unit])
}

// age returns a duration with the precision that an operator needs.
func age(d time.Duration) string {
	d = max(d, 0) // the clock may have been set back
	s := int(d / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 3600:
		return fmt.Sprintf("%dm", s/60)
	case s < 24*3600:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd%dh", s/86400, s/3600%24)
}

// ago returns the age of an event, in one unit.
func ago(d time.Duration) string {
	s := int(max(d, 0) / time.Second)
	switch {
	case s < 1:
		return "now"
	case s < 60:
		return fmt.Sprintf("%ds ago", s)
	case s < 3600:
		return fmt.Sprintf("%dm ago", s/60)
	case s < 48*3600:
		return fmt.Sprintf("%dh ago", s/3600)
	}
	return fmt.Sprintf("%dd ago", s/86400)
}

// took returns the duration of a call or step that has ended.
func took(seconds float64) string {
	switch {
	case seconds < 0.9995:
		return fmt.Sprintf("%.0fms", seconds*1000)
	case seconds < 59.95:
		return fmt.Sprintf("%.1fs", seconds)
	}
	return age(time.Duration(seconds * float64(time.Second)))
}

// clock returns a time, with its date unless it is of today.
func clock(t, now time.Time) string {
	t = t.In(now.Location())
	if d := now.Sub(t); d < 12*time.Hour && d > -12*time.Hour {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// plain makes any text one line that is safe on a terminal: messages quote the output of tools, and
// names come from pod authors.
func plain(s string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case unicode.IsSpace(c):
			return ' '
		case !unicode.IsPrint(c):
			return '?'
		}
		return c
	}, s)
}

// Plain is plain for texts outside of documents.
func Plain(s string) string { return plain(s) }

// cut shortens s to width characters; 0 = unlimited.
func cut(s string, width int) string {
	if r := []rune(s); width > 0 && len(r) > width {
		return string(r[:max(width-3, 0)]) + "..."
	}
	return s
}
