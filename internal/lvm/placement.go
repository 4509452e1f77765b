package lvm

import (
	"cmp"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// A placement has the extents of a group's volumes according to its metadata, by disk number.
type placement struct {
	disks map[string]bool
	needs []need // the sizes that the disks must have
	all   bool   // disks has all disks of the group
	spans spans  // owned by the volumes and their parts; "" = free

	mu     sync.Mutex
	stacks map[string]bool // guarded by mu: stackOf the disks, made at the first use
	others map[string]bool // guarded by mu: whether a disk, by number, is foreign
}

// placed returns the placement of a group. It fails if a disk with free space is not present.
func (f *Facts) placed() (*placement, error) {
	p := &placement{disks: map[string]bool{}, all: f.Missing == 0, spans: spans{}}
	numbers := map[string]string{}
	number := func(path string) (string, error) {
		if numbers[path] == "" {
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil {
				return "", fmt.Errorf("the device number of its disk %s cannot be read: %w", path, err)
			}
			numbers[path] = sysfs.Number(st.Rdev)
		}
		return numbers[path], nil
	}
	for _, pv := range f.PVs {
		n, err := number(pv.Path)
		p.disks[n] = err == nil
		p.all = p.all && err == nil
	}
	ends := map[string]int64{}
	for _, s := range slices.Concat(f.free, f.used) {
		ends[s.disk] = max(ends[s.disk], s.end)
		if n, err := number(s.disk); err == nil {
			p.spans.add(extent{n, s.start, s.end}, s.owner)
		} else if s.owner == "" { // the free space is unknown
			return nil, err
		}
	}
	p.spans.sort()
	for _, pv := range f.PVs {
		if n, err := number(pv.Path); err == nil {
			p.needs = append(p.needs, need{pv.Path, n, ends[pv.Path], diskSize(n)})
		}
	}
	return p, nil
}

// idOf returns the identity of the volume or part of a volume in a device's uuid, and the suffix of
// LVM's hidden devices. The metadata may not have that volume.
func (f *Facts) idOf(m devmapper.Mapped) (id volume.UUID, suffix string, ours bool) {
	rest, ours := strings.CutPrefix(m.UUID, dmUUID(volume.UUID(f.UUID)))
	if !ours || len(rest) < uuidLength {
		return "", "", false
	}
	return identity(f.UUID, grouped(rest[:uuidLength])), rest[uuidLength:], true
}

// standIn reports whether a device with that suffix of its uuid takes the place of a missing disk. LVM may leave it:
// it has no space of the group, and prevents no activation.
func standIn(suffix string) bool { return strings.HasPrefix(suffix, "-missing_") }

// misplaced describes how a device differs from the metadata of its volume or part of a volume, mostly
// in its extents; "" = no difference is known.
func (f *Facts) misplaced(m devmapper.Mapped) string {
	id, suffix, ours := f.idOf(m)
	if f.place == nil || !ours {
		return ""
	}
	name := f.names[id]
	for _, t := range m.Targets {
		if layout := f.LVs[name].Layout; typed[t.Type] && len(layout) > 0 && !slices.Contains(layout, t.Type) && !slices.Contains(layout, "unknown") {
			return fmt.Sprintf("has a %s table, and the metadata says %s", t.Type, strings.Join(layout, ", "))
		}
	}
	for _, e := range extents(m) {
		if slices.Contains(slices.Collect(f.place.spans.owners(e)), "") {
			if size := f.LVs[name].Size; size > 0 && size < m.Size() && f.misplaced(truncated(m, size)) == "" {
				return join.Enlarged
			}
			return "lies on space that the metadata counts as free"
		}
		if where := f.overlapsOther(e, id); where != "" {
			return where
		}
		if f.place.foreign(e.disk) {
			return fmt.Sprintf("lies on the disk %s, which the metadata does not have", e.disk)
		}
	}
	if dm, layer, ok := parseDMName(m.Name); ok && layer == "" && suffix == "" && !isPart(dm.LV) && isPart(name) {
		return fmt.Sprintf("is a volume, and the metadata has it as %s/%s, a part of another volume", f.Name, name)
	}
	if l := f.LVs[name]; name != "" && suffix == "" && !l.merging() && len(m.Targets) > 0 && !fenced(m) {
		if is, has, known := f.thinIDs(m, id); known && is != has {
			return fmt.Sprintf("is the thin device %d of its pool, and the metadata says %d", is, has)
		}
		// The next activation of a snapshot writes a header to its space.
		switch is, has := l.thickSnapshot(), m.Targets[0].Type == "snapshot"; {
		case is && !has:
			return "is not a snapshot, and the metadata says that it is"
		case has && !is:
			return "is a snapshot, and the metadata says that it is not"
		}
	}
	for _, t := range m.Targets {
		if has := legsOf(t); has > 0 && has < f.legs[name] {
			return fmt.Sprintf("has %d copies or stripes, and the metadata says %d", has, f.legs[name])
		}
	}
	return ""
}

// typed has the target types that must be in the layout of their volume. A linear or striped target
// can be a layer of another type, for example over an external origin; on a disk, its extents are
// compared instead.
var typed = map[string]bool{"cache": true, "mirror": true, "raid": true, "thin": true, "writecache": true}

// compared reports whether misplaced has compared the whole table of a device with the metadata.
func (f *Facts) compared(t *tree, n *node) bool {
	id, suffix, _ := f.idOf(n.Mapped)
	l, known := f.LVs[f.names[id]]
	store := suffix == "" && l.thickSnapshot() || suffix == "-cdata" || suffix == "-cmeta" // its size differs from the volume's
	if f.place == nil || !known || !store && l.Size != n.Size() {
		return false
	}
	for _, target := range n.Targets {
		switch target.Type {
		case "linear", "striped", "cache", "mirror", "thin", "thin-pool", "writecache", "snapshot", "snapshot-origin":
		case "raid":
			if legsOf(target) != f.legs[l.Name] {
				return false
			}
		default:
			return false
		}
	}
	return !slices.ContainsFunc(extents(n.Mapped), func(e extent) bool {
		_, _, isDisk := sysfs.SplitNumber(e.disk)
		return isDisk && !f.place.disks[e.disk] && !(slices.Contains(n.below, e.disk) && strings.HasPrefix(t.at(e.disk).UUID, "LVM-"))
	})
}

// bypassed reports whether a device is the origin of thick snapshots, but its table bypasses them: a
// write to it does not save the former contents in the snapshots.
func (f *Facts) bypassed(m devmapper.Mapped, id volume.UUID) bool {
	l := f.lv(id)
	return slices.Contains(l.Role, "thickorigin") && len(m.Targets) > 0 && !strings.HasPrefix(m.Targets[0].Type, "snapshot-") && !fenced(m)
}

// thinIDs returns the id of a thin device in its table, and the id of its volume in the metadata.
func (f *Facts) thinIDs(m devmapper.Mapped, uuid volume.UUID) (is, has int64, known bool) {
	has, known = f.thin[uuid]
	if !known || len(m.Targets) != 1 || m.Targets[0].Type != "thin" {
		return 0, 0, false
	}
	all := extents(m)
	if len(all) != 1 {
		return 0, 0, false
	}
	return all[0].start, has, true
}

// sameThin reports whether a device has the pool and the id that the metadata has for its volume.
// Its size does not matter: the pool keeps its blocks.
func (f *Facts) sameThin(m devmapper.Mapped, uuid volume.UUID) bool {
	is, has, known := f.thinIDs(m, uuid)
	return known && is == has
}

// truncated returns a device with only its first size bytes.
func truncated(m devmapper.Mapped, size int64) devmapper.Mapped {
	var targets []devmapper.Target
	for _, t := range m.Targets {
		if t.Length = min(t.Length, size); t.Length > 0 {
			targets = append(targets, t)
		}
		size -= t.Length
	}
	m.Targets = targets
	return m
}

// overlapsOther describes a volume other than id that owns space of an extent; "" = none.
func (f *Facts) overlapsOther(e extent, id volume.UUID) string {
	for owner := range f.place.spans.owners(e) {
		if owner != "" && owner != string(id) {
			return fmt.Sprintf("lies on space that the metadata gives to %s/%s", f.Name, f.names[volume.UUID(owner)])
		}
	}
	return ""
}

// foreign reports whether a disk exists, is not an LVM device, and is not related to a disk of the
// group: multipath over it, one of its paths, or the RAID that it is a part of. A dead disk may have been
// of the group.
func (p *placement) foreign(disk string) bool {
	if _, _, isNumber := sysfs.SplitNumber(disk); !isNumber || !p.all || len(p.disks) == 0 || p.disks[disk] {
		return false
	}
	if uuid, _ := sysfs.Line("/sys/dev/block/" + disk + "/dm/uuid"); strings.HasPrefix(uuid, "LVM-") {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stacks == nil { // a disk may have thousands of devices above it
		p.stacks, p.others = map[string]bool{}, map[string]bool{}
		for own := range p.disks {
			for _, dir := range stackOf(own) {
				p.stacks[dir] = true
			}
		}
	}
	foreign, known := p.others[disk]
	if !known {
		stack := stackOf(disk)
		foreign = len(stack) > 0 && !diskGone(disk) && !slices.ContainsFunc(stack, func(dir string) bool { return p.stacks[dir] })
		p.others[disk] = foreign
	}
	return foreign
}

// stackOf returns the sysfs directories of a disk, of the devices above and below it, and of the disks
// whose partitions these are.
func stackOf(disk string) (all []string) {
	self, err := filepath.EvalSymlinks("/sys/dev/block/" + disk)
	if err != nil {
		return nil
	}
	links, _ := filepath.Glob(self + "/slaves/*")
	above, _ := filepath.Glob(self + "/holders/*")
	for _, link := range slices.Concat([]string{self}, links, above) {
		dir, err := filepath.EvalSymlinks(link)
		if err != nil {
			continue
		}
		all = append(all, dir)
		if _, err := os.Stat(dir + "/partition"); err == nil {
			all = append(all, filepath.Dir(dir))
		}
	}
	return all
}

// legsOf returns the number of devices in the table of a RAID, 0 for another target:
// "raid1 3 0 region_size 1024 2 253:1 253:2 - -".
func legsOf(t devmapper.Target) int {
	w := strings.Fields(t.Params)
	if t.Type != "raid" || len(w) < 3 {
		return 0
	}
	params, err := strconv.Atoi(w[1])
	if err != nil || params < 0 || len(w) < params+3 {
		return 0
	}
	legs, _ := strconv.Atoi(w[params+2])
	return legs
}

// A span is an extent that a volume has in the metadata, or that a device maps.
type span struct {
	extent
	owner string
	until int64 // the greatest end of this and the earlier spans of the disk
}

// spans are by disk, sorted by their starts. They may overlap.
type spans map[string][]span

// add adds an extent. sort must follow the last one.
func (s spans) add(e extent, owner string) {
	s[e.disk] = append(s[e.disk], span{extent: e, owner: owner})
}

func (s spans) sort() {
	for _, all := range s {
		slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.start, b.start) })
		until := int64(0)
		for i := range all {
			until = max(until, all[i].end)
			all[i].until = until
		}
	}
}

