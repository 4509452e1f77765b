package asw

import (
	"cmp"
	"slices"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// owner returns the owner of a mount by its directory, with the place; whole = it shows a whole volume. The
// result Kubelets is valid only while one of flexd's mounts shows the same filesystem.
func (c classifier) owner(e *mounttable.Entry, whole bool) (volume.Owner, volume.Place) {
	place := c.place(e.Dir)
	switch {
	case place.Kind != "" && whole:
		return volume.Ours, place
	case place.Bind:
		return volume.Kubelets, place
	}
	place.Kind = ""
	return volume.Elsewhere, place
}

// An owned is an entry of a volume's device with its owner.
type owned struct {
	*mounttable.Entry
	owner volume.Owner
	place volume.Place
	rank  int // of several copies of one mount, the one with the lowest rank counts

	outside     bool // Ours, but below none of the present roots
	otherDriver bool // Elsewhere, at a directory of another driver, or a bind of that driver's mount
	bindLeft    bool // Elsewhere, a bind of kubelet's whose original is gone
	otherRoot   bool // Elsewhere, at a path as below a root of kubelet, which is not configured: it may also be a bind by another program
}

// The ranks, best first.
const (
	rankNamed   = iota // at a directory of a call or a claim
	rankOurs           // at one of our directories
	rankOutside        // at a directory of a claim below a former root
	rankKubelet        // a bind of kubelet's
	rankForeign        // anywhere else
)

// owned returns the mounts of a device in the kernel's order. It omits copies by
// propagation, which the kernel unmounts together with their original. A copy at an earlier one of dirs
// is preferred.
func (o *Observer) owned(number, path string, dirs []string, devices *mounttable.Devices) []owned {
	var (
		table   = devices.Table
		rule    = o.classifierFor(table)
		all     []owned
		at      = map[string]bool{}
		shown   bool // a mount of ours shows the filesystem
		several = len(rule) > 1
	)
	for _, e := range devices.Of(number, path) {
		m := owned{Entry: e}
		whole := o.whole(e, dirs)
		switch m.owner, m.place = rule.owner(e, whole); {
		case m.owner == volume.Ours && slices.Contains(dirs, e.Dir):
			m.rank, shown = rankNamed, true
		case m.owner == volume.Ours:
			m.rank, shown = rankOurs, true
		case whole && slices.Contains(dirs, e.Dir) && !rule.within(e.Dir): // mounted when other roots were configured
			m.owner, m.rank, m.outside, shown, several = volume.Ours, rankOutside, true, true, true
		case m.owner == volume.Kubelets:
			m.rank = rankKubelet
		default:
			m.rank, several = rankForeign, true
			m.otherRoot = slices.ContainsFunc(o.Layouts, func(l Layout) bool {
				place := l.AnyRoot(e.Dir)
				return place.Kind != "" && whole || place.Bind
			})
		}
		several = several || at[e.Dir]
		at[e.Dir] = true
		all = append(all, m)
	}
	if several {
		all = withoutCopies(all, dirs, table)
	}
	other := false
	for i := range all {
		if !shown {
			all[i].bindLeft = all[i].owner == volume.Kubelets
			all[i].owner, all[i].place.Kind = volume.Elsewhere, ""
		}
		all[i].otherDriver = all[i].owner == volume.Elsewhere && all[i].place.OtherDriver
		other = other || all[i].otherDriver
	}
	for i := range all {
		if other && all[i].bindLeft {
			all[i].otherDriver, all[i].bindLeft = true, false
		}
	}
	return all
}

// withoutCopies removes all but one of the mounts that are copies of each other.
func withoutCopies(all []owned, dirs []string, table *mounttable.Table) []owned {
	places := map[string][]int{}
	for i, e := range all {
		if place := table.Place(e.Entry); place != "" {
			places[place] = append(places[place], i)
		}
	}
	copies := map[*mounttable.Entry]bool{}
	for _, same := range places {
		slices.SortFunc(same, func(a, b int) int {
			return cmp.Or(cmp.Compare(all[a].rank, all[b].rank), cmp.Compare(hidden(table, all[a].Entry), hidden(table, all[b].Entry)),
				cmp.Compare(slices.Index(dirs, all[a].Dir), slices.Index(dirs, all[b].Dir)), cmp.Compare(a, b))
		})
		var counted []*mounttable.Entry
		for _, i := range same {
			e := all[i].Entry
			if slices.ContainsFunc(counted, func(c *mounttable.Entry) bool { return table.CopyOf(e, c) }) {
				copies[e] = true
			} else {
				counted = append(counted, e)
			}
		}
	}
	return slices.DeleteFunc(all, func(e owned) bool { return copies[e.Entry] })
}

// hidden is 1 for a mount that a lookup of its path does not reach.
func hidden(table *mounttable.Table, e *mounttable.Entry) int {
	if table.Over(e) != nil {
		return 1
	}
	return 0
}
