package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/flex"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Serve answers one FlexVolume call. ctx is done when the caller hung up; pid
// is flexdriver's, 0 if it is not known.
func (n *Node) Serve(ctx context.Context, r flex.Request, pid int) flex.Answer {
	about := logrus.Fields{"call": r.ID, "verb": r.Verb}
	fc, err := flex.Parse(r.Verb, r.Args)
	if r.Verb == flex.LetGo {
		fc, err = flex.ParseLetGo(r.Args)
	}
	if err != nil {
		n.Log.WithFields(about).WithError(err).Warn("refused")
		return refusal(r, "", err)
	}
	title := ""
	if fc.HasOptions && fc.Options.VG != "" {
		title = volume.Name{VG: fc.Options.VG, LV: fc.Options.LV}.String()
		about["volume"] = title
	}
	if fc.Dir != "" {
		about["dir"] = fc.Dir
	}
	if n.Log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		n.Log.WithFields(about).Debug("call")
	}
	c := &call{
		Call: volume.Call{ID: r.ID}, verb: r.Verb,
		started: time.Duration(r.Started), since: time.Now(),
		opts: fc.Options, pid: pid, parent: parentOf(pid, r.Parent), done: make(chan result, 1),
	}
	defer c.parent.close()
	// A call that is sent again has waited before: flexdriver counts from its start.
	now := n.Boot()
	if c.started <= 0 || c.started > now {
		c.started = now
	}
	c.deadline = c.since.Add(max(n.Config.CallDeadline-(now-c.started), time.Second))
	var cancel context.CancelFunc
	c.ctx, cancel = context.WithDeadlineCause(ctx, c.deadline, errDeadline)
	defer cancel()

	select {
	case <-n.ready: // before that, nothing is known
	case <-c.ctx.Done():
		return refusal(r, title, n.unready(context.Cause(c.ctx)))
	}
	c.title = title
	device, attached, err := n.dispatch(c, fc)
	if title == "" && c.title != "" {
		title = c.title // known only now: a release names a directory
		about["volume"] = title
	}
	about["took"] = time.Since(c.since).Round(time.Millisecond / 10)
	log := n.Log.WithFields(about)
	if n.ctx.Err() != nil {
		log.Info("not answered, flexd stops: the caller will ask the next one")
		return refusal(r, title, errStopping)
	}
	if err != nil {
		log.WithError(err).Warn("failure")
		return refusal(r, title, err)
	}
	log.Info("success")
	a := flex.Success()
	a.Device, a.Attached = device, attached
	return a
}

// unready explains the end of a call for which flexd was not ready.
func (n *Node) unready(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.trouble != "" {
		err = errors.New(n.trouble)
	}
	return fmt.Errorf("flexd has started, and does not know yet what is mounted: %w", err)
}

// refusal names the volume, the step and the cause, and the call by which the
// log can be searched.
func refusal(r flex.Request, title string, err error) flex.Answer {
	text := r.Verb + ": " + strings.TrimPrefix(err.Error(), r.Verb+": ") // mount is a verb and a step
	if title != "" {
		text = title + ": " + text
	}
	// The call comes first where a long text would be cut.
	return flex.Failure(fmt.Sprintf("[%s] %s", r.ID, text))
}

// errDeadline is the cause of a call's end in time.
var errDeadline = errors.New("its deadline passed")

func (n *Node) dispatch(c *call, fc flex.Call) (device string, attached *bool, err error) {
	yes := true
	switch fc.Verb {
	case flex.Attach, flex.Detach, flex.IsAttached:
		if fc.Node != n.Config.NodeName {
			if fc.Verb == flex.IsAttached {
				attached = &yes
			}
			return "", attached, nil // of another machine we know nothing
		}
	}
	switch fc.Verb {
	case flex.Attach:
		c.Verb = volume.Check
		device, err = n.setUp(c)
	case flex.Detach:
		n.endLease(fc.Name)
	case flex.IsAttached:
		attached, err = n.present(c)
	case flex.WaitForAttach:
		c.Verb = volume.Activate
		device, err = n.setUp(c)
	case flex.MountDevice:
		c.Verb = volume.Stage
		// The first pod's mode is no reason to keep later ones from writing.
		c.opts.ReadOnly = false
		err = n.setUpAt(c, fc.Dir)
	case flex.Mount:
		c.Verb = volume.Publish
		err = n.setUpAt(c, fc.Dir)
	case flex.ExpandFS:
		c.Verb, c.Size = volume.Expand, fc.NewSize
		err = n.setUpAt(c, fc.Dir)
	case flex.Unmount, flex.UnmountDevice:
		c.Verb = volume.Release
		err = n.release(c, fc.Dir)
	case flex.LetGo:
		err = n.released(c, volume.UUID(fc.UUID), fc.Dir)
	case flex.ExpandVolume:
		// The controller's half; expandfs does the work.
	default:
		err = fmt.Errorf("the daemon does not serve this verb")
	}
	return device, attached, err
}

