package lvm

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// A legMeta is the place of the metadata of a RAID's leg.
type legMeta struct {
	Leg    int    `json:"leg"`
	Disk   string `json:"disk"`
	Offset int64  `json:"offset"` // bytes
}

// A superblock is the state of a RAID when the kernel last wrote to a leg.
type superblock struct {
	Leg    int    `json:"leg"`
	Disk   string `json:"disk"`
	Events uint64 `json:"events"` // counts the changes of the state
	Failed uint64 `json:"failed"` // the failed legs, a bit each
}

// copes has the number of failed legs that a RAID with parity copes with.
var copes = map[string]int{"raid4": 1, "raid5": 1, "raid6": 2}

// outdated refuses the activation of a raid10 if both copies of a part failed one after the other: the kernel, for
// which neither is newer, would mix them. Activated by an operator, all legs have the same state. It also refuses a RAID
// with parity that has lost too many legs, which the kernel does not activate.
func (g *group) outdated(ctx context.Context, lock string, lv volume.LV) error {
	f, _, err := g.look(ctx, false)
	if err != nil {
		return err
	}
	l := f.lv(lv.UUID)
	if l.thickSnapshot() {
		l = f.LVs[l.Origin]
	}
	i := slices.IndexFunc(l.Layout, func(kind string) bool { return kind == "raid10" || copes[kind] > 0 })
	if i < 0 {
		return nil
	}
	var legs []superblock
	err = mount.Ask(ctx, g.p.Runner, run.Cmd{
		Step:     "read the states of RAID legs",
		Argv:     run.Self("lvm-superblocks", f.legMetas(l.Name)),
		Lock:     lock,
		Deadline: holdersDeadline,
	}, &legs)
	if err != nil {
		return err
	}
	name := f.Name + "/" + l.Name
	if limit := copes[l.Layout[i]]; limit > 0 {
		if failed := failedLegs(legs); failed > limit {
			return volume.Errorf(volume.Damaged, "%d legs of the %s %s have failed, and the kernel does not activate it, also if all their disks are back. A leg that failed earlier lacks what was written since: restore a backup. Only if nothing was written after the first failure: lvchange -y --resync %[3]s, which takes all legs for current, then check the filesystem", failed, l.Layout[i], name)
		}
		return nil
	}
	stale := copiesInTurn(legs, f.legs[l.Name])
	if len(stale) == 0 {
		return nil
	}
	how := "-ay"
	if f.Shared() {
		how = "-aey"
	}
	rebuild := ""
	for _, s := range stale {
		rebuild += " --rebuild " + s.Disk
	}
	return volume.Errorf(volume.Damaged, "both copies of a part of the raid10 %s failed, one after the other, and the kernel would mix the older data with the newer (the older is that of %d legs): lvchange %s %s, then lvchange -y%s %[1]s", name, len(stale), how, name, rebuild)
}

// legMetas returns the places of the metadata of a RAID's legs.
func (f *Facts) legMetas(raid string) (all []legMeta) {
	for _, s := range f.used {
		number, ok := strings.CutPrefix(f.names[volume.UUID(s.owner)], raid+"_rmeta_")
		if n, err := strconv.Atoi(number); ok && err == nil {
			all = append(all, legMeta{n, s.disk, s.start * 512})
		}
	}
	return all
}

// copiesInTurn returns, of each two copies in a raid10 that have both missed a change of its state, the older one, if
// the newest superblock has one of them as failed. If a power cut was between the writes of the superblocks, the remedy is the
// same.
func copiesInTurn(all []superblock, legs int) (older []superblock) {
	byLeg := map[int]superblock{}
	newest := superblock{}
	for _, s := range all {
		if byLeg[s.Leg] = s; s.Events > newest.Events {
			newest = s
		}
	}
	for pair := 0; pair+1 < legs; pair += 2 {
		a, hasA := byLeg[pair]
		b, hasB := byLeg[pair+1]
		if hasA && hasB && a.Events < newest.Events && b.Events < newest.Events && newest.Failed>>pair&3 != 0 {
			if b.Events < a.Events {
				a = b
			}
			older = append(older, a)
		}
	}
	return older
}

// failedLegs returns how many legs have failed by the newest superblock.
func failedLegs(all []superblock) int {
	newest := superblock{}
	for _, s := range all {
		if s.Events > newest.Events {
			newest = s
		}
	}
	return bits.OnesCount64(newest.Failed)
}

// superblocks is the child that reads the states of the legs that can be read.
func superblocks(legs []legMeta) (all []superblock, err error) {
	for _, leg := range legs {
		b, err := readBlock(leg.Disk, leg.Offset)
		if s, ok := parseSuperblock(b); err == nil && ok {
			s.Leg, s.Disk = leg.Leg, leg.Disk
			all = append(all, s)
		}
	}
	return all, nil
}

// blockSize is that of the headers that the kernel writes.
const blockSize = 4096

// readBlock reads a header from a disk, not from the cache.
func readBlock(path string, offset int64) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, blockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // aligned
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	defer func() { _ = unix.Munmap(b) }()
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.ReadAt(b, offset); err != nil {
		return nil, err
	}
	return slices.Clone(b), nil
}

// parseSuperblock reads a superblock of dm-raid.
func parseSuperblock(b []byte) (s superblock, ok bool) {
	const magic = 0x64526d44 // "DmRd"
	if len(b) < 32 {
		return s, false
	}
	return superblock{Events: binary.LittleEndian.Uint64(b[16:]), Failed: binary.LittleEndian.Uint64(b[24:])},
		binary.LittleEndian.Uint32(b) == magic
}
