package reconcile

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/volume"
)

// Serve answers one FlexVolume call. ctx is done when the caller hung up; pid
// is flexdriver's, 0 if it is not known.
func (n *Node) Serve(ctx context.Context, r flexvolume.Request, pid int) flexvolume.Answer {
	about := logrus.Fields{"call": r.ID, "verb": r.Verb}
	fc, err := flexvolume.Parse(r.Verb, r.Args)
	if r.Verb == flexvolume.Reclaim {
		fc, err = flexvolume.ParseReclaim(r.Args)
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
	c, end := n.newCall(ctx, r, fc, pid)
	defer end()
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

// newCall returns a call with its deadline, and what is to be done at its end.
func (n *Node) newCall(ctx context.Context, r flexvolume.Request, fc flexvolume.Call, pid int) (c *call, end func()) {
	c = &call{
		Request: dsw.Request{Call: volume.Call{ID: r.ID}, Name: volume.Name{VG: fc.Options.VG, LV: fc.Options.LV}, Started: time.Duration(r.Started)},
		verb:    r.Verb, since: time.Now(), opts: fc.Options, pid: pid, parent: parentOf(pid, r.Parent),
	}
	// A call that is sent again has waited before: flexdriver counts from its start.
	now := n.Boot()
	if c.Started <= 0 || c.Started > now {
		c.Started = now
	}
	c.deadline = c.since.Add(max(n.Config.CallDeadline-(now-c.Started), time.Second))
	var cancel context.CancelFunc
	c.ctx, cancel = context.WithDeadlineCause(ctx, c.deadline, errDeadline)
	return c, func() { cancel(); c.parent.close() }
}

// unready explains the end of a call for which flexd was not ready.
func (n *Node) unready(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tableError != "" {
		err = errors.New(n.tableError)
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
	if log = log.WithField("answer", id).WithError(err); errors.Is(err, errCallerGone) {
		log.Info("abandoned")
	} else {
		log.Warn("failure")
	}
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
			err = fmt.Errorf("%w%s", err, shrinkAdvice)
		}
	case flexvolume.Unmount, flexvolume.UnmountDevice:
		c.Verb = volume.Release
		err = n.release(c, fc.Dir)
	case flexvolume.Reclaim:
		err = n.serveReclaim(c, volume.UUID(fc.UUID), fc.Dir)
	case flexvolume.ExpandVolume:
		// The controller's half; expandfs does the work.
	default:
		err = fmt.Errorf("the daemon does not serve this verb")
	}
	return device, attached, err
}

// shrinkAdvice is the other way out of an expansion that fails. Kubelet repeats it, and
// takes no mount of the claim for done before it has succeeded.
const shrinkAdvice = "; or lower spec.capacity.storage of the PersistentVolume, and the claim's request, to a size that is possible. " +
	"Until then running pods keep the volume, and no other pod of the claim starts"

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
