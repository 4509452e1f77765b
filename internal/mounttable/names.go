package mounttable

import (
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

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
	more, into := n.grow(len(fresh))
	for _, s := range fresh {
		if more.of(s) < 0 {
			into[s] = more.len()
		}
	}
	return more
}

// grow returns a copy and the map of it that new strings are added to.
func (n names) grow(fresh int) (more names, into map[string]int) {
	switch {
	case len(n.extra)+fresh > 256+len(n.base)/8:
		into = make(map[string]int, n.len()+fresh)
		maps.Copy(into, n.base)
		maps.Copy(into, n.extra)
		return names{into, nil}, into
	case n.extra == nil:
		into = map[string]int{}
	default:
		into = maps.Clone(n.extra)
	}
	return names{n.base, into}, into
}

// A tree numbers directories, and all directories above them. A value never changes, as
// one of names.
type tree struct {
	names
	parents []int // by number; of "/", which has none, -1
}

// with returns a tree in which all of these have numbers, too.
func (t tree) with(fresh []string) tree {
	if len(fresh) == 0 {
		return t
	}
	more, into := t.grow(len(fresh))
	t.names = more
	var add func(string) int
	add = func(dir string) int {
		i := t.of(dir)
		if i < 0 {
			parent := -1
			switch up := above(dir); {
			case len(dir) >= unix.PathMax: // no lookup reaches it
				parent = add("/")
			case up != dir:
				parent = add(up)
			}
			i = t.len()
			into[dir] = i
			t.parents = append(t.parents, parent)
		}
		return i
	}
	for _, dir := range fresh {
		add(dir)
	}
	return t
}

// path returns the numbers of the directories on the path of dir that have one, from the
// one below "/" on, in the memory of buf; whole reports whether dir itself is the last.
func (t tree) path(dir string, buf []int) (numbers []int, whole bool) {
	i := t.of(dir)
	for whole = i >= 0; i < 0; i = t.of(dir) {
		up := above(dir)
		if up == dir {
			return nil, false
		}
		dir = up
	}
	numbers = buf[:0]
	for ; t.parents[i] >= 0; i = t.parents[i] {
		numbers = append(numbers, i)
	}
	slices.Reverse(numbers)
	return numbers, whole
}

// above returns the directory above a directory, or the same if there is none.
func above(dir string) string {
	switch i := strings.LastIndexByte(dir, '/'); {
	case i > 0:
		return dir[:i]
	case i == 0:
		return "/"
	}
	return dir
}
