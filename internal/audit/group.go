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

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// A Surveyor is a provider that can list a whole volume group at once.
type Surveyor interface {
	// Survey reads everything again if fresh is set. Otherwise it starts a process only if
	// something has changed since the last read.
	Survey(ctx context.Context, vg string, fresh bool) join.Survey
}

// An audit starts when nothing has changed for quiet, at the latest atMost after the first change. So many
// calls cause one audit in each atMost, and no audit delays the calls.
const (
	quiet  = time.Second
	atMost = 10 * time.Second
	// Limit is the time limit of one audit.
	Limit = 20 * time.Second
)

// ErrLimit is the cause of the context of an audit that exceeds Limit.
var ErrLimit = fmt.Errorf("no answer within %s", Limit)

// A group is a volume group with the findings of its last audit.
type group struct {
	a  *Auditor
	vg string

	mu            sync.Mutex // guards what follows
	timer         *time.Timer
	first         time.Time // the first change since the last audit began; zero = none
	askedSince    time.Time // the start of the running call of the provider; zero = none
	begun, stored int       // the number of started observations, and the number of the stored one
	found         []status.Finding
	files         map[volume.UUID]string // the last listed files, of volumes that are files
	unknownReason string                 // why the metadata could not be read
	gone          bool                   // the group does not exist, which is why unknownReason is set
	space         spaceSeen
	resized       map[volume.UUID]resize
}

// A resize is a size of a device that differs from its lane's last look, and when an audit first saw it.
type resize struct {
	size int64
	at   time.Time
}

// schedule starts an audit after quiet.
func (s *group) schedule() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.a.ctx.Err() != nil {
		return
	}
	if s.first.IsZero() {
		s.first = time.Now()
	}
	wait := min(quiet, max(atMost-time.Since(s.first), 0))
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.run)
		return
	}
	s.timer.Reset(wait)
}

// run audits the group. While a lane works on one of its volumes, it waits up to atMost.
func (s *group) run() {
	if s.a.ctx.Err() != nil {
		return
	}
	busy := slices.ContainsFunc(s.a.Views(), func(v *View) bool { return v.Name.VG == s.vg && v.Busy })
	s.mu.Lock()
	if busy && time.Since(s.first) < atMost {
		s.mu.Unlock()
		s.schedule()
		return
	}
	s.first = time.Time{} // a change from now on needs another audit
	s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(s.a.ctx, Limit, ErrLimit)
	defer cancel()
	s.audit(ctx, false)
}

// audit compares metadata, devices, mounts and claims of the group, and stores the
// findings. A new finding is confirmed by a second observation, because a command may have
// run during the first. A fresh audit uses no cached data, and confirms every finding.
func (s *group) audit(ctx context.Context, fresh bool) join.Group {
	nth := s.begin()
	g := s.gather(ctx, fresh, fresh)
	found := join.Findings(g)
	known := s.knownFindings()
	if slices.ContainsFunc(found, func(d join.Finding) bool { return fresh || !known[findingKey(d)] }) {
		first := map[join.Finding]bool{} // the findings of the first observation
		for _, d := range found {
			first[findingKey(d)] = true
		}
		nth = s.begin()
		uncompared := g.Busy
		g = s.gather(ctx, true, fresh)
		found = slices.DeleteFunc(join.Findings(g), func(d join.Finding) bool {
			key := findingKey(d)
			return !first[key] && !(uncompared[d.UUID] && known[key])
		})
	}
	if s.a.ctx.Err() == nil && s.store(nth, g, found) { // otherwise the observation was canceled, or is outdated
		s.renamed(g)
		s.a.usePools(g)
		s.lookAtSpace(spaceAtRest)
	}
	return g
}

// begin numbers an observation, because two audits may run at once.
func (s *group) begin() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun++
	return s.begun
}

