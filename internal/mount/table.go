package mount

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// An Entry is one mount of a Table.
type Entry struct {
	*Line
	below *Entry // at the same directory
	after *Entry // of the same number
}

// A Line is one line of mountinfo. It never changes and is shared between tables.
type Line struct {
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

	text        string // with its newline
	dir, number int    // of Dir and Number among the reader's names
}

// A Table is one reading of the mount table. It never changes.
type Table struct {
	all           []*Entry
	dirs, numbers names
	top           []*Entry // by the number of the directory; the others below it
	first         []*Entry // by the number of the device number; the others after it
	btrfs         []*Entry
}

// ReadTable reads a mount table in the format of /proc/self/mountinfo. A line
// that does not parse is an error for the whole: never a part of the table.
func ReadTable(r io.Reader) (*Table, error) { return new(Reader).Read(r) }

// A Reader reads one mount table after the other and parses only the lines that
// it has not seen before: of a large table, few change at a time. It is not for
// concurrent use.
type Reader struct {
	text          bytes.Buffer
	last          []*Line          // of the table before, in its order
	known         map[string]*Line // by its text
	dirs, numbers names
	options       map[string][]string // shared: in a large table nearly all are the same
}

// Read is ReadTable with a memory.
func (t *Reader) Read(r io.Reader) (*Table, error) {
	t.text.Reset()
	if _, err := t.text.ReadFrom(r); err != nil {
		return nil, fmt.Errorf("mount table: %w", err)
	}
	text := t.text.Bytes()
	switch {
	case len(text) == 0: // there is always a root
		return nil, fmt.Errorf("mount table: it is empty")
	case text[len(text)-1] != '\n':
		return nil, fmt.Errorf("mount table: its last line is cut off")
	}
	count := bytes.Count(text, []byte{'\n'})
	if t.known == nil || len(t.known) > 2*count+1024 { // most of it is of mounts that are gone
		*t = Reader{text: t.text, known: make(map[string]*Line, count), options: map[string][]string{}}
		text = t.text.Bytes()
	}
	lines, fresh := t.split(text, count)
	if err := t.parse(fresh); err != nil {
		t.known = nil // some of it is not parsed
		return nil, err
	}
	t.last = lines
	return t.table(lines), nil
}

// split looks up each line; those that are new are yet to be parsed. Most lines
// follow the one that they followed before.
func (t *Reader) split(text []byte, count int) (lines, fresh []*Line) {
	lines = make([]*Line, 0, count)
	next := 0
	for line := range bytes.Lines(text) {
		for skip := 0; skip < 2 && next+skip < len(t.last); skip++ {
			if t.last[next+skip].text == string(line) {
				next += skip
				break
			}
		}
		if next < len(t.last) && t.last[next].text == string(line) {
			lines = append(lines, t.last[next])
			next++
			continue
		}
		l := t.known[string(line)]
		if l == nil {
			l = &Line{text: string(line)}
			t.known[l.text] = l
			fresh = append(fresh, l)
		}
		lines = append(lines, l)
	}
	return lines, fresh
}

// parse fills in the entries of new lines.
func (t *Reader) parse(fresh []*Line) error {
	if len(fresh) == 0 {
		return nil
	}
	var (
		done int
		bad  error
	)
	texts := make([]io.Reader, len(fresh))
	for i, l := range fresh {
		texts[i] = strings.NewReader(l.text)
	}
	// As the parser's filter we take what it parsed, and it keeps nothing.
	_, err := mountinfo.GetMountsFromReader(io.MultiReader(texts...), func(i *mountinfo.Info) (skip, stop bool) {
		if bad = sane(i); bad != nil {
			return true, true
		}
		t.fill(fresh[done], i)
		done++
		return true, false
	})
	switch {
	case err != nil:
		return fmt.Errorf("mount table: %w", err)
	case bad != nil:
		return fmt.Errorf("mount table: %w", bad)
	case done != len(fresh):
		return fmt.Errorf("mount table: %d of %d lines do not parse", len(fresh)-done, len(fresh))
	}
	dirs, numbers := make([]string, done), make([]string, done)
	for i, l := range fresh {
		dirs[i], numbers[i] = l.Dir, l.Number
	}
	t.dirs, t.numbers = t.dirs.with(dirs), t.numbers.with(numbers)
	for _, l := range fresh {
		l.dir, l.number = t.dirs.of(l.Dir), t.numbers.of(l.Number)
	}
	return nil
}

