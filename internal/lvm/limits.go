package lvm

import (
	"fmt"
	"slices"

	"github.com/flexd/flexd/internal/volume"
)

// count adds a volume to the usage of the group and of its pool.
func (f *Facts) count(l Logical) {
	if l.created() && !isPart(l.Name) { // lvcreate gives its tags also to the metadata volumes of a RAID
		f.usage.Add(l.namespace(), volume.Amount{Volumes: 1, Size: l.Size})
	}
	if l.Pool != "" && slices.Contains(l.Layout, "thin") && !l.thinPool() {
		a := f.inPool[l.Pool]
		f.inPool[l.Pool] = volume.Amount{Volumes: a.Volumes + 1, Size: a.Size + l.Size}
	}
}

func (g *group) limits() *volume.Limits {
	if g.p.Limits == nil {
		return nil
	}
	return g.p.Limits(g.name)
}

// admit refuses a creation or an extension beyond the limits of the group. The limits apply only to
// volumes that flexd created.
func (g *group) admit(f *Facts, created bool, namespace string, more volume.Amount) error {
	limits := g.limits()
	if limits == nil || !created {
		return nil
	}
	return limits.Check(g.name, f.usage, namespace, more)
}

// poolSpace refuses a further size in a thin pool that is full, or would be too full. An
// inactive pool does not show how full it is.
func (g *group) poolSpace(f *Facts, pool Logical, more int64) error {
	state, err := g.p.pool(f, pool)
	if err != nil {
		return err
	}
	if failed := state.Failed(); failed != "" { // more space for data would not help
		return volume.Errorf(volume.Unusable, "thin pool %s: %s", state.Name, failed)
	}
	e := &SpaceError{What: "thin pool " + state.Name.String(), Wanted: more, Free: state.Data.Free()}
	if e.Note = state.Full(); e.Note != "" {
		return e
	}
	limits := g.limits()
	if limits == nil {
		return nil
	}
	reserve := pool.Size / 100 * int64(limits.Reserve)
	if state.Active && state.Data.Free() < reserve {
		e.Note = fmt.Sprintf("of which at least %s must remain free (reserve: %d%%)", volume.Bytes(reserve), limits.Reserve)
		return e
	}
	if there := f.inPool[pool.Name]; !limits.Overcommit && there.Size+more+reserve > pool.Size {
		e.Free = max(pool.Size-reserve-there.Size, 0)
		e.Note = fmt.Sprintf("its %d volumes may use %s of its %s, and %s must remain free (reserve: %d%%)", there.Volumes, volume.Bytes(there.Size), volume.Bytes(pool.Size), volume.Bytes(reserve), limits.Reserve)
		return e
	}
	return nil
}
