package simulation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/reconcile"
)

// A world is one run of a node.
type world struct {
	*hosttest.Env
	schedule *schedule
	at       string // begins the names of this node's points; "" = there is one node
	recorder *recorder
	attach   bool
	pods     []*actor

	mu      sync.Mutex
	kubelet *hosttest.Kubelet
	waiting []*waiting               // calls that wait for their answer
	sharing map[string]chan struct{} // by volume: kubelet's one operation at a time for an attachable one
	free    []func()                 // end the processes that use a mount or device, and detach an operator's devices
	hidden  map[string]func()        // make a disk visible again
	meddled map[string]bool          // directories that an operator changed
	given   map[string]grant         // directories whose mount succeeded
	undone  map[string]grant         // directories whose unmount succeeded
	allowed map[string]grant         // by directory: the last permitted mount, with the start of its newest call
	own     map[string]bool          // uuids of volumes that an operator activated, and flexd does not use
	made    int
	idle    time.Duration // since boot: since when flexd is idle while a call waits, 0 = it is not idle
	over    bool          // the run has ended
}

// A waiting is a call of kubelet that waits.
type waiting struct {
	verb, dir, lv string
	started       time.Duration // start of its flexdriver, since boot
	late          bool          // no kubelet waits for it any more
	uuids         []string      // of the volumes that had its name while it waited
	permitted     bool          // this flexd has permitted its mount
	mounted       bool          // the mount has appeared
}

func (c *waiting) String() string { return c.verb + " " + c.lv + c.dir }

// A grant is a Success answer, or a permission.
type grant struct {
	by      *reconcile.Node // the flexd process; the next one does not know late calls
	started time.Duration
}

// An outcome is the result of a run.
type outcome struct {
	sequence scenario // the decisions that were possible
	commands []string // that flexd started
	wrong    []string // failures; nil = all promises were kept
}

// The numbers of volumes and pods of every world.
const (
	volumes       = 3
	podsPerVolume = 2
)

// decide makes the decisions of one run, until next returns false or a promise is broken.
func decide[W interface {
	judge()
	do(decision) bool
}](w W, r *recorder, next func(W) (decision, bool)) (made scenario) {
	for {
		time.Sleep(time.Microsecond) // no two calls start in the same instant
		synctest.Wait()
		w.judge()
		if len(r.found()) > 0 {
			return made
		}
		d, ok := next(w)
		if !ok {
			return made
		}
		if w.do(d) {
			made = append(made, d)
		}
	}
}

// play makes one run: next returns the next decision, until it returns false.
func play(t *testing.T, attach bool, next func(w *world) (decision, bool)) (o outcome) {
	tmp := hosttest.TempDir(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tmp, attach)
		o.sequence = decide(w, w.recorder, next)
		for _, c := range w.Sim.Log() {
			o.commands = append(o.commands, strings.ReplaceAll(c, tmp, "~"))
		}
		w.end()
		o.wrong = w.recorder.found()
	})
	return o
}

func newWorld(t *testing.T, tmp string, attach bool) *world {
	r := &recorder{TB: t}
	w := emptyWorld(r, &schedule{}, "", attach)
	w.Env = hosttest.NewSim(r, tmp)
	w.begin(tmp)
	time.Sleep(time.Second) // a start of 0 means that it is unknown
	return w
}

func emptyWorld(r *recorder, s *schedule, at string, attach bool) *world {
	return &world{recorder: r, schedule: s, at: at, attach: attach, sharing: map[string]chan struct{}{}, hidden: map[string]func(){}, meddled: map[string]bool{}, own: map[string]bool{}, given: map[string]grant{}, undone: map[string]grant{}, allowed: map[string]grant{}}
}

// begin starts kubelet, and stops goroutines at their points from now on.
func (w *world) begin(tmp string) {
	w.Sim.Lenient = true
	name := func(what string) string { return strings.ReplaceAll(what, tmp, "~") } // the same in each run
	w.Sim.Pace = func(p hosttest.Point) hosttest.Fate { return w.stop(name("child "+p.String()), nil) }
	w.Sim.Permitted, w.Sim.Mounted = w.permitted, w.mountAppeared
	w.SetPause(func(what string, over <-chan struct{}) { w.stop(name(what), over) })
	w.Command = w.command
	w.Calling = w.calling
	w.kubelet = hosttest.NewKubelet(w.Env, w.attach)
	for v := range volumes {
		lv := fmt.Sprintf("lv%d", v)
		w.sharing[lv] = make(chan struct{}, 1)
		for i := range podsPerVolume {
			w.pods = append(w.pods, &actor{w: w, pod: hosttest.Pod{
				UID: fmt.Sprintf("pod%d%c", v, 'a'+i), Volume: fmt.Sprintf("pv%d", v), LV: lv, Size: "64m", RO: v == 1 && i == 1}})
		}
	}
}

