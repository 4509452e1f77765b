package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// A kind is a command that several volumes may share.
type kind uint8

const (
	activate  kind = iota + 1
	exclusive      // activate in a shared group
	readers        // activate in a shared group, for reading on several nodes
	deactivate
	makeNodes
	tagging
)

// activates reports whether the volumes are active after the command.
func (k kind) activates() bool { return k == activate || k.locks() }

// locks reports whether the command takes the locks of the volumes.
func (k kind) locks() bool { return k == exclusive || k == readers }

var steps = map[kind]string{activate: "activate", exclusive: "activate", readers: "activate", deactivate: "deactivate", makeNodes: "make device nodes", tagging: "tag"}

// commands has the words of each command before the volumes. tagging runs several commands.
var commands = map[kind][]string{
	activate:   {"lvchange", "-y", "-ay", "-K"},
	exclusive:  {"lvchange", "-y", "-aey", "-K"},
	readers:    {"lvchange", "-y", "-asy", "-K"},
	deactivate: {"lvchange", "-y", "-an"},
	makeNodes:  {"vgmknodes"},
}

// A member is one volume that shares a command.
type member struct {
	name volume.Name // its current name in LVM
	uuid volume.UUID
	seen devmapper.Mapped // the device after an activation; valid when done is closed
	err  error            // valid when done is closed
	done chan struct{}

	record volume.Record // for tagging
	fsType string

	// The state before a command that takes locks:
	started time.Time // when the lockspace was started
	before  bool      // the volume had a device
}

// maxBatchMembers keeps the selection of the volumes, which is a single argument, well below
// the kernel's limit of 128 KiB for an argument.
const maxBatchMembers = 900

// join runs the command for a volume, together with other volumes of the group that wait for the
// same command. It returns this volume's own error, and its device after an activation. If ctx is
// done it returns before the command ends; begin refuses the volume until then.
func (g *group) join(ctx context.Context, k kind, name volume.Name, uuid volume.UUID) (devmapper.Mapped, error) {
	return g.share(ctx, k, &member{name: name, uuid: uuid})
}

// share is join for a member with further fields.
func (g *group) share(ctx context.Context, k kind, m *member) (devmapper.Mapped, error) {
	if err := g.blocked(); err != nil {
		return devmapper.Mapped{}, err
	}
	m.done = make(chan struct{})
	if err := g.p.begin(m); err != nil {
		return devmapper.Mapped{}, err
	}
	g.mu.Lock()
	if len(g.next[k]) == 0 {
		go g.runBatch(k) // #nosec G118 -- it outlives each of its requests
	}
	g.next[k] = append(g.next[k], m)
	g.mu.Unlock()
	select {
	case <-m.done:
		return m.seen, m.err
	case <-ctx.Done():
		return devmapper.Mapped{}, context.Cause(ctx)
	}
}

// begin marks a volume as being changed by a command. Operations on one volume never
// overlap, even if the caller of the first has stopped waiting.
func (p *Provider) begin(m *member) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if done, busy := p.inflight[m.uuid]; busy {
		return &run.LockedError{Step: "lvm", Done: done}
	}
	p.inflight[m.uuid] = m.done
	return nil
}

func (p *Provider) end(m *member, err error) {
	m.err = err
	p.mu.Lock()
	delete(p.inflight, m.uuid)
	p.mu.Unlock()
	close(m.done)
}

// runBatch waits for the group's turn, and runs the command for all members that have joined
// before it. A member that failed gets a command of its own, unless the error concerns all.
func (g *group) runBatch(k kind) {
	release, err := g.take(context.Background())
	g.mu.Lock()
	n := min(len(g.next[k]), maxBatchMembers)
	members, rest := g.next[k][:n], g.next[k][n:]
	if g.next[k] = append([]*member(nil), rest...); len(rest) > 0 {
		go g.runBatch(k)
	}
	g.mu.Unlock()
	for _, m := range g.runTurn(k, members, release, err) { // one at a time, so that each gets its own error
		release, err := g.take(context.Background())
		g.runTurn(k, []*member{m}, release, err)
	}
}

