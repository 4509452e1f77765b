package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A Surveyor is a provider that can list a whole volume group at once.
type Surveyor interface {
	// Survey reads everything anew if fresh is set; else it starts no process
	// unless something has changed since it was read last.
	Survey(ctx context.Context, vg string, fresh bool) join.Survey
}

// An audit follows a change after auditQuiet without a further one, and at the latest
// after auditAtMost: a burst of calls is one change, and is not slowed down by it.
const (
	auditQuiet  = time.Second
	auditAtMost = 10 * time.Second
	auditLimit  = 20 * time.Second // of one audit
)

var errAuditLimit = fmt.Errorf("no answer within %s", auditLimit)

// A groupAudit is a volume group with the findings of its last audit.
type groupAudit struct {
	n  *Node
	vg string

	mu            sync.Mutex // guards what follows
	timer         *time.Timer
	first         time.Time // of the changes that no audit has followed yet
	askedSince    time.Time // since when the provider is asked; zero = it is not
	found         []status.Finding
	unknownReason string // why the metadata could not be read
}

// groupAudits makes one for each volume group whose provider can be asked.
func (n *Node) groupAudits() map[string]*groupAudit {
	all := map[string]*groupAudit{}
	for _, vg := range n.Config.VolumeGroups {
		if _, ok := n.Providers[vg.Name].(Surveyor); ok {
			all[vg.Name] = &groupAudit{n: n, vg: vg.Name}
		}
	}
	return all
}

// scheduleAudit has a volume group ("" = all) audited once it has come to rest.
func (n *Node) scheduleAudit(vg string) {
	n.orphans.schedule(orphanSoon)
	for name, s := range n.audits {
		if vg == "" || vg == name {
			s.schedule()
		}
	}
}

func (s *groupAudit) schedule() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n.ctx.Err() != nil {
		return
	}
	if s.first.IsZero() {
		s.first = time.Now()
	}
	wait := min(auditQuiet, max(auditAtMost-time.Since(s.first), 0))
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.run)
		return
	}
	s.timer.Reset(wait)
}

// run audits the group, unless its volumes are being worked on.
func (s *groupAudit) run() {
	if s.n.ctx.Err() != nil {
		return
	}
	busy := len(s.n.busy(s.vg)) > 0
	s.mu.Lock()
	if busy && time.Since(s.first) < auditAtMost {
		s.mu.Unlock()
		s.schedule()
		return
	}
	s.first = time.Time{} // what changes from here on is another change
	s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(s.n.ctx, auditLimit, errAuditLimit)
	defer cancel()
	s.audit(ctx, false)
}

// audit compares metadata, devices, mounts and claims of the group, and stores the
// findings. A new finding must be seen twice: a command may have run during the first
// look. A fresh audit uses no cached data.
func (s *groupAudit) audit(ctx context.Context, fresh bool) join.Group {
	g := s.gather(ctx, fresh, fresh)
	found := join.Findings(g)
	known := s.knownFindings()
	if slices.ContainsFunc(found, func(d join.Finding) bool { return fresh || !known[findingKey(d)] }) {
		once := map[join.Finding]bool{}
		for _, d := range found {
			once[findingKey(d)] = true
		}
		g = s.gather(ctx, true, fresh)
		found = slices.DeleteFunc(join.Findings(g), func(d join.Finding) bool { return !once[findingKey(d)] })
	}
	if s.n.ctx.Err() == nil { // else nothing was seen
		s.store(g, found)
		s.renamed(g)
		s.n.usePools(g)
	}
	return g
}

// renamed updates the format records of volumes that have another name in the
// group by now. A lane follows its own volume, also into another group.
func (s *groupAudit) renamed(g join.Group) {
	if g.Metadata != "" {
		return
	}
	files := map[volume.UUID]int{} // more than one: a file was copied with its attributes, and none was renamed
	for _, v := range g.Volumes {
		files[v.UUID]++
	}
	for _, v := range g.Volumes {
		if files[v.UUID] > 1 {
			continue
		}
		facts, err := s.n.Records.Get(v.UUID)
		if err != nil || facts.State != volume.Seen || facts.Name.VG != s.vg || facts.Name.LV == v.Name || g.Busy[v.UUID] {
			continue
		}
		if err := s.n.Records.Renamed(v.UUID, volume.Name{VG: s.vg, LV: v.Name}); err != nil {
			s.n.Log.WithField("volume", s.vg+"/"+v.Name).WithError(err).Warn("its new name is not in its format record")
		}
	}
}

