package simulation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// A recorder collects the failures of a run instead of failing the test.
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

// calling is called at each call of kubelet. It returns a function to call when the
// flexdriver has its answer or is dead.
func (w *world) calling(r flexvolume.Request) (over func(*flexvolume.Answer)) {
	c := &waiting{verb: r.Verb, started: time.Duration(r.Started)}
	for _, a := range r.Args {
		switch {
		case strings.HasPrefix(a, "{"):
			var options map[string]string
			_ = json.Unmarshal([]byte(a), &options)
			c.lv = options[flexvolume.KeyLV]
		case c.dir == "" && strings.HasPrefix(a, w.Root+"/"):
			c.dir = a
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c.late = slices.ContainsFunc(w.pods, func(a *actor) bool { return w.kubelet.Dir(a.pod) == c.dir && c.started < a.begun })
	w.name(c)
	w.waiting = append(w.waiting, c)
	return func(a *flexvolume.Answer) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if i := slices.Index(w.waiting, c); i >= 0 {
			w.waiting = slices.Delete(w.waiting, i, i+1)
		}
		if a != nil {
			w.answer(c, *a)
		}
	}
}

// answer verifies an answer to kubelet. A call whose mount was permitted is answered after
// its outcome: Success if the mount exists. When the call's deadline has passed and flexd
// cannot see the mount, it waits for outcomeGrace longer. When an unmount succeeds, no
// older mount exists.
func (w *world) answer(c *waiting, a flexvolume.Answer) {
	there := c.lv != "" && w.Sim.MountedAt(c.dir) == c.lv
	switch {
	case a.Status == flexvolume.StatusSuccess && c.verb == flexvolume.Mount && there && !c.late:
		w.given[c.dir] = grant{w.Node(), c.started}
	case a.Status == flexvolume.StatusSuccess && teardown(c.verb):
		if w.Sim.StandsAt(c.dir) && w.allowed[c.dir].started < c.started && !w.meddled[c.dir] {
			w.recorder.find("%s succeeds, and an older mount exists", c)
		}
		w.undone[c.dir] = grant{w.Node(), c.started}
	case a.Status != flexvolume.StatusSuccess && c.permitted && w.stands("child mount "+c.dir+" within") && !w.timeIsUp(c):
		w.recorder.find("%s may still be mounted, and the answer is %s", c, a.Message)
	case a.Status != flexvolume.StatusSuccess && c.mounted && there && !w.meddled[c.dir] && !(w.timeIsUp(c) && w.unseen(c)):
		w.recorder.find("%s is mounted, and the answer is %s", c, a.Message)
	}
}

// outcomeGrace is how long flexd waits for the outcome of a permitted mount beyond a
// call's deadline.
const outcomeGrace = 20 * time.Second

func (w *world) timeIsUp(c *waiting) bool {
	limit := w.Config.CallDeadline
	if c.permitted {
		limit += outcomeGrace
	}
	return w.M.Boot()-c.started >= limit
}

// idleLimit is longer than flexd waits before it repeats a step that a call waits for.
const idleLimit = 100 * time.Second

// unseen reports whether flexd cannot see a call's mount: the child has not ended, or the
// schedule holds the observation that would show it, or a child that identifies a device
// for it.
func (w *world) unseen(c *waiting) bool {
	return slices.ContainsFunc(w.names(), func(s string) bool {
		uuid, turn := strings.CutPrefix(s, "turn of ")
		return s == "look" || strings.HasPrefix(s, "child loop-identify ") || strings.HasPrefix(s, "child mount "+c.dir+" ") || turn && slices.Contains(c.uuids, uuid)
	})
}

// name records the uuid of the volume that has the name in a call now. From then on the
// volume is not only an operator's.
func (w *world) name(c *waiting) {
	uuid := w.Sim.UUIDOf(w.File(c.lv))
	if c.lv == "" || slices.Contains(c.uuids, uuid) {
		return
	}
	c.uuids = append(c.uuids, uuid)
	delete(w.own, uuid)
}

// permitted is called when flexd has permitted a mount: a call must wait for it at
// this moment, and the volume must have had the name in the call.
func (w *world) permitted(dir, uuid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.waiting {
		w.name(c)
	}
	waits := false
	w.allowed[dir] = grant{by: w.Node()}
	for _, c := range w.waiting {
		if c.wants(dir, uuid) {
			w.allowed[dir], waits = grant{w.Node(), max(w.allowed[dir].started, c.started)}, true
			c.permitted = !c.late
		}
	}
	if !waits {
		w.recorder.find("the mount of %s at %s is permitted, and no call waits for it; calls that wait: %v", uuid, dir, w.waiting)
	}
}

// mountAppeared is called when a mount appears: no unmount that is newer than its call
// may have succeeded.
func (w *world) mountAppeared(dir, uuid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.waiting {
		if c.wants(dir, uuid) {
			c.mounted = !c.late
		}
	}
	if u := w.undone[dir]; u.by == w.Node() && u.started > w.allowed[dir].started {
		w.recorder.find("%s is mounted at %s for a call that is older than an unmount that has succeeded", uuid, dir)
	}
}

// wants reports whether a call mounts that volume there.
func (c *waiting) wants(dir, uuid string) bool {
	return c.dir == dir && (c.verb == flexvolume.Mount || c.verb == flexvolume.MountDevice) && slices.Contains(c.uuids, uuid)
}

// command is called before each command starts: a call must wait for each set-up and
// unmount at this moment, and flexd deactivates only volumes that it has notes of.
func (w *world) command(c run.Cmd) {
	var a struct {
		Dir, File string
		UUID      volume.UUID
		Device    struct{ Path string }
	}
	if c.Argv[0] == "lvm" {
		return
	}
	_ = json.Unmarshal([]byte(c.Argv[3]), &a)
	lv := path.Base(a.File)
	if a.File == "" {
		lv = w.Sim.VolumeOf(a.Device.Path)
	}
	var fits func(*waiting) bool
	switch op := c.Argv[2]; op {
	case "format", "check", "loop-create": // an activation first identifies the devices, and may then finish
		gone := lv == "" // an operator has deactivated it, and the child will not find it
		fits = func(c *waiting) bool { return (c.lv == lv || gone) && !teardown(c.verb) }
	case "mount":
		fits = func(c *waiting) bool { return c.dir == a.Dir && !teardown(c.verb) }
	case "umount":
		fits = func(c *waiting) bool { return c.dir == a.Dir && teardown(c.verb) }
	case "loop-extend":
		blank := w.Sim.WasBlank(a.File) // no pod has had it: the size may be corrected
		fits = func(c *waiting) bool {
			return c.lv == lv && (c.verb == flexvolume.ExpandFS || blank && !teardown(c.verb))
		}
	case "grow": // also after the answer, for the pod that has the mount
		if !slices.ContainsFunc(w.Claims(), func(c dsw.Claim) bool { return c.LV == lv && c.Phase == volume.Held }) {
			w.recorder.find("the filesystem of %s is grown, and no claim holds it", lv)
		}
		return
	case "loop-detach":
		w.mu.Lock()
		own := w.own[string(a.UUID)]
		w.mu.Unlock()
		if own || !w.Noted(a.UUID) {
			w.recorder.find("%s is deactivated, and an operator activated it, or it has no note", lv)
		}
		return
	default:
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.ContainsFunc(w.waiting, fits) {
		w.recorder.find("%s of %s%s, and no call waits for it; calls that wait: %v", c.Argv[2], a.Dir, lv, w.waiting)
	}
}

// unfinished reports whether flexd has still to end the creation of a volume, which a command
// that hangs may delay.
func (w *world) unfinished(uuid string) bool {
	for v := range volumes {
		if lv := fmt.Sprintf("lv%d", v); w.Sim.UUIDOf(w.File(lv)) == uuid {
			return w.Noted(volume.UUID("name:" + hosttest.VG + ":" + lv))
		}
	}
	return false
}

func teardown(verb string) bool {
	return verb == flexvolume.Unmount || verb == flexvolume.UnmountDevice
}

// judge verifies the conditions that hold between any two decisions.
func (w *world) judge() {
	for _, b := range w.Broken() {
		w.recorder.find("a promise was broken: %s", b)
	}
	if w.Dead() || len(w.names()) == 0 { // flexd is not writing a note
		for _, uuid := range w.Sim.Activated() {
			if !w.Noted(volume.UUID(uuid)) && !w.unfinished(uuid) {
				w.recorder.find("%s was activated by flexd, and has no note", uuid)
			}
		}
	}
	w.mu.Lock()
	switch now := w.M.Boot(); {
	case w.Dead() || len(w.waiting) == 0 || len(w.names()) > 0:
		w.idle = 0
	case w.idle == 0:
		w.idle = now
	case now-w.idle > idleLimit:
		w.recorder.find("%v wait, and flexd has been idle for %v", w.waiting, now-w.idle)
	}
	for _, c := range w.waiting {
		w.name(c)
	}
	for dir, g := range w.given {
		if w.M.IsMountPoint(dir) {
			continue
		}
		if delete(w.given, dir); g.by == w.Node() {
			w.recorder.find("the mount at %s was removed, and kubelet did not ask for that", dir)
		}
	}
	w.mu.Unlock()
	for _, a := range w.pods {
		dir := w.kubelet.Dir(a.pod)
		if lv := w.Sim.MountedAt(dir); lv != "" && lv != a.pod.LV {
			w.recorder.find("pod %s has the volume %s, want %s", a.pod.UID, lv, a.pod.LV)
		}
	}
}

// mountedFor is called when kubelet regards a pod's volume as mounted.
func (w *world) mountedFor(a *actor) {
	dir := w.kubelet.Dir(a.pod)
	w.mu.Lock()
	meddled := w.meddled[dir]
	w.mu.Unlock()
	if lv := w.Sim.MountedAt(dir); lv != a.pod.LV && !meddled {
		w.recorder.find("kubelet regards the volume of pod %s as mounted, and the mount at %s is %q", a.pod.UID, dir, lv)
		return
	}
	if !a.pod.RO {
		_ = w.M.Write(dir)
	}
}

// end ends the faults; then all lanes must come to rest without mounts and devices.
func (w *world) end() {
	failed := len(w.recorder.found()) > 0
	w.freeAll()
	w.showAll()
	w.judge() // calls that still wait want the volumes that are visible again
	w.killKubelet()
	synctest.Wait()
	w.schedule.opened()
	synctest.Wait() // Wipe leaves a volume that a child works on
	w.tidied()
	w.Arm(hosttest.Never, 0)
	for _, a := range w.pods {
		a.want(false)
	}
	if !failed {
		w.empty()
		for v := range volumes { // no command works on it any more
			w.Sim.Wipe(w.File(fmt.Sprintf("lv%d", v)))
		}
		for _, a := range w.pods { // and every pod can start again
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
	if !failed { // a late call may still wait for its answer
		w.Eventually("every call has its answer", w.answered)
	}
	w.kubelet.Kill()
	w.Stop()
	time.Sleep(time.Hour) // all goroutines that sleep wake up and end
	w.judge()
}

// empty waits until kubelet has released every pod, and flexd every volume.
func (w *world) empty() {
	for range volumes + 1 { // a global mount may use the mount of an operator that hides another one
		if w.Eventually("kubelet has released every pod", func() bool { return !w.tidied() && w.resting() }); !w.unstage() {
			break
		}
	}
	if len(w.recorder.found()) > 0 { // each of the next conditions may take until its limit
		return
	}
	w.Sim.DeactivateOwn(func(uuid string) bool { return w.Noted(volume.UUID(uuid)) }) // flexd must leave them active
	w.Empty()
}

// unstage unmounts the global mounts that a new kubelet does not know, and reports whether
// there was one.
func (w *world) unstage() (any bool) {
	for v := range volumes {
		global := w.kubelet.Global(fmt.Sprintf("pv%d", v))
		if w.M.IsMountPoint(global) {
			if err := w.kubelet.Insist(flexvolume.UnmountDevice, global); err != nil {
				w.recorder.find("%v", err)
				return false
			}
			any = true
		}
		_ = w.M.Remove(global)
	}
	return any
}

// callers returns the directories or volumes of the waiting calls of a verb; "" = of
// any verb.
func (w *world) callers(verb string) (about []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.waiting {
		if verb == "" || c.verb == verb {
			about = append(about, cmp.Or(c.dir, c.lv))
		}
	}
	slices.Sort(about)
	return about
}

func (w *world) answered() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting) == 0
}

func (w *world) resting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.pods, func(a *actor) bool { return a.busy })
}
