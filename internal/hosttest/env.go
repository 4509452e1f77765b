package hosttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/flexserve"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// VG is the volume group of every Env.
const VG = "vg0"

// An Env is a node with a flexd on it.
type Env struct {
	T       testing.TB
	M       Machine
	Sim     *Host   // nil on the real machine
	Storage Storage // what the volumes are made of
	Config  *config.Config
	Root    string // kubelet's
	Patient bool   // flexd is not started again by itself after a crash

	pauses atomic.Pointer[Pause]
	// Command, if set, is called before each of flexd's commands, and Calling
	// at each call of kubelet's: it returns what ends the waiting for an answer, nil
	// if none came.
	Command func(c run.Cmd)
	Calling func(r flexvolume.Request) (over func(*flexvolume.Answer))

	// Restart is how long flexd stays dead after a crash.
	Restart time.Duration
	// Limit is how long anything may take to come true.
	Limit time.Duration

	tmp string
	tap *tap

	mu      sync.Mutex // guards what follows
	gen     int
	life    *life
	born    chan struct{} // closed when the next life begins
	deaths  int
	stopped bool
	lives   sync.WaitGroup
	broken  []string
	drivers map[int64]driver // that wait for their answers
	calls   atomic.Int64
}

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

// NewSim returns a simulated node with flexd running. It is for a synctest
// bubble, so that what takes minutes takes no time.
func NewSim(t testing.TB, tmp string) *Env {
	e := &Env{T: t, Restart: time.Second, Limit: 15 * time.Minute, tmp: tmp, Root: "/sim/kubelet"}
	e.Sim = NewHost(e.broke)
	e.M = simulated{e.Sim}
	e.Storage = simulatedFiles{files{e.Sim, "/sim/vg0"}, e.Sim}
	_ = e.Sim.Mkdir(e.Root)
	_ = e.Sim.Mkdir("/sim/vg0")
	e.Sim.dirs = e.dirs
	e.configure()
	e.Start()
	return e
}

func (e *Env) configure() {
	c := config.Default()
	c.NodeName, c.KubeletRoots = "node1", []string{e.Root}
	c.RunDir, c.StateDir = filepath.Join(e.tmp, "run"), filepath.Join(e.tmp, "state")
	vg := config.VolumeGroup{Name: VG, Volumes: []string{"*"}, Namespaces: []string{"*"}, Create: true, MaxSize: 4 << 30}
	e.Storage.configure(c, &vg)
	c.VolumeGroups = []config.VolumeGroup{vg}
	e.Config = c
	e.tap = &tap{e: e, refuse: map[string]error{}, steps: map[string]int{}}
	e.born = make(chan struct{})
	for _, dir := range []string{filepath.Join(c.RunDir, "lanes"), c.StateDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			e.T.Fatal(err)
		}
	}
}

// broke is where the machine reports a promise that flexd broke.
func (e *Env) broke(format string, a ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broken = append(e.broken, fmt.Sprintf(format, a...))
}

// Broken returns the promises that were broken so far.
func (e *Env) Broken() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.broken)
}

func (e *Env) dirs() (notes, records string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.notes(), e.records()
}

// Each life has its own directories, which are taken away from it in the
// instant of its death: whatever its goroutines still write goes nowhere.
func (e *Env) notes() string { return filepath.Join(e.Config.RunDir, fmt.Sprintf("notes.%d", e.gen)) }
func (e *Env) records() string {
	return filepath.Join(e.Config.StateDir, fmt.Sprintf("formats.%d", e.gen))
}

// Notes is the directory of the notes, for tests that damage it while flexd is
// down.
func (e *Env) Notes() string   { n, _ := e.dirs(); return n }
func (e *Env) Records() string { _, r := e.dirs(); return r }

// Cgroups is where kubelet's control groups of this node would be. There are
// none before a test makes some.
func (e *Env) Cgroups() string { return filepath.Join(e.tmp, "cgroup") }

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
	if e.stopped {
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
	o := asw.New([]asw.Layout{kubelet.Layout{Dirs: e.Config.KubeletRoots, Driver: e.Config.Driver}}, map[string]asw.Provider{"": p, VG: p}, records.Get, mounts)
	e.M.Hook(o)
	cgroups := kubelet.NewCgroups(e.Cgroups())
	o.Pods = func() asw.Pods { return cgroups.Look() }
	log := logrus.New()
	log.SetOutput(io.Discard)
	if os.Getenv("HOSTTEST_LOG") != "" {
		log.SetOutput(os.Stderr)
		log.SetLevel(logrus.DebugLevel)
	}
	l.node = reconcile.New(reconcile.Parts{Config: e.Config, Version: "test", Log: logrus.NewEntry(log), Store: store, Records: records,
		Observer: o, Mounts: mounts, Ops: mount.Ops{Runner: runner}, Providers: map[string]reconcile.Provider{VG: p},
		Boot: e.M.Boot, Held: e.held(l)})
	l.flex = &flexserve.Frontend{Config: e.Config, Log: logrus.NewEntry(log), Boot: e.M.Boot, Self: e.M.Self(), Node: l.node}
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
				e.broke("flexd does not hear of changes: %v", err)
			}
		})
	}
	return l, nil
}

