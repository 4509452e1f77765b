package lvm

import (
	"context"
	"encoding/binary"
	"fmt"
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

// outdated refuses the activation of a raid10 if both copies of a part failed one after the other: the kernel, for
// which neither is newer, would mix them. Activated by an operator, all legs have the same state.
func (g *group) outdated(ctx context.Context, lock string, lv volume.LV) error {
	f, _, err := g.look(ctx, false)
	if err != nil {
		return err
	}
	l := f.raidOf(lv.UUID)
	if !slices.Contains(l.Layout, "raid10") {
		return nil
	}
	legs, err := g.legStates(ctx, lock, f, l.Name)
	if err != nil {
		return err
	}
	stale := copiesInTurn(legs, f.legs[l.Name])
	if len(stale) == 0 {
		return nil
	}
	how := "-ay"
	if f.Shared() {
		how = "-aey"
	}
	name, rebuild := f.Name+"/"+l.Name, ""
	for _, s := range stale {
		rebuild += " --rebuild " + s.Disk
	}
	return volume.Errorf(volume.Damaged, "both copies of a part of the raid10 %s failed, one after the other, and the kernel would mix the older data with the newer (the older is that of %d legs): lvchange %s %s, then lvchange -y%s %[1]s", name, len(stale), how, name, rebuild)
}

// tooManyFailed returns an error if the kernel has refused to activate a RAID with parity because it has lost more
// legs than it survives.
func (g *group) tooManyFailed(ctx context.Context, lock string, f *Facts, uuid volume.UUID) error {
	l := f.raidOf(uuid)
	i := slices.IndexFunc(l.Layout, parity)
	if i < 0 {
		return nil
	}
	legs, err := g.legStates(ctx, lock, f, l.Name)
	if err != nil {
		return err
	}
	failed := map[string]bool{}
	for leg, now := 0, newest(legs); now.Failed>>leg != 0; leg++ {
		if now.Failed>>leg&1 != 0 {
			failed[strconv.Itoa(leg)] = true
		}
	}
	if survives(l.Layout[i], f.legs[l.Name], failed) {
		return nil
	}
	return volume.Errorf(volume.Damaged, "%d legs of the %s %s/%s have failed, and the kernel does not activate it, also if all their disks are back. A leg that failed earlier lacks what was written since: restore a backup. Only if nothing was written after the first failure: lvchange -y --resync %[3]s/%[4]s, which takes all legs for current, then check the filesystem", len(failed), l.Layout[i], f.Name, l.Name)
}

// raidOf returns the volume with the legs of a volume, if it is a RAID: the origin of a thick snapshot.
func (f *Facts) raidOf(uuid volume.UUID) Logical {
	if l := f.lv(uuid); l.thickSnapshot() {
		return f.LVs[l.Origin]
	}
	return f.lv(uuid)
}

// legStates reads the states of those legs of a RAID that can be read.
func (g *group) legStates(ctx context.Context, lock string, f *Facts, raid string) (legs []superblock, err error) {
	err = mount.Ask(ctx, g.p.Runner, run.Cmd{
		Step:     "read the states of RAID legs",
		Argv:     run.Self("lvm-superblocks", f.legMetas(raid)),
		Lock:     lock,
		Deadline: holdersDeadline,
	}, &legs)
	return legs, err
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
	byLeg, newest := map[int]superblock{}, newest(all)
	for _, s := range all {
		byLeg[s.Leg] = s
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

// newest returns the superblock that was written last.
func newest(all []superblock) (newest superblock) {
	for _, s := range all {
		if s.Events > newest.Events {
			newest = s
		}
	}
	return newest
}

// superblocks is the child that reads the states of the legs that can be read.
func superblocks(legs []legMeta) (all []superblock, err error) {
	b, err := newBlock()
	if err != nil {
		return nil, err
	}
	for _, leg := range legs {
		err := readBlock(b, leg.Disk, leg.Offset)
		if s, ok := parseSuperblock(b); err == nil && ok {
			s.Leg, s.Disk = leg.Leg, leg.Disk
			all = append(all, s)
		}
	}
	return all, nil
}

// newBlock returns a buffer for the headers that the kernel writes, aligned for readBlock.
func newBlock() ([]byte, error) {
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return b, nil
}

// readBlock reads a header from a disk, not from the cache.
func readBlock(b []byte, path string, offset int64) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.ReadAt(b, offset)
	return err
}

// parseSuperblock reads a superblock of dm-raid.
func parseSuperblock(b []byte) (s superblock, ok bool) {
	const magic = 0x64526d44 // "DmRd"
	return superblock{Events: binary.LittleEndian.Uint64(b[16:]), Failed: binary.LittleEndian.Uint64(b[24:])},
		binary.LittleEndian.Uint32(b) == magic
}
