package status

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// The results of an examination, the worst first.
const (
	ResultError   = "error"
	ResultUnknown = "unknown"
	ResultWarning = "warning"
	ResultOK      = "ok"
	ResultSkipped = "skipped" // it does not apply to this node
)

var results = []string{ResultError, ResultUnknown, ResultWarning, ResultOK, ResultSkipped}

// A Diagnosis is the result of `flexd doctor` on a node.
type Diagnosis struct {
	Node         string        `json:"node"`
	Version      string        `json:"version"` // of the program that examined
	Result       string        `json:"result"`  // the worst of the examinations
	Examinations []Examination `json:"examinations"`
}

// An Examination is one property of the node.
type Examination struct {
	Area     string   `json:"area"` // kubelet, driver, flexd, lvm, tools, kernel
	Name     string   `json:"name"` // stable; several have the same name, if there are several kubelets
	Result   string   `json:"result"`
	Evidence string   `json:"evidence"` // the finding and its place
	Why      string   `json:"why"`      // why it matters
	Remedy   []string `json:"remedy"`   // steps and commands, the safest first; empty if nothing is to be done
}

// Judge returns the worst result.
func (d Diagnosis) Judge() string {
	for _, r := range results[:3] {
		if slices.ContainsFunc(d.Examinations, func(e Examination) bool { return e.Result == r }) {
			return r
		}
	}
	return ResultOK
}

// WriteDiagnosis prints the problems with their remedies; all = also the results without a problem.
func WriteDiagnosis(w io.Writer, d Diagnosis, all bool, how Layout) error {
	p := &page{}
	area, detailed, counts := "", false, map[string]int{}
	for _, e := range d.Examinations {
		counts[e.Result]++
		fine := e.Result == ResultOK || e.Result == ResultSkipped
		if fine && !all {
			continue
		}
		if area != "" && (area != e.Area || detailed || !fine) {
			p.line("")
		}
		area, detailed = e.Area, !fine
		head := fmt.Sprintf("%-8s", plain(e.Result))
		if color := map[string]string{ResultError: "31", ResultUnknown: "33", ResultWarning: "33", ResultOK: "32"}[e.Result]; how.Color && color != "" {
			head = "\x1b[" + color + "m" + head + "\x1b[0m"
		}
		p.line(head + plain(e.Area+"/"+e.Name))
		for _, line := range wrapped(plain(e.Evidence), how.Width-4) {
			p.line("    " + line)
		}
		if fine {
			continue
		}
		for _, line := range wrapped("why it matters: "+plain(e.Why), how.Width-4) {
			p.line("    " + line)
		}
		if len(e.Remedy) > 0 {
			p.line("    what to do:")
		}
		for _, step := range e.Remedy {
			p.line("    - " + plain(step)) // commands are never broken
		}
	}
	if area != "" {
		p.line("")
	}
	var parts []string
	for _, r := range results {
		if counts[r] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[r], r))
		}
	}
	text := fmt.Sprintf("%s on %s: %s.", counted(len(d.Examinations), "examination"), plain(d.Node), strings.Join(parts, ", "))
	if !all && counts[ResultOK]+counts[ResultSkipped] > 0 {
		text += " flexd doctor --all shows all."
	}
	p.line(text)
	_, err := io.WriteString(w, p.String())
	return err
}

// wrapped breaks text into lines of at most width characters, where it has spaces. Without a
// terminal there is one line.
func wrapped(s string, width int) (lines []string) {
	if width < 20 {
		return []string{s}
	}
	line := ""
	for word := range strings.FieldsSeq(s) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
