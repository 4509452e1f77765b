package simulation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/volume"
)

// A world is one life of a node.
type world struct {
	*hosttest.Env
	schedule schedule
	recorder *recorder
	attach   bool
	pods     []*actor

	mu      sync.Mutex
	kubelet *hosttest.Kubelet
	waiting []*waiting               // calls that wait for their answer
	sharing map[string]chan struct{} // by volume: kubelet's one operation at a time for an attachable one
	free    []func()                 // ends the processes that hold something, and takes an operator's devices away
	hidden  map[string]func()        // brings a disk back
	meddled map[string]bool          // directories at which an operator was
	given   map[string]grant         // directories where kubelet was told that its pod's volume is mounted
	undone  map[string]grant         // directories whose unmount succeeded
	allowed map[string]grant         // by directory: the last permitted mount, with the start of the newest call that it is for
	own     map[string]bool          // uuids of what an operator has activated, and flexd has nothing to do with
	made    int
	over    bool // the life has ended, however
}

// A waiting is a call of kubelet's that waits.
type waiting struct {
	verb, dir, lv string
	started       time.Duration // its flexdriver, since boot
	late          bool          // no kubelet waits for it any more
	uuids         []string      // of the volumes that were called so while it waited
	mounted       bool          // its mount has appeared
}

func (c *waiting) String() string { return c.verb + " " + c.lv + c.dir }

// A grant is a success that was answered, or a permission.
type grant struct {
	by      *reconcile.Node // the life of flexd; the next one knows nothing of what came late
	started time.Duration
}

// A recorder collects what was found wrong, in the place of a test that fails.
type recorder struct {
	testing.TB
	mu    sync.Mutex
	wrong []string
}

func (c *recorder) find(format string, a ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, a...))
}

func (c *recorder) Error(a ...any)                 { c.find("%s", fmt.Sprint(a...)) }
func (c *recorder) Errorf(format string, a ...any) { c.find(format, a...) }
func (c *recorder) Fatal(a ...any)                 { panic(fmt.Sprint(a...)) }
func (c *recorder) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

func (c *recorder) found() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.wrong)
}

// An outcome is how a life ended.
type outcome struct {
	story    scenario // what was decided, whoever decided it
	commands []string // that flexd started meanwhile
	wrong    []string // nil = all promises were kept
}

// volumes and pods of every world.
const (
	volumes       = 3
	podsPerVolume = 2
)

// live plays one life: next says what to do, given what is possible, until it
// returns false.
func live(t *testing.T, attach bool, next func(w *world) (decision, bool)) (o outcome) {
	tmp := hosttest.TempDir(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tmp, attach)
		for {
			time.Sleep(time.Microsecond) // no two calls start in the same instant
			synctest.Wait()
			w.judge()
			if len(w.recorder.found()) > 0 {
				break
			}
			d, ok := next(w)
			if !ok {
				break
			}
			if w.do(d) {
				o.story = append(o.story, d)
			}
		}
		for _, c := range w.Sim.Log() {
			o.commands = append(o.commands, strings.ReplaceAll(c, tmp, "~"))
		}
		w.end()
		o.wrong = w.recorder.found()
	})
	return o
}

func newWorld(t *testing.T, tmp string, attach bool) *world {
	w := &world{recorder: &recorder{TB: t}, attach: attach, sharing: map[string]chan struct{}{}, hidden: map[string]func(){}, meddled: map[string]bool{}, own: map[string]bool{}, given: map[string]grant{}, undone: map[string]grant{}, allowed: map[string]grant{}}
	w.Env = hosttest.NewSim(w.recorder, tmp)
	w.Sim.Lenient = true
	name := func(what string) string { return strings.ReplaceAll(what, tmp, "~") } // the same in each life
	w.Sim.Pace = func(p hosttest.Point) hosttest.Fate { return w.schedule.stop(name("child "+p.String()), nil) }
	w.Sim.Permitted, w.Sim.Mounted = w.permitted, w.mountAppeared
	w.SetPause(func(what string, over <-chan struct{}) { w.schedule.stop(name(what), over) })
	w.Command = w.command
	w.Calling = w.calling
	w.kubelet = hosttest.NewKubelet(w.Env, attach)
	for v := range volumes {
		lv := fmt.Sprintf("lv%d", v)
		w.sharing[lv] = make(chan struct{}, 1)
		for i := range podsPerVolume {
			w.pods = append(w.pods, &actor{w: w, pod: hosttest.Pod{
				UID: fmt.Sprintf("pod%d%c", v, 'a'+i), Volume: fmt.Sprintf("pv%d", v), LV: lv, Size: "64m", RO: v == 1 && i == 1}})
		}
	}
	time.Sleep(time.Second) // a start of 0 means that it is not known
	return w
}

