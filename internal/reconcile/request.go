package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// A Request is a frontend's request for one volume.
type Request struct {
	ID      string // unique among the requests that wait
	Verb    volume.Verb
	Title   string      // the frontend's name of the verb, for status
	Name    volume.Name // not for Release, which finds the mounts
	UUID    volume.UUID // Reclaim only
	Target  Target
	Options Options
	Caller  Caller
}

// A Target is the directory of a request: for Stage, Publish, Expand, Release and Reclaim.
type Target struct {
	Dir     string // as the mount table shows it
	Name    string // as the caller calls it
	Root    string // the frontend's directory that Dir lies below
	Global  string // Publish: where the frontend has staged the volume, "" = nowhere
	Refusal error  // why nothing may be mounted or extended there, and nothing unmounted without a claim
}

// Options are the options of the volume, and its pod.
type Options struct {
	Alias       string   // the frontend's own name for the volume, "" = none: EndLease knows only that
	Size        int64    // bytes, 0 = not given
	FSType      string   // "" = the filesystem that the volume has
	ReadOnly    bool     // the mount
	MkfsOptions []string // arguments for mkfs
	Attrs       []string // per-mount attributes such as noatime
	Super       []string // superblock options, sorted
	Pod         dsw.Pod  // Publish only
}

// A Caller is the process that waits for the answer.
type Caller struct {
	Started time.Duration  // when it asked first, on the boot clock: the newest request at a directory wins
	Alive   func() bool    // whether it still waits, beside the context of the request; nil = it does
	Mounts  MountNamespace // the mount namespace in which it uses the mount; nil = flexd's own
}

// A MountNamespace may be another than flexd's own.
type MountNamespace interface {
	Other() (bool, error)              // whether it is
	Table() (*mounttable.Table, error) // its mount table
}

// A Result is the answer to a request.
type Result struct {
	Volume string      // for people; beside an error, too, as far as it is known
	UUID   volume.UUID // likewise
	Pod    dsw.Pod     // of a mount or unmount, as far as it is known
	Device string      // Check, Activate: "" = there is none yet
	Exists bool        // Exists: the volume is here, active or not
}

var (
	// ErrDeadline is the cause of a context that ends at the deadline of its request.
	ErrDeadline = volume.WithCode(volume.InProgress, errors.New("its deadline passed"))
	// ErrStopping ends each request when flexd stops: the caller must ask the next flexd.
	ErrStopping = volume.WithCode(volume.Canceled, errors.New("flexd is stopping"))
	// ErrCallerGone is for the log: nothing waits for the answer.
	ErrCallerGone = volume.WithCode(volume.Canceled, errors.New("the caller hung up"))
)

// Do serves a request, and returns its result when it is observed, or an error. ctx ends
// when the caller does not wait any longer; its deadline, with ErrDeadline as the cause, is
// when the caller must have an answer.
func (n *Node) Do(ctx context.Context, r Request) (Result, error) {
	c := n.newCall(ctx, r)
	select {
	case <-n.ready: // until then nothing is known
	case <-ctx.Done():
		if callerGone(ctx) {
			return Result{Volume: c.title}, ErrCallerGone
		}
		return Result{Volume: c.title}, n.unready(context.Cause(ctx))
	}
	pod := n.podOf(c) // an unmount removes the claim that names the pod
	result, err := n.dispatch(c)
	if l := c.lane; l != nil && !l.byName {
		result.UUID = l.uuid
	}
	result.Volume, result.Pod = c.title, pod
	switch {
	case n.ctx.Err() != nil:
		err = ErrStopping
	case err != nil && callerGone(ctx):
		err = ErrCallerGone
	}
	return result, err
}

// callerGone reports whether the context of a request ended before its deadline.
func callerGone(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), ErrDeadline)
}

// podOf returns the pod of a mount or unmount.
func (n *Node) podOf(c *call) dsw.Pod {
	if c.asked.Options.Pod.UID != "" || c.Dir == "" {
		return c.asked.Options.Pod
	}
	return n.podAt(c.Dir)
}

func (n *Node) newCall(ctx context.Context, r Request) *call {
	o := r.Options
	c := &call{
		Request: dsw.Request{
			Call: volume.Call{ID: r.ID, Verb: r.Verb, Dir: r.Target.Dir, Global: r.Target.Global, ReadOnly: o.ReadOnly, FSType: o.FSType, Super: o.Super, Size: o.Size},
			Name: r.Name, Started: r.Caller.Started,
		},
		asked: r, since: time.Now(), ctx: ctx,
	}
	if r.Name.VG != "" {
		c.title = r.Name.String()
	}
	return c
}

// unready explains the end of a call before flexd was ready.
func (n *Node) unready(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tableError != "" {
		err = errors.New(n.tableError)
	}
	return volume.Errorf(volume.InProgress, "flexd has just started, and has not read the mount table yet: %w", err)
}

func (n *Node) dispatch(c *call) (result Result, err error) {
	switch c.Verb {
	case volume.Check, volume.Activate, volume.Stage, volume.Publish, volume.Expand:
		result.Device, err = n.setUp(c)
		n.served(c, err)
	case volume.EndLease:
		n.endLease(c.asked.Options.Alias)
	case volume.Exists:
		result.Exists, err = n.exists(c)
	case volume.Release:
		err = n.release(c)
	case volume.Reclaim:
		err = n.serveReclaim(c)
	default:
		err = volume.Errorf(volume.Invalid, "there is no verb %d", c.Verb)
	}
	return result, err
}

// served tells the auditor that kubelet has set up a volume, and so needs the mounts of its pods.
func (n *Node) served(c *call, err error) {
	switch {
	case err != nil || c.lane == nil:
	case c.Verb == volume.Publish:
		n.auditor.Served(c.lane.uuid, kubeName(c), c.Dir)
	case c.Verb == volume.Activate, c.Verb == volume.Stage: // of a pod that kubelet does not tell
		n.auditor.Served(c.lane.uuid, kubeName(c), "")
	}
}

// exists reports whether the volume is here, active or not.
func (n *Node) exists(c *call) (bool, error) {
	_, p, err := n.allowed(c)
	if err != nil {
		return false, err
	}
	lv, err := p.LookUp(c.ctx, c.Name)
	return err == nil && lv.Presence != volume.Absent, err
}
