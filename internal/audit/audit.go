// Package audit finds disagreements between the metadata of a volume group, the kernel's devices, the mount
// table and the claims; mounts that no pod needs any more; and thin pools that fill up. It reads immutable
// views, which the lanes publish, and makes its own observations. It changes nothing.
package audit

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A View is a volume at one moment of its lane. It never changes.
type View struct {
	UUID   volume.UUID
	Name   volume.Name
	ByName bool // the name has no volume; UUID is only a key

	Busy      bool      // a step runs, or calls wait
	Acted     time.Time // when the last step ended
	Releasing bool      // the lane works only on releases of orphans

	Claims []dsw.Claim
	Lease  dsw.Lease
	Want   volume.Want
	Have   *volume.Have // the last observation; nil = none
	Broken volume.FS    // the error of its mounted filesystem
	Kept   string       // why its deactivation has failed again; "" = it has not
}

// claim returns the claim at a directory; the zero value = there is none.
func (v *View) claim(dir string) dsw.Claim {
	for _, c := range v.Claims {
		if c.Dir == dir {
			return c
		}
	}
	return dsw.Claim{}
}

// Parts are the parameters of New.
type Parts struct {
	Config    *config.Live
	Log       *logrus.Entry
	Observer  *asw.Observer
	Surveyors map[string]Surveyor    // by VG
	Pools     map[string]PoolSource  // by VG
	Spaces    map[string]SpaceSource // by VG
	Gauge     Gauge                  // nil = the usage of filesystems is not read
	PodEvents PodEvents              // nil = the end of pods causes no event
	Boot      func() time.Duration

	Views   func() []*View
	Record  func(status.Event)                                            // adds to the history
	Resized func(volume.UUID)                                             // the device of a mounted volume has another size than at the last look
	Renamed func(uuid volume.UUID, old, now volume.Name)                  // a volume with a format record has another name
	Release func(context.Context, volume.UUID, volume.Name, string) error // an orphan, as `flexd release` would, with the proof that no other mount namespace has its device
}

// An Auditor audits volume groups after changes. Without changes it has no timer.
type Auditor struct {
	Parts
	ctx         context.Context
	groups      map[string]*group // by VG; never changes
	pools       pools
	filesystems filesystems
	orphans     orphans
}

// New returns an auditor that runs until ctx is done.
func New(ctx context.Context, p Parts) *Auditor {
	a := &Auditor{Parts: p, ctx: ctx, groups: map[string]*group{}}
	for vg := range p.Surveyors {
		a.groups[vg] = &group{a: a, vg: vg}
	}
	a.orphans = orphans{a: a, seen: map[string]*orphanCandidate{}}
	a.pools = pools{used: map[string][]string{}, seen: map[volume.Name]status.Pool{}}
	return a
}

// Changed schedules an audit of a volume group ("" = all).
func (a *Auditor) Changed(vg string) {
	a.PodsChanged()
	for name, s := range a.groups {
		if vg == "" || vg == name {
			s.schedule()
		}
	}
}

// PodsChanged schedules a search for orphans.
func (a *Auditor) PodsChanged() { a.orphans.schedule(orphanSoon) }

// LookForOrphans searches for orphans now.
func (a *Auditor) LookForOrphans() { a.orphans.look() }

// PodsUnknown returns why the processes of pods are unknown; "" = they are known.
func (a *Auditor) PodsUnknown() string {
	a.orphans.mu.Lock()
	defer a.orphans.mu.Unlock()
	return a.orphans.unknownReason
}
