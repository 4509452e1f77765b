package lvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// The time after which a command that changes something is reported as stuck, and how long a command
// may wait for earlier ones. flexd kills none of them.
const (
	changeDeadline = 2 * time.Minute // at most half of a call's time
	perMember      = time.Second     // more for each volume that shares a command
	queueDeadline  = 4 * time.Minute
)

// earlierTimeout is the time after which a command of an earlier flexd counts as hanging.
const earlierTimeout = 20 * time.Second

// A group is the queue of one volume group: commands that change its metadata, or activate
// its volumes, run one after the other, since LVM's own lock allows no more.
type group struct {
	name string
	lock string // the lock file that each of these commands holds while it runs
	p    *Provider
	turn chan struct{} // a semaphore of size 1; full while a caller has the turn

	confirmed atomic.Pointer[Facts] // the facts that a survey has compared with the devices twice

	seen map[string]string // the disks of a diskNote; only for the running report; nil = the note was not read yet

	mu      sync.Mutex
	clock   uint64 // guarded by mu, like the fields below
	gen     uint64 // counts possible changes of the metadata
	last    *look  // the last successful one
	running *look
	known   *Facts             // the last facts, however old
	at      time.Time          // when they were read
	next    map[kind][]*member // the members of the next command: all that arrive before it gets the turn
	unhint  bool               // the group once lacked a disk: LVM's hints may exclude it after its return
	block   *Block             // a command that hangs, or nil
	grace   time.Time          // when block, of an earlier flexd, starts to count as hanging
}

// lastFacts returns the last facts, however old; nil = the group was not read yet.
func (g *group) lastFacts() *Facts {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known
}

// unchanged reports that the facts are those of the last report, and no event has reported a change since.
func (g *group) unchanged(f *Facts) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.last
	return l != nil && l.facts == f && l.gen == g.gen && l.watched && g.p.watch.Load() != nil
}

// blocked returns an error while a command hangs.
func (g *group) blocked() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.block == nil || time.Now().Before(g.grace) {
		return nil
	}
	return &BlockedError{VG: g.name, Block: *g.block}
}

// recordHang opens the circuit breaker if the error says that a command hangs. The breaker closes
// when that command has ended.
func (g *group) recordHang(err error) {
	if stuck, ok := errors.AsType[*run.StuckError](err); ok {
		pids := []int{stuck.Pid}
		stuck.For = waitsFor(g.name, pids, stuck.Wchan)
		g.open(&Block{Step: stuck.Step, Pids: pids, Since: stuck.Since, Wchan: stuck.Wchan, For: stuck.For, Done: stuck.Done})
	} else if locked, ok := errors.AsType[*run.LockedError](err); ok {
		g.open(g.earlierBlock(locked.Pids, &locked.Child, locked.Done))
	}
}

func (g *group) open(b *Block) {
	b.Disks, b.Suspended = g.p.unresponsiveDisks()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.block != nil || b.Done == nil {
		return
	}
	g.block = b
	go func() {
		<-b.Done
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.block == b {
			g.block, g.grace = nil, time.Time{}
		}
		g.gen++ // it may have changed the metadata
	}()
}

// adoptEarlier opens the circuit breaker if a command of an earlier flexd still runs, and does not end
// within earlierTimeout, as most do.
func (g *group) adoptEarlier() {
	if b := g.earlierCommand(); b != nil {
		g.grace = time.Now().Add(earlierTimeout)
		g.open(b)
	}
}

// earlierCommand returns the command of an earlier flexd that still runs, or nil.
func (g *group) earlierCommand() *Block {
	if g.p.Options.Earlier != nil {
		return g.p.Options.Earlier(g.lock)
	}
	free, pids, err := run.LockFree(g.lock)
	if err != nil || free {
		return nil
	}
	return g.earlierBlock(pids, run.Holder(g.lock), run.LockDone(g.lock))
}

// earlierBlock describes a command that an earlier flexd started.
func (g *group) earlierBlock(pids []int, child *procfs.Waiting, done <-chan struct{}) *Block {
	b := &Block{Step: "an LVM command of an earlier flexd", Pids: pids, Volumes: named(pids), Done: done}
	if child != nil {
		b.Since, b.Wchan = child.Since, child.Wchan
	}
	b.For = waitsFor(g.name, pids, b.Wchan)
	return b
}

