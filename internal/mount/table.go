package mount

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
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

	below *Entry // at the same directory
	after *Entry // of the same number
}

// A Table is one reading of the mount table. It never changes.
type Table struct {
	all      []*Entry
	byDir    map[string]*Entry // the top one; the others below it
	byNumber map[string]*Entry // the first one; the others after it
	btrfs    []*Entry
}

// ReadTable reads a mount table in the format of /proc/self/mountinfo. A line
// that does not parse is an error for the whole: never a part of the table.
func ReadTable(r io.Reader) (*Table, error) {
	in := &wholeLines{r: r, last: '\n'}
	b := builder{
		numbers: map[[2]int]*number{},
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
func (t *Table) At(dir string) []*Entry {
	var at []*Entry
	for e := t.byDir[dir]; e != nil; e = e.below {
		at = append(at, e)
	}
	slices.Reverse(at)
	return at
}

// Top returns what is mounted at dir, on top, or nil.
func (t *Table) Top(dir string) *Entry { return t.byDir[dir] }

// Of returns the entries whose superblock has that device number.
func (t *Table) Of(number string) []*Entry {
	var of []*Entry
	for e := t.byNumber[number]; e != nil; e = e.after {
		of = append(of, e)
	}
	return of
}

// OfDevice returns the entries that are on the block device of that number and
// node, also those of a btrfs, whose entries carry an anonymous number.
func (t *Table) OfDevice(number, path string) []*Entry {
	return t.ofDevice(number, path, realSys)
}

// Containing returns the mount that dir lies on, the top one if dir itself is
// a mount point.
func (t *Table) Containing(dir string) *Entry {
	for {
		if e := t.byDir[dir]; e != nil {
			return e
		}
		if dir == "/" || dir == "." || dir == "" {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

// A builder makes entries while the parser goes from line to line. It is the
// parser's filter, so that nothing is kept twice, and it shares what repeats:
// in a large table nearly all options do.
type builder struct {
	chunk   []Entry // the piece that is being filled; full ones live on through all
	all     []*Entry
	numbers map[[2]int]*number
	options map[string][]string
	err     error
}

// A number is the text of a device number and the entries that have it.
type number struct {
	text        string
	first, last *Entry
}

func (b *builder) take(i *mountinfo.Info) (skip, stop bool) {
	// The parser reads what is no number as 0.
	if !strings.HasPrefix(i.Mountpoint, "/") || i.Root == "" || i.FSType == "" ||
		(i.ID <= 0 && i.Mountpoint != "/") || i.Parent < 0 || i.Major < 0 || i.Minor < 0 || i.Major+i.Minor == 0 {
		b.err = fmt.Errorf("the line of mount %d at %q does not parse", i.ID, i.Mountpoint)
		return true, true
	}
	if len(b.chunk) == cap(b.chunk) {
		b.chunk = make([]Entry, 0, min(1024, max(64, 2*cap(b.chunk))))
	}
	num := b.number(i.Major, i.Minor)
	b.chunk = append(b.chunk, Entry{
		ID: i.ID, Parent: i.Parent,
		Number:        num.text,
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
	e := &b.chunk[len(b.chunk)-1]
	b.all = append(b.all, e)
	if num.first == nil {
		num.first = e
	} else {
		num.last.after = e
	}
	num.last = e
	return true, false
}

func (b *builder) table() *Table {
	t := &Table{
		all:      b.all,
		byDir:    make(map[string]*Entry, len(b.all)),
		byNumber: make(map[string]*Entry, len(b.numbers)),
	}
	for _, n := range b.numbers {
		t.byNumber[n.text] = n.first
	}
	var stacked []string
	for _, e := range b.all {
		if under, ok := t.byDir[e.Dir]; ok {
			e.below = under
			stacked = append(stacked, e.Dir)
		}
		t.byDir[e.Dir] = e
		if e.Type == "btrfs" {
			t.btrfs = append(t.btrfs, e)
		}
	}
	slices.Sort(stacked)
	for _, dir := range slices.Compact(stacked) {
		t.restack(dir)
	}
	return t
}

// restack orders the mounts at dir. The kernel lists a mount after the one that
// it covers, but for a tree that was copied or moved below another; a mount on
// top has the one below as its parent.
func (t *Table) restack(dir string) {
	at := t.At(dir)
	here := make(map[int]*Entry, len(at)) // by parent
	for _, e := range at {
		if e.ID != e.Parent {
			here[e.Parent] = e
		}
	}
	ordered := make([]*Entry, 0, len(at))
	for _, e := range at {
		if slices.ContainsFunc(at, func(p *Entry) bool { return p.ID == e.Parent && p != e }) {
			continue // comes after its parent
		}
		for on := e; on != nil && len(ordered) < len(at); on = here[on.ID] {
			ordered = append(ordered, on)
		}
	}
	if len(ordered) != len(at) {
		return // no tree; the kernel never says so
	}
	var under *Entry
	for _, e := range ordered {
		e.below = under
		under = e
	}
	t.byDir[dir] = under
}

func (b *builder) number(major, minor int) *number {
	key := [2]int{major, minor}
	n, ok := b.numbers[key]
	if !ok {
		n = &number{text: strconv.Itoa(major) + ":" + strconv.Itoa(minor)}
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
