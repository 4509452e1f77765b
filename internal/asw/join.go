package asw

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// A Standing is one mount of a table, told apart from the others by whose it is.
type Standing struct {
	Dir    string
	Device string // number of its block device; "" = it has none
	What   string
	Owner  volume.Owner
	Gone   bool // the kernel has no device of that number

	UUID    volume.UUID // the volume that it is of, where that was asked
	Unknown bool        // that was asked, and cannot be told
}

// LastTable returns the mount table as it was seen last, or nil if it could not
// be read.
func (o *Observer) LastTable() *mount.Table {
	o.tables.mu.Lock()
	defer o.tables.mu.Unlock()
	if o.tables.last == nil {
		return nil
	}
	return o.tables.last.table
}

// MountsOf returns where a device is mounted. One mount that is seen at several
// places counts once: where it is kubelet's, and at one of dirs if it can be.
func (o *Observer) MountsOf(number, path string, dirs []string, table *mount.Table) []Standing {
	h := volume.Have{Device: volume.Device{Activity: volume.Active, Number: number, Path: path}}
	o.mounts(Target{Dirs: dirs}, &h, table)
	var all []Standing
	for _, m := range h.Mounts {
		all = append(all, Standing{Dir: m.Dir, Device: number, What: m.Type + " from " + path, Owner: m.Owner})
	}
	return all
}

// MountsAt returns what is mounted at a directory, and, if that is asked for, of
// which volume it is.
func (o *Observer) MountsAt(ctx context.Context, dir string, table *mount.Table, ask bool) []Standing {
	rule := o.ruler(table)
	var all []Standing
	for _, e := range table.At(dir) {
		s := Standing{Dir: dir, What: fmt.Sprintf("%s from %s", e.Type, e.Source), Device: e.Number}
		s.Owner, _ = rule.owner(e)
		if strings.HasPrefix(e.Number, "0:") {
			s.Device = e.SourceNumber()
		}
		if s.Gone = s.Device != "" && o.NoDevice(s.Device); !s.Gone && ask {
			uuid, _, ok, err := o.Identify(ctx, e)
			if s.Unknown = err != nil; ok {
				s.UUID = uuid
			}
		}
		all = append(all, s)
	}
	return all
}

// noDevice says whether the kernel has no block device of that number.
func noDevice(number string) bool {
	_, err := os.Lstat("/sys/dev/block/" + number)
	return os.IsNotExist(err)
}
