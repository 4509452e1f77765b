package mount

import (
	"errors"
	"io"
)

// An Entry is one line of mountinfo.
type Entry struct {
	ID, Parent    int
	Number        string // "major:minor" of the superblock; anonymous for btrfs
	Root          string // which directory of the filesystem is mounted
	Dir           string
	Options       []string // of the mount
	ReadOnly      bool     // the mount's attribute
	Peer          int      // N of "shared:N", 0 = not shared
	Type          string
	Source        string
	Super         []string // of the superblock
	SuperReadOnly bool
}

// A Table is one reading of the mount table. It never changes.
type Table struct{}

// ReadTable reads a mount table in the format of /proc/self/mountinfo. A line
// that does not parse is an error for the whole: never a part of the table.
func ReadTable(r io.Reader) (*Table, error) { return nil, errors.New("not built yet") }

// All returns every entry in the kernel's order.
func (t *Table) All() []*Entry { return nil }

// At returns what is mounted at dir, from the bottom to the top.
func (t *Table) At(dir string) []*Entry { return nil }

// Of returns the entries whose superblock has that device number.
func (t *Table) Of(number string) []*Entry { return nil }

// OfDevice returns the entries that are on the block device of that number and
// node, also those of a btrfs, whose entries carry an anonymous number.
func (t *Table) OfDevice(number, path string) []*Entry { return nil }

// Containing returns the mount that dir lies on, the top one if dir itself is
// a mount point.
func (t *Table) Containing(dir string) *Entry { return nil }