// do does it, and says whether it was possible.
func (w *world) do(d decision) bool {
	switch d.what {
	case lets:
		return w.schedule.let(d.on, hosttest.Lives)
	case kills:
		return w.schedule.let(d.on, hosttest.Dies)
	case fails:
		return w.schedule.let(d.on, hosttest.Fails)
	case garbles:
		return w.schedule.let(d.on, hosttest.Garbles)
	case busies:
		return w.schedule.let(d.on, hosttest.Busy)
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
		return w.Sim.Tidy()
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

// stands says whether something stands at a point of a name that begins so.
func (w *world) stands(at string) bool {
	return slices.ContainsFunc(w.schedule.names(), func(s string) bool { return strings.HasPrefix(s, at+" ") })
}

// meddle notes that an operator is at work at a directory, or above those of pods.
func (w *world) meddle(dir string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.pods {
		for _, at := range []string{w.kubelet.Dir(a.pod), w.kubelet.Global(a.pod.Volume)} {
			if at == dir || strings.HasPrefix(at, dir+"/") {
				w.meddled[at] = true
				delete(w.given, at)
			}
		}
	}
}

// tidied has operators take away what they and others have mounted, as far as nothing
// is mounted on it. It says whether there was such a mount: kubelet, started again, sees
// the directories below.
func (w *world) tidied() bool {
	any := w.Sim.Tidy()
	if any {
		w.killKubelet()
	}
	return any
}

// until keeps what ends something, and says whether there is such a thing.
func (w *world) until(end func()) bool {
	if end != nil {
		w.free = append(w.free, end)
	}
	return end != nil
}

// contents are what an operator's volume may hold.
var contents = []string{"nothing", "ext4", "xfs", "data", "lvm"}

// make puts a volume there, in the place of what was called so.
func (w *world) make(what string) bool {
	lv, content, _ := strings.Cut(what, " ")
	w.made++
	f := hosttest.File{FileInfo: loopdev.FileInfo{UUID: fmt.Sprintf("bbbbbbbb-0000-4000-8000-%012d", w.made), Size: 64 << 20}}
	switch content {
	case "ext4", "xfs":
		f.State, f.Type, f.Bytes, f.Data = hosttest.Whole, content, f.Size, 1
	case "data":
		f.State, f.Data = hosttest.Foreign, 1
	case "lvm":
		f.State, f.Data, f.Note = hosttest.Foreign, 1, "a physical volume"
	}
	w.Sim.AddFile(f, w.File(lv))
	return true
}

// activate is an operator's, of a volume that flexd may have to do with or not.
func (w *world) activate(lv string) bool {
	if !w.Sim.Activate(w.File(lv)) {
		return false
	}
	uuid := w.Sim.UUIDOf(w.File(lv))
	// What flexd creates may be active by that alone, and is flexd's to let go.
	created := w.stands("child loop-create " + lv)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.own[uuid] = !created && !w.Noted(volume.UUID(uuid)) && !slices.ContainsFunc(w.waiting, func(c *waiting) bool { return c.lv == lv })
	return true
}

func (w *world) freeAll() {
	for _, free := range w.free {
		free()
	}
	w.free = nil
}

func (w *world) showAll() {
	for _, lv := range slices.Sorted(maps.Keys(w.hidden)) {
		w.hidden[lv]()
	}
	clear(w.hidden)
}

func (w *world) hide(lv string) bool {
	if w.hidden[lv] != nil {
		return false
	}
	show, ok := w.Sim.Hide("/sim/vg0/" + lv)
	if ok {
		w.hidden[lv] = show
	}
	return ok
}

// killKubelet ends kubelet and its flexdrivers; the next one begins at once.
func (w *world) killKubelet() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kubelet = w.kubelet.Kill()
	for _, a := range w.pods {
		a.reborn()
	}
}

func (w *world) reboot() {
	w.mu.Lock()
	clear(w.given)
	w.mu.Unlock()
	w.free = nil // the processes are dead
	w.killKubelet()
	w.Reboot()
	time.Sleep(time.Second)
	for _, a := range w.pods {
		a.begun, a.before = 0, nil
	}
	w.Begin()
}

func (w *world) actor(uid string) *actor {
	for _, a := range w.pods {
		if a.pod.UID == uid {
			return a
		}
	}
	panic(uid)
}

// justBefore is less than the time between two decisions.
const justBefore = time.Microsecond / 2

// stray is a flexdriver that started just before one of kubelet's last attempts for
// its directory, and arrives only now. Its kubelet does not wait for it any more.
func (w *world) stray(verb string, a *actor, attempts int) bool {
	w.mu.Lock()
	k := w.kubelet
	w.mu.Unlock()
	started := w.M.Boot() - 3*time.Second
	w.mu.Lock()
	if a.begun > 0 { // no kubelet calls twice at once for a directory
		started = a.begun - justBefore
	}
	if n := len(a.before); attempts > 0 && n > 0 {
		started = a.before[max(n-attempts, 0)] - justBefore
	}
	if dir := k.Dir(a.pod); verb == flexvolume.Unmount && started >= w.given[dir].started { // it is the newest wish
		delete(w.given, dir)
	}
	w.mu.Unlock()
	if started <= 0 || w.M.Boot()-started > 5*time.Minute {
		return false // the machine was not up; no flexdriver lives that long
	}
	args := []string{k.Dir(a.pod)}
	if verb == flexvolume.Mount {
		args = append(args, k.Blob(a.pod, true))
	}
	go func() { _, _ = k.CallAt(started, verb, args...) }()
	return true
}

// An actor is one pod, as the API server wants it, and what kubelet does for it.
type actor struct {
	w   *world
	pod hosttest.Pod

	// Guarded by world.mu.
	wanted  bool
	mounted bool            // kubelet counts it so
	unsure  bool            // kubelet died: the pod's directory tells
	busy    bool            // its goroutine runs
	begun   time.Duration   // since boot: kubelet's last attempt, 0 = none
	began   bool            // what that was for
	before  []time.Duration // likewise: the last attempts before it that were for the opposite of the next
}

func (a *actor) isWanted() bool {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	return a.wanted
}

func (a *actor) want(yes bool) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.wanted = yes
	a.serve()
}

