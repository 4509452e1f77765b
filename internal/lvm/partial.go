package lvm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/sysfs"
)

// A loss is the data of a volume or a pool on missing disks, or beyond the end of a disk. LVM calls only
// the former partial.
type loss struct {
	own       bool     // some data is on no other disk
	raids     []string // the RAIDs, itself or below it, that have all their data on other disks
	snapshots []string // its snapshots whose space is lost
	short     string   // the disk that ends before a part of it, with the remedy; "" = none
}

// parentName returns the name of the volume that has a part, by the part's name.
func parentName(part string) string {
	at := 0
	for _, mark := range reserved {
		at = max(at, strings.LastIndex(part, mark))
	}
	return part[:at]
}

// parent returns the volume that has a hidden volume as a part or as its cache; "" = none is known.
func (f *Facts) parent(part string) string {
	up, ok := f.cached[part]
	if !ok {
		up = parentName(part)
	}
	if _, ok := f.LVs[up]; !ok || !f.LVs[part].Hidden {
		return ""
	}
	return up
}

// whole returns the volume or pool at the top: the last parent of a hidden volume, or the volume itself.
func (f *Facts) whole(name string) string {
	for up := f.parent(name); up != ""; up = f.parent(name) {
		name = up
	}
	return name
}

// leg returns the number of a leg of a RAID or a mirror in the name of its part.
func leg(raid, part string) (number string, ok bool) {
	for _, mark := range []string{"_rimage_", "_rmeta_", "_mimage_"} {
		if number, ok := strings.CutPrefix(part, raid+mark); ok {
			return number, true
		}
	}
	return "", false
}

// ofPvmove reports whether a volume is a mirror of pvmove.
func ofPvmove(name string) bool { return strings.HasPrefix(name, "pvmove") }

func (l loss) any() bool { return l.own || len(l.raids)+len(l.snapshots) > 0 }

// recordLosses records the losses of volumes from the extents on missing disks and beyond the ends of disks.
func (f *Facts) recordLosses() {
	type part struct{ volume, raid string }
	var parts []part
	legs := map[string]map[string]bool{} // by RAID: the numbers of its legs
	ends := map[string]string{}          // by volume: its shortage
	var add func(name, short string)
	add = func(name, short string) {
		switch {
		case strings.Contains(name, "_pmspare"): // the spare metadata of the group's pools, no part of a volume
			return
		case len(f.onMove[name]) > 0:
			for _, part := range f.onMove[name] {
				add(part, short)
			}
			return
		}
		p := part{volume: name}
		for up := f.parent(name); up != ""; up = f.parent(up) {
			if number, ok := leg(up, p.volume); ok && f.LVs[up].redundant() {
				if p.raid = up; legs[up] == nil {
					legs[up] = map[string]bool{}
				}
				legs[up][number] = true
			}
			p.volume = up
		}
		f.unknownPartLost = f.unknownPartLost || f.LVs[p.volume].Hidden && !f.LVs[p.volume].merging()
		parts = append(parts, p)
		ends[p.volume] = cmp.Or(ends[p.volume], short)
	}
	for id := range f.onMissing {
		add(f.names[id], "")
	}
	for _, s := range f.shortages() {
		text := s.String()
		for _, name := range s.parts {
			add(name, text)
		}
	}
	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(strings.Compare(a.raid, b.raid), strings.Compare(a.volume, b.volume))
	})
	for _, p := range slices.Compact(parts) {
		own := p.raid == "" || !f.survives(p.raid, legs[p.raid])
		l := f.LVs[p.volume]
		for _, name := range []string{l.Name, l.Origin} {
			lost := f.lost[name]
			switch {
			case name == "" || name == l.Origin && !l.thickSnapshot():
				continue
			case !own:
				lost.raids = append(lost.raids, p.raid)
			case name == l.Origin && !l.merging(): // a snapshot that is being merged is a part of the origin
				lost.snapshots = append(lost.snapshots, l.Name)
			default:
				lost.own = true
			}
			lost.short = cmp.Or(lost.short, ends[p.volume])
			f.lost[name] = lost
		}
	}
}

// redundant reports whether a volume is a RAID with redundancy or a mirror.
func (l Logical) redundant() bool { return l.raid() || slices.Contains(l.Layout, "mirror") }

// raid reports whether a volume is a RAID with redundancy. LVM shows --type raid0_meta as "raid" alone.
func (l Logical) raid() bool {
	return slices.ContainsFunc(l.Layout, func(word string) bool {
		return slices.Contains([]string{"raid1", "raid4", "raid5", "raid6", "raid10"}, word)
	})
}

// survives reports whether a RAID or a mirror has all its data without some of its legs.
func (f *Facts) survives(raid string, lost map[string]bool) bool {
	kind := "raid1" // a mirror, too
	for _, word := range f.LVs[raid].Layout {
		if word != "raid" && strings.HasPrefix(word, "raid") {
			kind = word
		}
	}
	return survives(kind, f.legs[raid], lost)
}

