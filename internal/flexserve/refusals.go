package flexserve

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/status"
)

// Refusals are the last failed calls, one for each volume and directory, until a later call
// for these succeeds. They exist for `flexd status` only.
type Refusals struct {
	mu  sync.Mutex
	all []status.RefusedCall // the oldest first
}

// Limits: anyone who may create pods may cause refusals.
const (
	maxRefusals   = 200
	refusalAge    = time.Hour
	maxRefusalLen = 2000 // bytes of a message
)

// failed records the refusal of a call for the volume title, "" or VG/LV.
func (r *Refusals) failed(call flexvolume.Call, title string, c status.RefusedCall, now time.Time) {
	c.VG, c.LV, _ = strings.Cut(title, "/")
	c.Dir, c.Verb, c.First, c.Last, c.Count = call.Dir, call.Verb, now, now, 1
	c.Message = strings.ToValidUTF8(c.Message[:min(len(c.Message), maxRefusalLen)], "")
	if p := call.Options.Pod; p.Name != "" || p.UID != "" {
		c.Pod = &status.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Dir: call.Dir, ReadOnly: call.Options.ReadOnly}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.IndexFunc(r.all, func(o status.RefusedCall) bool { return o.VG == c.VG && o.LV == c.LV && o.Dir == c.Dir }); i >= 0 {
		if o := r.all[i]; o.Message == c.Message {
			c.First, c.Count = o.First, o.Count+1
		}
		r.all = slices.Delete(r.all, i, i+1)
	}
	r.all = append(r.all, c)
	r.all = slices.Delete(r.all, 0, max(0, len(r.all)-maxRefusals))
}

// succeeded removes the refusals that a successful call makes obsolete: those for its
// directory, and those of its volume without a directory for the same verb or an earlier step.
// Other verbs do not count: isattached succeeds every minute while waitforattach is refused.
func (r *Refusals) succeeded(call flexvolume.Call, title string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = slices.DeleteFunc(r.all, func(o status.RefusedCall) bool {
		return call.Dir != "" && o.Dir == call.Dir ||
			o.Dir == "" && title != "" && o.VG+"/"+o.LV == title && (o.Verb == call.Verb || call.Verb == flexvolume.MountDevice || call.Verb == flexvolume.Mount)
	})
}

// Calls returns the refusals, the newest first.
func (r *Refusals) Calls(now time.Time) (calls []status.RefusedCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = slices.DeleteFunc(r.all, func(o status.RefusedCall) bool { return now.Sub(o.Last) > refusalAge })
	calls = slices.Clone(r.all)
	slices.Reverse(calls)
	return calls
}
