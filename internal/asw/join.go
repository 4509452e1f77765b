package asw

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// A MountState is one mount of a table, with its owner.
type MountState struct {
	Dir      string
	Device   string // number of its block device; "" = it has none
	What     string
	Owner    volume.Owner
	Other    bool   // Elsewhere, at a directory of another driver
	BindLeft bool   // Elsewhere, a bind of kubelet's whose original is gone
	Outside  bool   // Ours, but below none of the present roots
	Gone     bool   // the kernel has no device of that number
	Part     bool   // it shows only a part of the filesystem
	Over     string // the mount that hides it from a lookup of Dir; "" = none
	Again    bool   // Over is a mount of the same filesystem at the same directory

	ReadOnly      bool     // the mount's own flag
	SuperReadOnly bool     // the superblock's
	Options       []string // the mount's

	Fault  string   // the kernel's error of the filesystem; "" = none
	Lost   string   // the first of its writes that the kernel logged as lost; "" = none
	Nested []string // mount points below it

	UUID    volume.UUID // its volume, if requested
	Unknown bool        // it was requested, and is unknown
}

// LastTable returns the last mount table, or nil if it could not be read.
func (o *Observer) LastTable() *mounttable.Table {
	o.tables.mu.Lock()
	defer o.tables.mu.Unlock()
	if o.tables.last == nil {
		return nil
	}
	return o.tables.last.table
}

// Foreign returns the mount point of a device that neither flexd nor kubelet has mounted,
// "" = none. dirs are the directories of claims.
func (o *Observer) Foreign(number, path string, dirs []string, table *mounttable.Table) string {
	for _, e := range o.owned(number, path, dirs, table.Devices()) {
		if e.owner == volume.Elsewhere {
			return e.Dir
		}
	}
	return ""
}

// MountsOf returns the mounts of a device. Copies by propagation count once, at one of dirs
// if possible.
func (o *Observer) MountsOf(number, path string, dirs []string, devices *mounttable.Devices) []MountState {
	var all []MountState
	table := devices.Table
	for i, e := range o.owned(number, path, dirs, devices) {
		whole := o.whole(e.Entry, dirs)
		s := MountState{Dir: e.Dir, Device: number, What: part(e.Entry, whole) + e.Type + " from " + path, Part: !whole, Owner: e.owner, Other: e.otherDriver, BindLeft: e.bindLeft, Outside: e.outside, Options: e.Options, ReadOnly: e.ReadOnly, SuperReadOnly: e.SuperReadOnly}
		if over := table.Over(e.Entry); over != nil {
			again := o.whole(over, dirs)
			s.Over = fmt.Sprintf("%s%s from %s at %s", part(over, again), over.Type, over.Source, over.Dir)
			s.Again = again && over.Dir == e.Dir && slices.Contains(devices.Of(number, path), over)
		}
		if i == 0 { // all mounts of a device share one superblock
			s.Fault = o.liveError(volume.Device{Path: path}, e.Entry)
			s.Lost, _ = o.KernelLog.Said(path)
		}
		for _, below := range table.On(e.Entry) {
			if below.Dir != e.Dir {
				s.Nested = append(s.Nested, below.Dir)
			}
		}
		all = append(all, s)
	}
	return all
}

// Reachable returns the id of a mount of a volume that a lookup of its directory reached last;
// 0 = none.
func (o *Observer) Reachable(h *volume.Have) int {
	table := o.LastTable()
	if table == nil {
		return 0
	}
	for _, m := range h.Mounts {
		if e := table.Top(m.Dir); e != nil && table.IsOf(e, h.Device.Number, h.Device.Path) {
			return e.ID
		}
	}
	return 0
}

// part returns the directory of a filesystem that a mount shows, if that is not the whole.
func part(e *mounttable.Entry, whole bool) string {
	if whole {
		return ""
	}
	return e.Root + " of the "
}

// MountsAt returns the mounts at a directory with, if requested, their volumes.
func (o *Observer) MountsAt(ctx context.Context, dir string, devices *mounttable.Devices, ask bool) []MountState {
	rule := o.classifierFor(devices.Table)
	var all []MountState
	reached, hidden := devices.Table.At(dir)
	for _, e := range slices.Concat(hidden, reached) {
		whole := o.whole(e, nil)
		s := MountState{Dir: dir, What: fmt.Sprintf("%s%s from %s", part(e, whole), e.Type, e.Source), Part: !whole, Device: e.Number, Options: e.Options, ReadOnly: e.ReadOnly, SuperReadOnly: e.SuperReadOnly}
		s.Owner, _ = rule.owner(e, whole)
		if strings.HasPrefix(e.Number, "0:") {
			s.Device = devices.SourceNumber(e)
		}
		if s.Gone = s.Device != "" && o.NoDevice(s.Device); !s.Gone && ask {
			id, err := o.identify(ctx, e, s.Device)
			s.UUID, s.Unknown = id.UUID, err != nil
		}
		all = append(all, s)
	}
	return all
}

// noDevice reports whether the kernel has no block device of that number.
func noDevice(number string) bool {
	_, err := os.Lstat("/sys/dev/block/" + number)
	return os.IsNotExist(err)
}
