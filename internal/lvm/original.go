package lvm

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/sysfs"
)

// A diskNote has the disks of a volume group in the last report that read all disks. It is in the run
// directory, for the next flexd. A note that cannot be read or written is as good as none: flexd refuses
// more then.
type diskNote struct {
	Boot  string
	Disks map[string]string // by the uuid of the PV, see diskID
}

// checkOriginals fails if the report may be about a copy of a disk, such as a snapshot of a SAN: it has a PV
// on a disk on which flexd has not seen it yet, while a disk that may be the original does not respond. Only
// the group's report calls it.
func (g *group) checkOriginals(f *Facts, silent, twice []string) error {
	if g.seen == nil {
		g.seen = g.readNote()
	}
	now := map[string]string{}
	for _, pv := range f.PVs {
		id := g.seen[pv.UUID] // of a missing PV, whose disk may fail: a copy may come later
		if !pv.Missing {
			id = g.p.diskID(pv.Path)
		}
		if id != "" {
			now[pv.UUID] = id
		}
	}
	for _, pv := range f.PVs {
		if was := g.failedOriginal(pv.UUID, now[pv.UUID]); len(twice) == 0 && was != "" {
			return fmt.Errorf("the disk %s may be a copy: flexd has seen PV %s on %s, where udev still shows it, and LVM does not read it there now. Look at dmesg, and detach the disk that is not to be used", pv.Path, pv.UUID, was)
		}
	}
	silent = slices.DeleteFunc(slices.Clone(silent), func(path string) bool {
		number := blockNumber(path)
		return hasOther(g.p.udevDir, number, f.PVs) || tooSmall(number, f.PVs)
	})
	if len(silent) == 0 {
		if len(twice) == 0 && !maps.Equal(g.seen, now) {
			g.seen = now
			g.writeNote()
		}
		return nil
	}
	for _, pv := range f.PVs {
		if id := now[pv.UUID]; !pv.Missing && (id == "" || id != g.seen[pv.UUID]) {
			return fmt.Errorf("the disk %s may be a copy: flexd has not seen PV %s on it yet, and LVM does not read these disks, which do not respond and may be the original: %s. Wait until they respond, or detach them (dmesg). If they do not belong to the group, and LVM uses no devices file: reject them with lvmFilter or with LVM's own filter", pv.Path, pv.UUID, strings.Join(silent, ", "))
		}
	}
	return nil
}

// readNote reads the notes of all groups: PVs move between groups (vgsplit, vgrename).
func (g *group) readNote() map[string]string {
	disks := map[string]string{}
	paths, _ := filepath.Glob(filepath.Join(g.p.DiskDir, "*"))
	boot, err := procfs.BootID()
	for _, path := range paths {
		var note diskNote
		text, _ := os.ReadFile(path)
		if json.Unmarshal(text, &note) == nil && err == nil && note.Boot == boot {
			maps.Copy(disks, note.Disks)
		}
	}
	return disks
}

func (g *group) writeNote() {
	boot, err := procfs.BootID()
	text, jerr := json.Marshal(diskNote{boot, g.seen})
	if err == nil && jerr == nil && g.p.DiskDir != "" {
		_ = os.MkdirAll(g.p.DiskDir, 0o700)
		_ = os.WriteFile(filepath.Join(g.p.DiskDir, g.name), text, 0o600)
	}
}

// diskID identifies the disk at a path until the next boot; "" = there is none. Kernels before 5.15 have only
// the number, which a later disk may get.
func diskID(path string) string {
	number := blockNumber(path)
	if number == "" {
		return ""
	}
	dir := "/sys/dev/block/" + number
	seq, err := sysfs.Line(dir + "/diskseq")
	if err != nil {
		seq, _ = sysfs.Line(dir + "/../diskseq") // of the disk of a partition
	}
	return number + " " + seq
}

// failedOriginal returns the disk on which flexd has seen a PV before, if it seems to fail: LVM reads the PV
// from another disk, and udev's database still has it on that one, which a process that wipes it would change.
func (g *group) failedOriginal(uuid, now string) string {
	was := g.seen[uuid]
	number, _, _ := strings.Cut(was, " ")
	path := filepath.Join(g.p.Dev, "block", number)
	if was == "" || now == "" || now == was || g.p.diskID(path) != was {
		return ""
	}
	if found := readProbe(g.p.udevDir, number); found.kind != "LVM2_member" || found.uuid != uuid {
		return ""
	}
	on, _ := g.p.devicesOn(number) // multipath, which may be slower than LVM
	if number, _, _ := strings.Cut(now, " "); slices.Contains(on, number) {
		return ""
	}
	return path
}

// A probe is what udev has found on a disk.
type probe struct{ kind, table, uuid string }

func readProbe(udevDir, number string) (found probe) {
	text, _ := os.ReadFile(filepath.Join(udevDir, "b"+number))
	for line := range strings.Lines(string(text)) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), "="); key {
		case "E:ID_FS_TYPE":
			found.kind = value
		case "E:ID_FS_UUID":
			found.uuid = value
		case "E:ID_PART_TABLE_TYPE":
			found.table = value
		}
	}
	return found
}

// hasOther reports whether a disk has something else than one of these PVs, according to udev's database.
func hasOther(udevDir, number string, pvs []PV) bool {
	found := readProbe(udevDir, number)
	switch found.kind {
	case "LVM2_member":
		return found.uuid != "" && !slices.ContainsFunc(pvs, func(pv PV) bool { return pv.UUID == found.uuid })
	case "mpath_member": // of any contents
		return false
	case "":
		_, err := os.Stat("/sys/dev/block/" + number + "/partition") // udev gives a partition the table of its disk
		return found.table != "" && os.IsNotExist(err)
	}
	return true
}

// tooSmall reports whether a disk has no room for any of these PVs.
func tooSmall(number string, pvs []PV) bool {
	sectors, err := sysfs.Uint("/sys/dev/block/" + number + "/size")
	return err == nil && !slices.ContainsFunc(pvs, func(pv PV) bool { return uint64(pv.Size) <= sectors*512 })
}

// rejects reports whether a filter, with quoted elements, rejects a disk with these names: LVM accepts a disk
// if the first element that matches one of its names accepts. An element that may mean something else to
// LVM than to Go counts as one that accepts.
func rejects(filter, names []string) (rejected bool) {
	for _, name := range names {
		for _, quoted := range filter {
			element, err := strconv.Unquote(quoted)
			if err != nil || len(element) < 3 || strings.ContainsAny(element, `\{`) {
				return false
			}
			pattern, err := regexp.Compile(element[2 : len(element)-1])
			if err != nil {
				return false
			}
			if !pattern.MatchString(name) {
				continue
			}
			if element[0] != 'r' {
				return false
			}
			rejected = true
			break
		}
	}
	return rejected
}
