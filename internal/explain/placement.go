package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const hostname = "kubernetes.io/hostname"

// placed reports whether a field may bind the pod to a node.
func (p *podSpec) placed() bool {
	return p.NodeName != "" || len(p.NodeSelector) > 0 || p.Affinity.NodeAffinity.Scheduling != nil
}

// away returns why the pod does not start on a node; "" = it may.
func (p *podSpec) away(node string) string {
	for _, at := range []struct{ field, name string }{{"nodeName", p.NodeName}, {"nodeSelector", p.NodeSelector[hostname]}} {
		if at.name != "" && at.name != node {
			return elsewhere("the pod's "+at.field, at.name, node)
		}
	}
	return p.Affinity.NodeAffinity.away(node, "the pod's nodeAffinity")
}

// away returns why a nodeAffinity excludes a node; "" = it may not.
func (a *nodeAffinity) away(node, whose string) string {
	selector := cmp.Or(a.Required, a.Scheduling)
	if selector == nil || len(selector.Terms) == 0 {
		return ""
	}
	var named []string
	for _, t := range selector.Terms { // one of them must fit
		excluded := false
		for _, x := range t.Expressions {
			if x.Key == hostname && x.Operator == "In" && !slices.Contains(x.Values, node) {
				excluded = true
				named = append(named, x.Values...)
			}
		}
		if !excluded {
			return ""
		}
	}
	return elsewhere(whose, strings.Join(named, ", "), node)
}

func elsewhere(whose, name, node string) string {
	return fmt.Sprintf("%s selects %s, and this is %s: the pod does not start here; ask flexd there. What is said here holds as if it did", whose, cmp.Or(name, "no node"), node)
}
