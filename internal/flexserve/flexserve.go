// Package flexserve is the FlexVolume frontend of the daemon: it translates each call that
// flexdriver forwards into a reconcile.Request, and the result into an answer for kubelet.
// The packages below it do not know FlexVolume's verbs, options and modes.
package flexserve

import (
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
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// Verbs are the verbs that a Frontend answers.
var Verbs = []string{
	flexvolume.Attach, flexvolume.Detach, flexvolume.WaitForAttach, flexvolume.IsAttached, flexvolume.MountDevice, flexvolume.UnmountDevice,
	flexvolume.Mount, flexvolume.Unmount, flexvolume.ExpandVolume, flexvolume.ExpandFS, flexvolume.Reclaim,
	flexvolume.LockspaceLost,
}

// A Frontend answers FlexVolume calls.
type Frontend struct {
	Config *config.Live
	Log    *logrus.Entry
	Boot   func() time.Duration // time since boot, suspended time included
	Self   Namespaces

	Refusals         // the last failures
	History  History // nil = none
	Node     interface {
		Do(ctx context.Context, r reconcile.Request) (reconcile.Result, error)
		Explain(ctx context.Context, requests []reconcile.Request) []reconcile.Prediction
		Lose(ctx context.Context, vg string) error
	}
}

// A History records events.
type History interface {
	Record(e status.Event)
	// Begin adds a waiting call, until done is called.
	Begin(e status.Event) (done func())
}

// Serve answers one FlexVolume call. ctx is canceled when flexdriver closes the connection;
// pid is flexdriver's, or 0 if it is unknown.
func (f *Frontend) Serve(ctx context.Context, q flexvolume.Request, pid int) flexvolume.Answer {
	if q.Verb == flexvolume.LockspaceLost && len(q.Args) == 1 {
		if err := f.Node.Lose(ctx, q.Args[0]); err != nil { // it logs, and records events
			return flexvolume.Refusal(string(volume.CodeOf(err)), err.Error())
		}
		return flexvolume.Success()
	}
	since := time.Now()
	fields := logrus.Fields{"call": q.ID, "verb": q.Verb}
	call, err := flexvolume.Parse(q.Verb, q.Args)
	if q.Verb == flexvolume.Reclaim {
		call, err = flexvolume.ParseReclaim(q.Args)
	}
	title := volumeOf(call)
	if title != "" {
		fields["volume"] = title
	}
	if call.Dir != "" {
		fields["dir"] = call.Dir
	}
	if p := call.Options.Pod; p.Name != "" {
		fields["pod"] = p.Namespace + "/" + p.Name
	}
	event := event(q, call)
	if err != nil {
		return f.refused(f.Log.WithFields(fields), event, call, title, volume.WithCode(volume.Invalid, err))
	}
	f.debug(fields)
	if a, ok := f.withoutVolume(call); ok {
		f.Log.WithFields(fields).Info("success")
		return a
	}
	caller, leave := f.caller(q, pid)
	defer leave()
	ctx, cancel := context.WithDeadlineCause(ctx, since.Add(max(f.Config.Get().CallDeadline-(f.Boot()-caller.Started), time.Second)), reconcile.ErrDeadline)
	defer cancel()
	r := f.request(q, call, caller)
	if r.Target.Dir != "" {
		event.Dir = r.Target.Dir
	}
	if f.History != nil {
		defer f.History.Begin(event)()
	}
	result, err := f.Node.Do(ctx, r)
	if err != nil && call.Verb == flexvolume.ExpandFS && ctx.Err() == nil && !slices.Contains(transient, volume.CodeOf(err)) {
		err = fmt.Errorf("%w%s", err, shrinkAdvice)
	}
	if result.Volume != "" {
		title, fields["volume"] = result.Volume, result.Volume
	}
	if vg, lv, named := strings.Cut(title, "/"); named {
		event.VG, event.LV = vg, lv
	}
	event.UUID, event.Pod = string(result.UUID), reconcile.EventPod(result.Pod)
	if p := result.Pod.String(); p != "" {
		fields["pod"] = p
	}
	event.Duration = time.Since(since).Seconds()
	fields["took"] = time.Since(since).Round(time.Millisecond / 10)
	log := f.Log.WithFields(fields)
	switch {
	case errors.Is(err, reconcile.ErrStopping):
		log.Info("not answered, flexd stops: the caller will ask the next one")
		return flexvolume.Answer{}
	case err != nil:
		return f.refused(log, event, call, title, err)
	}
	log.Info("success")
	if call.Verb != flexvolume.IsAttached { // it changes nothing, and kubelet repeats it each minute
		f.record(event)
	}
	f.succeeded(call, title)
	a := flexvolume.Success()
	switch call.Verb {
	case flexvolume.Attach, flexvolume.WaitForAttach:
		a.Device = result.Device
	case flexvolume.IsAttached:
		a.Attached = &result.Exists
	}
	return a
}

// withoutVolume answers calls that concern no volume of this node.
func (f *Frontend) withoutVolume(call flexvolume.Call) (flexvolume.Answer, bool) {
	a := flexvolume.Success()
	switch call.Verb {
	case flexvolume.Attach, flexvolume.Detach, flexvolume.IsAttached:
		if call.Verb == flexvolume.IsAttached {
			a.Attached = new(true)
		}
		return a, call.Node != f.Config.Get().NodeName // flexd knows only its own node
	case flexvolume.ExpandVolume: // called by the controller manager; expandfs expands the volume
		return a, true
	}
	return a, false
}

// request translates a call into a request.
func (f *Frontend) request(q flexvolume.Request, call flexvolume.Call, caller reconcile.Caller) reconcile.Request {
	o := call.Options
	r := reconcile.Request{
		ID: q.ID, Title: q.Verb, Name: volume.Name{VG: o.VG, LV: o.LV}, UUID: volume.UUID(call.UUID), Caller: caller,
		Options: reconcile.Options{
			Alias: call.Name, Size: o.Size, FSType: o.FSType, ReadOnly: o.ReadOnly, MkfsOptions: o.MkfsOptions, Attrs: o.Attrs, Super: o.Super,
			Pod: dsw.Pod{Namespace: o.Pod.Namespace, Name: o.Pod.Name, UID: o.Pod.UID},
		},
	}
	switch call.Verb {
	case flexvolume.Attach:
		r.Verb = volume.Check
	case flexvolume.Detach:
		r.Verb = volume.EndLease
	case flexvolume.IsAttached:
		r.Verb = volume.Exists
	case flexvolume.WaitForAttach:
		r.Verb = volume.Activate
	case flexvolume.MountDevice:
		r.Verb = volume.Stage
		// The global mount is writable even for a read-only pod: a later pod may write.
		r.Options.ReadOnly = false
	case flexvolume.Mount:
		r.Verb = volume.Publish
	case flexvolume.ExpandFS:
		r.Verb, r.Options.Size = volume.Expand, call.NewSize
	case flexvolume.Unmount, flexvolume.UnmountDevice:
		r.Verb = volume.Release
	case flexvolume.Reclaim:
		r.Verb, r.Target.Dir = volume.Reclaim, call.Dir // a directory reported by flexd, already resolved
		return r
	}
	if call.Dir != "" {
		r.Target = f.target(call.Dir, r.Verb)
	}
	if r.Verb == volume.Publish {
		r.Target.Global = kubelet.GlobalDir(r.Target.Root, f.Config.Get().Driver, o.Name)
	}
	return r
}

// kindOfVerb has the kind of mount that a verb makes at its directory.
var kindOfVerb = map[volume.Verb]volume.Kind{volume.Stage: volume.Staged, volume.Publish: volume.Published}

// target resolves a directory of kubelet to its path in the mount table.
func (f *Frontend) target(dir string, verb volume.Verb) (t reconcile.Target) {
	layout := kubelet.Layout{Dirs: f.Config.Get().KubeletRoots, Driver: f.Config.Get().Driver}
	t.Name = dir
	t.Dir, t.Root, t.Refusal = layout.Resolve(dir)
	if verb == volume.Release && layout.AnyRoot(t.Dir).Kind != "" {
		t.Refusal = nil
	}
	kind := kindOfVerb[verb]
	if t.Refusal == nil && kind != "" && layout.Place(t.Root, t.Dir).Kind != kind { // such a mount counts as another driver's
		t.Refusal = fmt.Errorf("%s is not one of kubelet's directories for volumes of the driver %s: if kubelet calls flexd by another name, correct `driver` in flexd's configuration and restart flexd", dir, layout.Driver)
		if link := layout.Link(dir); link != "" {
			t.Refusal = fmt.Errorf("%s leads to %s, because %s is a symbolic link: only the path of kubelet's root directory may have one. Make it a directory again, and bind what it leads to there (mount --bind)", dir, t.Dir, link)
		}
	}
	if t.Refusal != nil {
		t.Refusal = volume.WithCode(volume.NotAllowed, t.Refusal)
	}
	return t
}

// shrinkAdvice is the remedy for an expansion that cannot succeed, whatever its cause. Kubelet retries it, and
// mounts the PersistentVolumeClaim's volume for no other pod until it succeeds.
const shrinkAdvice = "; if that size is not possible, or not needed, lower spec.capacity.storage of the PersistentVolume, and the claim's request. " +
	"Until then running pods keep the volume, and no other pod of the claim starts"

// transient has the codes of causes that usually end without a change of the size.
var transient = []volume.Code{volume.Busy, volume.InProgress, volume.Unknown, volume.Superseded, volume.Canceled}

// volumeOf returns the volume that a call names, or "".
func volumeOf(call flexvolume.Call) string {
	if call.Options.VG == "" || call.Options.LV == "" {
		return ""
	}
	return call.Options.VG + "/" + call.Options.LV
}

// message returns the text of a failure: the volume, the step and the cause.
func message(verb, title string, err error) string {
	text := verb + ": " + strings.TrimPrefix(err.Error(), verb+": ") // "mount" is both a verb and a step
	if title != "" {
		text = title + ": " + text
	}
	return text
}

// refused logs a failure and returns the answer: an id that is also in the log, the
// volume, the step and the cause. Kubelet counts answers with equal text in one event, so
// the id is a hash of the text, and err must not change while the cause is the same.
func (f *Frontend) refused(log *logrus.Entry, event status.Event, call flexvolume.Call, title string, err error) flexvolume.Answer {
	text := message(call.Verb, title, err)
	h := fnv.New64a()
	h.Write([]byte(text))
	answer := fmt.Sprintf("%012x", h.Sum64()>>16)
	code := volume.CodeOf(err)
	// The id comes first, because kubelet may truncate a long text.
	refusal := flexvolume.Refusal(string(code), fmt.Sprintf("[%s] %s", answer, text))
	log = log.WithField("answer", answer).WithField("code", code).WithError(err)
	if errors.Is(err, reconcile.ErrCallerGone) {
		log.Info("abandoned")
		return refusal
	}
	log.Warn("failure")
	event.Code, event.Message, event.Answer = string(code), err.Error(), answer
	f.record(event)
	// A superseded call may be answered after the newer one has succeeded.
	if code != volume.Superseded {
		f.failed(call, title, status.RefusedCall{Code: string(code), Message: err.Error(), CallID: event.CallID, Answer: answer}, time.Now())
	}
	return refusal
}

// event returns the event of a call, without its result.
func event(q flexvolume.Request, call flexvolume.Call) status.Event {
	o := call.Options
	return status.Event{
		Type: status.CallEvent, Verb: q.Verb, CallID: q.ID, VG: o.VG, LV: o.LV, Dir: call.Dir,
		Pod: reconcile.EventPod(dsw.Pod{Namespace: o.Pod.Namespace, Name: o.Pod.Name, UID: o.Pod.UID}),
	}
}

func (f *Frontend) record(e status.Event) {
	if f.History != nil {
		f.History.Record(e)
	}
}

func (f *Frontend) debug(fields logrus.Fields) {
	if f.Log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		f.Log.WithFields(fields).Debug("call")
	}
}
