package mounttable

import "maps"

// Names number strings from 0 on. A value never changes, so that tables can share it: with
// returns another one, which shares most of its memory.
type names struct{ base, extra map[string]int }

func (n names) len() int { return len(n.base) + len(n.extra) }

// of returns the number of a string, or -1.
func (n names) of(s string) int {
	if i, ok := n.base[s]; ok {
		return i
	}
	if i, ok := n.extra[s]; ok {
		return i
	}
	return -1
}

// with returns names in which all of these have numbers, too.
func (n names) with(fresh []string) names {
	if len(fresh) == 0 {
		return n
	}
	more := names{n.base, maps.Clone(n.extra)}
	into := &more.extra
	if len(n.extra)+len(fresh) > 256+len(n.base)/8 {
		more = names{make(map[string]int, n.len()+len(fresh)), nil}
		maps.Copy(more.base, n.base)
		maps.Copy(more.base, n.extra)
		into = &more.base
	}
	if *into == nil {
		*into = map[string]int{}
	}
	for _, s := range fresh {
		if more.of(s) < 0 {
			(*into)[s] = more.len()
		}
	}
	return more
}
