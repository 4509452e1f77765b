package hosttest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/flexserve"
	"github.com/flexd/flexd/internal/flexvolume"
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
	Storage Storage // the storage of the volumes
	Config  *config.Config
	Root    string // kubelet's
	Patient bool   // flexd is not started again by itself after a crash

	pauses atomic.Pointer[Pause]
	// Command, if set, is called before each of flexd's commands, and Calling at each call
	// of kubelet's: it returns the channel that ends the wait for an answer, or nil.
	Command func(c run.Cmd)
	Calling func(r flexvolume.Request) (over func(*flexvolume.Answer))
	// Gauge, if set before the start, returns the usage of mounted filesystems.
	Gauge interface {
		Read(ctx context.Context, ids []int) (map[int]volume.Filling, error)
	}

	// Parts, if set, changes the parts of flexd before each start.
	Parts func(*reconcile.Parts)

	// Restart is how long flexd stays dead after a crash.
	Restart time.Duration
	// Limit is the time limit of Eventually.
	Limit time.Duration

	tmp string
	tap *tap

	mu      sync.Mutex   // guards what follows
	layouts []asw.Layout // beside kubelet's
	gen     int
	life    *life
	born    chan struct{} // closed when the next life begins
	deaths  int
	stopped bool
	off     bool // the machine is
	lives   sync.WaitGroup
	broken  []string
	drivers map[int64]driver // that wait for their answers
	calls   atomic.Int64
}

// NewSim returns a simulated node with flexd running. It is for a synctest bubble, in which
// waiting takes no time.
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
	vg := config.VolumeGroup{Name: VG, Volumes: []string{"*"}, Namespaces: []string{"*"}, Create: true, MaxSize: 4 << 30, MountFlags: []string{"nodev"}}
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

// broke reports a promise that flexd broke.
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

// Each life has its own directories, which it loses at its end: later writes of its goroutines have no
// effect.
func (e *Env) notes() string { return filepath.Join(e.Config.RunDir, fmt.Sprintf("notes.%d", e.gen)) }
func (e *Env) records() string {
	return filepath.Join(e.Config.StateDir, fmt.Sprintf("formats.%d", e.gen))
}

// Notes is the directory of the notes, for tests that damage it while flexd is
// down.
func (e *Env) Notes() string   { n, _ := e.dirs(); return n }
func (e *Env) Records() string { _, r := e.dirs(); return r }

// Cgroups is the directory of this node's kubelet control groups. It is empty until a test creates some.
func (e *Env) Cgroups() string { return filepath.Join(e.tmp, "cgroup") }

// Flex returns the FlexVolume frontend of the running flexd.
func (e *Env) Flex() *flexserve.Frontend { return e.current().flex }

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
		if e.Sim != nil {
			step = min(step+step/8, 2*time.Second)
		}
	}
}

// Noted reports whether the disk has a note of a volume.
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
