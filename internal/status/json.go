package status

import (
	"encoding/json"
	"io"
)

// WriteJSON writes a document of the status socket, indented: people read it
// with curl. A list without elements is [], never null, so that a script need
// not know the difference.
func WriteJSON(w io.Writer, v any) error {
	switch doc := v.(type) {
	case List:
		v = doc.filled()
	case GroupList:
		doc.Groups = filledGroups(doc.Groups)
		v = doc
	case VolumeDetail:
		v = doc.filled()
	case Check:
		v = doc.filled()
	case Events:
		doc.Events, doc.Waiting, doc.Problems = list(doc.Events), list(doc.Waiting), list(doc.Problems)
		v = doc
	case Orphans:
		v = doc.filled()
	case Diagnosis:
		v = doc.filled()
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (l List) filled() List {
	l.Volumes = append([]Volume{}, l.Volumes...) // not ours to change
	for i := range l.Volumes {
		l.Volumes[i].Pods = list(l.Volumes[i].Pods)
	}
	l.Problems = list(l.Problems)
	l.Findings = list(l.Findings)
	l.Pools = list(l.Pools)
	l.Groups = filledGroups(l.Groups)
	l.RefusedCalls = list(l.RefusedCalls)
	return l
}

func filledGroups(groups []Group) []Group {
	groups = append([]Group{}, groups...)
	for i := range groups {
		groups[i].Disks = list(groups[i].Disks)
		groups[i].ThinPools = list(groups[i].ThinPools)
	}
	return groups
}

func (s VolumeDetail) filled() VolumeDetail {
	s.Pods = list(s.Pods)
	s.Claims = list(s.Claims)
	s.Calls = list(s.Calls)
	s.Observed = list(s.Observed)
	s.Plan = list(s.Plan)
	s.Refused = list(s.Refused)
	s.History = list(s.History)
	s.Findings = list(s.Findings)
	s.RefusedCalls = list(s.RefusedCalls)
	return s
}

func (c Check) filled() Check {
	c.Groups = list(c.Groups)
	c.Findings = list(c.Findings)
	c.RefusedCalls = list(c.RefusedCalls)
	return c
}

func (o Orphans) filled() Orphans {
	o.Orphans = append([]Orphan{}, o.Orphans...) // not ours to change
	for i := range o.Orphans {
		o.Orphans[i].Plan = list(o.Orphans[i].Plan)
	}
	o.Refused = list(o.Refused)
	return o
}

func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}