// setUpAt resolves the directory first: claims are about what the mount table
// will show.
func (n *Node) setUpAt(c *call, dir string) (err error) {
	if c.Dir, c.root, err = n.Observer.Roots.Resolve(dir); err != nil {
		return err
	}
	if c.Verb == volume.Publish {
		c.Global = flex.GlobalDir(c.root, n.Config.Driver, c.opts.Name)
	}
	_, err = n.setUp(c)
	return err
}

// target refuses a directory where nothing can land, before anything is made for
// it. One that is a mount point is not touched.
func (n *Node) target(ctx context.Context, c *call) error {
	table, err := n.table(ctx, c)
	if err != nil {
		return err
	}
	if table.Top(c.Dir) == nil && n.Observer.Gone(c.Dir) {
		return fmt.Errorf("the directory %s does not exist: kubelet makes it, and flexd never does", c.Dir)
	}
	return nil
}

// table returns the mount table of this moment.
func (n *Node) table(ctx context.Context, c *call) (*mount.Table, error) {
	table, err := n.Observer.Look(ctx, n.Observer.Now())
	switch {
	case err == nil:
		return table, nil
	case errors.Is(err, errDeadline):
		return nil, fmt.Errorf("the mount table has not been read within %s, so nothing was begun; what keeps the kernel from telling it? Look at dmesg, and at what `cat /proc/self/mountinfo` does", time.Since(c.since).Round(time.Second))
	}
	return nil, fmt.Errorf("the mount table cannot be read: %w", err)
}

// setUp finds the volume and has its lane do what the call wants.
func (n *Node) setUp(c *call) (device string, err error) {
	name := volume.Name{VG: c.opts.VG, LV: c.opts.LV}
	vg, p, err := n.allowed(c, name)
	if err != nil {
		return "", err
	}
	c.ReadOnly, c.FSType, c.Super = c.opts.ReadOnly, c.opts.FSType, c.opts.Super
	c.MaxSize = vg.MaxSize
	way, end := context.WithCancelCause(c.ctx)
	defer end(nil)
	n.comes(c, end)
	l, err := n.find(way, c, vg, name, p)
	if taken := n.came(c, l); taken != nil {
		l, err = taken, nil // its mount was let go meanwhile: only what came of that counts
	}
	if err != nil || l == nil {
		return "", err
	}
	return n.await(c, l)
}

// find returns the lane of the volume that a call names. The volume is made if
// it may be, except for a check: then there is no lane yet.
func (n *Node) find(ctx context.Context, c *call, vg *config.VolumeGroup, name volume.Name, p Provider) (*lane, error) {
	if c.mountsAt(c.Dir) {
		if err := n.target(ctx, c); err != nil {
			return nil, err
		}
	}
	lv, err := p.LookUp(ctx, name)
	if err == nil && lv.Presence == volume.Absent {
		if now, uuid := n.renamed(name); uuid != "" {
			return nil, fmt.Errorf("it does not exist: the volume in use that was called so (uuid %s) is called %s now; rename it back, or change volumeID", uuid, now)
		}
	}
	if err == nil && lv.Presence == volume.Absent && c.Verb != volume.Expand {
		if c.Verb == volume.Check && vg.Create && c.opts.Size > 0 {
			return nil, nil // waitforattach makes it
		}
		if err := n.create(ctx, c, vg, name, p); err != nil {
			return nil, n.ended(c, "create", err)
		}
		lv, err = p.LookUp(ctx, name)
	}
	switch {
	case errors.Is(err, errDeadline):
		return nil, fmt.Errorf("volume group %s has not said within %s whether there is such a volume; flexd status tells what it waits for", name.VG, time.Since(c.since).Round(time.Second))
	case err != nil:
		return nil, fmt.Errorf("it could not be looked up: %w", err)
	case lv.Presence == volume.Absent:
		return nil, fmt.Errorf("it does not exist in volume group %s", name.VG)
	case lv.Presence != volume.Present:
		return nil, fmt.Errorf("not usable: %s", lv.Reason)
	}
	return n.enter(ctx, lv.UUID, name, p)
}

