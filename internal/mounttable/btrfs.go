package mounttable

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/sysfs"
)

// A sys reads the block devices of a btrfs from links and small files of /dev and /sys,
// never from a mount or a device.
type sys interface {
	// numberOf returns the device number of a node in /dev, or "".
	numberOf(path string) string
	// btrfsOf returns the numbers of all devices of the btrfs that has one of
	// that number, itself included; nil if there is none.
	btrfsOf(number string) []string
}

// ofDevice finds the entries of a device. Those of a btrfs show one of its
// devices as source, any one, and not necessarily by the name that it has now.
func (t *Table) ofDevice(number, path string, s sys) []*Entry {
	found := t.Of(number)
	if len(t.btrfs) == 0 {
		return found
	}
	var devices []string
	for _, e := range t.btrfs {
		if devices == nil {
			if devices = s.btrfsOf(number); devices == nil { // a btrfs has that name from a scan in a container's /dev
				return found
			}
		}
		if e.Source == path {
			found = append(found, e)
			continue
		}
		if n := s.numberOf(e.Source); n != "" && slices.Contains(devices, n) {
			found = append(found, e)
		}
	}
	return found
}

// SourceNumber returns the number of the block device that a btrfs entry, whose own number
// is anonymous, shows as its source; "" if that is unknown. A name may belong to another
// device by now: it counts only if that device is in a mounted btrfs.
func (e *Entry) SourceNumber() string { return e.sourceNumber(realSys) }

func (e *Entry) sourceNumber(s sys) string {
	if e.Type != "btrfs" {
		return ""
	}
	n := s.numberOf(e.Source)
	if n == "" || !slices.Contains(s.btrfsOf(n), n) {
		return ""
	}
	return n
}

var realSys sys = kernel{}

type kernel struct{}

func (kernel) numberOf(path string) string {
	// A name such as /dev/vg/lv is a link to ../mapper/vg-lv, and that one to
	// ../dm-3, or a node of its own where there is no udev.
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

func (kernel) btrfsOf(number string) []string {
	filesystems, _ := os.ReadDir("/sys/fs/btrfs")
	for _, f := range filesystems {
		dir := "/sys/fs/btrfs/" + f.Name() + "/devices/"
		devices, _ := os.ReadDir(dir) // "features" has none
		var numbers []string
		for _, d := range devices {
			if n, err := sysfs.Line(dir + d.Name() + "/dev"); err == nil {
				numbers = append(numbers, n)
			}
		}
		if slices.Contains(numbers, number) {
			return numbers
		}
	}
	return nil
}
