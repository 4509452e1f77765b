package hosttest

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/lockspace"
	"github.com/flexd/flexd/internal/volume"
)

// A locks stands for the lockspace.Manager of flexd. Its answers may be outdated when they arrive.
type locks struct {
	m *LockManager

	mu     sync.Mutex
	status lockspace.Status
	err    error
	at     time.Time // of the last look; zero = there was none
}

// lookAge is how long the result of a look is reused.
const lookAge = time.Second

// Ready implements lvm.Locks. It starts a lockspace that is not started.
func (l *locks) Ready(ctx context.Context, _ string) error {
	_, err := until(ctx, func() (struct{}, error) { return struct{}{}, l.ready() })
	return err
}

// Check implements lvm.Locks.
func (l *locks) Check(ctx context.Context, vg string) error { return l.Ready(ctx, vg) }

// CanUnlock implements lvm.Locks.
func (l *locks) CanUnlock(ctx context.Context, _ string) error {
	_, err := until(ctx, func() (struct{}, error) {
		if l.pace("before") == Fails {
			return struct{}{}, errFailed
		}
		l.m.disk.mu.Lock()
		defer l.m.disk.mu.Unlock()
		if !l.m.lvmlockd && len(l.m.orphans) > 0 {
			return struct{}{}, errNoLockd
		}
		return struct{}{}, nil
	})
	return err
}

// until returns the result of do, or an error when ctx is done.
func until[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := do()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

func (l *locks) ready() error {
	l.mu.Lock()
	err, old := l.err, l.at.IsZero() || time.Since(l.at) > lookAge
	l.mu.Unlock()
	if !old {
		return err
	}
	if l.pace("before") == Fails {
		return errFailed
	}
	status, err := l.look()
	l.mu.Lock()
	l.status, l.err, l.at = status, err, time.Now()
	l.mu.Unlock()
	l.pace("after")
	return err
}

func (l *locks) pace(where string) Fate { return l.m.h.Pace(Point{"locks", VG, where}) }

func (l *locks) look() (s lockspace.Status, err error) {
	m := l.m
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	s = lockspace.Status{VG: VG, LockType: "sanlock", HostID: m.id, Looked: time.Now(), State: lockspace.Unavailable}
	switch {
	case !m.lvmlockd || !m.sanlock || m.cutOff:
		return s, volume.Errorf(volume.Unusable, "%w", m.ready())
	case m.space == failed:
		s.State = lockspace.Lost
		return s, volume.Errorf(volume.Unusable, "the lease of this host is lost")
	case m.space == joined:
		s.State, s.Since = lockspace.Started, m.joinedAt
		return s, nil
	}
	m.lockstart()
	s.State = lockspace.Starting
	return s, &volume.WaitError{Reason: "the locks are being started", Err: volume.WithCode(volume.InProgress, errNoLockspace)}
}

// Holder implements lvm.Locks.
func (l *locks) Holder(ctx context.Context, _ string, lv lockspace.LV) (*volume.Holder, error) {
	return until(ctx, func() (*volume.Holder, error) { return l.read(lv) })
}

func (l *locks) read(lv lockspace.LV) (*volume.Holder, error) {
	if l.pace("before") == Fails {
		return nil, errFailed
	}
	h, err := l.holder(lv)
	l.pace("after")
	return h, err
}

func (l *locks) holder(lv lockspace.LV) (*volume.Holder, error) {
	m := l.m
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if m.cutOff {
		return nil, errLeaseIO
	}
	if !strings.HasPrefix(lv.LockArgs, "1.0.0:") {
		m.h.broke("the lock of %s is looked for at %q", lv.UUID, lv.LockArgs)
	}
	if ids, _ := m.holders(string(lv.UUID)); len(ids) > 0 && !m.disk.silent {
		return &volume.Holder{HostID: ids[0], Host: fmt.Sprintf("node%d", ids[0]), State: volume.LeaseLive}, nil
	}
	return nil, nil
}

// Taken implements lvm.Locks.
func (l *locks) Taken(ctx context.Context, _ string, lvs []lockspace.LV) (map[volume.UUID]volume.Holder, error) {
	return until(ctx, func() (map[volume.UUID]volume.Holder, error) {
		m := l.m
		m.awaitRun()
		m.disk.mu.Lock()
		defer m.disk.mu.Unlock()
		if m.cutOff {
			return nil, errLeaseIO
		}
		all := map[volume.UUID]volume.Holder{}
		for _, lv := range lvs {
			switch now := m.disk.leases[string(lv.UUID)]; {
			case now == nil || len(now.owners) == 0 && now.last == m.id: // it is an error, and no other host has used the volume
			case len(now.owners) == 0:
				all[lv.UUID] = volume.Holder{}
			case now.owners[m.id] == 0:
				for id := range now.owners {
					all[lv.UUID] = volume.Holder{HostID: id, Host: fmt.Sprintf("node%d", id)}
				}
			}
		}
		return all, nil
	})
}

// awaitRun returns when the machine is not paused.
func (m *LockManager) awaitRun() {
	for m.Paused() {
		time.Sleep(100 * time.Millisecond)
	}
}

// Fence simulates lvm's Fence.
func (g sharedGroup) Fence(_ context.Context, t volume.Taken) error {
	g.h.locking.awaitRun()
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	for _, l := range g.h.loops {
		if l.Number == t.Number && l.file.UUID == string(t.UUID) {
			if lease := g.h.locking.disk.leases[l.file.UUID]; lease != nil && lease.owners[g.h.locking.id] != 0 {
				g.h.broke("%s is fenced, and this host has its lock", l.file.path)
			}
			l.fenced = true
			g.h.event(l.file.UUID)
		}
	}
	return nil
}

// Fenced reports whether the device of a volume is fenced.
func (h *Host) Fenced(lv string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.deviceOf(h.files[path.Join(groupDir, lv)])
	return l != nil && l.fenced
}

// Status implements lvm.Locks: what the last look found.
func (l *locks) Status(string) lockspace.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}