// renamed returns what a volume in use is called now that was set up by that name.
func (n *Node) renamed(name volume.Name) (volume.Name, volume.UUID) {
	for uuid, h := range n.Observer.All() {
		if h.LV.Name == name && h.LV.Now != (volume.Name{}) {
			return h.LV.Now, uuid
		}
	}
	return volume.Name{}, ""
}

// allowed says whether the configuration lets this call use this volume.
func (n *Node) allowed(c *call, name volume.Name) (*config.VolumeGroup, Provider, error) {
	vg, p := n.Config.VG(name.VG), n.Providers[name.VG]
	switch {
	case vg == nil || p == nil:
		return nil, nil, fmt.Errorf("volume group %q is not configured on node %s: check option volumegroup, or add it to volumeGroups in flexd's configuration", name.VG, n.Config.NodeName)
	case !vg.AllowsVolume(name.LV):
		return nil, nil, fmt.Errorf("the configuration of volume group %s does not allow volume %q (volumes: %q)", name.VG, name.LV, vg.Volumes)
	case c.Verb == volume.Publish && !vg.AllowsNamespace(c.opts.Pod.Namespace):
		return nil, nil, fmt.Errorf("the configuration of volume group %s does not allow pods of namespace %q (namespaces: %q)", name.VG, c.opts.Pod.Namespace, vg.Namespaces)
	}
	return vg, p, nil
}

// release lets go of whatever of ours is mounted at dir, whatever the
// configuration says by now.
func (n *Node) release(c *call, dir string) (err error) {
	if c.Dir, c.root, err = n.Observer.Roots.Resolve(dir); err != nil {
		return err
	}
	table, err := n.table(c.ctx, c)
	if err != nil {
		return err
	}
	var found []*lane // of what is mounted there, from the top down, and of what was noted
	add := func(uuid volume.UUID, name volume.Name) {
		if l := n.lane(uuid, name); !slices.Contains(found, l) {
			found = append(found, l)
		}
	}
	foreign := ""
	for _, e := range slices.Backward(table.At(c.Dir)) {
		uuid, name, ok, err := n.Observer.Identify(c.ctx, e)
		switch {
		case err != nil && len(n.Store.At(c.Dir)) == 0:
			return fmt.Errorf("it cannot be told which volume is mounted at %s: %w", c.Dir, err)
		case ok:
			add(uuid, name)
		case foreign == "":
			foreign = fmt.Sprintf("%s from %s", e.Type, e.Source)
		}
	}
	for _, cl := range n.Store.At(c.Dir) {
		add(cl.UUID, volume.Name{VG: cl.VG, LV: cl.LV})
	}
	if len(found) == 0 {
		if foreign != "" {
			return fmt.Errorf("%s is mounted at %s, which flexd did not mount: unmount it by hand if it is not needed", foreign, c.Dir)
		}
		if n.Store.Wish(c.Dir, c.started, n.Boot(), true) {
			return errSuperseded
		}
		n.yield(c)
		return nil
	}
	for _, l := range found {
		c.title = l.title()
		part := *c
		part.done = make(chan result, 1)
		if _, err := n.await(&part, l); err != nil {
			return err
		}
	}
	return nil
}

// yield makes older set-up calls for the directory give way to a release that
// has nothing else to do.
func (n *Node) yield(c *call) {
	n.mu.Lock()
	older := append([]*call(nil), n.byDir[c.Dir]...)
	n.mu.Unlock()
	for _, o := range older {
		if o.started < c.started && o.Verb != volume.Release {
			o.lane.dismiss(o, errSuperseded)
		}
	}
}

