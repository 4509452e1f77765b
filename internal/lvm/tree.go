package lvm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/sysfs"
)

// A tree reads the devices below volumes, each device once: volumes share thin pools and
// origins.
type tree struct {
	p     *Provider
	nodes map[string]*node // by number
	disks map[string]bool  // by number: it is gone
}

func (p *Provider) tree() *tree {
	return &tree{p: p, nodes: map[string]*node{}, disks: map[string]bool{}}
}

// A node is a device of device-mapper.
type node struct {
	devmapper.Mapped
	err   error    // why it could not be read; then the other fields are not known
	below []string // the numbers of device-mapper's devices below it
	user  string   // the volume with this device as a part, as an argument of lvchange --refresh

	stateRead bool // state and stateErr are known
	state     []devmapper.Target
	stateErr  error // why its state could not be read
}

// at returns the device with that number.
func (t *tree) at(number string) *node {
	n := t.nodes[number]
	if n == nil {
		n = t.add(t.p.DM.Device(devmapper.Key{Number: number}))
		t.nodes[number] = n
	}
	return n
}

func (t *tree) add(m devmapper.Mapped, err error) *node {
	n := &node{Mapped: m, err: err}
	major, _, _ := strings.Cut(m.Number, ":")
	words := slices.Clone(m.Below)
	for _, target := range m.Targets {
		words = append(words, strings.Fields(target.Params)...)
	}
	for _, word := range words {
		if _, minor, ok := strings.Cut(word, ":"+major+":"); ok { // meta_device:253:2 of dm-integrity
			word = major + ":" + minor
		}
		if _, _, ok := sysfs.SplitNumber(word); ok && strings.HasPrefix(word, major+":") && !slices.Contains(n.below, word) {
			n.below = append(n.below, word)
		}
	}
	return n
}

// status returns the state of the targets of a device.
func (t *tree) status(n *node) ([]devmapper.Target, error) {
	if !n.stateRead {
		m, err := t.p.status(n.Mapped)
		n.stateRead, n.state, n.stateErr = true, m.Targets, err
	}
	return n.state, n.stateErr
}

// walk visits a volume's device and LVM's devices below it. redundant reports whether a RAID or a
// mirror above has other copies. A PV on device-mapper (multipath, dm-crypt) counts as a disk. It
// returns the error of a device that could not be read; "" = none.
func (t *tree) walk(m devmapper.Mapped, visit func(n *node, redundant bool)) (unread string) {
	seen := map[string]bool{m.Number: true}
	var down func(n *node, user string, redundant bool)
	down = func(n *node, user string, redundant bool) {
		if name, _, ok := parseDMName(n.Name); ok && isPart(name.LV) {
			n.user = user
		} else {
			n.user = n.volume()
		}
		visit(n, redundant)
		redundant = redundant || n.redundant()
		for _, number := range n.below {
			if seen[number] {
				continue
			}
			seen[number] = true
			switch b := t.at(number); {
			case b.err != nil:
				unread = cmp.Or(unread, fmt.Sprintf("the device %s below %s cannot be inspected: %v", number, n.Name, b.err))
			case strings.HasPrefix(b.UUID, "LVM-"):
				down(b, n.user, redundant)
			}
		}
	}
	top := t.add(m, nil)
	t.nodes[m.Number] = top
	down(top, "", false)
	return unread
}

// redundant reports whether a device keeps its data if one device below it fails.
func (n *node) redundant() bool {
	return slices.ContainsFunc(n.Targets, func(t devmapper.Target) bool {
		return t.Type == "mirror" || t.Type == "raid" && !strings.HasPrefix(t.Params, "raid0")
	})
}

// sparse reports whether a device is the origin of a sparse snapshot: all of it is zero.
func (n *node) sparse() bool {
	name, _, ok := parseDMName(n.Name)
	return ok && strings.HasSuffix(name.LV, "_vorigin") && len(n.Targets) > 0 && !slices.ContainsFunc(n.Targets, func(t devmapper.Target) bool { return t.Type != "zero" })
}

func (n *node) has(target string) bool {
	return slices.ContainsFunc(n.Targets, func(t devmapper.Target) bool { return t.Type == target })
}

// faults are the problems of a volume's device and of the devices below it.
type faults struct {
	unread   string // why a device cannot be read; then the other fields may be incomplete
	missing  string // a part of the volume returns only errors, or its contents are lost
	repair   string // the remedy for missing; "" = the disk must come back
	pool     string // its thin pool is full or has failed
	failed   string // its cache, or a merge into it, has failed
	remedy   string // for failed
	degraded string // the failed copies of a RAID's data
	differ   string // the copies that differ
	raid     string // that RAID, as an argument of lvconvert --repair
	refresh  string // its visible volume, as an argument of lvchange --refresh
	move     string // the failed devices of pvmove's mirror

	suspended []join.Suspended // the suspended devices, the lowest first: reads and writes wait for them
}

