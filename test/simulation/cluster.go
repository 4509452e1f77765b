package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/hosttest"
)

// A cluster is one run of two nodes with one shared volume group.
type cluster struct {
	recorder *recorder
	schedule *schedule
	disk     *hosttest.Disk
	nodes    []*world
	done     chan struct{} // closed at the end: the daemons end

	mu    sync.Mutex
	reset map[*world]bool // the watchdog has reset it
	used  map[string]bool // pods that were wanted
}

// The actions on a node of a cluster, beside those of a single one.
const (
	powersOff  action = "the node loses power"
	powersOn   action = "the node boots"
	pauses     action = "the node is paused"
	resumes    action = "the node continues"
	stopsTime  action = "the node's time stops"
	goesOn     action = "the node's time goes on"
	cutsOff    action = "the node does not reach the disk"
	reconnects action = "the node reaches the disk again"
	lockdDies  action = "lvmlockd is killed"
	lockdBack  action = "lvmlockd starts again, and adopts its locks"
	sanlockDie action = "sanlock is killed"
	empties    action = "the volume reads as zeros:"
	silences   action = "which host holds a lock is not known any more" // otherwise a node hardly asks for a lock that another holds
)

// playCluster makes one run: next returns the next decision, until it returns false.
func playCluster(t *testing.T, attach bool, next func(c *cluster) (decision, bool)) (o outcome) {
	tmp := hosttest.TempDir(t)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, tmp, attach)
		o.sequence = decide(c, c.recorder, next)
		for _, w := range c.nodes {
			for _, command := range w.Sim.Log() {
				o.commands = append(o.commands, w.at+strings.ReplaceAll(command, tmp, "~"))
			}
		}
		c.end()
		o.wrong = c.recorder.found()
	})
	return o
}

func newCluster(t *testing.T, tmp string, attach bool) *cluster {
	r := &recorder{TB: t}
	c := &cluster{recorder: r, schedule: &schedule{}, disk: hosttest.NewDisk(r.Errorf), done: make(chan struct{}), reset: map[*world]bool{}, used: map[string]bool{}}
	for id := 1; id <= 2; id++ {
		w := emptyWorld(r, c.schedule, fmt.Sprintf("n%d: ", id), attach)
		w.Env = hosttest.NewShared(r, tmp, c.disk, id)
		c.nodes = append(c.nodes, w)
		w.begin(tmp)
		m := w.Locking()
		m.Reset = func() { c.watchdog(w) }
		m.Lockstart()
		go m.Run(c.done)
	}
	time.Sleep(20 * time.Second) // the lockspaces are started
	return c
}

// watchdog resets a node. It boots by a later decision.
func (c *cluster) watchdog(w *world) {
	c.mu.Lock()
	c.reset[w] = true
	c.mu.Unlock()
	w.powerOff()
}

func (w *world) powerOff() bool {
	if w.Locking().Off() {
		return false
	}
	w.mu.Lock()
	clear(w.given)
	w.mu.Unlock()
	w.free = nil // the processes are dead
	w.PowerOff()
	w.killKubelet()
	return true
}

func (w *world) powerOn() bool {
	if !w.Locking().Off() {
		return false
	}
	w.mu.Lock()
	for _, a := range w.pods {
		a.begun, a.before = 0, nil
	}
	w.mu.Unlock()
	time.Sleep(time.Second)
	w.PowerOn()
	return true
}

// runs reports whether goroutines of a node may continue. What one whose time was stopped does
// before it notices that is not judged.
func (w *world) runs() bool {
	m := w.Locking()
	return !m.Off() && !m.Paused() && !m.Unaware()
}

