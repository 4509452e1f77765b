package status

import (
	"cmp"
	"fmt"
	"io"
	"strings"
)

// The results of an explained call.
const (
	WouldSucceed   = "success"
	WouldRefuse    = "refused"
	OutcomeUnknown = "unknown"
)

// Explained is the answer to /v1/explain: the expected results of successive calls of kubelet.
type Explained struct {
	Node    string          `json:"node"`
	Version string          `json:"version"`
	Driver  string          `json:"driver"`
	Lease   string          `json:"lease"`
	Shared  []string        `json:"shared,omitempty"` // volume groups that other nodes use, too
	Calls   []ExplainedCall `json:"calls"`
}

// An ExplainedCall is the expected result of one call.
type ExplainedCall struct {
	Verb    string   `json:"verb"`
	Args    []string `json:"args"`
	Result  string   `json:"result"`
	Steps   []string `json:"steps"`
	Code    string   `json:"code,omitempty"`
	Message string   `json:"message,omitempty"`
	Notes   []string `json:"notes"`
}

// An Explanation is the document of `flexd explain`.
type Explanation struct {
	Node     string            `json:"node"`
	Driver   string            `json:"driver"`
	Attach   bool              `json:"attach"`
	Result   string            `json:"result"`
	Problems []string          `json:"problems"`
	Volumes  []ExplainedVolume `json:"volumes"`
	Skipped  []SkippedVolume   `json:"skipped"`
}

// An ExplainedVolume is one volume of a pod, or of a PersistentVolume without a pod.
type ExplainedVolume struct {
	Source           string          `json:"source"`
	Kind             string          `json:"kind"`
	Namespace        string          `json:"namespace"`
	Name             string          `json:"name"`
	Volume           string          `json:"volume,omitempty"`
	PersistentVolume string          `json:"persistentVolume,omitempty"`
	VG               string          `json:"vg"`
	LV               string          `json:"lv"`
	Result           string          `json:"result"`
	Refusals         []string        `json:"refusals"`
	Calls            []ExplainedCall `json:"calls"`
	End              []string        `json:"end"`
	Warnings         []string        `json:"warnings"`
	Notes            []string        `json:"notes"`
}

// A SkippedVolume is one that is not flexd's.
type SkippedVolume struct {
	Source string `json:"source"`
	Object string `json:"object"`
	Volume string `json:"volume"`
	Reason string `json:"reason"`
}

// Judge returns the result of all volumes.
func (e *Explanation) Judge() string {
	result := WouldSucceed
	for _, v := range e.Volumes {
		switch v.Result {
		case WouldRefuse:
			return WouldRefuse
		case OutcomeUnknown:
			result = OutcomeUnknown
		}
	}
	return result
}

// WriteExplanation writes an explanation for people.
func WriteExplanation(w io.Writer, e Explanation) error {
	p := &page{}
	for _, v := range e.Volumes {
		p.explained(v)
	}
	for _, s := range e.Skipped {
		p.line(plain(fmt.Sprintf("%s (%s): volume %s is skipped: %s", s.Object, s.Source, s.Volume, s.Reason)))
	}
	if len(e.Skipped) > 0 {
		p.line("")
	}
	for _, problem := range e.Problems {
		p.line(plain("Note: " + problem))
	}
	count := map[string]int{}
	for _, v := range e.Volumes {
		count[v.Result]++
	}
	var parts []string
	for _, r := range []struct{ result, text string }{{WouldRefuse, "would be refused"}, {OutcomeUnknown, "unknown"}, {WouldSucceed, "would be mounted"}} {
		if n := count[r.result]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, r.text))
		}
	}
	if len(parts) == 0 {
		parts = []string{"nothing would be asked of flexd"}
	}
	p.line(plain(fmt.Sprintf("%s on %s (driver %s, attach:%t): %s.", counted(len(e.Volumes), "volume"), e.Node, e.Driver, e.Attach, strings.Join(parts, ", "))))
	_, err := io.WriteString(w, p.String())
	return err
}

func (p *page) explained(v ExplainedVolume) {
	object := v.Kind + " " + v.Name
	if v.Namespace != "" {
		object = v.Kind + " " + v.Namespace + "/" + v.Name
	}
	if v.Volume != "" {
		object += ", volume " + v.Volume
	}
	if v.PersistentVolume != "" && v.PersistentVolume != v.Name {
		object += ", PersistentVolume " + v.PersistentVolume
	}
	p.line(plain(fmt.Sprintf("%s (%s): %s/%s", object, v.Source, cmp.Or(v.VG, "?"), cmp.Or(v.LV, "?"))))
	for i, c := range v.Calls {
		text := strings.Join(c.Steps, ", ")
		switch {
		case c.Result == WouldRefuse:
			text = fmt.Sprintf("refused (%s): %s", c.Code, c.Message)
		case c.Result == OutcomeUnknown:
			text = strings.TrimPrefix(text+"; ", "; ") + "unknown: " + c.Message
		case text == "":
			text = "success, nothing to do"
		}
		p.line(plain(fmt.Sprintf("  %d  %-13s  %s", i+1, c.Verb, text)))
		for _, n := range c.Notes {
			p.line(plain(fmt.Sprintf("     %-13s  %s", "", n)))
		}
	}
	for _, list := range []struct {
		title string
		texts []string
	}{{"refused", v.Refusals}, {"end", v.End}, {"warning", v.Warnings}, {"note", v.Notes}} {
		for _, text := range list.texts {
			p.line(plain(fmt.Sprintf("     %-13s  %s", list.title, text)))
		}
	}
	p.line("")
}
