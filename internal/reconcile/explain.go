package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A Prediction is the expected outcome of a set-up.
type Prediction struct {
	Steps []volume.Step // of this set-up, in order
	Err   error         // why it would be refused; nil = it would succeed
	Known bool          // false: Err says why the outcome is not known
	Notes []string      // the assumptions beside the observation
}

// explainLimit bounds the observation for all requests of Explain.
const explainLimit = 15 * time.Second

// A simulated is a volume after the requests that were already explained.
type simulated struct {
	want    volume.Want
	have    volume.Have
	content volume.FS // the expected result of an inspection
	source  string    // a note about the source of content; "" = it follows from the steps
	notes   []string  // for the first request that needs the volume
}

// Explain returns the expected outcomes of set-ups (Check, Activate, Stage, Publish) that are
// requested one after the other, without other calls. It observes as a lane does, inspects no
// device, and changes nothing. The directory of a request may be missing, because kubelet would
// create it.
func (n *Node) Explain(ctx context.Context, requests []Request) []Prediction {
	ctx, cancel := context.WithTimeoutCause(ctx, explainLimit, ErrDeadline)
	defer cancel()
	all := make([]Prediction, len(requests))
	select {
	case <-n.ready:
	case <-ctx.Done():
		for i := range all {
			all[i].Err = n.unready(context.Cause(ctx))
		}
		return all
	}
	var dirs []string
	for _, r := range requests {
		dirs = withDirs(dirs, r.Target.Dir, r.Target.Global)
	}
	volumes := map[volume.Name]*simulated{}
	for i, r := range requests {
		c := n.newCall(ctx, r)
		all[i] = n.explain(c, dirs, volumes)
		err := all[i].Err
		open := waitingFor(err) != nil || slices.Contains([]volume.Code{volume.Unknown, volume.InProgress, volume.Canceled}, volume.CodeOf(err))
		all[i].Known = err == nil || !open
	}
	return all
}

// NewUnobserved returns a node that explains from the configuration alone. why is the reason why
// the node's state is unknown.
func NewUnobserved(live *config.Live, why error) *Node {
	log := logrus.New()
	log.SetOutput(io.Discard)
	providers := map[string]Provider{}
	for _, vg := range live.Get().VolumeGroups {
		providers[vg.Name] = unobserved{err: why}
	}
	n := New(Parts{Config: live, Log: logrus.NewEntry(log), Store: new(dsw.Store), Observer: asw.New(nil, nil, nil, nil), Providers: providers})
	close(n.ready)
	return n
}

// An unobserved provider knows no volume.
type unobserved struct {
	Provider
	err error
}

func (u unobserved) LookUp(context.Context, volume.Name) (volume.LV, error) {
	return volume.LV{}, u.err
}

func (u unobserved) Refresh(context.Context, string) error { return u.err }

func (n *Node) explain(c *call, dirs []string, volumes map[volume.Name]*simulated) (o Prediction) {
	vg, p, err := n.admit(c)
	if err != nil {
		return Prediction{Err: err}
	}
	s := volumes[c.Name]
	if s == nil {
		lv, err := n.lookUp(c.ctx, c, p)
		switch {
		case err != nil && volume.CodeOf(err) == volume.Unknown:
			return Prediction{Err: err, Notes: []string{ifAbsent(c, vg)}}
		case err != nil:
			return Prediction{Err: err}
		case lv.Presence == volume.Absent && createdLater(c, vg):
			return Prediction{Notes: []string{"the volume does not exist: a later call creates it"}}
		case lv.Presence == volume.Absent:
			s, o.Steps, err = n.ifCreated(c, p, lv, dirs)
		default:
			s, err = n.simulated(c, lv, dirs)
		}
		if err != nil {
			return Prediction{Err: err}
		}
		o.Notes, s.notes = s.notes, nil
	}
	f := volume.DryRun(s.want, s.have, c.Call, s.content)
	if i := slices.IndexFunc(f.Steps, func(step volume.Step) bool { return step.Kind == volume.ActivateDevice }); i >= 0 && f.Refused.Reason == "" {
		if why := n.wouldWait(c.ctx, p, s.have.LV); why != nil {
			if o.Steps, o.Err = append(o.Steps, f.Steps[:i+1]...), why; errors.As(why, new(*volume.WaitError)) {
				o.Err = fmt.Errorf("it would wait: %w", why)
			}
			return o
		}
	}
	o.Steps = append(o.Steps, f.Steps...)
	inspects := slices.ContainsFunc(f.Steps, func(step volume.Step) bool { return step.Kind == volume.Inspect })
	if inspects && s.source != "" {
		o.Notes, s.source = append(o.Notes, s.source), ""
	}
	switch {
	case f.Refused.Reason != "":
		o.Err = volume.Errorf(f.Refused.Code, "%s", f.Refused.Reason)
	case f.Done:
		s.want, s.have = f.Want, f.Have
		volumes[c.Name] = s
		if inspects {
			s.content = f.Have.FS
			s.content.Use = volume.Unused
		}
	case inspects:
		o.Err = volume.Errorf(volume.Unknown, "the outcome depends on the volume's content, which flexd has not read: a blank volume gets %s, %s, anything else is refused", cmp.Or(c.FSType, volume.DefaultFSType), mountable(c.FSType))
	default:
		o.Err = volume.Errorf(volume.Unknown, "it would wait, for an unknown time")
	}
	return o
}

