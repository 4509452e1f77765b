package status

import (
	"strings"
	"unicode/utf8"
)

// columns is text in columns, each as wide as its widest cell. The last cell of
// a row is never padded, so no line ends in spaces.
type columns struct {
	rows   [][]string
	colors map[[2]int]string // of a row and a column: a terminal's code
}

// color gives a cell a color.
func (c *columns) color(row, column int, code string) {
	if c.colors == nil {
		c.colors = map[[2]int]string{}
	}
	c.colors[[2]int{row, column}] = code
}

func (c *columns) row(cells ...string) { c.rows = append(c.rows, cells) }

// lines lays the rows out, each behind the indent, cut to width if it is > 0.
func (c *columns) lines(indent string, width int) []string {
	var widths []int
	for _, row := range c.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	lines := make([]string, len(c.rows))
	for i, row := range c.rows {
		var b strings.Builder
		b.WriteString(indent)
		from, colored := 0, -1 // in bytes
		for j, cell := range row {
			if c.colors[[2]int{i, j}] != "" {
				from, colored = b.Len(), j
			}
			b.WriteString(cell)
			if j < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell)+2))
			}
		}
		lines[i] = cut(strings.TrimRight(b.String(), " "), width)
		if colored >= 0 && strings.HasPrefix(lines[i], b.String()[:from]+row[colored]) { // it was not cut
			to := from + len(row[colored])
			lines[i] = lines[i][:from] + "\x1b[" + c.colors[[2]int{i, colored}] + "m" + row[colored] + "\x1b[m" + lines[i][to:]
		}
	}
	return lines
}
