package loopdev

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// A scan has the loop devices that had a backing file at one moment, by name.
type scan struct {
	began   uint64 // on the provider's clock
	done    chan struct{}
	end     time.Time
	err     error
	loops   []Loop
	byFile  map[string][]string
	byUUID  map[volume.UUID][]string
	byInode map[Inode][]string
	byBase  map[string][]uint64 // the diskseqs of known devices by the last part of their file's path
	newest  uint64              // the largest diskseq
	checked uint64              // devices up to this diskseq were attached before the scan began, and were asked
	silent  []string            // devices without an answer about their identity
}

// look returns a scan that begins after the call. All waiting calls share one, so that
// observing all volumes needs no scan for each.
func (p *Provider) look(ctx context.Context) (*scan, error) {
	p.mu.Lock()
	p.clock++
	called := p.clock
	for {
		s := p.scanning
		if s == nil {
			s = &scan{done: make(chan struct{})}
			p.scanning = s
			p.mu.Unlock()
			p.gather(ctx)
			p.scan(ctx, s)
		} else {
			p.mu.Unlock()
			select {
			case <-s.done:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		if s.began > called {
			return s, s.err
		}
		p.mu.Lock()
	}
}

// gather waits briefly after the last scan, so that callers share the next one. It does not
// wait if the last scan is long past.
func (p *Provider) gather(ctx context.Context) {
	p.mu.Lock()
	pause := time.Until(p.nextScan)
	p.mu.Unlock()
	if pause <= 0 {
		return
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (p *Provider) scan(ctx context.Context, s *scan) {
	p.mu.Lock()
	p.clock++
	s.began, s.checked = p.clock, p.newest
	p.mu.Unlock()
	begin := time.Now()
	var loops []Loop
	loops, s.err = p.kernel.Loops()
	s.end = time.Now()
	took := s.end.Sub(begin)
	if s.err == nil {
		p.askNew(ctx, loops)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.index(loops, p.known, p.asked)
	p.forget(loops)
	for uuid, last := range p.sole { // volumes that are no longer observed
		if s.end.Sub(last.scanned) > soleTimeout {
			delete(p.sole, uuid)
		}
	}
	p.scanning, p.last, p.newest, p.nextScan = nil, s, max(p.newest, s.newest), time.Now().Add(max(took, time.Millisecond))
	close(s.done)
}

func (s *scan) index(loops []Loop, known map[uint64]identity, asked map[uint64]*question) {
	s.byFile, s.byUUID, s.byInode = map[string][]string{}, map[volume.UUID][]string{}, map[Inode][]string{}
	s.byBase, s.loops = map[string][]uint64{}, loops
	for _, l := range loops {
		s.newest = max(s.newest, l.Seq)
		s.byFile[l.BackingFile] = append(s.byFile[l.BackingFile], l.Name)
		id, ok := known[l.Seq]
		if !ok {
			s.silent = append(s.silent, l.Name)
			if q := asked[l.Seq]; q == nil || !q.silent {
				s.checked = min(s.checked, l.Seq-1)
			}
			continue
		}
		s.byBase[filepath.Base(l.BackingFile)] = append(s.byBase[filepath.Base(l.BackingFile)], l.Seq)
		s.byInode[id.Inode] = append(s.byInode[id.Inode], l.Name)
		if id.UUID != "" {
			s.byUUID[id.UUID] = append(s.byUUID[id.UUID], l.Name)
		}
	}
}

// sameName returns the diskseqs of the devices of other files with the same base name, as of the last scan.
func (p *Provider) sameName(file string) []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		return nil
	}
	return p.last.byBase[filepath.Base(file)]
}

// candidates returns the devices that may be attached to a volume's file, or to a former one.
func (p *Provider) candidates(s *scan, name volume.Name, file string, at Inode, uuid volume.UUID) []string {
	all := slices.Concat(s.byFile[file], s.byUUID[uuid])
	if linked := p.linked(name); linked != "" {
		all = append(all, linked)
	}
	if at != (Inode{}) {
		all = append(all, s.byInode[at]...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// forget drops the identities of devices that are gone. The caller holds p.mu.
func (p *Provider) forget(loops []Loop) {
	if len(p.known)+len(p.asked) <= 4*len(loops)+64 {
		return
	}
	known, asked := map[uint64]identity{}, map[uint64]*question{}
	for _, l := range loops {
		if id, ok := p.known[l.Seq]; ok {
			known[l.Seq] = id
		}
		if q := p.asked[l.Seq]; q != nil {
			asked[l.Seq] = q
		}
	}
	p.known, p.asked = known, asked
}

// answerTimeout is the time to wait for a device's answer. A device that hangs delays one look.
const answerTimeout = 2 * time.Second

// retryPause is the time after which a device without an answer is asked again, without waiting
// for it.
const retryPause = 5 * time.Second

// A question is about a device that has not answered. Its fields are guarded by Provider.mu.
type question struct {
	loop   Loop
	again  time.Time     // when the device may be asked again
	silent bool          // it was asked, and did not answer in time
	ended  chan struct{} // closed when that is known, or its child has ended
}

func (q *question) end() {
	select {
	case <-q.ended:
	default:
		close(q.ended)
	}
}

// askNew reads the identities of new devices, and waits until each has answered or is silent. The
// open can hang, and so can the stat of the file that reading its status includes: a volume
// whose own file responds does not wait for other devices any longer.
func (p *Provider) askNew(ctx context.Context, loops []Loop) {
	p.mu.Lock()
	unknown := slices.DeleteFunc(slices.Clone(loops), func(l Loop) bool {
		_, known := p.known[l.Seq]
		return known
	})
	p.mu.Unlock()
	p.askAgain(ctx, unknown)
}

// askAgain is askNew, also for known devices.
func (p *Provider) askAgain(ctx context.Context, loops []Loop) {
	var all, begun []*question
	now := time.Now()
	p.mu.Lock()
	for _, l := range loops {
		q := p.asked[l.Seq]
		if q == nil || now.After(q.again) {
			if q == nil || !q.silent { // a look does not wait for a silent device again
				q = &question{loop: l, ended: make(chan struct{})}
				p.asked[l.Seq] = q
			}
			q.again = now.Add(24 * time.Hour) // until its child has ended
			begun = append(begun, q)
		}
		all = append(all, q)
	}
	p.mu.Unlock()
	if len(begun) > 0 {
		go p.askAll(context.WithoutCancel(ctx), begun)
	}
	for _, q := range all {
		select {
		case <-q.ended:
		case <-ctx.Done():
			return
		}
	}
}

// askAll reads the identities of devices in one child. It sets the time when those without an
// answer may be asked again: while a child hangs in one, no other is started for that one.
func (p *Provider) askAll(ctx context.Context, asked []*question) {
	var loops []Loop
	for _, q := range asked {
		loops = append(loops, q.loop)
	}
	stuck, hangs := errors.AsType[*run.StuckError](p.ask(ctx, loops, 10*time.Second))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range asked {
		if q.end(); p.asked[q.loop.Seq] != q {
			continue // answered, or gone meanwhile
		}
		switch _, known := p.known[q.loop.Seq]; {
		case hangs && len(asked) > 1 && !known: // in at least one of them
			go p.askAll(ctx, []*question{q})
		case hangs:
			go func() {
				<-stuck.Done
				p.mu.Lock()
				defer p.mu.Unlock()
				q.again = time.Now().Add(retryPause)
			}()
		default:
			q.again = time.Now().Add(retryPause)
		}
	}
}