// do carries out a decision, and reports whether it was possible.
func (c *cluster) do(d decision) bool {
	if d.what == passes {
		time.Sleep(d.pass)
		return true
	}
	w := c.nodes[d.node-1]
	m := w.Locking()
	switch d.what {
	case powersOff:
		return w.powerOff()
	case powersOn:
		return w.powerOn()
	case pauses:
		return m.Pause(true)
	case resumes:
		return m.Pause(false)
	case stopsTime:
		return m.StopTime(true)
	case goesOn:
		return m.StopTime(false)
	case cutsOff:
		return m.CutOff(true)
	case reconnects:
		return m.CutOff(false)
	case lockdDies:
		return m.KillLockd()
	case lockdBack:
		return m.AdoptLocks()
	case sanlockDie:
		return m.KillSanlock()
	case empties:
		return c.disk.Empty(w.File(d.on))
	case silences:
		return c.disk.HideHolders()
	case makes:
		return w.Sim.UUIDOf(w.File(d.on)) == "" && w.Storage.Make(d.on, 64<<20) == nil
	}
	if d.what == starts {
		c.used[d.on] = true
	}
	return w.runs() && w.do(d)
}

// judge verifies the conditions that hold between any two decisions.
func (c *cluster) judge() {
	for _, why := range c.disk.Conflicts() {
		c.recorder.find("%s", why)
	}
	for _, w := range c.nodes {
		w.judge()
	}
}

// end ends the faults. Then the volumes work on the first node, move to the second one, and
// nothing of them is left.
func (c *cluster) end() {
	failed := len(c.recorder.found()) > 0
	for _, w := range c.nodes {
		m := w.Locking()
		w.freeAll()
		m.Pause(false)
		m.StopTime(false)
		m.CutOff(false)
		m.AdoptLocks()
		w.killKubelet()
	}
	time.Sleep(hosttest.Stopped)
	for _, w := range c.nodes {
		if w.Locking().Unaware() { // its flexd does not know yet where its locks are
			w.powerOff()
		}
	}
	synctest.Wait()
	c.schedule.opened()
	synctest.Wait()
	for _, w := range c.nodes {
		w.Sim.Tidy()
		w.Arm(hosttest.Never, 0)
		for _, a := range w.pods {
			a.want(false)
		}
	}
	if !failed {
		time.Sleep(hosttest.HostDead) // a watchdog that runs resets its node
		for _, w := range c.nodes {
			if !w.Locking().Working() { // an administrator does
				w.powerOff()
				w.powerOn()
			}
		}
		time.Sleep(hosttest.HostDead)
		c.moves()
	}
	for _, w := range c.nodes {
		w.mu.Lock()
		w.over = true
		w.mu.Unlock()
		w.kubelet.Kill()
		w.Stop()
	}
	close(c.done)
	time.Sleep(time.Hour) // all goroutines that sleep wake up and end
	c.judge()
}

// moves lets every pod of one node work after the other: a volume that its last holder has
// left is not stranded.
func (c *cluster) moves() {
	for range 2 {
		for _, w := range c.nodes {
			c.empty()
			for _, a := range w.pods {
				a.want(c.used[a.pod.UID])
			}
			w.Eventually("every pod has its volume", w.resting)
			c.judge()
			if len(c.recorder.found()) > 0 {
				return
			}
			for _, a := range w.pods {
				a.want(false)
			}
		}
	}
	c.empty()
}

// empty waits until nothing of the volumes is left, and no lock.
func (c *cluster) empty() {
	for _, w := range c.nodes {
		if len(c.recorder.found()) > 0 {
			return
		}
		w.empty()
		for v := range volumes {
			lv := fmt.Sprintf("lv%d", v)
			w.Sim.Wipe(w.File(lv))
			if uuid := w.Sim.UUIDOf(w.File(lv)); uuid != "" && w.Locking().Holds(uuid) {
				c.recorder.find("%s is stranded: host %s keeps its lock, and does not use it", lv, w.at)
			}
		}
	}
}

// A clusterRandom takes the decisions of one run of a cluster. In most runs few pods, of one
// volume, start and stop on both nodes. A goroutine is held at a point that matters while
// something happens to its node, and the other one works.
type clusterRandom struct {
	*rand.Rand
	weights []weight
	pods    []string
	left    int
	first   []decision
	focused bool // whether points are held
	held    string
	hold    int      // for so many decisions
	next    []action // on its node
	end     action   // of the hold
}

