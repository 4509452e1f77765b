package audit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

const (
	busyLimit = time.Second           // how long a check waits for busy volumes
	busyPause = 50 * time.Millisecond // the pause between its audits
)

// Check audits all configured volume groups anew, in parallel, so that a group that hangs does not delay the
// others.
func (a *Auditor) Check(ctx context.Context) []status.Checked {
	a.lookAtFilesystems()
	groups := make([]status.Checked, len(a.Config.Get().VolumeGroups))
	var all sync.WaitGroup
	for i, vg := range a.Config.Get().VolumeGroups {
		all.Go(func() { groups[i] = a.checkGroup(ctx, vg.Name, vg.Provider) })
	}
	all.Wait()
	a.LookForOrphans()
	return append(groups, a.removedGroups()...)
}

// removedGroups returns the groups that are not in the configuration, and have volumes that kubelet uses, or that
// are still active: they are not compared.
func (a *Auditor) removedGroups() (groups []status.Checked) {
	used := map[string]int{}
	for _, v := range a.Views() {
		if (len(v.Claims) > 0 || v.Have != nil && v.Have.Device.Activity == volume.Active) && a.Config.VG(v.Name.VG) == nil {
			used[v.Name.VG]++
		}
	}
	for _, vg := range slices.Sorted(maps.Keys(used)) {
		unknown := fmt.Sprintf("it is not in flexd's configuration, and %d of its volumes are in use or still active (flexd status): add it to volumeGroups until their pods have ended and they are inactive", used[vg])
		if vg == "" {
			unknown = fmt.Sprintf("%d of its volumes are in use or still active (flexd status). The paths of their files (losetup -l) are in no group's directory, and flexd has no record of them: put files back that were moved, or delete their pods", used[vg])
		}
		groups = append(groups, status.Checked{VG: cmp.Or(vg, "?"), Unknown: unknown})
	}
	return groups
}

func (a *Auditor) checkGroup(ctx context.Context, vg, kind string) status.Checked {
	g := status.Checked{VG: vg, Provider: kind}
	s := a.groups[vg]
	if s == nil {
		g.Unknown = "its provider cannot list the whole group"
		return g
	}
	begun := time.Now()
	seen := s.audit(ctx, true)
	// Busy volumes are not compared; most are idle again soon.
	for len(seen.Busy) > 0 && ctx.Err() == nil && time.Since(begun) < busyLimit {
		time.Sleep(busyPause)
		seen = s.audit(ctx, true)
	}
	g.Seconds = time.Since(begun).Seconds()
	g.Volumes, g.Active = len(seen.Volumes), len(seen.Devices)
	g.Unknown = unknownReason(seen.Survey)
	return g
}

// unknownReason describes the facts of a group that could not be read.
func unknownReason(s join.Survey) string {
	var all []string
	if s.Metadata != "" {
		all = append(all, s.Metadata)
	}
	if s.Kernel != "" && s.Kernel != s.Metadata {
		all = append(all, s.Kernel)
	}
	if s.Twice != "" {
		all = append(all, s.Twice)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Unread)) {
		all = append(all, s.Unread[name])
	}
	for _, d := range s.Devices {
		if d.Unknown != "" {
			all = append(all, d.Unknown)
		}
	}
	return strings.Join(all, "; ")
}
