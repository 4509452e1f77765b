package simulation

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/flex"
	"github.com/flexd/flexd/internal/run"
)

// calling is told of each call of kubelet's, and returns what is to be called
// when its flexdriver has its answer or is dead.
func (w *world) calling(verb string, args []string) (over func()) {
	c := &waiting{verb: verb}
	for _, a := range args {
		switch {
		case strings.HasPrefix(a, "{"):
			var options map[string]string
			_ = json.Unmarshal([]byte(a), &options)
			c.lv = options[flex.KeyLV]
		case c.dir == "" && strings.HasPrefix(a, w.Root+"/"):
			c.dir = a
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(w.waiting, c)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if i := slices.Index(w.waiting, c); i >= 0 {
			w.waiting = slices.Delete(w.waiting, i, i+1)
		}
	}
}

// command is told of each command before it starts: set-up and unmounts are only
// for a call that waits at this moment.
func (w *world) command(c run.Cmd) {
	var a struct {
		Dir, File string
		Device    struct{ Path string }
	}
	_ = json.Unmarshal([]byte(c.Argv[3]), &a)
	lv := path.Base(a.File)
	if a.File == "" {
		lv = w.Sim.VolumeOf(a.Device.Path)
	}
	var fits func(*waiting) bool
	switch op := c.Argv[2]; op {
	case "format", "check", "loop-create": // an activation looks first which device is whose, and may then finish
		fits = func(c *waiting) bool { return c.lv == lv && !teardown(c.verb) }
	case "mount":
		fits = func(c *waiting) bool { return c.dir == a.Dir && !teardown(c.verb) }
	case "umount":
		fits = func(c *waiting) bool { return c.dir == a.Dir && teardown(c.verb) }
	default:
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.ContainsFunc(w.waiting, fits) {
		w.court.find("%s of %s%s, and no call waits for it; there wait %v", c.Argv[2], a.Dir, lv, w.waiting)
	}
}

func teardown(verb string) bool { return verb == flex.Unmount || verb == flex.UnmountDevice }

// judge looks at what holds between any two decisions.
func (w *world) judge() {
	for _, b := range w.Broken() {
		w.court.find("a promise was broken: %s", b)
	}
	for _, a := range w.pods {
		dir := w.kubelet.Dir(a.pod)
		if lv := w.Sim.MountedAt(dir); lv != "" && lv != a.pod.LV {
			w.court.find("%s has the volume %s, and should have %s", a.pod.UID, lv, a.pod.LV)
		}
	}
}

// mountedFor is called when kubelet takes a pod's volume for mounted.
func (w *world) mountedFor(a *actor) {
	dir := w.kubelet.Dir(a.pod)
	w.mu.Lock()
	meddled := w.meddled[dir] || w.meddled[w.kubelet.Global(a.pod.Volume)]
	w.mu.Unlock()
	if lv := w.Sim.MountedAt(dir); lv != a.pod.LV && !meddled {
		w.court.find("kubelet takes the volume of %s for mounted, and at %s there is %q", a.pod.UID, dir, lv)
		return
	}
	if !a.pod.RO {
		_ = w.M.Write(dir)
	}
}

// end lets faults end; then everything must come to rest, and nothing be left.
func (w *world) end() {
	failed := len(w.court.found()) > 0
	w.freeAll()
	w.showAll()
	w.killKubelet()
	synctest.Wait()
	w.schedule.opened()
	w.Sim.Tidy(w.Root)
	for _, a := range w.pods {
		a.want(false)
	}
	if !failed {
		w.empty()
		for _, a := range w.pods { // and all works as ever
			a.want(true)
		}
		w.Eventually("every pod has its volume", w.resting)
		w.judge()
		for _, a := range w.pods {
			a.want(false)
		}
		w.empty()
	}
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.kubelet.Kill()
	w.Stop()
	time.Sleep(time.Hour) // whoever still sleeps wakes up and ends
	w.judge()
	if n := len(w.waiting); n > 0 && !failed {
		w.court.find("%d calls got no answer: %v", n, w.waiting)
	}
}

// empty waits until kubelet has let go of every pod, and flexd of all that it had.
func (w *world) empty() {
	w.Eventually("kubelet has let go of every pod", w.resting)
	for v := range volumes {
		global := w.kubelet.Global(fmt.Sprintf("pv%d", v)) // kubelet may never find it again
		if w.M.IsMountPoint(global) {
			if err := w.kubelet.Insist(flex.UnmountDevice, global); err != nil {
				w.court.find("%v", err)
			}
		}
		_ = w.M.Remove(global)
	}
	w.Empty()
}

func (w *world) resting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.pods, func(a *actor) bool { return a.busy })
}
