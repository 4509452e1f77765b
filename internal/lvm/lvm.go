// Package lvm is the block device provider for LVM2. It changes volume groups and logical volumes
// with lvm2's commands, and reads their devices from device-mapper.
//
// An LVM command takes a third of a second on any machine, so the package starts none where an
// ioctl suffices: device-mapper reports whether a volume is active, suspended or open, by its
// uuid. One report reads the metadata for all readers, and is cached until the metadata changes.
// The package removes no volume that was ever active, and does not read the contents of devices.
package lvm

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Options are the parameters of New.
type Options struct {
	Runner  run.Runner
	DM      DM               // nil = the kernel's
	LockDir string           // the directory of the lock files of volume groups
	DiskDir string           // the directory of the notes about the disks of volume groups, for one boot; "" = none are kept
	Groups  map[string]Group // by VG
	Filter  []string         // the `filter` of every command; nil = DefaultFilter before the host's own

	// Limits returns the limits of a volume group, as they are now; nil = there are none.
	Limits func(vg string) *volume.Limits

	// Locks controls the lock managers of shared groups; nil = only LVM checks locks.
	Locks Locks

	// Waited, if set, is called after a command has waited for earlier ones of its group.
	Waited func(vg string, took time.Duration)

	// Lost reports whether the locks of a shared volume group are lost: then its volumes are
	// deactivated without LVM. nil = they are never lost.
	Lost func(vg string) bool

	// CallDeadline is how long a call may wait; a command that hangs is reported well before
	// that. 0 = no limit.
	CallDeadline time.Duration

	Dev string // "/dev"; another directory in tests
	Sys string // where the requests of disks are counted: "/sys"; another directory in tests

	Host string // this machine's name, in the tags of volumes

	// For tests; nil = the kernel decides.
	Leads   func(path, number string) bool // whether a path leads to that device
	Earlier func(lock string) *Block       // the command that holds a group's lock file
}

// within returns a deadline, at most half of a call's time.
func (o Options) within(deadline time.Duration) time.Duration {
	if o.CallDeadline > 0 {
		deadline = min(deadline, o.CallDeadline/2)
	}
	return deadline
}

// A Group is the configuration of one volume group.
type Group struct {
	Shared   bool   // other nodes use it, too
	ThinPool string // new volumes are thin volumes of this pool; "" = thick
	Layout   Layout // of new volumes
	ZeroAll  bool   // all of a new volume is zeroed, not only the places of labels
}

// A Provider manages the logical volumes of some volume groups.
type Provider struct {
	Options
	groups map[string]*group
	config configuration // the --config of every command
	watch  atomic.Pointer[watch]

	lvmDir         string                                // where LVM has its configuration
	commandTimeout time.Duration                         // of a command that changes something; less in tests
	udevDir        string                                // udev's database
	diskGone       func(number string) bool              // diskGone; replaced in tests
	diskID         func(path string) string              // diskID; replaced in tests
	devicesOn      func(number string) ([]string, error) // devicesOn; replaced in tests

	requests func(number string) (waiting bool, done int64)   // requests; replaced in tests
	pending  func(dev string, list []devmapper.Mapped) []disk // pendingDisks; replaced in tests

	mu       sync.Mutex
	inflight map[volume.UUID]<-chan struct{} // guarded by mu: volumes that a command works on
	locked   map[volume.UUID]lock            // guarded by mu: the locks of active volumes in shared groups
	mayHold  map[volume.UUID]bool            // guarded by mu: volumes whose lock an interrupted command may have taken
	taken    map[volume.UUID]volume.Taken    // guarded by mu: active volumes whose lock another node has taken
	queries  map[string]*query               // guarded by mu: by device number, those that have not ended
	stalled  map[string]int64                // guarded by mu: by disk number, the completed requests when the disk was found stalled
}