// clusterFoci are the points that matter: the instants in which a lock is taken, known or
// ended, and the content of a volume changes.
var clusterFoci = []focus{
	{points: "child lvchange *-aey* before", actions: []action{starts}},
	{points: "child lvchange *-aey* within", actions: []action{stops, stops, flexdDies, kubeletDies, powersOff, pauses, stopsTime, lockdDies, cutsOff, passes}},
	{points: "child lvchange * before", actions: []action{stops, flexdDies, pauses, powersOff, lockdDies, passes}},
	{points: "child lvchange * after", actions: []action{stops, flexdDies, pauses, powersOff, passes}},
	{points: "child lvchange * unlocking", actions: []action{starts, flexdDies, pauses, powersOff, lockdDies, cutsOff}},
	{points: "child lvcreate *", actions: []action{stops, flexdDies, powersOff, pauses, passes}},
	{points: "child lvextend *", actions: []action{stops, flexdDies, powersOff, pauses}},
	{points: "child locks *", actions: []action{passes, passes, stops, pauses, lockdDies, flexdDies}},
	{points: "child fullreport *", actions: []action{passes, stops, flexdDies, pauses}},
	{points: "child probe *", actions: []action{passes, pauses, powersOff, cutsOff, flexdDies, stops}},
	{points: "child format *", actions: []action{powersOff, pauses, flexdDies, cutsOff, stops, passes}},
	{points: "child mount *", actions: []action{powersOff, pauses, flexdDies, stops, lockdDies, passes}},
	{points: "child umount *", actions: []action{powersOff, pauses, stopsTime, flexdDies, starts, lockdDies, cutsOff}},
	{points: "writing record *", actions: []action{flexdDies, powersOff, pauses, stops}},
	{points: "turn of *", actions: []action{passes, pauses, stopsTime, stops, cutsOff}},
}

var clusterWeights = []weight{
	{lets, 600, []int{1, 2, 4}}, {passes, 60, []int{1, 1, 2}}, {starts, 40, []int{1, 2}}, {stops, 40, []int{1, 2}},
	{kills, 6, usual}, {fails, 6, usual}, {expands, 3, usual}, {flexdDies, 8, usual}, {kubeletDies, 5, usual}, {diesOf, 5, usual},
	{holds, 6, seldom}, {frees, 6, usual}, {umounts, 5, seldom}, {activates, 4, seldom}, {deactivates, 3, seldom}, {opens, 4, seldom}, {blinds, 3, usual}, {cuts, 4, usual},
	{powersOff, 4, usual}, {powersOn, 12, usual}, {pauses, 5, usual}, {resumes, 12, usual}, {stopsTime, 3, usual}, {goesOn, 8, usual}, {cutsOff, 5, usual}, {reconnects, 10, usual},
	{lockdDies, 4, usual}, {lockdBack, 10, usual}, {sanlockDie, 2, usual}, {empties, 4, usual},
}

func newClusterRandom(seed uint64) *clusterRandom {
	c := &clusterRandom{Rand: rand.New(rand.NewPCG(seed, 1)), left: decisions}
	for _, w := range clusterWeights {
		w.of *= w.tempts[c.IntN(len(w.tempts))]
		c.weights = append(c.weights, w)
	}
	v := c.IntN(volumes)
	for i := range 1 + c.IntN(podsPerVolume) {
		c.pods = append(c.pods, fmt.Sprintf("pod%d%c", v, 'a'+i))
	}
	if c.IntN(4) == 0 {
		c.pods = append(c.pods, fmt.Sprintf("pod%da", (v+1)%volumes))
	}
	c.focused = c.IntN(4) > 0
	if c.IntN(2) == 0 {
		c.first = append(c.first, decision{what: silences, node: 1})
	}
	for v := range volumes {
		if c.IntN(4) > 0 { // otherwise flexd creates it
			c.first = append(c.first, decision{what: makes, on: fmt.Sprintf("lv%d", v), node: 1})
		}
	}
	return c
}

func (c *clusterRandom) decision(k *cluster) (decision, bool) {
	if c.left--; len(c.first) > 0 {
		d := c.first[0]
		c.first = c.first[1:]
		return d, true
	}
	return c.decide(k), c.left >= 0
}

