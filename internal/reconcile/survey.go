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

// A Surveyor is a provider that can tell of a whole volume group at once.
type Surveyor interface {
	// Survey reads everything anew if fresh is set; else it starts no process
	// unless something has changed since it was read last.
	Survey(ctx context.Context, vg string, fresh bool) join.Survey
}

// A change is followed by a survey once nothing has changed for a while, but not
// later than that: a burst of calls is one change, and is not slowed down by it.
const (
	surveyQuiet  = time.Second
	surveyAtMost = 10 * time.Second
	surveyLimit  = 20 * time.Second // for all that one survey does
)

var errSurveyLimit = fmt.Errorf("no answer within %s", surveyLimit)

// A surveyed is a volume group with the disagreements that were seen in it last.
type surveyed struct {
	n  *Node
	vg string

	mu      sync.Mutex // guards what follows
	timer   *time.Timer
	first   time.Time // of the changes that no survey has followed yet
	looking time.Time // since when the provider is asked; zero = it is not
	found   []status.Disagreement
	untold  string // why the metadata could not be read
}

// surveyedGroups makes one for each volume group whose provider can be asked.
func (n *Node) surveyedGroups() map[string]*surveyed {
	all := map[string]*surveyed{}
	for _, vg := range n.Config.VolumeGroups {
		if _, ok := n.Providers[vg.Name].(Surveyor); ok {
			all[vg.Name] = &surveyed{n: n, vg: vg.Name}
		}
	}
	return all
}

// stir has a volume group ("" = all) surveyed once it has come to rest.
func (n *Node) stir(vg string) {
	n.orphans.soon(orphanSoon)
	for name, s := range n.surveys {
		if vg == "" || vg == name {
			s.stir()
		}
	}
}

func (s *surveyed) stir() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n.ctx.Err() != nil {
		return
	}
	if s.first.IsZero() {
		s.first = time.Now()
	}
	wait := min(surveyQuiet, max(surveyAtMost-time.Since(s.first), 0))
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.due)
		return
	}
	s.timer.Reset(wait)
}

// due surveys the group, unless its volumes are being worked on.
func (s *surveyed) due() {
	if s.n.ctx.Err() != nil {
		return
	}
	busy := len(s.n.busy(s.vg)) > 0
	s.mu.Lock()
	if busy && time.Since(s.first) < surveyAtMost {
		s.mu.Unlock()
		s.stir()
		return
	}
	s.first = time.Time{} // what changes from here on is another change
	s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(s.n.ctx, surveyLimit, errSurveyLimit)
	defer cancel()
	s.survey(ctx, false)
}

// survey looks at the group from all sides, and keeps what disagrees. What is
// new must be seen twice: a command may have been at work during the first look.
// A fresh one takes nothing as it was seen before.
func (s *surveyed) survey(ctx context.Context, fresh bool) join.Group {
	g := s.look(ctx, fresh, fresh)
	found := join.Disagreements(g)
	known := s.known()
	if slices.ContainsFunc(found, func(d join.Disagreement) bool { return fresh || !known[keyOf(d)] }) {
		once := map[join.Disagreement]bool{}
		for _, d := range found {
			once[keyOf(d)] = true
		}
		g = s.look(ctx, true, fresh)
		found = slices.DeleteFunc(join.Disagreements(g), func(d join.Disagreement) bool { return !once[keyOf(d)] })
	}
	if s.n.ctx.Err() == nil { // else nothing was seen
		s.keep(g, found)
		s.renamed(g)
		s.n.usePools(g)
	}
	return g
}

