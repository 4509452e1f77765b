package hosttest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/flexserve"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/run"
)

// A life is one run of flexd, from its start to its end.
type life struct {
	e      *Env
	node   *reconcile.Node
	flex   *flexserve.Frontend
	cancel context.CancelFunc
	dead   atomic.Bool
	over   chan struct{} // closed when it is dead
	ended  chan struct{} // closed when Run has returned
}

// Begin begins a life of flexd.
func (e *Env) Begin() { e.begin() }

func (e *Env) begin() *life {
	l, err := e.start()
	if err != nil {
		e.T.Errorf("flexd does not start: %v", err)
		panic(err)
	}
	return l
}

// Start begins a life of flexd and waits until it has read its notes.
func (e *Env) Start() *reconcile.Node {
	l := e.begin()
	select {
	case <-l.node.Ready():
	case <-l.over:
	case <-time.After(e.Limit):
		e.T.Errorf("flexd does not get ready")
	}
	return l.node
}

func (e *Env) start() (*life, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped || e.off {
		return nil, errStopped
	}
	store, err := dsw.Open(e.notes(), e.M.BootID())
	if err != nil {
		return nil, err
	}
	records, err := dsw.OpenRecords(e.records(), e.M.BootID(), e.M.Boot)
	if err != nil {
		return nil, err
	}
	l := &life{e: e, over: make(chan struct{}), ended: make(chan struct{})}
	store.Midway = func(string) { e.tap.noting(l) }
	records.Midway = func(file string) { e.pause(l, "writing record "+filepath.Base(file)) }
	runner := lifeRunner{t: e.tap, l: l, inner: e.M.Runner}
	mounts := lifeMounts{MountSource: e.M.Mounts(), t: e.tap, l: l}
	p := e.Storage.provider(e.Config, runner)
	o := asw.New(append([]asw.Layout{kubelet.Layout{Dirs: e.Config.KubeletRoots, Driver: e.Config.Driver}}, e.layouts...), map[string]asw.Provider{"": p, VG: p}, records.Get, mounts)
	e.M.Hook(o)
	cgroups := kubelet.NewCgroups(e.Cgroups())
	o.Pods = func() asw.Pods { return cgroups.Look() }
	log := logrus.New()
	log.SetOutput(io.Discard)
	if os.Getenv("HOSTTEST_LOG") != "" {
		log.SetOutput(os.Stderr)
		log.SetLevel(logrus.DebugLevel)
	}
	parts := reconcile.Parts{Config: config.NewLive(e.Config), Version: "test", Log: logrus.NewEntry(log), Store: store, Records: records,
		Observer: o, Mounts: mounts, Ops: mount.Ops{Runner: runner}, Providers: map[string]reconcile.Provider{VG: p},
		Boot: e.M.Boot, Held: e.held(l), Gauge: e.Gauge}
	if e.Parts != nil {
		e.Parts(&parts)
	}
	l.node = reconcile.New(parts)
	l.flex = &flexserve.Frontend{Config: config.NewLive(e.Config), Log: logrus.NewEntry(log), Boot: e.M.Boot, Self: e.M.Self(), Node: l.node}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	e.life = l
	close(e.born)
	e.born = make(chan struct{})
	e.lives.Go(func() {
		defer close(l.ended)
		if err := l.node.Run(ctx); err != nil && !l.dead.Load() && !errors.Is(err, context.Canceled) {
			e.broke("flexd ended by itself: %v", err)
		}
	})
	if w, ok := p.(watcher); ok {
		e.lives.Go(func() {
			if err := w.Watch(ctx, l.node.NotifyChanged); err != nil {
				e.broke("flexd does not receive events: %v", err)
			}
		})
	}
	return l, nil
}

// held is called when a lane begins a turn.
func (e *Env) held(l *life) func(lock string) *run.LockedError {
	return func(lock string) *run.LockedError {
		e.pause(l, "turn of "+filepath.Base(lock))
		return e.M.Held(lock)
	}
}

// A Pause stops a goroutine of flexd between its steps, so that a scheduler can select the next one. It
// returns when over is closed.
type Pause func(what string, over <-chan struct{})

// SetPause sets the pause, also while flexd runs.
func (e *Env) SetPause(p Pause) { e.pauses.Store(&p) }

// pause stops a goroutine of one life of flexd at a point that the test selects.
func (e *Env) pause(l *life, what string) {
	if pause := e.pauses.Load(); pause != nil && !l.dead.Load() {
		(*pause)(what, l.over)
	}
}

var errStopped = errors.New("the test is over")

// crash is kill -9: later actions of this life have no effect.
func (l *life) crash() {
	e := l.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if !l.die() {
		return
	}
	e.deaths++
	if !e.Patient {
		e.lives.Go(func() {
			time.Sleep(e.Restart)
			if _, err := e.start(); err != nil && !errors.Is(err, errStopped) {
				e.broke("flexd does not start again: %v", err)
			}
		})
	}
}

func (l *life) die() bool {
	if l.dead.Swap(true) {
		return false
	}
	e := l.e
	notes, records := e.notes(), e.records()
	e.gen++
	for from, to := range map[string]string{notes: e.notes(), records: e.records()} {
		if err := os.Rename(from, to); err != nil && !errors.Is(err, os.ErrNotExist) {
			e.broken = append(e.broken, err.Error())
		}
	}
	l.cancel()
	close(l.over)
	return true
}

// killDrivers kills every flexdriver that waits.
func (e *Env) killDrivers() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.drivers {
		d.kill()
	}
}

// A driver is a flexdriver that waits for its answer.
type driver struct {
	args []string
	kill func()
}

// KillDriver kills the flexdrivers that wait for an answer about a directory or a volume,
// and reports whether there were any.
func (e *Env) KillDriver(about string) (any bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.drivers {
		if slices.ContainsFunc(d.args, func(a string) bool { return strings.Contains(a, about) }) {
			d.kill()
			any = true
		}
	}
	return any
}

// waits adds a waiting flexdriver, and returns a function that removes it.
func (e *Env) waits(d driver) (off func()) {
	id := e.calls.Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.drivers == nil {
		e.drivers = map[int64]driver{}
	}
	e.drivers[id] = d
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.drivers, id)
	}
}

// Crash kills flexd now.
func (e *Env) Crash() { e.current().crash() }

// Again kills flexd and starts the next one. After it, the test itself starts each flexd.
func (e *Env) Again() {
	e.Patient = true
	e.Crash()
	e.Start()
}

// Stop ends flexd for good and waits for its goroutines.
func (e *Env) Stop() {
	e.mu.Lock()
	e.stopped = true
	e.life.die()
	e.mu.Unlock()
	e.lives.Wait()
}

// Reboot ends flexd and drops the kernel's memory and /run.
func (e *Env) Reboot() {
	l := e.current()
	e.mu.Lock()
	l.die()
	_ = os.RemoveAll(e.notes())
	e.mu.Unlock()
	<-l.ended
	e.Sim.Reboot()
}

func (e *Env) current() *life {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.life
}

// Dead reports whether flexd was killed and has not restarted.
func (e *Env) Dead() bool { return e.current().dead.Load() }

// Node returns the running flexd.
func (e *Env) Node() *reconcile.Node { return e.current().node }
