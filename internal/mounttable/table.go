package mounttable

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/moby/sys/mountinfo"
)

// An Entry is one mount of a Table.
type Entry struct {
	*Line
	after  *Entry // the next entry with the same number
	beside *Entry // the next entry at the same directory, on another mount
	over   *Entry // the mount on the root of this one, at the same directory
	top    *Entry // the last of the chain over
}

// A Line is one line of mountinfo. It never changes, and tables share it.
type Line struct {
	ID, Parent    int
	Number        string // "major:minor" of the superblock; anonymous for btrfs
	Root          string // the mounted directory of the filesystem
	Dir           string
	Options       []string // of the mount; shared between entries, not to be changed
	ReadOnly      bool     // the mount's attribute
	Peer          int      // N of "shared:N", 0 = not shared
	Type          string
	Source        string
	Super         []string // of the superblock; shared between entries, not to be changed
	SuperReadOnly bool

	text        string // with the newline
	dir, number int    // the numbers of Dir and Number in the reader's names
}

func (e *Entry) String() string {
	return fmt.Sprintf("%s (%s) of %s at %s", e.Type, e.Number, e.Source, e.Dir)
}

// Stopped returns the option with which the kernel shows that it stopped the filesystem after an error; "" = it shows none.
func (l *Line) Stopped() string {
	for _, o := range []string{"shutdown", "emergency_ro"} {
		if slices.Contains(l.Super, o) {
			return o
		}
	}
	return ""
}

// NoWrites returns the option with which the kernel shows that it writes nothing to the filesystem; "" = it shows none.
func (l *Line) NoWrites() string {
	if l.SuperReadOnly {
		return cmp.Or(l.Stopped(), "ro")
	}
	return l.Stopped()
}

// A Table is one reading of the mount table. It never changes.
type Table struct {
	all     []*Entry
	dirs    tree
	numbers names
	at      []*Entry // by the number of the directory; further ones are in beside and over
	first   []*Entry // by the number of Number; further ones are in after
	btrfs   []*Entry
	root    *Entry // the process's root; nil if it is not a mount point

	ids    func() map[int]*Entry   // by ID; built on first use
	on     func() map[int][]*Entry // by Parent; likewise
	groups func() Groups           // likewise
	visits atomic.Int64
}

// Read reads a mount table in the format of /proc/self/mountinfo. If a line does not
// parse it returns an error, never a partial table.
func Read(r io.Reader) (*Table, error) { return new(Reader).Read(r) }

// ReadFile reads the mount table from a file of procfs.
func ReadFile(path string) (*Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Read(f)
}

// Own reads the mount table of this process.
func Own() (*Table, error) { return ReadFile("/proc/self/mountinfo") }

// A Reader reads mount tables repeatedly and parses only new lines: in a large table few lines
// change at a time. It is not for concurrent use.
type Reader struct {
	text    bytes.Buffer
	last    []*Line          // of the previous table, in its order
	known   map[string]*Line // by text
	dirs    tree
	numbers names
	options map[string][]string // shared: in a large table nearly all are equal
}

// Read is the function Read, except that it parses only new lines.
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
	if t.known == nil || len(t.known) > 2*count+1024 { // most known lines are of former mounts
		*t = Reader{text: t.text, known: make(map[string]*Line, count), options: map[string][]string{}}
		text = t.text.Bytes()
	}
	lines, fresh := t.split(text, count)
	if err := t.parse(fresh); err != nil {
		t.known = nil // it contains lines that are not parsed
		return nil, err
	}
	t.last = lines
	return t.table(lines), nil
}