// unblocked waits for the command of an earlier flexd until it counts as hanging. It fails while a
// command hangs.
func (g *group) unblocked(ctx context.Context) error {
	g.mu.Lock()
	b, left := g.block, time.Until(g.grace)
	g.mu.Unlock()
	if b == nil || left <= 0 {
		return g.blocked()
	}
	limit := time.NewTimer(left)
	defer limit.Stop()
	select {
	case <-b.Done:
	case <-limit.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return g.blocked()
}

// named returns the volumes on the command lines of processes.
func named(pids []int) []string {
	var all []string
	for _, pid := range pids {
		for _, word := range procfs.Process(pid).Args() {
			vg, lv, ok := strings.Cut(word, "/")
			if ok && checkName(vg) == nil && checkName(lv) == nil {
				all = append(all, vg+"/"+lv)
			}
		}
	}
	return all
}

// Earlier returns the command of an earlier flexd that still changes a volume, or nil.
func (p *Provider) Earlier(name volume.Name) *run.LockedError {
	g, err := p.group(name.VG)
	if err != nil {
		return nil
	}
	if b := g.changing(name); b != nil {
		return &run.LockedError{Step: b.Step, Pids: b.Pids, Done: b.Done}
	}
	return nil
}

// changing returns the command of an earlier flexd that still changes a volume, or nil.
func (g *group) changing(name volume.Name) *Block {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.block != nil && slices.Contains(g.block.Volumes, name.String()) {
		return g.block
	}
	return nil
}

// take waits for the turn of the caller. The caller ends its turn with release.
func (g *group) take(ctx context.Context) (release func(), err error) {
	if g.p.Waited != nil {
		defer func(began time.Time) { g.p.Waited(g.name, time.Since(began)) }(time.Now())
	}
	if err := g.unblocked(ctx); err != nil {
		return nil, err
	}
	limit := time.NewTimer(queueDeadline)
	defer limit.Stop()
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-limit.C:
		return nil, &Error{VG: g.name, Kind: ErrFailed, Text: fmt.Sprintf("waited %s for earlier LVM commands", queueDeadline), Err: context.DeadlineExceeded}
	}
	release = func() { <-g.turn }
	if err := g.blocked(); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// change runs one command that changes something, with more time than usual. The caller has
// the turn.
func (g *group) change(step string, args []string, more time.Duration) (run.Result, error) {
	// It runs to its end, so it does not use a caller's context.
	ctx := context.Background()
	scope, err := g.p.scopeOf(ctx, g)
	if err != nil {
		return run.Result{}, &Error{VG: g.name, Kind: ErrFailed, Text: err.Error(), Err: err}
	}
	argv := slices.Concat([]string{"lvm", args[0]}, scope.words(""), args[1:])
	res, err := g.p.Runner.Run(ctx, run.Cmd{Step: step, Argv: argv, Lock: g.lock, Deadline: g.p.commandTimeout + more, NoKill: true, Mutates: true})
	if err == nil {
		return res, nil
	}
	g.recordHang(err)
	switch {
	case hangs(err):
		return res, err // its volumes stay parked until it ends
	case errors.As(err, new(*run.LockedError)):
		return res, cmp.Or(g.blocked(), err)
	}
	if err = classify(g.name, err, res.Stderr); errors.Is(err, ErrDuplicate) {
		g.invalidate() // no event reports a copy
	}
	return res, g.mustWait(err)
}

// waitsFor describes the lock or daemon that an LVM command waits for; "" = not known.
func waitsFor(vg string, pids []int, wchan string) string {
	if strings.Contains(wchan, "semtimedop") {
		return "udev (restart systemd-udevd; if that does not help: dmsetup udevcomplete_all)"
	}
	pid, who := lockHolder(vg)
	if who == "" || slices.Contains(pids, pid) {
		return ""
	}
	return fmt.Sprintf("LVM's lock of %s, which %s holds", vg, who)
}

// lockHolder returns the process that holds LVM's own lock of a group; who is "" if there
// is none.
func lockHolder(vg string) (pid int, who string) {
	var st unix.Stat_t
	if err := unix.Lstat("/run/lock/lvm/V_"+vg, &st); err != nil {
		return 0, ""
	}
	p, ok := procfs.LockHolder(uint64(st.Dev), st.Ino)
	if !ok {
		return 0, ""
	}
	return int(p), fmt.Sprintf("pid %d (%s)", p, p.Comm())
}