// gather collects what is known of the group, the slowest first: metadata and the
// mount table are read anew, or taken from the caches that follow their changes.
func (s *groupAudit) gather(ctx context.Context, metadata, mounts bool) join.Group {
	n := s.n
	g := join.Group{Name: s.vg, Survey: s.askProvider(ctx, metadata), Busy: n.busy(s.vg)}
	if vg := n.Config.VG(s.vg); vg != nil {
		g.Keep = vg.NeverDeactivate
	}
	// Making without a running creation means that the creation was interrupted.
	busy := n.busy(s.vg)
	for i, v := range g.Volumes {
		g.Volumes[i].Making = v.Making && busy[nameKey(volume.Name{VG: s.vg, LV: v.Name})]
	}
	for _, l := range n.Store.Leases() {
		if l.VG == s.vg {
			g.Leases = append(g.Leases, join.Lease{UUID: l.UUID, LV: l.LV, Live: n.Boot() < l.Until})
		}
	}
	dirs := map[volume.UUID][]string{}
	for _, c := range n.Store.All() {
		if c.VG == s.vg {
			g.Claims = append(g.Claims, join.Claim{UUID: c.UUID, LV: c.LV, Dir: c.Dir, Phase: c.Phase, For: claimant(c), ReadOnly: c.ReadOnly})
			dirs[c.UUID] = append(dirs[c.UUID], c.Dir)
		}
	}
	table, err := n.Observer.LastTable(), error(nil)
	if mounts || table == nil {
		table, err = n.Observer.Read(ctx)
	}
	if err != nil {
		// Without it nothing can be said of any volume.
		why := "the mount table cannot be read: " + err.Error()
		return join.Group{Name: s.vg, Survey: join.Survey{Kind: g.Kind, Metadata: why, Kernel: why}}
	}
	seen := map[string]bool{} // directories that a mount of the group stands for
	for _, d := range g.Devices {
		for _, m := range n.Observer.MountsOf(d.Number, d.Path, dirs[d.UUID], table) {
			g.Mounts = append(g.Mounts, join.Mount(m))
			seen[m.Dir+"\x00"+m.Device] = true
		}
	}
	g.Filesystems = n.faultyFilesystems()
	answers := g.Kernel == "" // else asking for one device may hang as well
	for _, c := range g.Claims {
		for _, m := range n.Observer.MountsAt(ctx, c.Dir, table, answers) {
			if !seen[m.Dir+"\x00"+m.Device] {
				g.Mounts = append(g.Mounts, join.Mount(m))
			}
		}
	}
	// A lane that has started meanwhile may have changed what was read before.
	for uuid := range n.busy(s.vg) {
		g.Busy[uuid] = true
	}
	return g
}

// askProvider calls the provider, and does not wait for one that hangs.
func (s *groupAudit) askProvider(ctx context.Context, fresh bool) join.Survey {
	vg := s.n.Config.VG(s.vg)
	unknown := func(format string, a ...any) join.Survey {
		why := fmt.Sprintf(format, a...)
		return join.Survey{Kind: vg.Provider, Metadata: why, Kernel: why}
	}
	s.mu.Lock()
	since := s.askedSince
	if since.IsZero() {
		s.askedSince = time.Now()
	}
	s.mu.Unlock()
	if !since.IsZero() && time.Since(since) > auditLimit {
		return unknown("a look at volume group %s has not ended since %s", s.vg, since.Format(time.TimeOnly))
	}
	result := make(chan join.Survey, 1)
	go func() {
		result <- s.n.Providers[s.vg].(Surveyor).Survey(ctx, s.vg, fresh)
		s.mu.Lock()
		s.askedSince = time.Time{}
		s.mu.Unlock()
	}()
	select {
	case all := <-result:
		return all
	case <-ctx.Done():
	}
	select {
	case all := <-result: // it may know more than that the time was up
		return all
	case <-time.After(auditQuiet):
		return unknown("volume group %s: %v", s.vg, context.Cause(ctx))
	}
}