// lossOf returns what a volume has lost.
func (f *Facts) lossOf(l Logical) loss {
	all := f.lost[l.Name]
	add := func(below loss) {
		all.own, all.raids, all.short = all.own || below.own, slices.Concat(all.raids, below.raids), cmp.Or(all.short, below.short)
	}
	if l.Pool != "" {
		add(f.lost[l.Pool])
	}
	for below, depth := l, 0; below.Pool != "" && below.Origin != "" && depth < len(f.LVs); depth++ { // external origins of thin volumes
		below = f.LVs[below.Origin]
		add(f.lost[below.Name])
	}
	// A volume without a known loss is partial because of an unknown part.
	all.own = all.own || l.Health == "partial" && (f.unknownPartLost || !all.any())
	return all
}

// hasLostData reports whether a volume, active or not, has lost data. An unknown lost part counts, except
// for a RAID, which has other copies.
func (f *Facts) hasLostData(l Logical) bool {
	if l = f.healthOf(l); l.raid() {
		return f.lost[l.Name].own
	}
	return f.lossOf(l).own
}

// healthOf returns the volume with the losses of l: LVM activates a thick snapshot with its origin, and
// shows only the origin as partial.
func (f *Facts) healthOf(l Logical) Logical {
	if l.thickSnapshot() && !f.lossOf(l).any() {
		return f.LVs[l.Origin]
	}
	return l
}

// partial returns why LVM does not activate a volume while a disk is missing or short, and the remedy, which
// depends on whether the volume is active; "" = LVM activates it.
func (f *Facts) partial(l Logical, active bool) string {
	l = f.healthOf(l)
	name, lost := f.Name+"/"+l.Name, f.lossOf(l)
	raid := l.raid() && len(lost.snapshots) == 0
	switch {
	case !lost.any():
		return ""
	case lost.short != "": // LVM does not activate a RAID either: it knows only legs that are missing
		return fmt.Sprintf("a part of %s is beyond the end of a disk: %s", name, lost.short)
	case lost.own:
		return fmt.Sprintf("%s is partial: it has extents on a disk that is missing (%s): %s", name, f.missing(), join.BringBack)
	case !raid || f.integrity(l.Name):
		text := fmt.Sprintf("%s is partial: %s is on a disk that is missing (%s). All its data is on other disks if its RAIDs were in sync, but LVM does not activate it while a disk is missing: %s", name, f.where(lost), f.missing(), join.BringBack)
		if remedy := f.remedy(l, lost, active); remedy != "" {
			text += "; only if it is lost: " + remedy
		}
		return text
	}
	return ""
}

// inactivatable returns why LVM does not activate a volume while a disk is missing, short or visible twice, see
// partial.
func (f *Facts) inactivatable(l Logical, active bool) string {
	if f.duplicate != nil {
		return f.duplicate.Error()
	}
	return f.partial(l, active)
}

// integrity reports whether a RAID has checksums: LVM activates it only with all its legs.
func (f *Facts) integrity(raid string) bool {
	_, ok := f.LVs[raid+"_rimage_0_imeta"]
	return ok
}

// where describes the lost parts of a volume that has all its data.
func (f *Facts) where(lost loss) string {
	text := ""
	add := func(what string, names []string) {
		for _, name := range names {
			text += what + f.Name + "/" + name
			what = " and "
		}
	}
	add("a copy of ", lost.raids)
	if text != "" && len(lost.snapshots) > 0 {
		text += " and "
	}
	add("the space of its snapshot ", lost.snapshots)
	return text
}

// remedy returns the commands that repair a volume that has all its data; "" = there are none. The repair
// has no -y: with it, newer LVM versions would repair a RAID that is not active.
func (f *Facts) remedy(l Logical, lost loss, active bool) string {
	var all []string
	for _, name := range slices.Compact(slices.Sorted(slices.Values(lost.snapshots))) {
		all = append(all, "lvremove -y --config activation/activation_mode=partial "+f.Name+"/"+name)
	}
	if len(lost.raids) == 0 {
		return strings.Join(all, ", then ")
	}
	var inactive []string
	for _, name := range lost.raids {
		if !active && f.integrity(name) {
			inactive = append(inactive, "lvconvert -y --raidintegrity n "+f.Name+"/"+name)
		}
	}
	if len(inactive) > 0 {
		return strings.Join(append(all, inactive...), ", then ")
	}
	if !active && slices.Contains(l.Layout, "writecache") { // which LVM never activates partially
		return ""
	}
	all = append(all, "give the group another disk (vgextend)")
	if !active {
		how := "-ay"
		if f.Shared() {
			how = "-aey"
		}
		all = append(all, "lvchange "+how+" -K --activationmode partial "+f.Name+"/"+l.Name)
	}
	for _, name := range lost.raids {
		all = append(all, "lvconvert --repair "+f.Name+"/"+name)
	}
	return strings.Join(all, ", then ")
}

// allGone reports whether all disks below a device are gone. Then nothing can be read from it, and a
// new activation uses the disks that return.
func (t *tree) allGone(m devmapper.Mapped) bool {
	disks, gone := 0, 0
	t.walk(m, func(n *node, _ bool) {
		for _, target := range n.Targets {
			for word := range strings.FieldsSeq(target.Params) {
				if _, _, ok := sysfs.SplitNumber(word); !ok || slices.Contains(n.below, word) && strings.HasPrefix(t.at(word).UUID, "LVM-") {
					continue
				}
				if disks++; t.isGone(word) {
					gone++
				}
			}
		}
	})
	return disks > 0 && gone == disks
}