// renamed updates the format records of volumes that have another name in the
// group by now. A lane follows its own volume, also into another group.
func (s *surveyed) renamed(g join.Group) {
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

// look gathers what is known of the group, the slowest first: metadata and the
// mount table are read anew, or taken as whoever follows their changes left them.
func (s *surveyed) look(ctx context.Context, metadata, mounts bool) join.Group {
	n := s.n
	g := join.Group{Name: s.vg, Survey: s.ask(ctx, metadata), Busy: n.busy(s.vg)}
	if vg := n.Config.VG(s.vg); vg != nil {
		g.Keep = vg.NeverDeactivate
	}
	// A creation that was cut is nobody's work.
	n.mu.Lock()
	for i, v := range g.Volumes {
		_, now := n.creating[volume.Name{VG: s.vg, LV: v.Name}]
		g.Volumes[i].Making = v.Making && now
	}
	n.mu.Unlock()
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
	// Whoever came to work meanwhile has changed what was looked at before.
	for uuid := range n.busy(s.vg) {
		g.Busy[uuid] = true
	}
	return g
}

// ask asks the provider, and does not wait for one that hangs.
func (s *surveyed) ask(ctx context.Context, fresh bool) join.Survey {
	vg := s.n.Config.VG(s.vg)
	untold := func(format string, a ...any) join.Survey {
		why := fmt.Sprintf(format, a...)
		return join.Survey{Kind: vg.Provider, Metadata: why, Kernel: why}
	}
	s.mu.Lock()
	since := s.looking
	if since.IsZero() {
		s.looking = time.Now()
	}
	s.mu.Unlock()
	if !since.IsZero() && time.Since(since) > surveyLimit {
		return untold("a look at volume group %s has not ended since %s", s.vg, since.Format(time.TimeOnly))
	}
	told := make(chan join.Survey, 1)
	go func() {
		told <- s.n.Providers[s.vg].(Surveyor).Survey(ctx, s.vg, fresh)
		s.mu.Lock()
		s.looking = time.Time{}
		s.mu.Unlock()
	}()
	select {
	case all := <-told:
		return all
	case <-ctx.Done():
	}
	select {
	case all := <-told: // it may know more than that the time was up
		return all
	case <-time.After(surveyQuiet):
		return untold("volume group %s: %v", s.vg, context.Cause(ctx))
	}
}

// keep replaces what was found last, and tells the log of what is new. What was
// found of a volume that is being worked on stands until that can be judged.
func (s *surveyed) keep(g join.Group, found []join.Disagreement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.untold = g.Metadata
	var now []status.Disagreement
	before, still := map[join.Disagreement]time.Time{}, map[join.Disagreement]bool{}
	for _, k := range s.found {
		before[seenAs(k)] = k.Since
	}
	for _, d := range found {
		still[keyOf(d)] = true
		v := status.Disagreement{
			Class: string(d.Class), VG: s.vg, LV: d.LV, UUID: string(d.UUID), Dir: d.Dir,
			Message: d.Text, Hint: d.Hint, Informational: d.Class.Informational(), Since: time.Now(),
		}
		log := s.n.Log.WithField("volume", v.VG+"/"+v.LV).WithField("class", v.Class)
		if since, ok := before[keyOf(d)]; ok {
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
		} else if !k.Informational && !still[seenAs(k)] {
			s.n.Log.WithField("volume", k.VG+"/"+k.LV).WithField("class", k.Class).Info("the disagreement is over, or cannot be told any more")
		}
	}
	s.found = now
}

// known are the disagreements that were found last.
func (s *surveyed) known() map[join.Disagreement]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[join.Disagreement]bool{}
	for _, k := range s.found {
		all[seenAs(k)] = true
	}
	return all
}

// keyOf is what makes two disagreements the same, see join.Disagreement.Same.
func keyOf(d join.Disagreement) join.Disagreement {
	return join.Disagreement{Class: d.Class, UUID: d.UUID, Dir: d.Dir}
}

func seenAs(k status.Disagreement) join.Disagreement {
	return join.Disagreement{Class: join.Class(k.Class), UUID: volume.UUID(k.UUID), Dir: k.Dir}
}

// disagreements returns those that were seen last, and why a group could not be
// surveyed.
func (n *Node) disagreements() (all []status.Disagreement, untold []string) {
	for _, s := range n.surveys {
		s.mu.Lock()
		all = append(all, s.found...)
		if s.untold != "" {
			untold = append(untold, s.untold)
		}
		s.mu.Unlock()
	}
	all = append(all, n.orphans.listed()...)
	slices.SortFunc(all, func(a, b status.Disagreement) int {
		return cmp.Or(strings.Compare(a.VG, b.VG), strings.Compare(a.LV, b.LV), strings.Compare(a.UUID, b.UUID), strings.Compare(a.Class, b.Class), strings.Compare(a.Dir, b.Dir))
	})
	slices.Sort(untold)
	return all, untold
}

// busy returns the volumes of a group that somebody works on, or is about to.
func (n *Node) busy(vg string) map[volume.UUID]bool {
	all := map[volume.UUID]bool{}
	for _, l := range n.allLanes() {
		l.mu.Lock()
		if l.name.VG == vg && (l.working != "" || len(l.n.requests.Of(l.uuid)) > 0) {
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

// claimant says in words for whom a claim is.
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

// disks is a fingerprint of the mounts that are on block devices: the others
// come and go with every container.
func disks(table *mounttable.Table) uint64 {
	h := fnv.New64a()
	for _, e := range table.All() {
		if strings.HasPrefix(e.Source, "/dev/") {
			fmt.Fprintln(h, e.ID, e.Number, e.Dir, e.ReadOnly, e.SuperReadOnly)
		}
	}
	return h.Sum64()
}