// owners returns the owner of each span that overlaps the extents.
func (s spans) owners(extents ...extent) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, e := range extents {
			all := s[e.disk]
			i, _ := slices.BinarySearchFunc(all, e.start, func(o span, start int64) int { return cmp.Compare(o.until, start+1) })
			for ; i < len(all) && all[i].start < e.end; i++ {
				if all[i].end > e.start && !yield(all[i].owner) {
					return
				}
			}
		}
	}
}

// An extent is a part of a disk, or a thin device of a pool.
type extent struct {
	disk       string // its number or path; or the pool
	start, end int64  // sectors; or the id of the thin device
}

// extents returns the extents that a device itself maps.
func extents(m devmapper.Mapped) (all []extent) {
	for _, target := range m.Targets {
		words, length := strings.Fields(target.Params), target.Length/512
		switch target.Type {
		case "thin": // POOL ID: two devices with one id share all blocks
			if len(words) > 1 {
				if id, err := strconv.ParseInt(words[1], 10, 64); err == nil {
					all = append(all, extent{"a thin device of " + words[0], id, id + 1})
				}
			}
			continue
		case "linear", "mirror": // pvmove is a mirror on disks
		case "striped": // STRIPES CHUNK, then DISK START of each
			first, _, _ := strings.Cut(target.Params, " ")
			stripes, _ := strconv.ParseInt(first, 10, 64)
			length /= max(stripes, 1)
		default:
			continue
		}
		for i := 1; i < len(words); i++ {
			_, _, isDisk := sysfs.SplitNumber(words[i-1])
			if start, err := strconv.ParseInt(words[i], 10, 64); isDisk && err == nil {
				all = append(all, extent{words[i-1], start, start + length})
			}
		}
	}
	return all
}
