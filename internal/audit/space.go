package audit

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A SpaceSource is a provider that reports the space of its volume groups.
type SpaceSource interface {
	// Space returns the space of a group, and the largest volume up to limit bytes that can
	// be created. It may wait for LVM or a filesystem that hangs.
	Space(ctx context.Context, vg string, limit int64) (volume.Space, error)
}

// Few events report writes to a thin pool or a filesystem. The space is observed for a request if it is older
// than spaceAsked, and at an audit if it is older than spaceAtRest, so that there is an observation of a
// group that hangs later. A request waits at most spaceWait for an observation.
const (
	spaceAsked  = 2 * time.Second
	spaceAtRest = 5 * time.Minute
	spaceWait   = 500 * time.Millisecond
)

// A spaceSeen is the last observed space of a group.
type spaceSeen struct {
	volume.Space
	limit   int64 // the limit for its largest volume
	pools   []lvm.Pool
	at      time.Time // zero = never
	tried   time.Time
	err     error         // the error of the last try
	running chan struct{} // closed when the running observation ends; nil = none runs
}

// largestAllowed returns the size of the largest volume that flexd may create; 0 = none.
func largestAllowed(vg *config.VolumeGroup) int64 {
	if vg.Create {
		return vg.MaxSize
	}
	return 0
}

// lookAtSpace observes the space of the group if the last observation is older than age. At most one
// observation runs; the channel is closed when it ends, nil = none runs.
func (s *group) lookAtSpace(age time.Duration) <-chan struct{} {
	source, vg := s.a.Spaces[s.vg], s.config()
	s.mu.Lock()
	defer s.mu.Unlock()
	see := &s.space
	if see.running != nil || source == nil || vg == nil || !see.tried.IsZero() && time.Since(see.tried) < age {
		return see.running
	}
	limit := largestAllowed(vg)
	see.running, see.tried = make(chan struct{}), time.Now()
	go func() {
		space, err := source.Space(s.a.ctx, s.vg, limit)
		var pools []lvm.Pool
		if source := s.a.Pools[s.vg]; source != nil && err == nil {
			pools, err = source.PoolStates(s.vg, nil)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if see.err = err; err == nil && s.unknownReason == "" { // otherwise it is from earlier metadata
			see.Space, see.limit, see.pools, see.at = space, limit, pools, space.At
		}
		close(see.running)
		see.running = nil
	}()
	return see.running
}

// LookAtSpace observes the space of the groups and the usage of the filesystems, if the last observation is too
// old. It waits at most spaceWait for the observations that it starts.
func (a *Auditor) LookAtSpace() {
	wait, cancel := context.WithTimeout(a.ctx, spaceWait)
	defer cancel()
	started := []<-chan struct{}{a.filesystems.look(a)}
	for _, s := range a.groups {
		s.mu.Lock()
		hangs := s.space.running != nil // an earlier request has waited for it
		s.mu.Unlock()
		if running := s.lookAtSpace(spaceAsked); !hangs {
			started = append(started, running)
		}
	}
	for _, running := range started {
		if running == nil {
			continue
		}
		select {
		case <-running:
		case <-wait.Done():
			return
		}
	}
}

// Groups returns the last observed space of the configured volume groups.
func (a *Auditor) Groups() []status.Group {
	groups := []status.Group{}
	for _, vg := range a.Config.Get().VolumeGroups {
		one := status.Group{Name: vg.Name, Provider: vg.Provider, Directory: vg.Directory, State: status.GroupUnknown, Error: "its provider does not report its space"}
		if s := a.groups[vg.Name]; s != nil {
			s.spaceOf(&vg, &one)
		}
		groups = append(groups, one)
	}
	slices.SortFunc(groups, func(x, y status.Group) int { return strings.Compare(x.Name, y.Name) })
	return groups
}

// spaceOf fills in the space of the group.
func (s *group) spaceOf(vg *config.VolumeGroup, g *status.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	see := &s.space
	current := see.limit == largestAllowed(vg) // otherwise a reload has changed it since
	if !see.at.IsZero() {
		g.ObservedAt, g.Size, g.Free = see.at, see.Size, see.Free
		if vg.Create && current {
			g.LargestVolume = new(see.Largest)
		}
	}
	for _, d := range see.Disks {
		one := status.Disk{Device: d.Device, Size: d.Size, Free: d.Free}
		switch {
		case d.Missing:
			one.Problem = "it is missing"
		case d.NotAllocatable:
			one.Problem = "it is not allocatable: pvchange -xy " + d.Device
		}
		g.Disks = append(g.Disks, one)
	}
	for _, p := range see.pools {
		one := status.ThinPool{
			Name: p.Name.LV, State: status.PoolOK, Size: p.Size, MetadataSize: p.MetaSize,
			Used: p.Data.Used, MetadataUsed: p.Metadata.Used,
		}
		one.Problem, one.Warning = s.a.judgePool(p)
		switch {
		case !p.Active:
			one.State = status.PoolInactive
		case p.Failed() != "":
			one.State = status.PoolFailed
		case one.Problem != "":
			one.State = status.PoolFull
		}
		g.ThinPools = append(g.ThinPools, one)
	}
	switch {
	case see.err != nil && volume.CodeOf(see.err) == volume.NotFound:
		g.State, g.Error = status.GroupMissing, see.err.Error()
	case s.gone:
		g.State, g.Error = status.GroupMissing, s.unknownReason
	case s.unknownReason != "":
		g.State, g.Error = status.GroupUnknown, s.unknownReason
	case see.err != nil:
		g.State, g.Error = status.GroupUnknown, see.err.Error()
	case see.at.IsZero():
		g.State, g.Error = status.GroupUnknown, "it has not been observed yet"
	case see.Unusable:
		g.State, g.Error = status.GroupUnusable, see.Refused.Error()
	case vg.Create && current && see.Largest == 0:
		g.State, g.Error = status.GroupFull, see.Refused.Error()
	case !vg.Create && see.Free == 0:
		g.State, g.Error = status.GroupFull, "nothing is free"
	default:
		g.State, g.Error = status.GroupOK, ""
	}
}
