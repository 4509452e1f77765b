package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Serve answers one FlexVolume call. ctx is done when the caller hung up; pid
// is flexdriver's, 0 if it is not known.
func (n *Node) Serve(ctx context.Context, r flexvolume.Request, pid int) flexvolume.Answer {
	about := logrus.Fields{"call": r.ID, "verb": r.Verb}
	fc, err := flexvolume.Parse(r.Verb, r.Args)
	if r.Verb == flexvolume.LetGo {
		fc, err = flexvolume.ParseLetGo(r.Args)
	}
	if err != nil {
		return refused(n.Log.WithFields(about), r.Verb, "", err)
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
		Request: dsw.Request{Call: volume.Call{ID: r.ID}, Name: volume.Name{VG: fc.Options.VG, LV: fc.Options.LV}, Started: time.Duration(r.Started)},
		verb:    r.Verb, since: time.Now(), opts: fc.Options, pid: pid, parent: parentOf(pid, r.Parent),
	}
	defer c.parent.close()
	// A call that is sent again has waited before: flexdriver counts from its start.
	now := n.Boot()
	if c.Started <= 0 || c.Started > now {
		c.Started = now
	}
	c.deadline = c.since.Add(max(n.Config.CallDeadline-(now-c.Started), time.Second))
	var cancel context.CancelFunc
	c.ctx, cancel = context.WithDeadlineCause(ctx, c.deadline, errDeadline)
	defer cancel()

	select {
	case <-n.ready: // before that, nothing is known
	case <-c.ctx.Done():
		return refused(n.Log.WithFields(about), r.Verb, title, n.unready(context.Cause(c.ctx)))
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
		return flexvolume.Failure(errStopping.Error())
	}
	if err != nil {
		return refused(log, r.Verb, title, err)
	}
	log.Info("success")
	a := flexvolume.Success()
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

// refused logs a failure, and returns the answer: the volume, the step, the cause,
// and an id by which the log can be searched. Kubelet makes one event of answers
// with the same text, so the id depends on the text alone, and err contains nothing
// that differs in the next call although the cause is the same.
func refused(log *logrus.Entry, verb, title string, err error) flexvolume.Answer {
	text := verb + ": " + strings.TrimPrefix(err.Error(), verb+": ") // mount is a verb and a step
	if title != "" {
		text = title + ": " + text
	}
	h := fnv.New64a()
	h.Write([]byte(text))
	id := fmt.Sprintf("%012x", h.Sum64()>>16)
	log.WithField("answer", id).WithError(err).Warn("failure")
	// The id comes first where a long text would be cut.
	return flexvolume.Failure(fmt.Sprintf("[%s] %s", id, text))
}

// errDeadline is the cause of a call's end in time.
var errDeadline = errors.New("its deadline passed")

func (n *Node) dispatch(c *call, fc flexvolume.Call) (device string, attached *bool, err error) {
	yes := true
	switch fc.Verb {
	case flexvolume.Attach, flexvolume.Detach, flexvolume.IsAttached:
		if fc.Node != n.Config.NodeName {
			if fc.Verb == flexvolume.IsAttached {
				attached = &yes
			}
			return "", attached, nil // of another machine we know nothing
		}
	}
	switch fc.Verb {
	case flexvolume.Attach:
		c.Verb = volume.Check
		device, err = n.setUp(c)
	case flexvolume.Detach:
		n.endLease(fc.Name)
	case flexvolume.IsAttached:
		attached, err = n.present(c)
	case flexvolume.WaitForAttach:
		c.Verb = volume.Activate
		device, err = n.setUp(c)
	case flexvolume.MountDevice:
		c.Verb = volume.Stage
		// The first pod's mode is no reason to keep later ones from writing.
		c.opts.ReadOnly = false
		err = n.setUpAt(c, fc.Dir)
	case flexvolume.Mount:
		c.Verb = volume.Publish
		err = n.setUpAt(c, fc.Dir)
	case flexvolume.ExpandFS:
		c.Verb, c.Size = volume.Expand, fc.NewSize
		if err = n.setUpAt(c, fc.Dir); err != nil && c.ctx.Err() == nil {
			err = fmt.Errorf("%w%s", err, orShrink)
		}
	case flexvolume.Unmount, flexvolume.UnmountDevice:
		c.Verb = volume.Release
		err = n.release(c, fc.Dir)
	case flexvolume.LetGo:
		err = n.released(c, volume.UUID(fc.UUID), fc.Dir)
	case flexvolume.ExpandVolume:
		// The controller's half; expandfs does the work.
	default:
		err = fmt.Errorf("the daemon does not serve this verb")
	}
	return device, attached, err
}

// orShrink is the other way out of an expansion that fails. Kubelet repeats it, and
// takes no mount of the claim for done before it has succeeded.
const orShrink = "; or lower spec.capacity.storage of the PersistentVolume, and the claim's request, to a size that is possible. " +
	"Until then running pods keep the volume, and no other pod of the claim starts"

// setUpAt resolves the directory first: claims are about what the mount table
// will show.
func (n *Node) setUpAt(c *call, dir string) (err error) {
	if c.Dir, c.root, err = n.Observer.Roots.Resolve(dir); err != nil {
		return err
	}
	if c.Verb == volume.Publish {
		c.Global = kubelet.GlobalDir(c.root, n.Config.Driver, c.opts.Name)
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
func (n *Node) table(ctx context.Context, c *call) (*mounttable.Table, error) {
	table, err := n.Observer.Look(ctx, n.Observer.Now())
	switch {
	case err == nil:
		return table, nil
	case errors.Is(err, errDeadline):
		return nil, fmt.Errorf("the mount table has not been read within the call's time, so nothing was begun; what keeps the kernel from telling it? Look at dmesg, and at what `cat /proc/self/mountinfo` does")
	}
	return nil, fmt.Errorf("the mount table cannot be read: %w", err)
}

// setUp finds the volume and has its lane do what the call wants.
func (n *Node) setUp(c *call) (device string, err error) {
	vg, p, err := n.allowed(c, c.Name)
	if err != nil {
		return "", err
	}
	c.ReadOnly, c.FSType, c.Super = c.opts.ReadOnly, c.opts.FSType, c.opts.Super
	c.MaxSize = vg.MaxSize
	if c.Verb != volume.Expand {
		c.Size = c.opts.Size
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	c.Interrupt = cancel
	if _, err := n.enter(c); err != nil {
		return "", err
	}
	defer n.requests.Leave(&c.Request)
	l, err := n.find(ctx, c, vg, c.Name, p)
	if err != nil || l == nil {
		n.requests.Abandon(&c.Request, dsw.Answer{Err: err})
		return n.wait(c)
	}
	return n.join(c, l)
}

// enter makes a call a request.
func (n *Node) enter(c *call) (committed volume.UUID, err error) {
	c.Owner = c
	return n.requests.Enter(&c.Request, n.Boot())
}

// find returns the lane of the volume that a call names. The volume is made if
// it may be, except for a check: then there is no lane yet.
func (n *Node) find(ctx context.Context, c *call, vg *config.VolumeGroup, name volume.Name, p Provider) (*lane, error) {
	if c.Mounts() {
		if err := n.target(ctx, c); err != nil {
			return nil, err
		}
	}
	lv, err := p.LookUp(ctx, name)
	if err != nil || lv.Presence == volume.Absent { // else nobody needs to look through all volumes
		now, uuid := n.renamed(name)
		switch {
		case uuid != "" && err == nil:
			return nil, fmt.Errorf("it does not exist: the volume in use that was called so (uuid %s) is called %s now; rename it back, or change volumeID", uuid, now)
		case uuid != "" && now.VG != name.VG:
			return nil, fmt.Errorf("the volume in use that was called so (uuid %s) is called %s now: vgrename %s %s, or change volumegroup: %w", uuid, now, now.VG, name.VG, err)
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
		return nil, fmt.Errorf("volume group %s has not said within the call's time whether there is such a volume; flexd status tells what it waits for", name.VG)
	case err != nil:
		return nil, fmt.Errorf("it could not be looked up: %w", err)
	case lv.Presence == volume.Absent:
		return nil, fmt.Errorf("it does not exist in volume group %s", name.VG)
	case lv.Presence != volume.Present:
		return nil, fmt.Errorf("not usable: %s", lv.Reason)
	}
	if why := n.replaced(ctx, c, lv.UUID, p); why != "" {
		return nil, errors.New(why)
	}
	return n.known(ctx, lv.UUID, name, p)
}

// replaced says why a mountdevice, or a waitforattach before it, must not use a volume:
// an earlier waitforattach has activated another one under that name, which is active
// and has its lease.
func (n *Node) replaced(ctx context.Context, c *call, uuid volume.UUID, p Provider) string {
	if c.Verb != volume.Activate && c.Verb != volume.Stage || c.opts.Name == "" {
		return ""
	}
	_, leases := n.Store.Named(c.opts.Name)
	for _, lease := range leases {
		name := volume.Name{VG: lease.VG, LV: lease.LV}
		if lease.UUID == uuid || name != c.Name || n.Boot() >= lease.Until {
			continue
		}
		d, err := p.Device(ctx, volume.LV{Name: name, UUID: lease.UUID})
		if err == nil && d.Activity != volume.Active {
			continue
		}
		called := ""
		if id, now, ok, err := p.Identify(ctx, d.Number); err == nil && ok && id == lease.UUID && now.LV != "" && now != name {
			called = fmt.Sprintf(", which is called %s now", now)
		}
		return fmt.Sprintf("%s is another volume (uuid %s) than at the last waitforattach (uuid %s%s): rename it back, or change volumeID; if the new one is meant, delete the pod until the lease of the other has ended", name, uuid, lease.UUID, called)
	}
	return ""
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
	// From here on no older mount is committed, and the table shows every other
	// one but that whose outcome was not observed yet.
	committed, err := n.enter(c)
	if err != nil {
		return err
	}
	defer n.requests.Leave(&c.Request)
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
	if committed != "" {
		add(committed, volume.Name{})
	}
	foreign := ""
	at := table.At(c.Dir)
	for _, e := range slices.Backward(slices.Concat(table.HiddenAt(c.Dir), at)) {
		uuid, name, ok, err := n.Observer.Identify(c.ctx, e)
		switch {
		case err != nil && len(n.Store.At(c.Dir)) == 0:
			return fmt.Errorf("it cannot be told which volume is mounted at %s: %w", c.Dir, err)
		case ok:
			add(uuid, name)
		case foreign == "" && slices.Contains(at, e):
			foreign = fmt.Sprintf("%s from %s", e.Type, e.Source)
		}
	}
	for _, cl := range n.Store.At(c.Dir) {
		add(cl.UUID, volume.Name{VG: cl.VG, LV: cl.LV})
	}
	if len(found) == 0 && foreign != "" {
		return fmt.Errorf("%s is mounted at %s, which flexd did not mount: unmount it by hand if it is not needed", foreign, c.Dir)
	}
	for _, l := range found {
		c.title = l.title()
		part := *c
		if _, err := n.await(&part, l); err != nil {
			return err
		}
	}
	if err := n.Store.TornDown(c.Dir, c.Started, n.Boot()); err != nil {
		n.Log.WithField("dir", c.Dir).WithError(err).Warn("unmount: goes on without the note: after a restart a late mount call would be accepted")
	}
	return nil
}

// endLease ends the leases of the volume that kubelet calls so. It is a hint:
// a volume that is claimed stays.
func (n *Node) endLease(name string) {
	if name == "" {
		return
	}
	claims, leases := n.Store.Named(name)
	for _, lease := range leases {
		lease.Until = min(lease.Until, n.Boot())
		if err := n.Store.PutLease(lease); err != nil {
			n.Log.WithError(err).Warn("detach: goes on without the note")
		}
		n.lane(lease.UUID, volume.Name{VG: lease.VG, LV: lease.LV}).wake()
	}
	for _, c := range claims { // kubelet may have removed the directory of one that somebody unmounted
		n.lane(c.UUID, volume.Name{VG: c.VG, LV: c.LV}).wake()
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

// await has a lane do what a call wants, and waits for the answer.
func (n *Node) await(c *call, l *lane) (string, error) {
	if _, err := n.enter(c); err != nil {
		return "", err
	}
	defer n.requests.Leave(&c.Request)
	return n.join(c, l)
}

// join makes a call wait for a lane, unless a committed mount has another one.
func (n *Node) join(c *call, l *lane) (string, error) {
	if n.requests.Bind(&c.Request, l.uuid) == l.uuid {
		l.joined(c.Verb)
	}
	return n.wait(c)
}

// wait waits for the answer, the deadline, or the caller's end.
func (n *Node) wait(c *call) (string, error) {
	select {
	case a := <-c.Answered():
		return a.Device, a.Err
	case <-n.ctx.Done():
		return "", context.Cause(n.ctx)
	case <-c.ctx.Done():
	}
	n.requests.Abandon(&c.Request, dsw.Answer{Err: n.ended(c, "", context.Cause(c.ctx))})
	// If its mount is committed, the outcome is the answer.
	select {
	case a := <-c.Answered():
		return a.Device, a.Err
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
	if what != "" {
		return fmt.Errorf("still preparing: %s; it goes on, and will be used when asked again", what)
	}
	if uuid := n.requests.Bound(&c.Request); uuid != "" {
		return n.lane(uuid, volume.Name{}).whatFor()
	}
	return errors.New("not done within the call's time")
}

// whatFor says what a call waited for when its time was up.
func (l *lane) whatFor() error {
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
	return errors.New("not done within the call's time")
}

// ifTooLong is what an operator can do about a step that may only be slow.
const ifTooLong = "; if that is too long for it, look at the disk under it and at dmesg"

// atWork is the step, and since when it runs. The caller holds l.mu.
func (l *lane) atWork() string {
	return fmt.Sprintf("%s since %s", l.working, l.since.Format(time.TimeOnly))
}

// where says who does a step, and where in the kernel that is.
func where(child *procfs.Waiting) string {
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
		if where := cmp.Or(p.wchan, procfs.Wchan(p.pid)); where != "" { // it may not have come there yet
			s += " waits in " + where
		}
		if p.what != "" {
			s += " for " + p.what
		}
		s += ")"
	}
	return s + "; nothing is done to this volume until it has; look at the disk under it and at dmesg"
}
