package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// enter adds the request of a call.
func (n *Node) enter(c *call) (committed volume.UUID, err error) {
	c.Owner = c
	return n.requests.Enter(&c.Request, n.Boot())
}

// await makes a lane serve a call, and waits for the answer.
func (n *Node) await(c *call, l *lane) error {
	if _, err := n.enter(c); err != nil {
		return err
	}
	defer n.requests.Leave(&c.Request)
	_, err := n.join(c, l)
	return err
}

// join makes a call wait for a lane, unless a committed mount has another one.
func (n *Node) join(c *call, l *lane) (string, error) {
	c.lane = l
	if n.requests.Bind(&c.Request, l.uuid) == l.uuid {
		l.wake()
	} else {
		n.rest(l)
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
	n.requests.Abandon(&c.Request, dsw.Answer{Err: n.explainEnd(c, context.Cause(c.ctx))})
	// If its mount is committed, the outcome is the answer.
	select {
	case a := <-c.Answered():
		return a.Device, a.Err
	case <-n.ctx.Done(): // the lane ends without an answer
		return "", context.Cause(n.ctx)
	case <-time.After(commitGrace):
		return "", volume.Errorf(volume.InProgress, "the mount was committed and the kernel has not answered: if it appears, it stays")
	}
}

// commitGrace is how long a committed mount may take beyond the deadline; callers wait that much
// longer.
const commitGrace = 20 * time.Second

// explainEnd explains why a call ends without success.
func (n *Node) explainEnd(c *call, err error) error {
	if !errors.Is(err, ErrDeadline) || c.ctx.Err() == nil {
		return err
	}
	if l := n.laneOf(n.requests.Bound(&c.Request)); l != nil {
		return l.timeoutReason()
	}
	return volume.Errorf(volume.InProgress, "not done within the call's time")
}

// timeoutReason describes the step or fact that a call waited for at its deadline.
func (l *lane) timeoutReason() error {
	child, dir := run.Holder(l.lock), l.mountedAt()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.woken != nil:
		return metadataTimeout(l.name.VG)
	case l.parked != nil:
		return volume.Errorf(volume.InProgress, "stuck: %s", l.parked.text())
	case l.waiting != nil:
		return volume.Errorf(volume.InProgress, "%s: has waited since %s: %s", l.waiting.stepName(), l.waiting.since.Format(time.TimeOnly), l.waiting.err.Error())
	case strings.HasPrefix(l.working, waitsForCheck):
		return volume.Errorf(volume.InProgress, "still %s: maxChecks fsck and mkfs of other volumes of %s are running; flexd status shows them, and since when: if one hangs, look at its disk and dmesg, or raise maxChecks", l.stepSince(), l.name.VG)
	case l.working == volume.Unmount.String():
		return volume.Errorf(volume.InProgress, "still running: %s%s; it continues, and the next call waits for it; %s", l.stepSince(), childState(child), slowHint(child, dir))
	case l.working != "":
		return volume.Errorf(volume.InProgress, "still preparing: %s%s; it continues, and the next call uses its result; %s", l.stepSince(), childState(child), slowHint(child, dir))
	}
	return volume.Errorf(volume.InProgress, "not done within the call's time")
}

// slowHint is the remedy for a step that may only be slow.
func slowHint(child *procfs.Waiting, dir string) string {
	if child != nil && child.Wchan == frozenWait {
		return stepHint(child.Wchan, dir)
	}
	return "if that takes too long, " + stepHint("", dir)
}

// metadataTimeout is the error of a call that was reading a group's metadata at its deadline.
func metadataTimeout(vg string) error {
	return volume.Errorf(volume.InProgress, "timed out reading the metadata of volume group %s; flexd status shows what it waits for", vg)
}

// stepSince returns the step and its start. The caller holds l.mu.
func (l *lane) stepSince() string {
	return fmt.Sprintf("%s since %s", l.working, l.since.Format(time.TimeOnly))
}

// childState names the child that runs a step, and its wait channel.
func childState(child *procfs.Waiting) string {
	switch {
	case child == nil:
		return ""
	case child.Wchan == "":
		return fmt.Sprintf(" (pid %d)", child.Pid)
	}
	return fmt.Sprintf(" (pid %d waits in %s)", child.Pid, child.Wchan)
}