// decide chooses an action and its object.
func (c *clusterRandom) decide(k *cluster) decision {
	if c.held != "" {
		if c.hold--; c.hold < 0 || !slices.Contains(k.schedule.names(), c.held) {
			d := k.at(c.end, c.held)
			c.held, c.next = "", nil
			return d
		}
		if n := len(c.next); n > 0 && c.IntN(3) == 0 {
			what := c.next[n-1]
			c.next = c.next[:n-1]
			d := c.about(k, what, k.at(lets, c.held).node)
			if _, lv, ok := strings.Cut(c.held, "vg0/lv"); ok && what == starts && c.IntN(2) == 0 { // the other node wants it, too
				d.on, d.node = "pod"+lv[:1]+"a", len(k.nodes)+1-d.node
			}
			return d
		}
	}
	what := c.drawn()
	if what == lets || what == kills || what == fails {
		return c.point(k, what)
	}
	return c.about(k, what, 1+c.IntN(len(k.nodes)))
}

// point chooses a goroutine that continues, or is held from now on.
func (c *clusterRandom) point(k *cluster, what action) decision {
	var stopped []string // of nodes that run, but for the held one
	for _, w := range k.nodes {
		for _, s := range w.names() {
			if w.runs() && w.at+s != c.held {
				stopped = append(stopped, w.at+s)
			}
		}
	}
	if what != lets {
		stopped = slices.DeleteFunc(stopped, func(s string) bool { return !strings.Contains(s, ": child ") })
	}
	if len(stopped) == 0 {
		return c.about(k, []action{passes, passes, starts, starts, stops, powersOn, resumes, reconnects, lockdBack}[c.IntN(9)], 1+c.IntN(len(k.nodes)))
	}
	d := k.at(what, c.one(stopped))
	if !c.focused || c.held != "" || what != lets || c.IntN(4) > 0 {
		return d
	}
	for _, i := range c.Perm(len(clusterFoci)) {
		if f := clusterFoci[i]; matches(f.points, d.on) && c.IntN(f.every()) == 0 {
			c.held, c.hold, c.end = k.nodes[d.node-1].at+d.on, 5+c.IntN(60), []action{lets, lets, kills, fails}[c.IntN(4)]
			for range 1 + c.IntN(2) {
				c.next = append(c.next, f.actions[c.IntN(len(f.actions))])
			}
			return c.decide(k)
		}
	}
	return d
}

// at returns an action on a point.
func (c *cluster) at(what action, name string) decision {
	for i, w := range c.nodes {
		if on, ok := strings.CutPrefix(name, w.at); ok {
			return decision{what: what, on: on, node: i + 1}
		}
	}
	panic(name)
}

// about chooses the object of an action on a node.
func (c *clusterRandom) about(k *cluster, what action, node int) decision {
	d, w := decision{what: what, node: node}, k.nodes[node-1]
	switch what {
	case passes:
		times := []time.Duration{time.Millisecond, 100 * time.Millisecond, time.Second, 3 * time.Second, 11 * time.Second, 40 * time.Second, 90 * time.Second, 5 * time.Minute}
		if len(k.schedule.names()) == 0 {
			times = times[2:]
		}
		d.pass = times[c.IntN(len(times))]
	case starts, stops, expands:
		d.on = c.one(c.pods)
	case diesOf:
		d.on = c.one(w.callers(""))
	case holds, umounts:
		d.on = c.one(w.Mounts())
	case activates, deactivates, opens, empties:
		d.on = "lv" + c.one(c.pods)[3:4]
	case cuts:
		d.on = fmt.Sprint(c.IntN(3))
	}
	if d.on == "" && slices.Contains([]action{diesOf, holds, umounts}, what) {
		return c.point(k, lets)
	}
	return d
}

func (c *clusterRandom) one(of []string) string {
	if len(of) == 0 {
		return ""
	}
	return of[c.IntN(len(of))]
}

func (c *clusterRandom) drawn() action {
	all := 0
	for _, w := range c.weights {
		all += w.of
	}
	roll := c.IntN(all)
	for _, w := range c.weights {
		if roll -= w.of; roll < 0 {
			return w.what
		}
	}
	panic("unreachable")
}