// renamed reports the volumes whose name differs from their format record. A lane reports its own volume,
// even if it is in another group now.
func (s *group) renamed(g join.Group) {
	if g.Metadata != "" || len(g.Unread) > 0 { // a file with a new name may be a copy
		return
	}
	copies := map[volume.UUID]int{} // a file that was copied with its attributes was not renamed
	for _, v := range g.Volumes {
		copies[v.UUID]++
	}
	for _, v := range g.Volumes {
		if copies[v.UUID] > 1 {
			continue
		}
		facts, err := s.a.Observer.Records(v.UUID)
		now := volume.Name{VG: s.vg, LV: v.Name}
		if err == nil && facts.State == volume.Seen && facts.Name != now && !g.Busy[v.UUID] {
			s.a.Renamed(v.UUID, facts.Name, now)
		}
	}
}

// gather collects the facts about the group, beginning with the slowest source. metadata and mounts request
// a new read of the metadata and the mount table in place of the cached one, which is updated after each
// change.
func (s *group) gather(ctx context.Context, metadata, mounts bool) join.Group {
	o, began := s.a.Observer, time.Now()
	g := join.Group{Name: s.vg, Survey: s.askProvider(ctx, metadata)}
	g.Copies = s.copies(g.Survey)
	g.Compared = slices.Collect(maps.Keys(s.a.groups))
	if ctx.Err() != nil { // a provider that hangs has used the whole time
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(s.a.ctx, Limit, ErrLimit)
		defer cancel()
	}
	table, err := o.LastTable(), error(nil)
	if mounts || table == nil {
		table, err = o.Read(ctx)
	}
	if err != nil {
		// Without the mount table no volume can be compared.
		reason := "the mount table cannot be read: " + err.Error()
		return join.Group{Name: s.vg, Survey: join.Survey{Kind: g.Kind, Metadata: reason, Kernel: reason}}
	}
	dirs := s.addViews(&g, func(dir string) bool { // a mount that covers another one may not respond
		reached, hidden := table.At(dir)
		return len(reached)+len(hidden) > 0
	})
	mounted := table.Devices()
	added := map[string]bool{} // mounts in g.Mounts, by directory and device
	for _, d := range g.Devices {
		for _, m := range o.MountsOf(d.Number, d.Path, dirs[d.UUID], mounted) {
			g.Mounts = append(g.Mounts, m)
			added[m.Dir+"\x00"+m.Device] = true
		}
	}
	identify := g.Kernel == "" // otherwise a query for a device may also hang
	for _, c := range g.Claims {
		for _, m := range o.MountsAt(ctx, c.Dir, mounted, identify) {
			if !added[m.Dir+"\x00"+m.Device] {
				g.Mounts = append(g.Mounts, m)
			}
		}
	}
	asw.AddNoWrites(&g, table)
	s.markBusy(&g, began)
	return g
}

// addViews adds the claims, leases and failed filesystems in the lanes' views, and returns the directories of
// the claims by volume.
func (s *group) addViews(g *join.Group, mounted func(dir string) bool) map[volume.UUID][]string {
	g.Keep, g.Flags = s.config().NeverDeactivate, s.config().MountFlags
	g.Filesystems, g.Sectors = map[volume.UUID]volume.FS{}, map[volume.UUID]join.Sectors{}
	dirs := map[volume.UUID][]string{}
	here := map[volume.UUID]bool{}
	for _, d := range g.Devices {
		here[d.UUID] = true
	}
	pods := sync.OnceValue(func() asw.Pods { return s.a.Observer.Pods() })
	for _, v := range s.a.Views() {
		if l := v.Lease; l.VG == s.vg {
			g.Leases = append(g.Leases, join.Lease{UUID: l.UUID, LV: l.LV, Live: s.a.Boot() < l.Until, Kept: v.Kept, ByName: v.ByName})
		}
		for _, c := range v.Claims {
			if c.VG != s.vg && !here[c.UUID] {
				continue
			}
			missing := !mounted(c.Dir)
			if missing { // kubelet's root may have been moved, and its path may be a link now
				c.Dir = asw.Resolved(c.Dir)
			}
			claim := join.Claim{UUID: c.UUID, LV: c.LV, Dir: c.Dir, Phase: c.Phase, For: c.User(), Pod: s.a.Observer.Place(c.Dir).Pod, FSID: c.FSID, ReadOnly: c.ReadOnly, Found: c.Super == nil}
			if c.VG != s.vg {
				claim.VG = c.VG
			}
			if missing && c.Phase == volume.Held && claim.Pod != "" && s.a.Observer.Pods != nil {
				claim.Life, _ = pods().Life(claim.Pod)
			}
			g.Claims = append(g.Claims, claim)
			dirs[c.UUID] = append(dirs[c.UUID], c.Dir)
		}
		if v.Broken.Content != volume.ContentUnknown {
			g.Filesystems[v.UUID] = v.Broken
		}
		if f, _, ok := s.a.Filling(v.UUID); ok && f.Sector > 0 && v.Have != nil {
			g.Sectors[v.UUID] = join.Sectors{Filesystem: f.Sector, Device: sysfs.LogicalBlock(v.Have.Device.Number)}
		}
	}
	return dirs
}

