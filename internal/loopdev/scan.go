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

// A scan is the loop devices that had a backing file at one moment, by name.
type scan struct {
	began   uint64 // on the provider's clock
	done    chan struct{}
	end     time.Time
	err     error
	byFile  map[string][]string
	byUUID  map[volume.UUID][]string
	byInode map[Inode][]string
	byBase  map[string][]uint64 // the diskseqs of known devices by the last part of their file's path
	newest  uint64              // the largest diskseq
	checked uint64              // devices up to this diskseq were attached before the scan began
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
	s.index(loops, p.known)
	p.forget(loops)
	for uuid, last := range p.sole { // volumes that are no longer observed
		if s.end.Sub(last.scanned) > soleTimeout {
			delete(p.sole, uuid)
		}
	}
	p.scanning, p.last, p.newest, p.nextScan = nil, s, max(p.newest, s.newest), time.Now().Add(max(took, time.Millisecond))
	close(s.done)
}

func (s *scan) index(loops []Loop, known map[uint64]identity) {
	s.byFile, s.byUUID, s.byInode = map[string][]string{}, map[volume.UUID][]string{}, map[Inode][]string{}
	s.byBase = map[string][]uint64{}
	for _, l := range loops {
		s.newest = max(s.newest, l.Seq)
		s.byFile[l.BackingFile] = append(s.byFile[l.BackingFile], l.Name)
		id, ok := known[l.Seq]
		if !ok {
			s.silent = append(s.silent, l.Name)
			continue
		}
		s.byBase[filepath.Base(l.BackingFile)] = append(s.byBase[filepath.Base(l.BackingFile)], l.Seq)
		s.byInode[id.Inode] = append(s.byInode[id.Inode], l.Name)
		if id.UUID != "" {
			s.byUUID[id.UUID] = append(s.byUUID[id.UUID], l.Name)
		}
	}
}

// others returns the diskseqs of devices that the last scan has shown with the same name as a
// file that has none of them.
func (p *Provider) others(file string) []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		return nil
	}
	return p.last.byBase[filepath.Base(file)]
}

// candidates are the devices that may be attached to a volume's file.
func (s *scan) candidates(file string, at Inode, uuid volume.UUID) []string {
	all := slices.Concat(s.byFile[file], s.byUUID[uuid])
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
	known, asked := map[uint64]identity{}, map[uint64]time.Time{}
	for _, l := range loops {
		if id, ok := p.known[l.Seq]; ok {
			known[l.Seq] = id
		}
		if at, ok := p.asked[l.Seq]; ok {
			asked[l.Seq] = at
		}
	}
	p.known, p.asked = known, asked
}

// answerTimeout is the time to wait for a device's first answer; another in tests. A device that
// hangs delays one look.
var answerTimeout = 2 * time.Second

// retryPause is the time after which a device without an answer is asked again, without waiting
// for it.
const retryPause = time.Minute

// askNew reads the identities of new devices. The open can hang, and so can the stat of the
// file that reading its status includes: a volume whose own file responds does not wait for
// other devices.
func (p *Provider) askNew(ctx context.Context, loops []Loop) {
	var unknown []Loop
	first, now := false, time.Now()
	p.mu.Lock()
	for _, l := range loops {
		if _, ok := p.known[l.Seq]; ok {
			continue
		}
		again, asked := p.asked[l.Seq]
		if asked && now.Before(again) {
			continue
		}
		p.asked[l.Seq] = now.Add(24 * time.Hour) // until it has answered
		first = first || !asked
		unknown = append(unknown, l)
	}
	p.mu.Unlock()
	if len(unknown) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var ours, others []Loop // devices of the configured directories are asked first
		for _, l := range unknown {
			if p.nameOf(l.BackingFile) != (volume.Name{}) {
				ours = append(ours, l)
			} else {
				others = append(others, l)
			}
		}
		ctx := context.WithoutCancel(ctx)
		p.askAll(ctx, ours)
		p.askAll(ctx, others)
	}()
	if !first {
		return
	}
	limit := time.NewTimer(answerTimeout)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
}

// askAll reads the identities of devices in one child, or one by one if one of them does
// not answer.
func (p *Provider) askAll(ctx context.Context, loops []Loop) {
	var names []string
	for _, l := range loops {
		names = append(names, l.Name)
	}
	if len(names) == 0 {
		return
	}
	err := p.ask(ctx, names, 10*time.Second)
	for _, l := range loops {
		own := err
		if _, ok := p.remembered(l.Seq); !ok && err != nil && len(loops) > 1 {
			own = p.ask(ctx, []string{l.Name}, 10*time.Second)
		}
		p.answered(l, own)
	}
}

// answered sets the time when a device may be asked again. While a child hangs in it, no
// other is started. One that did not answer may have a saved identity.
func (p *Provider) answered(l Loop, err error) {
	if _, ok := p.remembered(l.Seq); !ok && err != nil {
		if id, ok := p.restore(l.Seq); ok {
			p.remember(l.Seq, id)
		}
	}
	if stuck, ok := errors.AsType[*run.StuckError](err); ok {
		go func() {
			<-stuck.Done
			p.answered(l, nil)
		}()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.known[l.Seq]; ok {
		delete(p.asked, l.Seq)
		return
	}
	p.asked[l.Seq] = time.Now().Add(retryPause)
}
