package reconcile

import (
	"time"

	"github.com/flexd/flexd/internal/audit"
	"github.com/flexd/flexd/internal/volume"
)

// publish replaces the lane's view. Only the lane's goroutine calls it: before and after each turn,
// and for each step. turning is false outside of a turn.
func (l *lane) publish(turning bool) {
	v := &audit.View{UUID: l.uuid, ByName: l.byName, Acted: l.acted, Want: l.want(), Claims: l.n.Store.Claims(l.uuid), Have: l.n.Observer.Last(l.uuid)}
	v.Lease, _ = l.n.Store.Lease(l.uuid)
	v.Releasing = turning
	for _, c := range v.Want.Calls {
		v.Releasing = v.Releasing && c.Verb == volume.Reclaim
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	v.Name, v.Broken = l.name, l.broken
	if l.lastErr != nil && l.lastErr.step == volume.Deactivate.String() && l.retry.wait > firstBackoff {
		v.Kept = l.lastErr.text
	}
	v.Busy = l.working != "" || l.byName && l.parked != nil || len(v.Want.Calls) > 0
	l.published.Store(v)
}

// views returns the last published views of the lanes.
func (n *Node) views() (all []*audit.View) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.lanes {
		if v := l.published.Load(); v != nil {
			all = append(all, v)
		}
	}
	return all
}

// newAuditor returns the auditor of the node's lanes.
func (n *Node) newAuditor() *audit.Auditor {
	return audit.New(n.ctx, audit.Parts{
		Config: n.Config, Log: n.Log, Observer: n.Observer, Gauge: n.Gauge,
		Surveyors: providersOf[audit.Surveyor](n), Pools: providersOf[audit.PoolSource](n), Spaces: providersOf[audit.SpaceSource](n),
		PodEvents: n.PodEvents, Boot: n.Boot, Views: n.views, Release: n.reclaim, Record: n.record,
		Resized: func(uuid volume.UUID) {
			if l := n.laneOf(uuid); l != nil {
				l.deviceChanged(time.Now())
			}
		},
		Renamed: func(uuid volume.UUID, old, now volume.Name) {
			facts, err := n.Records.Get(uuid)
			own := err == nil && facts.File == n.Records.File(uuid)
			switch {
			case old.VG == now.VG, own && !n.isFile(now):
				n.recordName(n.ctx, uuid, old, now)
			case own: // it may be a copy: the record keeps its name until a pod uses this one
				n.reserveName(n.ctx, uuid, old, now)
			}
		},
	})
}

// providersOf returns the providers of the configured groups that are a T, by group.
func providersOf[T any](n *Node) map[string]T {
	found := map[string]T{}
	for _, vg := range n.Config.Get().VolumeGroups {
		if p, ok := n.Providers[vg.Name].(T); ok {
			found[vg.Name] = p
		}
	}
	return found
}
