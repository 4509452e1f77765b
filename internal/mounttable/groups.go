package mounttable

import (
	"bufio"
	"os"
	"strings"

	"github.com/flexd/flexd/internal/procfs"
)

// Groups maps peer groups to their masters.
type Groups map[int]int

// add reads one line of mountinfo.
func (g Groups) add(line string) {
	optional, _, _ := strings.Cut(line, " - ")
	peer, master := group(optional, "shared:"), group(optional, "master:")
	switch above := group(optional, "propagate_from:"); {
	case master == 0:
		return
	case above != 0 && g[master] == 0: // the reader sees no mount of the master
		g[master] = above
	}
	if peer != 0 {
		g[peer] = master
	}
}

// follows reports whether mounts propagate from one peer group to another.
func (g Groups) follows(to, from int) bool {
	for range len(g) + 1 { // there may be a cycle: numbers are reused while tables are read
		if to == from {
			return true
		}
		if to = g[to]; to == 0 {
			return false
		}
	}
	return false
}

// maxLines limits AllGroups: users can have large mount tables in their own namespaces.
const maxLines = 1_000_000

// AllGroups reads the mount tables of all processes. Peer groups without a mount there are
// unknown.
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