// store replaces the last findings, and logs new ones. A finding of a volume that is
// being worked on is kept until it can be judged again.
func (s *groupAudit) store(g join.Group, found []join.Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unknownReason = g.Metadata
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
		log := s.n.Log.WithField("volume", v.VG+"/"+v.LV).WithField("class", v.Class)
		if since, ok := before[findingKey(d)]; ok {
			v.Since = since
		} else if v.Informational {
			log.Debug(v.Message)
		} else {
			log.WithField("hint", v.Hint).Warn("disagreement: " + v.Message)
		}
		now = append(now, v)
	}
	for _, k := range s.found {
		if g.Busy[volume.UUID(k.UUID)] {
			now = append(now, k)
		} else if !k.Informational && !still[reportedKey(k)] {
			s.n.Log.WithField("volume", k.VG+"/"+k.LV).WithField("class", k.Class).Info("the disagreement is over, or unknown now")
		}
	}
	s.found = now
}

// knownFindings are the last findings.
func (s *groupAudit) knownFindings() map[join.Finding]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[join.Finding]bool{}
	for _, k := range s.found {
		all[reportedKey(k)] = true
	}
	return all
}

// findingKey is what makes two findings the same, see join.Finding.Same.
func findingKey(d join.Finding) join.Finding {
	return join.Finding{Class: d.Class, UUID: d.UUID, Dir: d.Dir}
}

func reportedKey(k status.Finding) join.Finding {
	return join.Finding{Class: join.Class(k.Class), UUID: volume.UUID(k.UUID), Dir: k.Dir}
}

// findings returns those that were seen last, and why a group could not be
// audited.
func (n *Node) findings() (all []status.Finding, unknown []string) {
	for _, s := range n.audits {
		s.mu.Lock()
		all = append(all, s.found...)
		if s.unknownReason != "" {
			unknown = append(unknown, s.unknownReason)
		}
		s.mu.Unlock()
	}
	all = append(all, n.orphans.listed()...)
	slices.SortFunc(all, func(a, b status.Finding) int {
		return cmp.Or(strings.Compare(a.VG, b.VG), strings.Compare(a.LV, b.LV), strings.Compare(a.UUID, b.UUID), strings.Compare(a.Class, b.Class), strings.Compare(a.Dir, b.Dir))
	})
	slices.Sort(unknown)
	return all, unknown
}

// busy returns the volumes of a group whose lane works, or has calls waiting.
func (n *Node) busy(vg string) map[volume.UUID]bool {
	all := map[volume.UUID]bool{}
	for _, l := range n.allLanes() {
		l.mu.Lock()
		if l.name.VG == vg && (l.working != "" || l.byName && l.parked != nil || len(l.n.requests.Of(l.uuid)) > 0) {
			all[l.uuid] = true
		}
		l.mu.Unlock()
	}
	return all
}

// faultyFilesystems are the mounted ones that a child has found in error or truncated.
func (n *Node) faultyFilesystems() map[volume.UUID]volume.FS {
	all := map[volume.UUID]volume.FS{}
	for _, l := range n.allLanes() {
		l.mu.Lock()
		if l.broken.Content != volume.ContentUnknown {
			all[l.uuid] = l.broken
		}
		l.mu.Unlock()
	}
	return all
}

// claimant describes the user of a claim.
func claimant(c dsw.Claim) string {
	switch {
	case c.Kind == volume.Staged:
		return "kubelet's global mount"
	case c.Pod == nil:
		return "a pod"
	case c.Pod.Name == "":
		return "pod uid " + c.Pod.UID
	}
	return "pod " + c.Pod.Namespace + "/" + c.Pod.Name
}

// deviceMounts is a fingerprint of the mounts that are on block devices: the others
// come and go with every container.
func deviceMounts(table *mounttable.Table) uint64 {
	h := fnv.New64a()
	for _, e := range table.All() {
		if strings.HasPrefix(e.Source, "/dev/") {
			fmt.Fprintln(h, e.ID, e.Number, e.Dir, e.ReadOnly, e.SuperReadOnly)
		}
	}
	return h.Sum64()
}