// runTurn runs the command for the members, or ends them with err if they did not get the turn. It
// returns the members that may succeed alone; the others have their results.
func (g *group) runTurn(k kind, members []*member, release func(), err error) (failed []*member) {
	if err != nil {
		for _, m := range members {
			g.p.end(m, err)
		}
		return nil
	}
	said, err := g.runTogether(k, members)
	release()
	for _, m := range members {
		own := g.verify(k, m, err, said)
		if own == nil || len(members) == 1 || concernsGroup(err) || refused(said, m) {
			g.releaseLock(k, m, own)
			g.p.end(m, own)
		} else {
			failed = append(failed, m)
		}
	}
	return failed
}

// concernsGroup reports whether the error concerns all volumes of the group, so that a retry with
// one volume would fail as well.
func concernsGroup(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.ofGroup() || hangs(err) || errors.As(err, new(*BlockedError))
}

// runTogether runs one command for the members, and returns its messages. The caller has the turn.
func (g *group) runTogether(k kind, members []*member) (said []byte, err error) {
	if k == tagging {
		return nil, g.writeTags(members)
	}
	if k.locks() {
		since, _ := g.lockspace()
		for _, m := range members {
			_, found, err := g.p.find(m.uuid)
			m.started, m.before = since, found || err != nil
		}
		defer g.invalidate()
	}
	if g.shared() && k != makeNodes {
		for _, m := range members {
			g.p.setMayHoldLock(m.uuid, true)
		}
	}
	res, err := g.change(steps[k], batchArgs(k, members), time.Duration(len(members))*perMember)
	return res.Stderr, err
}

// batchArgs returns the arguments of a command for several volumes. It names the volumes and also selects
// them by uuid, so that the command skips a name that belongs to another volume now.
func batchArgs(k kind, members []*member) []string {
	names, selected := selectAll(members)
	if k == makeNodes { // vgmknodes has no -S, and changes no volume
		selected = names
	}
	return slices.Concat(commands[k], selected)
}

// selectAll returns the names of volumes, in order, and the arguments that select these volumes.
func selectAll(members []*member) (names, args []string) {
	slices.SortFunc(members, func(a, b *member) int { return strings.Compare(a.name.LV, b.name.LV) })
	var uuids []string
	for _, m := range members {
		names = append(names, m.name.String())
		uuids = append(uuids, selection(m.uuid))
	}
	return names, append([]string{"-S", strings.Join(uuids, " || ")}, names...)
}

// verify returns the result of a command for one volume, as observed in device-mapper; cmdErr
// is the error of the command, and said its messages.
func (g *group) verify(k kind, m *member, cmdErr error, said []byte) error {
	if k == tagging {
		return g.verifyTags(m, cmdErr)
	}
	if k == makeNodes {
		return cmdErr // the caller checks the link
	}
	if hangs(cmdErr) {
		return cmdErr
	}
	d, found, err := g.p.find(m.uuid)
	if err != nil {
		return err
	}
	if k.locks() {
		if err := lockFailure(k, m, cmdErr, said); err != nil {
			if refused(said, m) {
				g.p.setMayHoldLock(m.uuid, false)
			}
			return err
		}
	}
	switch {
	case k.activates() && found && d.Live:
		if m.seen = d; k.locks() {
			g.noteLock(k, m)
		}
		return nil
	case k == deactivate && !found && unlockFailed(said, m):
		return fmt.Errorf("deactivate: its device is gone, but LVM could not release its lock, so that other nodes are refused (%s): when lvmlockd works again, lvchange -an %s", oneLine(said), m.name)
	case k == deactivate && !found && g.shared() && cmdErr != nil:
		return fmt.Errorf("deactivate: its device is gone, and LVM may have kept its lock: %w", cmdErr)
	case k == deactivate && !found:
		g.p.setMayHoldLock(m.uuid, false)
		return nil
	case cmdErr != nil:
		return fmt.Errorf("%s: %w", steps[k], cmdErr)
	case k.activates():
		return fmt.Errorf("activate: %w for %s (uuid %s)", errNoDevice, m.name, m.uuid)
	}
	return fmt.Errorf("deactivate: LVM reported success, but %s still exists: LVM has no volume %s with the uuid %s, or changes no devices (lvmconfig global/activation: 1 by default)", g.p.node(d), m.name, m.uuid)
}