// faults returns the problems of a volume. Without health it omits problems that do not prevent its
// use, and the state of a cache, whose reading may wait for the cache's disk.
func (t *tree) faults(m devmapper.Mapped, health bool) faults {
	f, suspended := faults{}, []*node{}
	unread := t.walk(m, func(n *node, redundant bool) {
		if n.Live && n.Suspended {
			suspended = append(suspended, n)
		}
		if !redundant && !n.sparse() {
			lv := (&node{Mapped: m}).volume()
			gone := t.gone(n, lv)
			if gone != "" && realOf(m) != "" {
				gone += ". Not while lvs -a shows an invalid snapshot of it (I in Attr), which would look valid then: flexd status " + lv + " says how to remove it"
			}
			f.missing = cmp.Or(f.missing, incomplete(n.Mapped, lv), gone)
		}
		for i, target := range n.Targets {
			judge := judges[target.Type]
			if judge == nil || !health && !needed[target.Type] {
				continue
			}
			state, err := t.status(n)
			if _, silent := errors.AsType[silentError](err); silent && t.suspendedBelow(n) {
				return
			}
			if err != nil || len(state) != len(n.Targets) || state[i].Type != target.Type {
				f.unread = cmp.Or(f.unread, fmt.Sprintf("the state of %s cannot be read: %v", n.Name, err))
				return
			}
			judge(&f, m, n, state[i])
		}
	})
	f.unread = cmp.Or(f.unread, unread)
	slices.SortStableFunc(suspended, func(a, b *node) int { return cmp.Compare(t.height(a), t.height(b)) })
	for _, n := range suspended {
		f.suspended = append(f.suspended, join.Suspended{Kernel: n.Name, Loaded: n.Loaded})
	}
	if lost := t.sync(m).lost; lost != "" {
		f.missing, f.degraded = cmp.Or(f.missing, lost), "" // a repair would discard the data of the missing disk
	}
	return f
}

// parts returns LVM's devices directly below a device.
func (t *tree) parts(n *node) (parts []*node) {
	for _, number := range n.below {
		if b := t.at(number); b.err == nil && b.Number != n.Number && strings.HasPrefix(b.UUID, "LVM-") {
			parts = append(parts, b)
		}
	}
	return parts
}

// suspendedBelow reports whether a device that holds up the state of a pool or a cache, or a device below that, is
// suspended: then its disk is not the reason for its silence.
func (t *tree) suspendedBelow(n *node) bool {
	return slices.ContainsFunc(n.Targets, func(target devmapper.Target) bool {
		return slices.ContainsFunc(holdUp(target), func(number string) bool { return t.suspended(t.at(number)) })
	})
}

// suspended reports whether a device, or one of LVM's devices below it, is suspended.
func (t *tree) suspended(n *node) bool {
	return n.Live && n.Suspended || slices.ContainsFunc(t.parts(n), t.suspended)
}

// height is greater than that of each device below.
func (t *tree) height(n *node) (height int) {
	for _, b := range t.parts(n) {
		height = max(height, 1+t.height(b))
	}
	return height
}

// needed has the target types whose state decides whether a volume may be used.
var needed = map[string]bool{"snapshot": true, "snapshot-merge": true, "thin-pool": true}

// judges has the functions that evaluate the states of targets.
var judges = map[string]func(f *faults, top devmapper.Mapped, n *node, state devmapper.Target){
	"cache": cacheState, "mirror": mirrorState, "raid": raidState, "snapshot": snapshotState, "snapshot-merge": mergeState, "thin-pool": poolState,
	"writecache": writecacheState,
}

// removeLost is the remedy for a snapshot whose contents are lost.
const removeLost = "lvremove it (while its disk is missing with --config activation/activation_mode=partial)"

// snapshotState reads "Invalid" after an error of the snapshot's disk. A full snapshot is "Overflow" if its
// table has the option PO; with the tables of LVM 2.03.16 (P) it is also "Invalid".
func snapshotState(f *faults, _ devmapper.Mapped, n *node, state devmapper.Target) {
	switch state.Params {
	case "Overflow":
		f.lost(n.Name+" is a snapshot that was too small for the changes of its origin, so its contents are lost", removeLost+", and create a larger one")
	case "Invalid":
		f.lost(n.Name+" is an invalid snapshot, so its contents are lost: it was too small for the changes of its origin, or its disk had an error (look at dmesg and at the disk)",
			removeLost+" before its next activation, after which it could look valid, and create another one, larger if it was full")
	}
}

// lost records that the contents of a volume are lost, with the remedy.
func (f *faults) lost(what, repair string) {
	if f.missing == "" {
		f.missing, f.repair = what, repair
	}
}

