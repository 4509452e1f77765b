package reconcile_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// elsewhere is another mount namespace: with all mounts of flexd's if all is mounted, otherwise with none of
// kubelet's.
type elsewhere struct {
	e     *hosttest.Env
	all   bool
	reads *atomic.Int32
}

func (m elsewhere) Other() (bool, error) { return true, nil }

func (m elsewhere) Table() (*mounttable.Table, error) {
	m.reads.Add(1)
	if m.all {
		return m.e.Node().Observer.Read(context.Background())
	}
	return mounttable.Read(strings.NewReader("1 0 0:99 / / rw - overlay none rw\n"))
}

// An existing mount is no Success for a kubelet that does not see it, as after a start of its container
// without the host's mounts: the pod would write to the disk below. The same holds for a call that joins the
// mount of another caller.
func TestMountUnseenByCaller(t *testing.T) {
	ask := func(e *hosttest.Env, id, dir string, all bool) (reads int32, err error) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, reconcile.ErrDeadline)
		defer cancel()
		m := elsewhere{e, all, new(atomic.Int32)}
		_, err = e.Node().Do(ctx, reconcile.Request{ID: id, Verb: volume.Publish, Title: "mount", Name: volume.Name{VG: hosttest.VG, LV: pod("a").LV},
			Target:  reconcile.Target{Dir: dir, Root: e.Root},
			Options: reconcile.Options{Alias: pod("a").Volume},
			Caller:  reconcile.Caller{Started: e.M.Boot(), Mounts: m}})
		return m.reads.Load(), err
	}
	onSim(t, "mounted", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Start(a))
		_, err := ask(e, "1", k.Dir(a), false)
		says(t, err, "does not see that mount", "rshared")
		reads, err := ask(e, "2", k.Dir(a), true)
		if works(t, err); reads != 1 {
			t.Errorf("%d reads of the caller's table", reads)
		}
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
	})
	onSim(t, "joined", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		joined := make(chan error, 1)
		e.Command = func(c run.Cmd) {
			if c.Step == "mount" {
				go func() {
					_, err := ask(e, "1", k.Dir(a), false)
					joined <- err
				}()
				time.Sleep(time.Second)
			}
		}
		works(t, k.Start(a))
		e.Command = nil
		says(t, <-joined, "does not see that mount")
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
	})
}

// tornLater is a mount namespace whose table can be read before a mount only.
type tornLater struct{ elsewhere }

func (m tornLater) Table() (*mounttable.Table, error) {
	if m.reads.Add(1) == 1 {
		return m.e.Node().Observer.Read(context.Background())
	}
	return nil, errors.New("torn")
}

// The call that made a mount gets Success even if its caller's mount table cannot be read again: kubelet
// forgets a failed mount, and would never unmount it.
func TestMountSuccessCallersTableUnreadable(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		works(t, k.Down(a))
		works(t, e.M.Mkdir(k.Dir(a)))
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, reconcile.ErrDeadline)
		defer cancel()
		m := tornLater{elsewhere{e, true, new(atomic.Int32)}}
		_, err := e.Node().Do(ctx, reconcile.Request{ID: "1", Verb: volume.Publish, Title: "mount", Name: volume.Name{VG: hosttest.VG, LV: a.LV},
			Target:  reconcile.Target{Dir: k.Dir(a), Root: e.Root},
			Options: reconcile.Options{Alias: a.Volume},
			Caller:  reconcile.Caller{Started: e.M.Boot(), Mounts: m}})
		if works(t, err); m.reads.Load() != 1 {
			t.Errorf("%d reads of the caller's table", m.reads.Load())
		}
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// An unmount that does not reach the caller's mount namespace is refused: kubelet cannot remove the
// directory. A caller with an unreadable table gets Success.
func TestUnmountSeenByCaller(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Start(a))
		theirs, err := e.Node().Observer.Read(t.Context())
		works(t, err)
		unmount := func(id string, table func() (*mounttable.Table, error)) error {
			ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, reconcile.ErrDeadline)
			defer cancel()
			_, err := e.Node().Do(ctx, reconcile.Request{ID: id, Verb: volume.Release, Title: "unmount",
				Target: reconcile.Target{Dir: k.Dir(a), Name: k.Dir(a), Root: e.Root},
				Caller: reconcile.Caller{Started: e.M.Boot(), Mounts: separate(table)}})
			return err
		}
		for _, id := range []string{"1", "2"} {
			says(t, unmount(id, func() (*mounttable.Table, error) { return theirs, nil }), "has a mount there that the unmount did not reach", "umount "+k.Dir(a))
		}
		mountsAre(t, e)
		works(t, unmount("3", func() (*mounttable.Table, error) { return nil, errors.New("gone") }))
		works(t, unmount("4", func() (*mounttable.Table, error) { return e.Node().Observer.Read(context.Background()) }))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// separate is another mount namespace, with its table.
type separate func() (*mounttable.Table, error)

func (separate) Other() (bool, error)                { return true, nil }
func (s separate) Table() (*mounttable.Table, error) { return s() }