// sane refuses what the parser lets pass: it reads what is no number as 0.
func sane(i *mountinfo.Info) error {
	if !strings.HasPrefix(i.Mountpoint, "/") || i.Root == "" || i.FSType == "" ||
		(i.ID <= 0 && i.Mountpoint != "/") || i.Parent < 0 || i.Major < 0 || i.Minor < 0 || i.Major+i.Minor == 0 {
		return fmt.Errorf("the line of mount %d at %q does not parse", i.ID, i.Mountpoint)
	}
	return nil
}

func (t *Reader) fill(l *Line, i *mountinfo.Info) {
	*l = Line{
		text: l.text,
		ID:   i.ID, Parent: i.Parent,
		Number:        strconv.Itoa(i.Major) + ":" + strconv.Itoa(i.Minor),
		Root:          i.Root,
		Dir:           i.Mountpoint,
		Options:       t.list(i.Options),
		ReadOnly:      isReadOnly(i.Options),
		Peer:          peer(i.Optional),
		Type:          i.FSType,
		Source:        i.Source,
		Super:         t.list(i.VFSOptions),
		SuperReadOnly: isReadOnly(i.VFSOptions),
	}
}

func (t *Reader) list(options string) []string {
	l, ok := t.options[options]
	if !ok {
		l = strings.Split(options, ",")
		t.options[options] = l
	}
	return l
}

// All returns every entry in the kernel's order.
func (t *Table) All() []*Entry { return t.all }

// At returns what is mounted at dir, from the bottom to the top.
func (t *Table) At(dir string) []*Entry {
	var at []*Entry
	for e := t.Top(dir); e != nil; e = e.below {
		at = append(at, e)
	}
	slices.Reverse(at)
	return at
}

// Top returns what is mounted at dir, on top, or nil.
func (t *Table) Top(dir string) *Entry {
	if i := t.dirs.of(dir); i >= 0 && i < len(t.top) {
		return t.top[i]
	}
	return nil
}

// Of returns the entries whose superblock has that device number.
func (t *Table) Of(number string) []*Entry {
	var of []*Entry
	if i := t.numbers.of(number); i >= 0 && i < len(t.first) {
		for e := t.first[i]; e != nil; e = e.after {
			of = append(of, e)
		}
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
		if e := t.Top(dir); e != nil {
			return e
		}
		if dir == "/" || dir == "." || dir == "" {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

// Over returns the mount that hides e, or nil: one on a directory above e's that
// was made later, so that e's path does not lead to e any more. What covers e at
// its own directory is for At to tell.
func (t *Table) Over(e *Entry) *Entry {
	for range t.all { // from parent to parent; no more of them than there are mounts
		on := t.parent(e)
		if on == nil {
			return nil
		}
		for _, m := range t.all {
			if m.Parent == on.ID && m != e && m != on && (m.Dir == on.Dir || strings.HasPrefix(e.Dir, m.Dir+"/")) {
				return m
			}
		}
		e = on
	}
	return nil
}

func (t *Table) parent(e *Entry) *Entry {
	for _, p := range t.all {
		if p.ID == e.Parent && p != e {
			return p
		}
	}
	return nil
}

// table indexes lines.
func (r *Reader) table(lines []*Line) *Table {
	var (
		entries = make([]Entry, len(lines))
		last    = make([]*Entry, r.numbers.len()) // of each number
		stacked []string
	)
	t := &Table{
		all:  make([]*Entry, len(lines)),
		dirs: r.dirs, numbers: r.numbers,
		top:   make([]*Entry, r.dirs.len()),
		first: make([]*Entry, r.numbers.len()),
	}
	for i, line := range lines {
		e := &entries[i]
		e.Line = line
		t.all[i] = e
		if before := last[e.number]; before != nil {
			before.after = e
		} else {
			t.first[e.number] = e
		}
		last[e.number] = e
		if under := t.top[e.dir]; under != nil {
			e.below = under
			stacked = append(stacked, e.Dir)
		}
		t.top[e.dir] = e
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
	t.top[t.dirs.of(dir)] = under
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