// mergeState evaluates an origin into which a snapshot is being merged.
func mergeState(f *faults, _ devmapper.Mapped, n *node, state devmapper.Target) {
	switch state.Params {
	case "Invalid", "Overflow":
		f.lost(n.volume()+" was being merged with a snapshot whose contents are lost: it may have partly old and partly new contents",
			"copy its data off, and compare it with a backup: its next activation may continue the merge, over what was written since")
	case "Merge failed":
		f.failed = n.volume() + ": the merge of its snapshot has failed: the data that is not merged is still on the snapshot"
		f.remedy = "look at dmesg and at the disks. Reads and writes still find all data: back it up. The merge continues when the volume is deactivated and activated again: delete its pods, lvchange -an, lvchange -ay"
	}
}

func poolState(f *faults, _ devmapper.Mapped, n *node, state devmapper.Target) {
	pool := Pool{}
	pool.Name, _, _ = parseDMName(n.Name)
	if err := pool.parse(state.Params, state.Length); err != nil {
		f.unread = cmp.Or(f.unread, err.Error())
	} else if why := pool.Full(); why != "" {
		f.pool = cmp.Or(f.pool, fmt.Sprintf("it is in the thin pool %s: %s", pool.Name, why))
	}
}

// raidState reads "raid1 2 AD 16384/16384 idle 0 0 -": type, devices, one letter for each device,
// the sectors in sync, the sync action, the sectors that differ.
func raidState(f *faults, top devmapper.Mapped, n *node, state devmapper.Target) {
	w := strings.Fields(state.Params)
	if len(w) < 3 || f.degraded != "" {
		return
	}
	its := "its " + w[0]
	if n.volume() != (&node{Mapped: top}).volume() {
		its = "the " + w[0] + " " + n.volume() + " below it"
	}
	f.raid, f.refresh = n.volume(), n.user
	if dead := strings.Count(w[2], "D") + strings.Count(w[2], "-"); dead > 0 {
		f.degraded = failedDevices(dead, w[1], its, w[2])
	} else if len(w) > 5 && w[4] == "idle" && w[5] != "0" {
		f.differ = fmt.Sprintf("the last check of %s found %s sectors that differ between its devices", its, w[5])
	}
}

// mirrorState reads "2 253:1 253:2 64/64 1 AD 1 core": the devices, the regions in sync, one letter for
// each device.
func mirrorState(f *faults, _ devmapper.Mapped, n *node, state devmapper.Target) {
	w := strings.Fields(state.Params)
	if len(w) == 0 {
		return
	}
	devices, err := strconv.Atoi(w[0])
	if err != nil || devices < 0 || len(w) < devices+4 {
		return
	}
	letters := w[devices+3]
	name, _, ok := parseDMName(n.Name)
	switch dead := len(letters) - strings.Count(letters, "A"); {
	case dead == 0:
	case ok && ofPvmove(name.LV):
		f.move = failedDevices(dead, w[0], "pvmove's mirror "+n.Name, letters)
	case f.degraded == "" && (!ok || !isPart(name.LV)):
		f.raid, f.refresh = n.volume(), n.user
		f.degraded = failedDevices(dead, w[0], "its mirror", letters)
	}
}

func failedDevices(dead int, of, its, letters string) string {
	return fmt.Sprintf("%d of %s devices of %s have failed or are missing (%s)", dead, of, its, letters)
}

// cacheState reads "Fail", or a long line that ends with the mode of the metadata and
// with "needs_check" or "-".
func cacheState(f *faults, _ devmapper.Mapped, n *node, state devmapper.Target) {
	w := strings.Fields(state.Params)
	switch {
	case len(w) == 1:
		f.failed = "the cache of " + n.volume() + " has failed: reads and writes fail"
	case slices.Contains(w, "needs_check"):
		f.failed = "the metadata of the cache of " + n.volume() + " must be checked"
	case slices.Contains(w, "ro"):
		f.failed = "the metadata of the cache of " + n.volume() + " is read-only: it is full or broken"
	default:
		return
	}
	f.remedy = cacheRemedy(n)
}

// writecacheState reads the error indicator, which comes first.
func writecacheState(f *faults, _ devmapper.Mapped, n *node, state devmapper.Target) {
	if indicator, _, _ := strings.Cut(state.Params, " "); indicator != "0" {
		f.failed, f.remedy = "the writecache of "+n.volume()+" has failed", cacheRemedy(n)+". Then check the files that were written last: the kernel may lose synced writes with it"
	}
}

func cacheRemedy(n *node) string {
	return fmt.Sprintf("delete its pods, and reconnect the disk of the cache (pvs, dmesg): it may have data that exists nowhere else. Then lvchange -an %s, lvchange -ay %[1]s. Without the cache: lvconvert --uncache %[1]s, which writes the cache back if it can be read; --force drops it with its data", n.volume())
}

// volume returns the volume that a device belongs to, as an argument of LVM's commands.
func (n *node) volume() string {
	if name, _, ok := parseDMName(n.Name); ok {
		return name.String()
	}
	return n.Name
}
