package mount

import (
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// An Entry is one line of mountinfo.
type Entry struct {
	ID, Parent    int
	Number        string // "major:minor" of the superblock; anonymous for btrfs
	Root          string // which directory of the filesystem is mounted
	Dir           string
	Options       []string // of the mount; shared between entries, not to be changed
	ReadOnly      bool     // the mount's attribute
	Peer          int      // N of "shared:N", 0 = not shared
	Type          string
	Source        string
	Super         []string // of the superblock; shared between entries, not to be changed
	SuperReadOnly bool
}

// A Table is one reading of the mount table. It never changes.
type Table struct {
	all      []*Entry
	byDir    map[string][]*Entry // from the bottom to the top
	byNumber map[string][]*Entry
	btrfs    []*Entry
}

// ReadTable reads a mount table in the format of /proc/self/mountinfo. A line
// that does not parse is an error for the whole: never a part of the table.
func ReadTable(r io.Reader) (*Table, error) {
	in := &wholeLines{r: r, last: '\n'}
	b := builder{
		numbers: map[[2]int]string{},
		options: map[string][]string{},
	}
	_, err := mountinfo.GetMountsFromReader(in, b.take)
	switch {
	case err != nil:
		return nil, fmt.Errorf("mount table: %w", err)
	case b.err != nil:
		return nil, fmt.Errorf("mount table: %w", b.err)
	case in.last != '\n':
		return nil, fmt.Errorf("mount table: its last line is cut off")
	}
	return b.table(), nil
}

// All returns every entry in the kernel's order.
func (t *Table) All() []*Entry { return t.all }

// At returns what is mounted at dir, from the bottom to the top.
func (t *Table) At(dir string) []*Entry { return t.byDir[dir] }

// Of returns the entries whose superblock has that device number.
func (t *Table) Of(number string) []*Entry { return t.byNumber[number] }

// OfDevice returns the entries that are on the block device of that number and
// node, also those of a btrfs, whose entries carry an anonymous number.
func (t *Table) OfDevice(number, path string) []*Entry {
	return t.ofDevice(number, path, realSys)
}

// Containing returns the mount that dir lies on, the top one if dir itself is
// a mount point.
func (t *Table) Containing(dir string) *Entry {
	for {
		if at := t.byDir[dir]; len(at) > 0 {
			return at[len(at)-1]
		}
		if dir == "/" || dir == "." || dir == "" {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

// A builder makes entries while the parser goes from line to line. It is the
// parser's filter, so that nothing is kept twice, and shares what repeats: in a
// large table nearly all options do.
type builder struct {
	entries []Entry
	numbers map[[2]int]string
	options map[string][]string
	err     error
}

func (b *builder) take(i *mountinfo.Info) (skip, stop bool) {
	// The parser reads what is no number as 0.
	if !strings.HasPrefix(i.Mountpoint, "/") || i.Root == "" || i.FSType == "" ||
		(i.ID <= 0 && i.Mountpoint != "/") || i.Parent < 0 || i.Major < 0 || i.Minor < 0 || i.Major+i.Minor == 0 {
		b.err = fmt.Errorf("the line of mount %d at %q does not parse", i.ID, i.Mountpoint)
		return true, true
	}
	if len(b.entries) == cap(b.entries) { // a few large pieces instead of many copies
		b.entries = append(make([]Entry, 0, max(64, 2*cap(b.entries))), b.entries...)
	}
	b.entries = append(b.entries, Entry{
		ID: i.ID, Parent: i.Parent,
		Number:        b.number(i.Major, i.Minor),
		Root:          i.Root,
		Dir:           i.Mountpoint,
		Options:       b.list(i.Options),
		ReadOnly:      isReadOnly(i.Options),
		Peer:          peer(i.Optional),
		Type:          i.FSType,
		Source:        i.Source,
		Super:         b.list(i.VFSOptions),
		SuperReadOnly: isReadOnly(i.VFSOptions),
	})
	return true, false
}

func (b *builder) table() *Table {
	t := &Table{
		all:      make([]*Entry, len(b.entries)),
		byDir:    make(map[string][]*Entry, len(b.entries)),
		byNumber: make(map[string][]*Entry, len(b.numbers)),
	}
	for i := range b.entries {
		e := &b.entries[i]
		t.all[i] = e
		if at, ok := t.byDir[e.Dir]; ok {
			t.byDir[e.Dir] = append(at, e)
		} else {
			t.byDir[e.Dir] = t.all[i : i+1 : i+1]
		}
		t.byNumber[e.Number] = append(t.byNumber[e.Number], e)
		if e.Type == "btrfs" {
			t.btrfs = append(t.btrfs, e)
		}
	}
	for _, at := range t.byDir {
		if len(at) > 1 {
			stack(at)
		}
	}
	return t
}

// stack orders the mounts at one directory from the bottom to the top. The
// kernel lists a mount after the one that it covers, but for a tree that was
// copied or moved below another; a mount on top has the one below as parent.
func stack(at []*Entry) {
	for range at { // each round moves at least one to its place
		moved := false
		for i, e := range at {
			for j := i + 1; j < len(at); j++ {
				if e.Parent == at[j].ID && e.ID != e.Parent {
					at[i], at[j] = at[j], at[i]
					moved = true
					break
				}
			}
			if moved {
				break
			}
		}
		if !moved {
			return
		}
	}
}

func (b *builder) number(major, minor int) string {
	key := [2]int{major, minor}
	n, ok := b.numbers[key]
	if !ok {
		n = strconv.Itoa(major) + ":" + strconv.Itoa(minor)
		b.numbers[key] = n
	}
	return n
}

func (b *builder) list(options string) []string {
	l, ok := b.options[options]
	if !ok {
		l = strings.Split(options, ",")
		b.options[options] = l
	}
	return l
}

func isReadOnly(options string) bool { return options == "ro" || strings.HasPrefix(options, "ro,") }

func peer(optional string) int {
	for f := range strings.FieldsSeq(optional) {
		if n, ok := strings.CutPrefix(f, "shared:"); ok {
			p, _ := strconv.Atoi(n)
			return p
		}
	}
	return 0
}

// wholeLines remembers the last byte that was read.
type wholeLines struct {
	r    io.Reader
	last byte
}

func (w *wholeLines) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if n > 0 {
		w.last = p[n-1]
	}
	return n, err
}
