package reconcile

import (
	"context"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/volume"
)

// Ensure that a change of a device wakes only its lane, unless that has looked since, and that a change of a
// group wakes all its lanes.
func TestStirredWakesLanes(t *testing.T) {
	heard := time.Now()
	for _, c := range []struct {
		what    string
		volumes map[volume.UUID]time.Time
		looked  time.Time
		want    string
	}{
		{"a device", map[volume.UUID]time.Time{"a": heard}, heard.Add(-1), "a"},
		{"a device, looked at since", map[volume.UUID]time.Time{"a": heard}, heard.Add(1), ""},
		{"another device", map[volume.UUID]time.Time{"elsewhere": heard}, heard.Add(-1), ""},
		{"two devices, looked at between their changes", map[volume.UUID]time.Time{"a": heard.Add(-2), "b": heard}, heard.Add(-1), "b"},
		{"the group", nil, heard.Add(1), "ab"},
	} {
		n := New(Parts{Config: config.NewLive(&config.Config{})})
		n.stop(context.Canceled) // lanes do not run: they only note that they should
		for _, uuid := range []volume.UUID{"a", "b"} {
			n.lanes[uuid] = &lane{n: n, uuid: uuid, name: volume.Name{VG: "vg0", LV: string(uuid)}, mounted: mounted{watched: &watchedMounts{began: c.looked}}}
		}
		n.NotifyChanged("vg0", c.volumes)
		got := ""
		for _, uuid := range []volume.UUID{"a", "b"} {
			if n.lanes[uuid].mustLook() {
				got += string(uuid)
			}
		}
		if got != c.want {
			t.Errorf("%s: wakes %q, want %q", c.what, got, c.want)
		}
	}
}

// Ensure that a device that changes during its lane's turn is looked at again afterwards, or later in the
// same turn.
func TestNotifyDuringTurn(t *testing.T) {
	heard := time.Now()
	for _, c := range []struct {
		what       string
		last, next time.Time // when looks began, before the event was heard and after
		want       bool
	}{
		{"no look", heard.Add(-1), heard.Add(-1), true},
		{"a later look", heard.Add(-1), heard, false},
		{"a look since", heard, heard, false},
	} {
		n := New(Parts{Config: config.NewLive(&config.Config{})})
		n.stop(context.Canceled)
		l := &lane{n: n, uuid: "a", name: volume.Name{VG: "vg0", LV: "a"}, schedule: schedule{awake: true}, mounted: mounted{watched: &watchedMounts{began: c.last}}}
		n.lanes["a"] = l
		n.NotifyChanged("vg0", map[volume.UUID]time.Time{"a": heard})
		if want := !c.last.Before(heard); l.unchanged() != want {
			t.Errorf("%s: before it, unchanged is %v", c.what, !want)
		}
		if l.watched.began = c.next; l.mustLook() != c.want || l.dirty {
			t.Errorf("%s: it must look: %v", c.what, l.mustLook())
		}
		// One that waits for its group looks at once.
		woken := false
		l.woken, l.watched.began = func() { woken = true }, c.last
		if n.NotifyChanged("vg0", map[volume.UUID]time.Time{"a": heard}); woken != c.last.Before(heard) {
			t.Errorf("%s: it is woken: %v", c.what, woken)
		}
	}
}

// A lane that is dropped between a change of its device and the notification does not run: its volume may
// have another lane.
func TestNotifyDropped(t *testing.T) {
	n := New(Parts{Config: config.NewLive(&config.Config{})})
	n.stop(context.Canceled)
	for _, dropped := range []bool{false, true} {
		l := &lane{n: n, uuid: "a", name: volume.Name{VG: "vg0", LV: "a"}, dropped: dropped}
		if l.deviceChanged(time.Now()); l.dirty == dropped {
			t.Errorf("dropped %v: it is woken: %v", dropped, l.dirty)
		}
	}
}