// An ActivationChecker is a provider that can check, without trying it, whether an activation would wait (a
// *volume.WaitError) or fail.
type ActivationChecker interface {
	WouldWait(ctx context.Context, lv volume.LV) error
}

// wouldWait returns why the activation of a volume waits now, or would wait or fail; nil = no reason is known.
func (n *Node) wouldWait(ctx context.Context, p Provider, lv volume.LV) error {
	if l := n.laneOf(lv.UUID); l != nil {
		l.mu.Lock()
		w := l.waiting
		l.mu.Unlock()
		if w != nil {
			return w.err
		}
	}
	if f, ok := p.(ActivationChecker); ok {
		return f.WouldWait(ctx, lv)
	}
	return nil
}

func mountable(fsType string) string {
	if fsType == "" {
		return "a filesystem of ext4, xfs or btrfs is mounted"
	}
	return fsType + " is mounted"
}

// ifAbsent describes the outcome for a call whose volume is unknown, if the volume does not exist.
func ifAbsent(c *call, vg *config.VolumeGroup) string {
	switch why := createRefusal(c, vg); {
	case createdLater(c, vg):
		return "if the volume does not exist, a later call creates it"
	case why.Reason != "":
		return "if the volume does not exist, the call is refused: " + why.Reason
	}
	return fmt.Sprintf("if the volume does not exist, flexd creates it with %s", status.Size(c.Size))
}

// ifCreated returns a volume after its creation, and the steps of the creation.
func (n *Node) ifCreated(c *call, p Provider, lv volume.LV, dirs []string) (*simulated, []volume.Step, error) {
	f := volume.DryRun(volume.Want{}, n.stateOfName(c.Name, lv, nil), n.withConfig(c.part(c.ctx, volume.Create)), volume.FS{})
	if f.Refused.Reason != "" {
		return nil, nil, volume.Errorf(f.Refused.Code, "%s", f.Refused.Reason)
	}
	if err := p.CanCreate(c.ctx, c.Name, c.Size, c.asked.Options.Pod.Namespace); err != nil {
		return nil, nil, atStep(volume.CreateVolume.String(), n.withAdvice(err))
	}
	lv = f.Have.LV
	lv.UUID = ""
	s, err := n.simulated(c, lv, dirs)
	if err != nil {
		return nil, nil, err
	}
	s.have.LV, s.have.Record, s.have.RecordReason = lv, volume.NoRecord, ""
	s.have.Device = volume.Device{Activity: volume.Inactive}
	s.content, s.source = volume.FS{Content: volume.Blank, Use: volume.Unused}, ""
	return s, f.Steps, nil
}

// simulated returns a volume before the requests, as observed.
func (n *Node) simulated(c *call, lv volume.LV, dirs []string) (*simulated, error) {
	table, err := n.table(c.ctx, c.Dir)
	if err != nil {
		return nil, err
	}
	l := n.laneOrIdle(lv.UUID, c.Name)
	l.mu.Lock()
	parked, working, broken := l.parked, l.working, l.broken
	l.mu.Unlock()
	if parked != nil {
		return nil, volume.Errorf(volume.InProgress, "stuck: %s", parked.text())
	}
	s := &simulated{want: l.want()}
	if working != "" {
		s.notes = append(s.notes, fmt.Sprintf("%s runs on the volume at this moment: the call waits for its end", working))
	}
	s.want.Calls = nil
	t := l.target(s.want)
	t.Name = c.Name
	t.Dirs = withDirs(t.Dirs, dirs...)
	s.have = n.Observer.Assemble(c.ctx, t, table)
	s.have.Device.Relatives = n.withNotes(s.have.Device.Relatives)
	if len(s.have.Mounts) > 0 {
		if broken.Content == volume.Truncated && broken.Size > s.have.Device.Size || broken.Content == volume.FilesystemFailed {
			s.have.FS = broken
		}
		return s, nil
	}
	if s.have.Record == volume.Seen {
		s.content = volume.FS{Content: volume.Filesystem, Type: s.have.RecordType}
		s.source = fmt.Sprintf("assumed: it holds the %s that flexd has mounted before, and nothing else uses its device", s.have.RecordType)
	}
	s.content.Use = volume.Unused
	return s, nil
}
