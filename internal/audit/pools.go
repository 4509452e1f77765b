package audit

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A PoolSource is a provider whose volumes may share thin pools.
type PoolSource interface {
	// PoolStates returns the state of the named pools, nil = all. It starts no process and does not
	// wait.
	PoolStates(vg string, names []string) ([]lvm.Pool, error)
}

// poolPause is the time between two observations of the thin pools of claimed volumes, for whose usage there is
// no event.
const poolPause = 30 * time.Second

// pools are the thin pools in use. Without a pool there is no timer.
type pools struct {
	mu    sync.Mutex          // guards what follows
	used  map[string][]string // VG → pools with a claimed volume, sorted
	seen  map[volume.Name]status.Pool
	timer *time.Timer
}

// usePools updates the pools of a group's claimed volumes after a change, and observes them.
func (a *Auditor) usePools(g join.Group) {
	if g.Metadata != "" || a.Pools[g.Name] == nil {
		return // as before
	}
	claimed := map[volume.UUID]bool{}
	for _, c := range g.Claims {
		claimed[c.UUID] = true
	}
	names := map[string]bool{}
	for _, v := range g.Volumes {
		if v.Pool != "" && claimed[v.UUID] {
			names[v.Pool] = true
		}
	}
	used := slices.Sorted(maps.Keys(names))
	p := &a.pools
	p.mu.Lock()
	if len(used) == 0 && len(p.used[g.Name]) == 0 {
		p.mu.Unlock()
		return
	}
	p.used[g.Name] = used
	maps.DeleteFunc(p.seen, func(name volume.Name, _ status.Pool) bool {
		return name.VG == g.Name && !slices.Contains(used, name.LV)
	})
	p.mu.Unlock()
	a.lookAtPools()
}

// lookAtPools observes the pools in use, and again after a pause as long as there are any.
func (a *Auditor) lookAtPools() {
	p := &a.pools
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	any := false
	for vg, names := range p.used {
		any = any || len(names) > 0
		states, err := a.Pools[vg].PoolStates(vg, names)
		if err != nil {
			a.Log.WithField("vg", vg).WithError(err).Warn("thin pools cannot be inspected")
		}
		for _, one := range states {
			a.storePool(one)
		}
	}
	if any && a.ctx.Err() == nil {
		p.timer = time.AfterFunc(poolPause, a.lookAtPools)
	}
}

// storePool stores the state of a pool, and logs if it is worse or better. The caller holds the lock.
func (a *Auditor) storePool(one lvm.Pool) {
	now := status.Pool{
		VG: one.Name.VG, Name: one.Name.LV, Active: one.Active, Mode: one.Mode,
		DataUsed: one.Data.Used, DataTotal: one.Data.Total, MetadataUsed: one.Metadata.Used, MetadataTotal: one.Metadata.Total,
		Seen: time.Now(),
	}
	now.Problem, now.Warning = a.judgePool(one)
	was := a.pools.seen[one.Name]
	a.pools.seen[one.Name] = now
	log := a.Log.WithField("pool", one.Name.String())
	switch {
	case now.Problem != "" && now.Problem != was.Problem:
		log.Error(now.Problem)
		a.record(status.FoundEvent, status.Finding{Class: "pool", VG: now.VG, LV: now.Name, Message: now.Problem})
	case now.Warning != "" && was.Warning == "" && was.Problem == "":
		log.Warn(now.Warning)
		a.record(status.FoundEvent, status.Finding{Class: "pool", VG: now.VG, LV: now.Name, Message: now.Warning})
	case now.Problem+now.Warning == "" && was.Problem+was.Warning != "":
		log.Info("the thin pool has recovered")
		a.record(status.ResolvedEvent, status.Finding{VG: now.VG, LV: now.Name, Message: "the thin pool has recovered"})
	}
}

// judgePool returns why a pool cannot be used, or a warning if its usage exceeds the threshold.
func (a *Auditor) judgePool(one lvm.Pool) (problem, warning string) {
	threshold := 100.0
	if vg := a.Config.VG(one.Name.VG); vg != nil && vg.ThinPoolWarning > 0 {
		threshold = float64(vg.ThinPoolWarning)
	}
	if problem = one.Full(); problem == "" {
		warning = one.Trouble(threshold)
	}
	return problem, warning
}

// PoolStates returns the last states of the pools in use.
func (a *Auditor) PoolStates() []status.Pool {
	a.pools.mu.Lock()
	defer a.pools.mu.Unlock()
	return slices.SortedFunc(maps.Values(a.pools.seen), func(x, y status.Pool) int {
		return strings.Compare(x.VG+"/"+x.Name, y.VG+"/"+y.Name)
	})
}
