package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
)

// reportDeadline is the time after which a report is killed, which is safe because it only reads. Two
// reports (see readMetadata) take at most half of a call's time.
const reportDeadline = time.Minute

// reportSize is the maximum length of a report, with half a kilobyte for each volume. A longer report
// is an error; it is not truncated.
const reportSize = 64 << 20

// unwatchedFactsAge is the maximum age of facts while some of their disks are not watched.
const unwatchedFactsAge = 30 * time.Second

// A look is one report of a group. All readers that need a report that began after their request
// share it.
type look struct {
	began uint64 // on the group's clock
	gen   uint64 // the group's generation when it began
	done  chan struct{}
	facts *Facts
	err   error

	watched bool // every change of these facts is reported
}

// look returns the metadata: the last facts if nothing has changed since, unless fresh asks
// for a report that begins after now. kept reports that no report was needed.
func (g *group) look(ctx context.Context, fresh bool) (f *Facts, kept bool, err error) {
	g.mu.Lock()
	g.clock++
	mark := g.clock
	g.mu.Unlock()
	for {
		g.mu.Lock()
		if l := g.last; l != nil && l.gen == g.gen {
			kept := l.began < mark
			if !kept || !fresh && (l.watched && g.p.watch.Load() != nil || time.Since(g.at) < unwatchedFactsAge) && !l.facts.resized() {
				g.mu.Unlock()
				return l.facts, kept, nil
			}
		}
		l := g.running
		if l == nil {
			g.clock++
			l = &look{began: g.clock, gen: g.gen, done: make(chan struct{})}
			g.running = l
			go g.report(l) // #nosec G118 -- it outlives each of its requests
		}
		// Unless fresh is set, a running look suffices if it succeeds and nothing has changed
		// since its start. If it fails, for example at its deadline, a retry may succeed.
		mine, will := l.began > mark, !fresh && l.gen == g.gen
		g.mu.Unlock()
		select {
		case <-l.done:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
		if mine || will && l.err == nil {
			return l.facts, false, l.err
		}
	}
}

func (g *group) report(l *look) {
	l.facts, l.err = g.readMetadata(context.Background())
	unseen := false
	if w := g.p.watch.Load(); w != nil && l.err == nil {
		unseen, l.watched = w.follow(l.facts)
		l.watched = l.watched && !g.shared() // no event reports changes by another node
	}
	if l.err == nil {
		var list []devmapper.Mapped
		if list, l.err = g.p.DM.List(); l.err == nil {
			l.facts.place, l.facts.unplaced = l.facts.placed()
			l.facts.recordLosses()
			l.facts.unknown, _ = g.p.unknownDevices(l.facts, list) // checkFree has the error; see takenBy
			l.facts.taken, l.facts.contradicts = g.p.takenBy(l.facts, list)
		}
	}
	g.mu.Lock()
	g.running = nil
	switch {
	case l.err == nil:
		g.last, g.known, g.at = l, l.facts, time.Now()
	case notShown(l.err): // also without a change of the metadata, as after one of lvm.conf
		g.last = nil
	}
	if unseen {
		g.gen++
	}
	g.mu.Unlock()
	close(l.done)
}

// notShown reports whether LVM does not show the group to this machine.
func notShown(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && slices.Contains([]error{ErrNoVG, ErrForeignSystem, ErrShared, ErrExported, ErrTwoVGs, ErrDuplicate}, e.Kind)
}

// readMetadata runs the report. It waits for a command of an earlier flexd. It does not wait for
// flexd's own commands, for which LVM's lock suffices, nor hold the lane's lock.
func (g *group) readMetadata(ctx context.Context) (*Facts, error) {
	if err := g.unblocked(ctx); err != nil {
		return nil, err
	}
	scope, err := g.p.scopeOf(ctx, g)
	if err != nil {
		return nil, &Error{VG: g.name, Kind: ErrFailed, Text: err.Error(), Err: err}
	}
	f, err := g.read(ctx, scope)
	if lacks := errors.Is(err, ErrNoVG) || err == nil && f.Missing > 0; lacks && g.ignoreHints() {
		return g.readMetadata(ctx)
	}
	if !hangs(err) {
		return f, err
	}
	// The report may wait for a disk that has stopped responding since. A second report, which excludes
	// that disk, succeeds unless the disk belongs to the group.
	if now, err := g.p.scopeOf(ctx, g); err == nil && len(without(now.excluded, scope.excluded)) > 0 {
		if f, err := g.read(ctx, now); err == nil {
			return f, nil
		}
	}
	g.recordHang(err)
	if blocked := g.blocked(); blocked != nil {
		return nil, blocked
	}
	return nil, classify(g.name, err, nil) // the command has ended meanwhile
}

// read runs one report. A *run.StuckError is returned as it is.
func (g *group) read(ctx context.Context, scope scope) (*Facts, error) {
	began := time.Now()
	res, err := g.p.Runner.Run(ctx, run.Cmd{Step: "lvm report", Argv: reportArgs(scope, g.name), Deadline: g.p.within(2*reportDeadline) / 2, MaxOut: reportSize})
	if err != nil {
		if hangs(err) {
			return nil, err
		}
		if exit, ok := errors.AsType[*run.ExitError](err); ok && errors.Is(exit.Err, context.DeadlineExceeded) {
			if _, who := lockHolder(g.name); who != "" {
				return nil, &Error{VG: g.name, Kind: ErrLocked, Text: "LVM's lock of it is held by " + who, Err: err}
			}
		}
		if err = classify(g.name, err, res.Stderr); errors.Is(err, ErrNoVG) && len(scope.unsure) > 0 {
			return nil, &Error{VG: g.name, Kind: ErrFailed, Text: scope.incomplete().Error()} // its disks may be excluded
		}
		return nil, err
	}
	f, err := parseReport(res.Stdout, g.name)
	if err != nil {
		return nil, &Error{VG: g.name, Kind: ErrFailed, Text: fmt.Sprintf("%v (LVM said: %s)", err, oneLine(res.Stderr)), Err: err}
	}
	f.read, f.host = began, g.p.Host
	f.unfit, f.unlocked = g.unfit(f), g.unlocked(f, res.Stderr)
	missing := 0
	if last := g.lastFacts(); last != nil {
		missing = last.Missing
	}
	if len(scope.unsure) > 0 && f.Missing > missing {
		return nil, &Error{VG: g.name, Kind: ErrFailed, Text: scope.incomplete().Error()}
	}
	twice := f.twice(res.Stderr)
	f.duplicate = g.duplicate(ctx, twice)
	if err := g.checkOriginals(f, scope.silent, twice); err != nil {
		return nil, &Error{VG: g.name, Kind: ErrFailed, Text: err.Error(), Err: err}
	}
	return f, nil
}

// invalidate makes the next reader run a report.
func (g *group) invalidate() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gen++
}
