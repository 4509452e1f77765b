package mounttable

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/sysfs"
)

// A sys reads the block devices of a btrfs from links and small files in /dev and /sys,
// never from a mount or a device.
type sys interface {
	// numberOf returns the device number of a node in /dev, or "".
	numberOf(path string) string
	// btrfs returns each mounted btrfs.
	btrfs() []*Btrfs
}

// A Btrfs is a mounted btrfs.
type Btrfs struct {
	FSID    string
	Devices []BtrfsDevice
}

// A BtrfsDevice is a device of a btrfs; its name is the kernel's, such as "dm-3".
type BtrfsDevice struct{ Name, Number string }

// Devices finds the entries of block devices in a table, including those of a btrfs: its number
// is anonymous, and its source is any one of its devices, possibly by a former
// name. Names and devices change without a change of the table, so Devices reads them once, and is used for one
// pass over many devices.
type Devices struct {
	Table *Table

	btrfs   map[string][]int  // number of a device of a btrfs → its entries, as indexes of Table.btrfs
	shown   map[string][]int  // source → its entries, likewise
	numbers map[string]string // source → its device number, if that is a device of a btrfs
	mounted map[string]*Btrfs // number of a device of a btrfs → that btrfs
}

// Devices returns the present devices of the table.
func (t *Table) Devices() *Devices { return t.devices(kernel{}) }

func (t *Table) devices(s sys) *Devices {
	d := &Devices{Table: t}
	if len(t.btrfs) == 0 {
		return d
	}
	d.btrfs, d.shown, d.numbers, d.mounted = map[string][]int{}, map[string][]int{}, map[string]string{}, map[string]*Btrfs{}
	for i, e := range t.btrfs {
		d.shown[e.Source] = append(d.shown[e.Source], i)
	}
	sources := map[string][]string{}
	for source := range d.shown {
		if n := s.numberOf(source); n != "" {
			sources[n] = append(sources[n], source)
		}
	}
	for _, b := range s.btrfs() {
		var entries []int
		for _, m := range b.Devices {
			for _, source := range sources[m.Number] {
				d.numbers[source] = m.Number
				entries = append(entries, d.shown[source]...)
			}
		}
		for _, m := range b.Devices {
			d.btrfs[m.Number], d.mounted[m.Number] = entries, b
		}
	}
	return d
}

// Of returns the entries of the block device with a number and a path.
func (d *Devices) Of(number, path string) []*Entry {
	found := d.Table.Of(number)
	entries, ok := d.btrfs[number]
	if !ok { // a btrfs may show this path after a scan in a container's /dev
		return found
	}
	entries = slices.Concat(entries, d.shown[path])
	slices.Sort(entries)
	for _, i := range slices.Compact(entries) {
		found = append(found, d.Table.btrfs[i])
	}
	return found
}

// Subvolume returns the id and the path of an entry's btrfs subvolume; "" = unknown, or no btrfs.
// subvol is the last option, since the path may contain commas.
func (l *Line) Subvolume() (id, path string) {
	if l.Type != "btrfs" {
		return "", ""
	}
	for i, o := range l.Super {
		if n, ok := strings.CutPrefix(o, "subvolid="); ok {
			id = n
		} else if _, ok := strings.CutPrefix(o, "subvol="); ok {
			path = unescape.Replace(strings.TrimPrefix(strings.Join(l.Super[i:], ","), "subvol="))
			break
		}
	}
	return id, path
}

// SourceNumber returns the number of the block device that is the source of a btrfs entry;
// "" = unknown. The name may belong to another device now, so it counts only if that
// device is in a mounted btrfs.
func (d *Devices) SourceNumber(e *Entry) string {
	if e.Type != "btrfs" {
		return ""
	}
	return d.numbers[e.Source]
}

// Btrfs returns the mounted btrfs that has the device with a number, or nil.
func (d *Devices) Btrfs(number string) *Btrfs { return d.mounted[number] }

// SourceNumber is Devices.SourceNumber of one entry now.
func (e *Entry) SourceNumber() string {
	number, _ := e.Btrfs()
	return number
}

// Btrfs returns the number of the source of a btrfs entry, as Devices.SourceNumber, and its filesystem, nil = unknown.
func (e *Entry) Btrfs() (number string, b *Btrfs) {
	if e.Type != "btrfs" {
		return "", nil
	}
	d := (&Table{btrfs: []*Entry{e}}).Devices()
	number = d.SourceNumber(e)
	return number, d.Btrfs(number)
}

// A kernel is the real sys.
type kernel struct{}

func (kernel) numberOf(path string) string {
	// /dev/vg/lv is a link to ../mapper/vg-lv, and this is a link to ../dm-3 or, without udev, a node.
	for range 8 {
		if filepath.Dir(path) == "/dev" {
			b, err := os.ReadFile("/sys/class/block/" + filepath.Base(path) + "/dev")
			if err == nil {
				return strings.TrimSpace(string(b))
			}
		}
		var st unix.Stat_t
		if !strings.HasPrefix(path, "/dev/") || unix.Lstat(path, &st) != nil {
			return ""
		}
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			return sysfs.Number(st.Rdev)
		}
		to, err := os.Readlink(path)
		if err != nil {
			return ""
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return ""
}

func (kernel) btrfs() (all []*Btrfs) {
	filesystems, _ := os.ReadDir("/sys/fs/btrfs")
	for _, f := range filesystems {
		dir := "/sys/fs/btrfs/" + f.Name() + "/devices/"
		devices, _ := os.ReadDir(dir) // "features" has none
		b := &Btrfs{FSID: f.Name()}
		for _, d := range devices {
			if n, err := sysfs.Line(dir + d.Name() + "/dev"); err == nil {
				b.Devices = append(b.Devices, BtrfsDevice{d.Name(), n})
			}
		}
		all = append(all, b)
	}
	return all
}