// held is where a lane begins a turn.
func (e *Env) held(l *life) func(lock string) *run.LockedError {
	return func(lock string) *run.LockedError {
		e.pause(l, "turn of "+filepath.Base(lock))
		return e.M.Held(lock)
	}
}

// A Pause is where flexd's own goroutines stop between their steps, so that a
// scheduler decides which one goes on. It returns when over is closed.
type Pause func(what string, over <-chan struct{})

// SetPause sets the pause, also while flexd runs.
func (e *Env) SetPause(p Pause) { e.pauses.Store(&p) }

// pause stops a goroutine of one life of flexd where the test wants it.
func (e *Env) pause(l *life, what string) {
	if pause := e.pauses.Load(); pause != nil && !l.dead.Load() {
		(*pause)(what, l.over)
	}
}

var errStopped = errors.New("the test is over")

// crash is kill -9: nothing this life does from here on has an effect.
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

// KillDriver kills the flexdrivers that wait for an answer about a directory or a
// volume, and says whether there were any.
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

// waits notes a flexdriver that waits, until it is taken off again.
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

// Stop ends flexd for good and waits for its goroutines.
func (e *Env) Stop() {
	e.mu.Lock()
	e.stopped = true
	e.life.die()
	e.mu.Unlock()
	e.lives.Wait()
}

// Reboot takes flexd, the kernel's memory and /run.
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

// Dead says whether flexd was killed and has not come back.
func (e *Env) Dead() bool { return e.current().dead.Load() }

// Node is the flexd that lives now.
func (e *Env) Node() *reconcile.Node { return e.current().node }

// Flex is the FlexVolume frontend of the flexd that runs.
func (e *Env) Flex() *flexserve.Frontend { return e.current().flex }

// Arm lets a fault strike at the k-th occasion from now on.
func (e *Env) Arm(m Moment, k int) { e.tap.arm(fault{moment: m, k: k}) }

// ArmStep lets it strike at the k-th command of one step: run.Cmd says which.
func (e *Env) ArmStep(m Moment, k int, step string) { e.tap.arm(fault{moment: m, k: k, step: step}) }

// ArmEach lets it strike at the first command of each step.
func (e *Env) ArmEach(m Moment) { e.tap.arm(fault{moment: m, k: 1, each: true}) }

// Refuse makes every command of a step fail, until err is nil.
func (e *Env) Refuse(step string, err error) {
	e.tap.mu.Lock()
	defer e.tap.mu.Unlock()
	e.tap.refuse[step] = err
}

// Struck returns at which steps the fault has struck, in that order: "look",
// "note" and "answer" are three of them.
func (e *Env) Struck() []string {
	e.tap.mu.Lock()
	defer e.tap.mu.Unlock()
	return slices.Clone(e.tap.struck)
}

// Commands says how many commands flexd has started.
func (e *Env) Commands() int {
	e.tap.mu.Lock()
	defer e.tap.mu.Unlock()
	return e.tap.total
}

// Steps tells how many of which step, since the last Arm.
func (e *Env) Steps() string {
	e.tap.mu.Lock()
	defer e.tap.mu.Unlock()
	var all []string
	for _, step := range slices.Sorted(maps.Keys(e.tap.steps)) {
		if step != "" {
			all = append(all, fmt.Sprintf("%d %s", e.tap.steps[step], step))
		}
	}
	return strings.Join(all, ", ")
}

// Eventually waits until something is true.
func (e *Env) Eventually(what string, is func() bool) {
	e.T.Helper()
	step, end := 50*time.Millisecond, time.Now().Add(e.Limit)
	for !is() {
		if time.Now().After(end) {
			e.T.Errorf("it does not come true: %s\n%s", what, e.Describe())
			return
		}
		time.Sleep(step)
	}
}

// BreakNotes makes every write of a note fail, until restored.
func (e *Env) BreakNotes() (restore func()) { return e.away(e.Notes()) }

// BreakRecords makes every write of a format record fail, until restored.
func (e *Env) BreakRecords() (restore func()) { return e.away(e.Records()) }

func (e *Env) away(dir string) (restore func()) {
	if e.Sim != nil {
		e.Sim.setCareless(true)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		e.T.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // so that nobody makes it anew
		e.T.Fatal(err)
	}
	return func() {
		if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
			e.T.Error(err)
		}
		if e.Sim != nil {
			e.Sim.setCareless(false)
		}
	}
}

// Noted says whether anything is noted of a volume, on the disk.
func (e *Env) Noted(uuid volume.UUID) bool {
	claims, leases := readNotes(e.Notes())
	return slices.ContainsFunc(claims, func(c dsw.Claim) bool { return c.UUID == uuid }) ||
		slices.ContainsFunc(leases, func(l dsw.Lease) bool { return l.UUID == uuid })
}

// Claims returns the notes of claims as they are on the disk.
func (e *Env) Claims() []dsw.Claim {
	claims, _ := readNotes(e.Notes())
	return claims
}
