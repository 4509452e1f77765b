package mounttable

import (
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// names numbers strings from 0 on. A value never changes, so tables can share it: with
// returns a new value that shares most of the memory.
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

// with returns names that also have numbers for fresh.
func (n names) with(fresh []string) names {
	more, into := n.grow(len(fresh))
	for _, s := range fresh {
		if more.of(s) < 0 {
			into[s] = more.len()
		}
	}
	return more
}

// grow returns a copy, and its map for new strings.
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

// A tree numbers directories and their parents. As with names, a value never changes.
type tree struct {
	names
	parents []int // by number; -1 for "/"
}

// with returns a tree that also has numbers for fresh.
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
			switch up := parentDir(dir); {
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

// path returns the numbers of the known directories on the path of dir, without "/",
// in the memory of buf; whole reports whether dir itself is known.
func (t tree) path(dir string, buf []int) (numbers []int, whole bool) {
	i := t.of(dir)
	for whole = i >= 0; i < 0; i = t.of(dir) {
		up := parentDir(dir)
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

// parentDir returns the parent of a directory; "/" for "/".
func parentDir(dir string) string {
	switch i := strings.LastIndexByte(dir, '/'); {
	case i > 0:
		return dir[:i]
	case i == 0:
		return "/"
	}
	return dir
}
