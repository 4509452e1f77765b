package simulation

import (
	"errors"
	"fmt"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
)

// killKubelet kills kubelet and its flexdrivers; the next kubelet starts at once.
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

// stray starts a flexdriver whose start time is just before one of kubelet's last attempts
// for its directory, and whose call arrives only now. No kubelet waits for it.
func (w *world) stray(verb string, a *actor, attempts int) bool {
	w.mu.Lock()
	k := w.kubelet
	w.mu.Unlock()
	started := w.M.Boot() - 3*time.Second
	w.mu.Lock()
	if a.begun > 0 { // kubelet makes one call at a time for a directory
		started = a.begun - justBefore
	}
	if n := len(a.before); attempts > 0 && n > 0 {
		started = a.before[max(n-attempts, 0)] - justBefore
	}
	if dir := k.Dir(a.pod); verb == flexvolume.Unmount && started >= w.given[dir].started { // it is the newest call
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

// An actor is one pod, as the API server wants it, and the work of kubelet for it.
type actor struct {
	w   *world
	pod hosttest.Pod

	// Guarded by world.mu.
	wanted  bool
	mounted bool            // according to kubelet
	unsure  bool            // kubelet died: the pod's directory decides
	busy    bool            // its goroutine runs
	begun   time.Duration   // since boot: kubelet's last attempt, 0 = none
	began   bool            // whether that was a mount
	before  []time.Duration // likewise: the earlier attempts that were followed by the opposite
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

// reborn sets the state that a new kubelet finds.
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
		w.stop("kubelet serves "+a.pod.UID, nil)
		err := a.attempt(k, wanted)
		w.mu.Lock()
		if k != w.kubelet { // this kubelet is dead: its result does not count
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
	if there { // an operator's earlier changes do not count from here on
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
