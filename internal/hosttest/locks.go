package hosttest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/lockspace"
	"github.com/flexd/flexd/internal/volume"
)

// A locks is what flexd knows of its host's lock manager, as a lockspace.Manager does. Its
// answers may be old when they arrive.
type locks struct {
	m *LockManager

	mu     sync.Mutex
	status lockspace.Status
	err    error
	at     time.Time // of the last look; zero = there was none
}

// lookAge is how long a look is the answer to those who ask.
const lookAge = time.Second

// Ready implements lvm.Locks. It starts a lockspace that is not started.
func (l *locks) Ready(ctx context.Context, _ string) error {
	_, err := until(ctx, func() (struct{}, error) { return struct{}{}, l.ready() })
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
func (l *locks) Holder(ctx context.Context, _ string, lvs []lockspace.LV) (map[volume.UUID]volume.Holder, error) {
	return until(ctx, func() (map[volume.UUID]volume.Holder, error) { return l.read(lvs) })
}

func (l *locks) read(lvs []lockspace.LV) (map[volume.UUID]volume.Holder, error) {
	if l.pace("before") == Fails {
		return nil, errFailed
	}
	all, err := l.holders(lvs)
	l.pace("after")
	return all, err
}

func (l *locks) holders(lvs []lockspace.LV) (map[volume.UUID]volume.Holder, error) {
	m := l.m
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if m.cutOff {
		return nil, errLeaseIO
	}
	all := map[volume.UUID]volume.Holder{}
	for _, lv := range lvs {
		ids, _ := m.holders(groupUUID + "_" + string(lv.UUID))
		if len(ids) > 0 {
			all[lv.UUID] = volume.Holder{HostID: ids[0], Host: fmt.Sprintf("node%d", ids[0]), State: volume.LeaseLive}
		}
		if !strings.HasPrefix(lv.LockArgs, "1.0.0:") {
			m.h.broke("the lock of %s is looked for at %q", lv.UUID, lv.LockArgs)
		}
	}
	return all, nil
}

// Status implements lvm.Locks: what the last look found.
func (l *locks) Status(string) lockspace.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}
