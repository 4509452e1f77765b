package audit

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// A Gauge reads the usage of mounted filesystems in a child.
type Gauge interface {
	// Read returns the usages of mounts by mount id, without mounts that do not exist any more.
	Read(ctx context.Context, ids []int) (map[int]volume.Filling, error)
}

// A request reads the usages again if they are older than this. Without requests no child is started.
const (
	gaugeAsked = 10 * time.Second
	gaugeNew   = time.Second // if there is a mount that was not read
)

// filesystems has the last usages of volumes' filesystems.
type filesystems struct {
	mu      sync.Mutex // guards what follows
	seen    map[volume.UUID]volume.Filling
	at      time.Time // when they were read
	tried   time.Time
	asked   map[int]volume.UUID // the mounts of the last try, by their ids
	running bool
}

// look starts to read the usages if they are too old. The channel is closed when they are known; nil = no
// read was started.
func (f *filesystems) look(a *Auditor) <-chan struct{} {
	if a.Gauge == nil {
		return nil
	}
	mounts := map[int]volume.UUID{}
	for _, v := range a.Views() {
		if v.Have != nil {
			if id := a.Observer.Reachable(v.Have); id != 0 {
				mounts[id] = v.UUID
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	age := gaugeAsked
	for id, uuid := range mounts {
		if f.asked[id] != uuid {
			age = gaugeNew
		}
	}
	if f.running || !f.tried.IsZero() && time.Since(f.tried) < age {
		return nil
	}
	f.running, f.tried, f.asked = true, time.Now(), mounts
	done := make(chan struct{})
	go func() {
		defer close(done)
		found, err := a.Gauge.Read(a.ctx, slices.Collect(maps.Keys(mounts)))
		f.mu.Lock()
		defer f.mu.Unlock()
		f.running, f.at, f.seen = false, time.Now(), map[volume.UUID]volume.Filling{}
		for id, uuid := range mounts {
			if filling, ok := found[id]; ok {
				f.seen[uuid] = filling
			} else if err != nil {
				f.seen[uuid] = volume.Filling{Unknown: err.Error()}
			}
		}
	}()
	return done
}

// lookAtFilesystems is LookAtSpace for the filesystems alone.
func (a *Auditor) lookAtFilesystems() {
	if running := a.filesystems.look(a); running != nil {
		select {
		case <-running:
		case <-time.After(spaceWait):
		}
	}
}

// Filling returns the last usage of a volume's filesystem, and when it was read.
func (a *Auditor) Filling(uuid volume.UUID) (volume.Filling, time.Time, bool) {
	f := &a.filesystems
	f.mu.Lock()
	defer f.mu.Unlock()
	filling, ok := f.seen[uuid]
	return filling, f.at, ok
}