// New returns a provider. It finds commands of an earlier flexd that still run by the lock files
// that they hold.
func New(o Options) *Provider {
	if o.DM == nil {
		o.DM = devmapper.New()
	}
	if o.Leads == nil {
		o.Leads = leadsTo
	}
	o.Dev, o.Sys, o.Host = cmp.Or(o.Dev, "/dev"), cmp.Or(o.Sys, "/sys"), tagWord(o.Host)
	p := &Provider{
		Options: o, groups: map[string]*group{},
		lvmDir: "/etc/lvm", udevDir: "/run/udev/data", commandTimeout: o.within(changeDeadline), diskGone: diskGone, diskID: diskID, devicesOn: devicesOn,
		requests: func(number string) (bool, int64) { return requests(o.Sys, number) },
		pending:  func(dev string, list []devmapper.Mapped) []disk { return pendingDisks(o.Sys, dev, list) },
		inflight: map[volume.UUID]<-chan struct{}{}, locked: map[volume.UUID]lock{}, mayHold: map[volume.UUID]bool{}, taken: map[volume.UUID]volume.Taken{}, queries: map[string]*query{}, stalled: map[string]int64{},
	}
	p.config = configuration{filter: o.Filter, reading: make(chan struct{}, 1)}
	for name := range o.Groups {
		p.groups[name] = p.newGroup(name)
	}
	return p
}

func (p *Provider) newGroup(name string) *group {
	g := &group{
		name: name, p: p, lock: filepath.Join(p.LockDir, "vg-"+name),
		turn: make(chan struct{}, 1), next: map[kind][]*member{},
	}
	g.adoptEarlier()
	return g
}

// group returns the queue of a volume group, also of a group that is not configured any more, whose
// volumes must be released.
func (p *Provider) group(name string) (*group, error) {
	p.mu.Lock()
	g := p.groups[name]
	p.mu.Unlock()
	if g != nil {
		return g, nil
	}
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("volume group: %v", err) // without the code for a wrong option of a pod
	}
	added := p.newGroup(name) // without p.mu: it may wait for disks
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.groups[name]; g != nil {
		return g, nil
	}
	p.groups[name] = added
	return added, nil
}

// configured returns the queue of a configured volume group.
func (p *Provider) configured(name string) (*group, error) {
	if _, ok := p.Groups[name]; !ok {
		return nil, fmt.Errorf("volume group %q is not configured", name)
	}
	return p.group(name)
}

// Words returns the options of a command of LVM for a volume group.
func (p *Provider) Words(ctx context.Context, vg string) ([]string, error) {
	g, err := p.configured(vg)
	if err != nil {
		return nil, err
	}
	s, err := p.scopeOf(ctx, g)
	if err != nil {
		return nil, err
	}
	return s.words(""), nil
}

// LookUp looks a volume up by name. A known volume is cached until its group changes; an absent
// volume is always looked up again. A failure to read is an error, and so is a missing group, whose
// disk may appear later.
func (p *Provider) LookUp(ctx context.Context, name volume.Name) (volume.LV, error) {
	g, err := p.configured(name.VG)
	if err != nil {
		return volume.LV{}, err
	}
	if err := checkName(name.LV); err != nil {
		return volume.LV{}, fmt.Errorf("volume: %w", err)
	}
	f, kept, err := g.look(ctx, false)
	if err != nil {
		return volume.LV{}, err
	}
	lv := p.judge(f, name)
	if kept && (lv.Presence != volume.Present || f.unlocked != nil) {
		if f, _, err = g.look(ctx, true); err != nil {
			return volume.LV{}, err
		}
		lv = p.judge(f, name)
	}
	if f.unlocked != nil {
		return volume.LV{}, f.unlocked
	}
	lv.Zero = p.Groups[name.VG].ZeroAll && f.LVs[name.LV].Pool == ""
	return lv, nil
}

// judge returns the presence of a volume. An inactive volume that LVM would not activate is Foreign.
func (p *Provider) judge(f *Facts, name volume.Name) volume.LV {
	lv := f.judge(name)
	if lv.Presence != volume.Present {
		return lv
	}
	if why := f.inactivatable(f.LVs[name.LV], false); why != "" {
		if m, found, err := p.find(lv.UUID); err == nil && (!found || idle(m)) {
			lv.Presence, lv.Reason = volume.Foreign, why
		}
	}
	return lv
}

// Invalidate reports that something may have changed in a volume group ("" = any).
func (p *Provider) Invalidate(vg string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, g := range p.groups {
		if vg == "" || vg == name {
			g.invalidate()
		}
	}
}
