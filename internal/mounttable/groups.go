package mounttable

import (
	"bufio"
	"os"
	"strings"

	"github.com/flexd/flexd/internal/procfs"
)

// Groups says of a peer group which other one it is a slave of.
type Groups map[int]int

// add reads one line of mountinfo.
func (g Groups) add(line string) {
	optional, _, _ := strings.Cut(line, " - ")
	peer, master := group(optional, "shared:"), group(optional, "master:")
	switch above := group(optional, "propagate_from:"); {
	case master == 0:
		return
	case above != 0 && g[master] == 0: // no mount of its master is visible to the reader
		g[master] = above
	}
	if peer != 0 {
		g[peer] = master
	}
}

// follows reports whether mounts propagate from one peer group to another.
func (g Groups) follows(to, from int) bool {
	for range len(g) + 1 { // a group may get an old number while tables are read: there may be a cycle
		if to == from {
			return true
		}
		if to = g[to]; to == 0 {
			return false
		}
	}
	return false
}

// maxLines limits what AllGroups reads: users can have large mount tables in namespaces of their own.
const maxLines = 1_000_000

// AllGroups reads the mount tables of all processes. Of a peer group without a mount in any of them
// nothing is known.
func AllGroups() Groups {
	g, s := Groups{}, procfs.NewSearch(maxLines)
	g.read(s, "/proc/self/mountinfo")
	seen := map[string]bool{} // mount namespaces, with the root of a process there: only mounts below it are visible
	s.Each(func(p procfs.Process) bool {
		ns, err := p.Namespace("mnt")
		root, _ := os.Readlink(p.Path("root"))
		if err == nil && !seen[ns+root] {
			seen[ns+root] = true
			g.read(s, p.Path("mountinfo"))
		}
		return true
	})
	return g
}

func (g Groups) read(s *procfs.Search, path string) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	for r := bufio.NewReaderSize(f, 64<<10); ; {
		line, err := r.ReadString('\n')
		if err != nil || s.Over(1+len(line)/1024) {
			return
		}
		g.add(line)
	}
}

func (t *Table) byGroup() Groups {
	t.visits.Add(int64(len(t.all)))
	g := Groups{}
	for _, e := range t.all {
		g.add(e.text)
	}
	return g
}
