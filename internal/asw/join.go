package asw

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

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
func (o *Observer) MountsOf(number, path string, dirs []string, devices *mounttable.Devices) []join.Mount {
	var all []join.Mount
	table, disks, fsid := devices.Table, []string(nil), ""
	if b := devices.Btrfs(number); b != nil {
		fsid = b.FSID
		for _, d := range b.Devices {
			if d.Number != number {
				disks = append(disks, "/dev/"+d.Name)
			}
		}
	}
	for i, e := range o.owned(number, path, dirs, devices) {
		whole := o.whole(e.Entry, dirs)
		s := join.Mount{Dir: e.Dir, Device: number, Type: e.Type, What: part(e.Entry, whole) + e.Type + " from " + path, Part: !whole, Owner: e.owner, Pod: e.place.Pod, Other: e.otherDriver, BindLeft: e.bindLeft, OtherRoot: e.otherRoot, Outside: e.outside, Disks: disks, FSID: fsid, Source: path, Options: e.Options, ReadOnly: e.ReadOnly, SuperReadOnly: e.SuperReadOnly, Deleted: deleted(e.Entry)}
		if over := table.Over(e.Entry); over != nil {
			again := o.whole(over, dirs)
			s.Over = fmt.Sprintf("%s%s from %s at %s", part(over, again), over.Type, over.Source, over.Dir)
			s.Again = again && over.Dir == e.Dir && slices.Contains(devices.Of(number, path), over)
		}
		if i == 0 { // all mounts of a device share one superblock
			s.Fault = o.liveError(volume.Device{Path: path}, e.Entry)
			s.Lost, _ = o.KernelLog.Logged(path)
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

// AddNoWrites marks the devices that are mounted read-write and have their file on a filesystem that accepts no writes.
func AddNoWrites(g *join.Group, table *mounttable.Table) {
	if g.Directory == "" {
		return
	}
	files, writable := map[volume.UUID]string{}, map[string]bool{}
	for _, v := range g.Volumes { // without a file that another mount hides
		files[v.UUID] = filepath.Join(g.Directory, v.Name)
	}
	for _, m := range g.Mounts {
		writable[m.Device] = writable[m.Device] || !m.ReadOnly
	}
	for i := range g.Devices {
		d := &g.Devices[i]
		if file := files[d.UUID]; file != "" && !d.ReadOnly && writable[d.Number] {
			if e := table.Containing(file); e != nil && e.NoWrites() != "" {
				d.Failed, d.Remedy = volume.NoWrites(e.Type, e.Dir, e.NoWrites())
			}
		}
	}
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

// part describes the directory of a filesystem that a mount shows, if it does not show the whole.
func part(e *mounttable.Entry, whole bool) string {
	if whole {
		return ""
	}
	return e.Root + " of the "
}

// MountsAt returns the mounts at a directory with, if requested, their volumes.
func (o *Observer) MountsAt(ctx context.Context, dir string, devices *mounttable.Devices, ask bool) []join.Mount {
	rule := o.classifierFor(devices.Table)
	var all []join.Mount
	reached, hidden := devices.Table.At(dir)
	for _, e := range slices.Concat(hidden, reached) {
		whole := o.whole(e, nil)
		s := join.Mount{Dir: dir, What: fmt.Sprintf("%s%s from %s", part(e, whole), e.Type, e.Source), Part: !whole, Device: e.Number, Options: e.Options, ReadOnly: e.ReadOnly, SuperReadOnly: e.SuperReadOnly}
		s.Owner, _ = rule.owner(e, whole)
		if strings.HasPrefix(e.Number, "0:") {
			s.Device = devices.SourceNumber(e)
			if b := devices.Btrfs(s.Device); b != nil {
				s.FSID, s.Source = b.FSID, e.Source
			}
		}
		if s.Gone = s.Device != "" && o.NoDevice(s.Device); !s.Gone && ask {
			id, err := o.identify(ctx, e, s.Device)
			s.UUID, s.Name, s.Unknown = id.UUID, id.Name, err != nil
		}
		all = append(all, s)
	}
	return all
}
