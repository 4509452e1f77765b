package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// meddle records that an operator changes a directory, or one above those of pods.
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

// clear unmounts the mounts of operators and others. One that is busy may become visible at
// a pod's directory, which kubelet then regards as mounted without a call.
func (w *world) clear() bool {
	any := w.Sim.Tidy()
	for _, a := range w.pods {
		if dir := w.kubelet.Dir(a.pod); w.M.IsMountPoint(dir) && w.Sim.MountedAt(dir) == "" {
			w.meddle(dir)
		}
	}
	return any
}

// tidied unmounts the mounts of operators and others, unless another mount covers them.
// It reports whether there was such a mount: kubelet is restarted then, and sees the
// directories below.
func (w *world) tidied() bool {
	any := w.Sim.Tidy()
	if any {
		w.killKubelet()
	}
	return any
}

// until keeps a function that ends a use, and reports whether it is not nil.
func (w *world) until(end func()) bool {
	if end != nil {
		w.free = append(w.free, end)
	}
	return end != nil
}

// contents are the contents that an operator's volume may have.
var contents = []string{"nothing", "ext4", "xfs", "data", "lvm"}

// make replaces the volume of a name by a new one.
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

// activate activates a volume as an operator does, whether or not flexd uses it.
func (w *world) activate(lv string) bool {
	if !w.Sim.Activate(w.File(lv)) {
		return false
	}
	uuid := w.Sim.UUIDOf(w.File(lv))
	// A volume that flexd creates may be active because of that, and flexd deactivates it.
	created := w.stands("child loop-create "+lv) || w.creates(lv) || w.Noted(volume.UUID("name:"+hosttest.VG+":"+lv))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.own[uuid] = !created && !w.Noted(volume.UUID(uuid)) && !slices.ContainsFunc(w.waiting, func(c *waiting) bool { return c.lv == lv })
	return true
}

// creates reports whether flexd works on the creation of a volume: its command may have
// ended, and flexd is about to look whether the volume is active.
func (w *world) creates(lv string) bool {
	return !w.Dead() && slices.ContainsFunc(w.Node().List().Volumes, func(v status.Volume) bool {
		return v.LV == lv && v.Step == volume.CreateVolume.String()
	})
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
