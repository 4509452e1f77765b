package reconcile

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/volume"
)

// A call whose caller is gone records no failure: it must not replace a refusal that an operator reads.
func TestCallerGone(t *testing.T) {
	for name, starting := range map[string]bool{"starting": true, "creating": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end := make(chan error)
				k := newCreating(t, &creator{create: func() error { return <-end }})
				defer k.n.stop(ErrStopping)
				k.n.Config = config.NewLive(&config.Config{Files: k.n.Config.Get().Files, Times: k.n.Config.Get().Times,
					VolumeGroups: []config.VolumeGroup{{Name: "vg0", Create: true, Volumes: []string{"*"}, Namespaces: []string{"*"}}}})
				if starting {
					k.n.ready = make(chan struct{})
				}
				dir := t.TempDir()
				ctx, hangUp := context.WithCancelCause(t.Context())
				answer := make(chan error, 1)
				go func() {
					_, err := k.n.Do(ctx, Request{ID: "1", Verb: volume.Stage, Name: created, Target: Target{Dir: dir}, Options: Options{Size: 1 << 30},
						Caller: Caller{Started: time.Hour}})
					answer <- err
				}()
				synctest.Wait()
				if runs := k.runs.Load(); runs == 0 != starting {
					t.Fatalf("%d creations", runs)
				}
				hangUp(errors.New("the connection was closed"))
				if err := <-answer; !errors.Is(err, ErrCallerGone) {
					t.Errorf("the answer is %v", err)
				}
				close(end)
			})
		})
	}
}

// eventOnce is a mount table that changes once, and cannot be read at that moment.
type eventOnce struct {
	noMounts
	events, failures atomic.Int32
}

func (m *eventOnce) Open() (io.ReadCloser, error) {
	if m.failures.Add(-1) >= 0 {
		return nil, errors.New("too many open files")
	}
	return m.noMounts.Open()
}

func (m *eventOnce) Wait(ctx context.Context) error {
	if m.events.Add(-1) >= 0 {
		return nil
	}
	return m.noMounts.Wait(ctx)
}

// A mount event is not lost if the table cannot be read at that moment.
func TestEventUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newCreating(t, &creator{})
		defer k.n.stop(ErrStopping)
		m := &eventOnce{}
		m.events.Store(1)
		m.failures.Store(3)
		k.n.Mounts, k.n.Observer = m, asw.New(nil, map[string]asw.Provider{"vg0": k.creator}, k.n.Records.Get, m)
		k.n.Log = logrus.NewEntry(k.n.Log.Logger)
		unread := func() string {
			k.n.mu.Lock()
			defer k.n.mu.Unlock()
			return k.n.tableError
		}
		go k.n.follow()
		synctest.Wait()
		if unread() == "" {
			t.Fatal("the table was read")
		}
		time.Sleep(resync / 2)
		if why := unread(); why != "" {
			t.Error("still: " + why)
		}
	})
}
