package audit

import (
	"context"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// A Gauge reads how full mounted filesystems are, in a child.
type Gauge interface {
	// Read returns the fillings of mounts, by their ids. A mount that is gone is omitted.
	Read(ctx context.Context, ids []int) (map[int]volume.Filling, error)
}

// gaugeAsked is how old the fillings are when a request reads them again. Without requests
// no child is started.
const gaugeAsked = 10 * time.Second

// filesystems are the mounted filesystems of volumes, as read last.
type filesystems struct {
	mu      sync.Mutex // guards what follows
	seen    map[volume.UUID]volume.Filling
	at      time.Time // when they were read
	tried   time.Time
	running bool
}

// look starts to read the fillings unless they are young. The channel is closed when they
// are known; nil = none were started.
func (f *filesystems) look(a *Auditor) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.Gauge == nil || f.running || !f.tried.IsZero() && time.Since(f.tried) < gaugeAsked {
		return nil
	}
	f.running, f.tried = true, time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		seen := f.read(a)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.running, f.seen, f.at = false, seen, time.Now()
	}()
	return done
}

// read reads the filling of each mounted volume at one of its mounts.
func (f *filesystems) read(a *Auditor) map[volume.UUID]volume.Filling {
	seen := map[volume.UUID]volume.Filling{}
	var ids []int
	volumes := map[int]volume.UUID{}
	for _, v := range a.Views() {
		if v.Have == nil || len(v.Have.Mounts) == 0 {
			continue
		}
		if id := a.Observer.Reachable(v.Have); id != 0 {
			ids = append(ids, id)
			volumes[id] = v.UUID
		}
	}
	found, err := a.Gauge.Read(a.ctx, ids)
	for id, uuid := range volumes {
		if filling, ok := found[id]; ok {
			seen[uuid] = filling
		} else if err != nil {
			seen[uuid] = volume.Filling{Unknown: err.Error()}
		}
	}
	return seen
}

// Filling returns how full the filesystem of a volume is, as read last, and when.
func (a *Auditor) Filling(uuid volume.UUID) (volume.Filling, time.Time, bool) {
	f := &a.filesystems
	f.mu.Lock()
	defer f.mu.Unlock()
	filling, ok := f.seen[uuid]
	return filling, f.at, ok
}