// endLease ends the leases of the volume that kubelet calls so. It is a hint:
// a volume that is claimed stays.
func (n *Node) endLease(name string) {
	for _, lease := range n.Store.Leases() {
		if lease.Name != name || name == "" {
			continue
		}
		lease.Until = min(lease.Until, n.Boot())
		if err := n.Store.PutLease(lease); err != nil {
			n.Log.WithError(err).Warn("detach: goes on without the note")
		}
		n.lane(lease.UUID, volume.Name{VG: lease.VG, LV: lease.LV}).wake()
	}
	for _, c := range n.Store.All() { // kubelet may have removed the directory of one that somebody unmounted
		if c.Name == name && name != "" {
			n.lane(c.UUID, volume.Name{VG: c.VG, LV: c.LV}).wake()
		}
	}
}

// present answers isattached: the volume is here, active or not.
func (n *Node) present(c *call) (*bool, error) {
	name := volume.Name{VG: c.opts.VG, LV: c.opts.LV}
	_, p, err := n.allowed(c, name)
	if err != nil {
		return nil, err
	}
	lv, err := p.LookUp(c.ctx, name)
	if err != nil {
		return nil, err
	}
	here := lv.Presence != volume.Absent
	return &here, nil
}

// await hands a call to its lane and waits for the answer, the deadline, or the
// caller's end.
func (n *Node) await(c *call, l *lane) (string, error) {
	if n.enlist(c, l) {
		return "", errSuperseded
	}
	defer n.delist(c)
	l = c.lane // it may have been taken along just before
	select {
	case r := <-c.done:
		return r.device, r.err
	case <-n.ctx.Done():
		return "", context.Cause(n.ctx)
	case <-c.ctx.Done():
	}
	l.dismiss(c, n.ended(c, "", context.Cause(c.ctx)))
	// If its mount is landing right now, what comes of that is the answer.
	select {
	case r := <-c.done:
		return r.device, r.err
	case <-n.ctx.Done(): // the lane ends without an answer
		return "", context.Cause(n.ctx)
	case <-time.After(landingGrace):
		return "", errors.New("the mount was let go and the kernel has not answered: it counts if it appears")
	}
}

// landingGrace is what a landing may take beyond the deadline; flexdriver waits
// that much longer than flexd.
const landingGrace = 20 * time.Second

// ended explains a call's end without its wish.
func (n *Node) ended(c *call, what string, err error) error {
	if !errors.Is(err, errDeadline) || c.ctx.Err() == nil {
		if what == "" || strings.HasPrefix(err.Error(), what+": ") {
			return err
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	took := time.Since(c.since).Round(time.Second)
	if what != "" {
		return fmt.Errorf("still preparing: %s, %s; it goes on, and will be used when asked again", what, took)
	}
	return c.lane.whatFor(took)
}

// whatFor says what a call waited for when its time was up.
func (l *lane) whatFor(took time.Duration) error {
	child := run.Holder(l.lock)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.parked != nil:
		return fmt.Errorf("stuck: %s", l.parked.text())
	case l.working == volume.Unmount.String():
		return fmt.Errorf("still at %s%s; it goes on, and is waited for when asked again%s", l.atWork(), where(child), ifTooLong)
	case l.working != "":
		return fmt.Errorf("still preparing: %s%s; it goes on, and will be used when asked again%s", l.atWork(), where(child), ifTooLong)
	}
	return fmt.Errorf("not done within %s", took)
}

// ifTooLong is what an operator can do about a step that may only be slow.
const ifTooLong = "; if that is too long for it, look at the disk under it and at dmesg"

// atWork is the step, and for how long it has run. The caller holds l.mu.
func (l *lane) atWork() string {
	return fmt.Sprintf("%s, %s", l.working, time.Since(l.since).Round(time.Second))
}

// where says who does a step, and where in the kernel that is.
func where(child *run.Waiting) string {
	switch {
	case child == nil:
		return ""
	case child.Wchan == "":
		return fmt.Sprintf(" (pid %d)", child.Pid)
	}
	return fmt.Sprintf(" (pid %d waits in %s)", child.Pid, child.Wchan)
}

// text says what the child does, and what an operator can do.
func (p *parked) text() string {
	s := fmt.Sprintf("%s has not ended since %s", p.step, p.since.Format(time.TimeOnly))
	if p.pid != 0 {
		s += fmt.Sprintf(" (pid %d", p.pid)
		if where := cmp.Or(p.wchan, run.Wchan(p.pid)); where != "" { // it may not have come there yet
			s += " waits in " + where
		}
		if p.what != "" {
			s += " for " + p.what
		}
		s += ")"
	}
	return s + "; nothing is done to this volume until it has; look at the disk under it and at dmesg"
}