// split looks up each line. Most lines have the same predecessor as before. parse fills in the fresh ones.
func (t *Reader) split(text []byte, count int) (lines, fresh []*Line) {
	lines = make([]*Line, 0, count)
	next := 0
	for line := range bytes.Lines(text) {
		var l *Line
		for i := next; i < min(next+2, len(t.last)); i++ {
			if t.last[i].text == string(line) {
				l, next = t.last[i], i+1
				break
			}
		}
		if l == nil {
			l = t.known[string(line)]
		}
		if l == nil {
			l = &Line{text: string(line)}
			t.known[l.text] = l
			fresh = append(fresh, l)
		}
		lines = append(lines, l)
	}
	return lines, fresh
}

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
		text := l.text
		if len(text) > maxLine {
			text, _ = shorten(text)
		}
		texts[i] = strings.NewReader(text)
	}
	// The filter consumes each entry, so that the parser keeps none.
	_, err := mountinfo.GetMountsFromReader(io.MultiReader(texts...), func(i *mountinfo.Info) (skip, stop bool) {
		if text := fresh[done].text; len(text) > maxLine {
			_, long := shorten(text)
			i.Root, i.Mountpoint, i.VFSOptions = unescape.Replace(long.root), unescape.Replace(long.dir), long.super
		}
		if bad = validate(i); bad != nil {
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

// maxLine is the longest line for the parser, whose limit is 64 KiB. A pod can make the root of
// a bind mount longer: it moves the directory into a deep tree.
var maxLine = 60 << 10 // replaced in tests

// longFields are the fields of a line that may be long, not decoded.
type longFields struct{ root, dir, super string }

// shorten returns a line with short fields for the parser, and the replaced fields.
func shorten(line string) (string, longFields) {
	f := strings.Split(strings.TrimSuffix(line, "\n"), " ")
	if len(f) < 10 { // the parser refuses it
		return "\n", longFields{}
	}
	end := len(f) - 1
	long := longFields{f[3], f[4], f[end]}
	f[3], f[4], f[end] = "/", "/", "rw"
	return strings.Join(f, " ") + "\n", long
}

// unescape decodes paths of mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#", `\054`, ",")

// validate refuses lines that the parser accepts with wrong values: it reads invalid numbers as 0.
func validate(i *mountinfo.Info) error {
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
		Peer:          group(i.Optional, "shared:"),
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

// table indexes lines.
func (r *Reader) table(lines []*Line) *Table {
	var (
		entries = make([]Entry, len(lines))
		last    = make([]*Entry, r.numbers.len()) // the last entry of each number
		stacked []int                             // directories with more than one entry
	)
	t := &Table{
		all:  make([]*Entry, len(lines)),
		dirs: r.dirs, numbers: r.numbers,
		at:    make([]*Entry, r.dirs.len()),
		first: make([]*Entry, r.numbers.len()),
	}
	t.ids, t.on, t.groups = sync.OnceValue(t.byID), sync.OnceValue(t.byParent), sync.OnceValue(t.byGroup)
	for i, line := range lines {
		e := &entries[i]
		e.Line, e.top = line, e
		t.all[i] = e
		if before := last[e.number]; before != nil {
			before.after = e
		} else {
			t.first[e.number] = e
		}
		last[e.number] = e
		if other := t.at[e.dir]; other != nil {
			if other.beside == nil {
				stacked = append(stacked, e.dir)
			}
			e.beside = other
		}
		t.at[e.dir] = e
		if e.Type == "btrfs" {
			t.btrfs = append(t.btrfs, e)
		}
	}
	for _, dir := range stacked {
		t.stack(dir)
	}
	if i := t.dirs.of("/"); i >= 0 && t.at[i] != nil {
		// Lookups begin at the root itself, not at mounts over it.
		t.root = t.at[i]
		t.root.top = t.root
	}
	return t
}

// stack links the entries at a directory: an entry on another one at the same directory becomes its
// over; only the lowest remain beside each other.
func (t *Table) stack(dir int) {
	here := map[int]*Entry{}
	var all []*Entry
	for e := t.at[dir]; e != nil; e = e.beside {
		here[e.ID] = e
		all = append(all, e)
	}
	var lowest []*Entry
	for _, e := range slices.Backward(all) { // in the kernel's order
		if on := here[e.Parent]; on != nil && on != e && on.over == nil {
			on.over = e
		} else {
			lowest = append(lowest, e)
		}
	}
	chained := 0
	for _, e := range lowest {
		top := e
		for chained++; top.over != nil; chained++ {
			top = top.over
		}
		for under := e; under != nil; under = under.over {
			under.top = top
		}
	}
	if chained != len(all) { // a cycle: an id was reused while the table was read
		lowest = nil
		for _, e := range slices.Backward(all) {
			e.over, e.top = nil, e
			lowest = append(lowest, e)
		}
	}
	for _, e := range all {
		e.beside = nil
	}
	t.at[dir] = nil
	for _, e := range slices.Backward(lowest) {
		e.beside, t.at[dir] = t.at[dir], e
	}
}

func isReadOnly(options string) bool { return options == "ro" || strings.HasPrefix(options, "ro,") }

// group returns N of "shared:N" or of another kind; 0 = none.
func group(optional, kind string) int {
	for f := range strings.FieldsSeq(optional) {
		if n, ok := strings.CutPrefix(f, kind); ok {
			group, _ := strconv.Atoi(n)
			return group
		}
	}
	return 0
}

// master returns N of "master:N", the peer group whose slave this mount is; 0 = none.
func (l *Line) master() int {
	optional, _, _ := strings.Cut(l.text, " - ")
	return group(optional, "master:")
}