// reborn is what a new kubelet finds.
func (a *actor) reborn() {
	if a.unsure, a.mounted = true, false; a.w.M.Exists(a.w.kubelet.Dir(a.pod)) {
		a.w.kubelet.Remember(a.pod)
	}
	a.serve()
}

func (a *actor) serve() {
	if !a.busy {
		a.busy = true
		go a.run()
	}
}

// run is kubelet's loop for one pod, until there is nothing to do.
func (a *actor) run() {
	w := a.w
	wait := 500 * time.Millisecond
	for {
		w.mu.Lock()
		k, wanted, mounted, unsure := w.kubelet, a.wanted, a.mounted, a.unsure
		there := w.M.Exists(k.Dir(a.pod))
		if w.over || wanted == mounted && !unsure || !wanted && !mounted && !there {
			a.unsure, a.busy = false, false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		w.schedule.stop("kubelet serves "+a.pod.UID, nil)
		err := a.attempt(k, wanted)
		w.mu.Lock()
		if k != w.kubelet { // it is dead, whatever it thinks
			w.mu.Unlock()
			wait = 500 * time.Millisecond
			continue
		}
		if err == nil {
			a.mounted, a.unsure = wanted, false
			wait = 500 * time.Millisecond
			w.mu.Unlock()
			if wanted {
				w.mountedFor(a)
			}
			continue
		}
		w.mu.Unlock()
		if errors.Is(err, hosttest.ErrKubeletDied) {
			continue
		}
		time.Sleep(wait)
		wait = min(2*wait, 2*time.Minute+2*time.Second)
	}
}

func (a *actor) attempt(k *hosttest.Kubelet, wanted bool) error {
	if a.w.attach {
		turn := a.w.sharing[a.pod.LV]
		turn <- struct{}{}
		defer func() { <-turn }()
	}
	dir := k.Dir(a.pod)
	there := a.w.Sim.MountedAt(dir) != "" || !a.w.M.IsMountPoint(dir)
	a.w.mu.Lock()
	if a.began != wanted && a.begun > 0 {
		a.before = append(a.before, a.begun)
	}
	a.begun, a.began = max(a.w.M.Boot(), 1), wanted
	if there { // whatever an operator has mounted or taken away: from here on it counts anew
		delete(a.w.meddled, dir)
	}
	if !wanted {
		delete(a.w.given, dir)
	}
	a.w.mu.Unlock()
	if wanted {
		return k.Up(a.pod)
	}
	return k.Down(a.pod)
}

func (a *actor) expand() {
	w := a.w
	w.mu.Lock()
	k, mounted := w.kubelet, a.mounted
	w.mu.Unlock()
	if mounted {
		_, _ = k.Call(flexvolume.ExpandFS, k.Blob(a.pod, false), "", k.Dir(a.pod), fmt.Sprint(96<<20), fmt.Sprint(64<<20))
	}
}
