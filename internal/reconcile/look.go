package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// observe looks at the volume, now. Facts that children found do not outlive the
// device they are about.
func (l *lane) observe(ctx context.Context, w volume.Want) (volume.Have, error) {
	t, began := l.target(w), time.Now()
	t.FS = l.facts
	defer l.waitForGroup(ctx, w, &t)()
	h, table, err := l.n.Observer.Observe(ctx, t, l.n.Observer.Now())
	if err != nil {
		return h, err
	}
	if h.Device.Seq != l.disk {
		l.disk, l.facts = h.Device.Seq, volume.FS{}
		h.FS = volume.FS{}
	}
	l.table = table
	g := glimpse{began: began, dirs: t.Dirs, number: h.Device.Number, path: h.Device.Path}
	g.mounts = g.of(table)
	l.n.mu.Lock()
	for dir, spot := range h.Spots {
		if spot.Unknown == "" {
			l.n.landedLocked(l, dir)
		}
	}
	l.n.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = &g
	for _, c := range l.calls {
		// What came of its landing is seen now: if it is not there, somebody was
		// faster to take it away, and the call is one like any other.
		if spot, looked := h.Spots[c.Dir]; looked && !spot.This && !spot.Under && spot.Unknown == "" {
			c.landing = false
		}
	}
	if h.LV.Presence == volume.Present {
		l.name = h.LV.Name
	}
	switch {
	case len(h.Mounts) == 0:
		l.suspect, l.broken = suspicion{}, ""
	case h.FS.Content == volume.FilesystemFailed:
		l.suspect = suspicion{} // the kernel's own count says so
	case l.broken != "":
		h.FS.Content, h.FS.Type, h.FS.What = volume.FilesystemFailed, h.Mounts[0].Type, l.broken
		l.n.Observer.Publish(l.uuid, h)
	}
	return h, nil
}

// brief is how long an unmount waits for what its group has, which it does not need.
const brief = time.Second

var errBrief = errors.New("the volume group has not answered within a second; an unmount does not wait for it")

// waitForGroup says how long a look waits for what the group has: where nothing is
// to be set up, until somebody who wants to unmount has waited for a while, once in
// a turn. The look ends with what it returns.
func (l *lane) waitForGroup(ctx context.Context, w volume.Want, t *asw.Target) (end func()) {
	if slices.ContainsFunc(w.Calls, func(c volume.Call) bool { return c.Verb != volume.Release }) {
		return func() {}
	}
	group, cancel := context.WithCancelCause(ctx)
	left := brief
	if l.hurried {
		left = 0
	}
	hurry := func() { time.AfterFunc(left, func() { cancel(errBrief) }) }
	t.Group = group
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.calls, func(c *call) bool { return c.Verb == volume.Release }) {
		hurry()
	} else {
		l.hurry = hurry
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.hurry = nil
		l.hurried = l.hurried || errors.Is(context.Cause(group), errBrief)
		cancel(nil)
	}
}

// target says what is to be looked at for a want. What is known of the filesystem
// is the lane's own.
func (l *lane) target(w volume.Want) asw.Target {
	t := asw.Target{UUID: l.uuid, Asked: map[string][]string{}}
	for _, c := range l.n.Store.Claims(l.uuid) {
		t.Dirs = append(t.Dirs, c.Dir)
		if c.Super != nil && c.Phase != volume.Making {
			t.Asked[c.Dir] = c.Super
		}
	}
	for _, c := range w.Calls {
		if c.Verb == volume.Reclaim {
			t.Lives = append(t.Lives, c.Dir)
		}
		for _, dir := range []string{c.Dir, c.Global} {
			if dir != "" && !slices.Contains(t.Dirs, dir) {
				t.Dirs = append(t.Dirs, dir)
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Name = l.name
	return t
}

// A glimpse is which mounts a look was about: the lane is woken when they change.
type glimpse struct {
	began        time.Time
	dirs         []string
	number, path string // of the device, if it was known
	mounts       []string
}

func (g *glimpse) of(table *mount.Table) []string {
	var mounts []string
	add := func(entries []*mount.Entry) {
		for _, e := range entries { // an ID alone is used again
			mounts = append(mounts, fmt.Sprint(e.ID, e.Number, e.Root, e.ReadOnly, e.Dir))
		}
	}
	for _, dir := range g.dirs {
		add(table.At(dir))
	}
	if g.number != "" {
		add(table.OfDevice(g.number, g.path))
	}
	return mounts
}

// moved says whether the volume's mounts are others than at its last look. One
// whose first look is not over has to look again.
func (l *lane) moved(table *mount.Table) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen == nil || !slices.Equal(l.seen.mounts, l.seen.of(table))
}

// looked returns when the last look that ended began.
func (l *lane) looked() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		return time.Time{}
	}
	return l.seen.began
}

// misses says whether a claim has no mount. Kubelet removes a global directory
// without a call if nothing is mounted there, and no event tells that.
func (l *lane) misses(table *mount.Table) bool {
	return slices.ContainsFunc(l.n.Store.Claims(l.uuid), func(c dsw.Claim) bool { return table.Top(c.Dir) == nil })
}

// want is all that may cause a step.
func (l *lane) want() volume.Want {
	var w volume.Want
	for _, c := range l.n.Store.Claims(l.uuid) {
		w.Claims = append(w.Claims, volume.Claim{Kind: c.Kind, Dir: c.Dir, Phase: c.Phase})
	}
	if lease, ok := l.n.Store.Lease(l.uuid); ok {
		w.Lease = volume.Lease{Noted: true, Live: l.n.Boot() < lease.Until}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if vg := l.n.Config.VG(l.name.VG); vg != nil {
		w.NeverDeactivate = vg.NeverDeactivate
	}
	w.Grow, w.Suspect = l.grow, l.suspect.looks > 0 && !time.Now().Before(l.suspect.next)
	for _, c := range l.calls {
		w.Calls = append(w.Calls, c.Call)
	}
	return w
}