// stop stops a goroutine of this node until a decision.
func (w *world) stop(what string, over <-chan struct{}) hosttest.Fate {
	return w.schedule.stop(w.at+what, over)
}

// names lists the points of this node's goroutines that have stopped.
func (w *world) names() (all []string) {
	for _, s := range w.schedule.names() {
		if name, ok := strings.CutPrefix(s, w.at); ok {
			all = append(all, name)
		}
	}
	return all
}

// let ends the stop of a goroutine of this node, and reports whether there was one.
func (w *world) let(name string, f hosttest.Fate) bool { return w.schedule.let(w.at+name, f) }

// do carries out a decision, and reports whether it was possible.
func (w *world) do(d decision) bool {
	switch d.what {
	case lets:
		return w.let(d.on, hosttest.Lives)
	case kills:
		return w.let(d.on, hosttest.Dies)
	case fails:
		return w.let(d.on, hosttest.Fails)
	case garbles:
		return w.let(d.on, hosttest.Garbles)
	case busies:
		return w.let(d.on, hosttest.Busy)
	case diesOf:
		return w.KillDriver(d.on)
	case passes:
		time.Sleep(d.pass)
		return true
	case starts, stops:
		a := w.actor(d.on)
		if a.isWanted() == (d.what == starts) {
			return false
		}
		a.want(d.what == starts)
	case expands:
		a := w.actor(d.on)
		go a.expand()
	case strays:
		of := strings.Fields(d.on)
		return w.stray(of[0], w.actor(of[1]), int(of[2][0]-'0'))
	case flexdDies:
		if w.Dead() {
			return false
		}
		w.Crash()
	case cuts:
		k, err := strconv.Atoi(d.on)
		if err != nil {
			panic(err)
		}
		w.Arm(hosttest.CrashNoting, 1+k)
	case kubeletDies:
		w.killKubelet()
	case reboots:
		if w.Dead() {
			return false
		}
		w.reboot()
	case tears:
		w.Sim.TearTable()
	case blinds:
		w.Sim.Blind()
	case umounts:
		w.meddle(d.on)
		return w.M.Umount(d.on) == nil
	case covers:
		if !w.M.Exists(d.on) {
			return false
		}
		w.meddle(d.on)
		return w.M.MountTmpfs(d.on) == nil
	case binds:
		w.meddle(w.Root)
		return w.Sim.BindItself(w.Root)
	case turns:
		w.Sim.Propagate(w.Root)
	case borrows:
		lv, dir, _ := strings.Cut(d.on, " ")
		w.meddle(dir)
		return w.Sim.MountElsewhere(w.File(lv), dir) == nil
	case clears:
		return w.clear()
	case freezes:
		return w.until(w.Sim.Freeze(d.on))
	case shrinks:
		return w.Sim.Shrink(w.File(d.on), 32<<20)
	case makes:
		return w.make(d.on)
	case writes:
		return w.Sim.WriteRaw(w.File(d.on))
	case activates:
		return w.activate(d.on)
	case deactivates:
		return w.Sim.Deactivate(w.File(d.on))
	case attaches:
		return w.until(w.Sim.Losetup(w.File(d.on)))
	case opens:
		return w.until(w.Sim.HoldDevice(w.File(d.on)))
	case holds:
		if !w.M.IsMountPoint(d.on) {
			return false
		}
		w.until(w.M.Hold(d.on))
	case frees:
		if len(w.free) == 0 {
			return false
		}
		w.freeAll()
	case hides:
		return w.hide(d.on)
	case shows:
		if len(w.hidden) == 0 {
			return false
		}
		w.showAll()
	}
	return true
}

// stands reports whether a goroutine has stopped at a point whose name begins so.
func (w *world) stands(at string) bool {
	return slices.ContainsFunc(w.names(), func(s string) bool { return s == at || strings.HasPrefix(s, at+" ") })
}