// markBusy marks the volumes whose lanes work, or have ended a step since began: their facts may be from
// different moments. So may those of a volume whose device has been resized since its lane's last look.
func (s *group) markBusy(g *join.Group, began time.Time) {
	g.Busy = map[volume.UUID]bool{}
	creating, sizes := map[string]bool{}, map[volume.UUID]int64{}
	for _, d := range g.Devices {
		sizes[d.UUID] = d.Size
	}
	for _, v := range s.a.Views() {
		if size := sizes[v.UUID]; size > 0 && v.Have != nil && len(v.Have.Mounts) > 0 && v.Have.Device.Size != size {
			g.Busy[v.UUID] = s.noteSize(v.UUID, size)
		}
		if v.Name.VG == s.vg && (v.Busy || v.Acted.After(began)) {
			g.Busy[v.UUID] = true
			creating[v.Name.LV] = creating[v.Name.LV] || v.ByName
		}
	}
	for i, v := range g.Volumes { // unless a lane creates the volume, its creation was interrupted
		g.Volumes[i].Making = v.Making && creating[v.Name]
	}
}

// noteSize makes the lane of a volume look at the new size of its device. It reports whether the lane may not have looked
// yet; a size that still differs after a second does not exempt the volume from the comparison.
func (s *group) noteSize(uuid volume.UUID, size int64) bool {
	s.mu.Lock()
	last := s.resized[uuid]
	if last.size != size {
		last = resize{size, time.Now()}
		if s.resized == nil {
			s.resized = map[volume.UUID]resize{}
		}
		s.resized[uuid] = last
	}
	s.mu.Unlock()
	s.a.Resized(uuid) // each time: the device may have had another size meanwhile that only the lane has seen
	return time.Since(last.at) < busyLimit
}

func (s *group) config() *config.VolumeGroup { return s.a.Config.VG(s.vg) }

// askProvider surveys the group without waiting for a provider that hangs.
func (s *group) askProvider(ctx context.Context, fresh bool) join.Survey {
	unknown := func(format string, a ...any) join.Survey {
		reason := fmt.Sprintf(format, a...)
		return join.Survey{Kind: s.config().Provider, Metadata: reason, Kernel: reason}
	}
	s.mu.Lock()
	since := s.askedSince
	if since.IsZero() {
		s.askedSince = time.Now()
	}
	s.mu.Unlock()
	if !since.IsZero() && time.Since(since) > Limit {
		return unknown("a look at volume group %s has been running since %s", s.vg, since.Format(time.TimeOnly))
	}
	result := make(chan join.Survey, 1)
	go func() {
		result <- s.a.Surveyors[s.vg].Survey(ctx, s.vg, fresh)
		s.mu.Lock()
		s.askedSince = time.Time{}
		s.mu.Unlock()
	}()
	select {
	case survey := <-result:
		return survey
	case <-ctx.Done():
	}
	select {
	case survey := <-result: // its error may have more details than the context's
		return survey
	case <-time.After(quiet):
		return unknown("volume group %s: %v", s.vg, context.Cause(ctx))
	}
}

// store replaces the stored findings, and logs new and resolved ones. It keeps the findings of a busy volume
// until the volume is compared again. If a later observation was stored, it does nothing and returns false.
func (s *group) store(nth int, g join.Group, found []join.Finding) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if nth < s.stored {
		return false
	}
	s.stored = nth
	switch log := s.a.Log.WithField("vg", s.vg); {
	case g.Metadata == s.unknownReason:
	case g.Metadata != "":
		log.Warn("the volume group cannot be read: " + g.Metadata)
		s.a.record(status.FoundEvent, status.Finding{Class: "unknown", VG: s.vg, Message: "the volume group cannot be read: " + g.Metadata})
	default:
		log.Info("the volume group can be read again")
		s.a.record(status.ResolvedEvent, status.Finding{VG: s.vg, Message: "the volume group can be read again"})
	}
	s.unknownReason, s.gone = g.Metadata, g.Gone
	var now []status.Finding
	before, still := map[join.Finding]time.Time{}, map[join.Finding]bool{}
	for _, k := range s.found {
		before[reportedKey(k)] = k.Since
	}
	for _, d := range found {
		still[findingKey(d)] = true
		v := status.Finding{
			Class: string(d.Class), VG: s.vg, LV: d.LV, UUID: string(d.UUID), Dir: d.Dir,
			Message: d.Text, Hint: d.Hint, Informational: d.Class.Informational(), Since: time.Now(),
		}
		log := s.a.Log.WithField("volume", v.VG+"/"+v.LV).WithField("class", v.Class)
		if since, ok := before[findingKey(d)]; ok {
			v.Since = since
		} else if v.Informational {
			log.Debug(v.Message)
		} else {
			log.WithField("hint", v.Hint).Warn("disagreement: " + v.Message)
			s.a.record(status.FoundEvent, v)
		}
		now = append(now, v)
	}
	for _, k := range s.found {
		if g.Busy[volume.UUID(k.UUID)] {
			now = append(now, k)
		} else if !k.Informational && !still[reportedKey(k)] {
			s.a.Log.WithField("volume", k.VG+"/"+k.LV).WithField("class", k.Class).Info("the disagreement is over, or unknown now")
			s.a.record(status.ResolvedEvent, k)
		}
	}
	s.found = now
	return true
}

// record adds a new or resolved finding to the history.
func (a *Auditor) record(t status.EventType, f status.Finding) {
	e := status.Event{Type: t, VG: f.VG, LV: f.LV, UUID: f.UUID, Dir: f.Dir, Message: f.Message}
	if e.Code = f.Class; t == status.ResolvedEvent && f.Class != "" {
		e.Message, e.Code = f.Class+": over, or unknown now", ""
	}
	a.Record(e)
}

// knownFindings returns the keys of the last findings.
func (s *group) knownFindings() map[join.Finding]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[join.Finding]bool{}
	for _, k := range s.found {
		all[reportedKey(k)] = true
	}
	return all
}

// findingKey returns the fields that join.Finding.Same compares.
func findingKey(d join.Finding) join.Finding {
	return join.Finding{Class: d.Class, UUID: d.UUID, Dir: d.Dir}
}

// reportedKey is findingKey for a finding in status.
func reportedKey(k status.Finding) join.Finding {
	return join.Finding{Class: join.Class(k.Class), UUID: volume.UUID(k.UUID), Dir: k.Dir}
}

// Findings returns the findings of the last audits and the orphans, and the reasons why the metadata of
// groups could not be read.
func (a *Auditor) Findings() (all []status.Finding, unknown []string) {
	for _, s := range a.groups {
		s.mu.Lock()
		all = append(all, s.found...)
		if s.unknownReason != "" {
			unknown = append(unknown, s.unknownReason)
		}
		s.mu.Unlock()
	}
	all = append(all, a.orphans.listed()...)
	slices.SortFunc(all, func(a, b status.Finding) int {
		return cmp.Or(strings.Compare(a.VG, b.VG), strings.Compare(a.LV, b.LV), strings.Compare(a.UUID, b.UUID), strings.Compare(a.Class, b.Class), strings.Compare(a.Dir, b.Dir))
	})
	slices.Sort(unknown)
	return all, unknown
}
