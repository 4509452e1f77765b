package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// A lease that ends after a lane has planned, and before it is at rest, wakes the lane: otherwise the volume
// stays active.
func TestLeaseEndDuringTurnWakesLane(t *testing.T) {
	store, err := dsw.Open(t.TempDir(), "boot")
	if err != nil {
		t.Fatal(err)
	}
	n := New(Parts{Config: config.NewLive(&config.Config{}), Store: store, Boot: func() time.Duration { return time.Hour }})
	n.stop(ErrStopping) // what is woken does not run
	for _, until := range []time.Duration{time.Hour - time.Second, time.Hour, time.Hour + 20*time.Millisecond} {
		if err := store.PutLease(dsw.Lease{UUID: "u", Until: until}); err != nil {
			t.Fatal(err)
		}
		l := n.lane("u", volume.Name{VG: "vg", LV: "a"})
		l.dirty = false
		l.endTurn(volume.Want{Lease: volume.Lease{Noted: true, Live: true}}, volume.Have{Device: volume.Device{Activity: volume.Active}})
		woken := func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.dirty
		}
		for range 1000 {
			if woken() {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if !woken() {
			t.Errorf("a lease until %v, seen live at %v: the lane sleeps on", until, time.Hour)
		}
	}
}

// With `zero: all` a filesystem is not extended while flexd does not know whether the added space must be
// zeroed.
func TestNoGrowthOfUnknown(t *testing.T) {
	for _, p := range []volume.Presence{volume.Presence(0), volume.Absent} {
		c := &config.Config{VolumeGroups: []config.VolumeGroup{{Name: "vg", Provider: "lvm", ZeroAll: true}}}
		n := New(Parts{Config: config.NewLive(c), Ops: mount.Ops{Runner: noRunner{t}}, Boot: func() time.Duration { return time.Hour }})
		l := n.lane("u", volume.Name{VG: "vg", LV: "a"})
		err := l.growFS(t.Context(), volume.Step{}, &volume.Have{LV: volume.LV{Name: volume.Name{VG: "vg", LV: "a"}, Presence: p}, Mounts: []volume.Mount{{Dir: "/a", Type: "ext4"}}})
		if err == nil || !strings.Contains(err.Error(), "zero: all") {
			t.Errorf("presence %v: %v", p, err)
		}
	}
}

// lvreduce -r has reduced the filesystem, but not yet the metadata and the device: its filesystem is not extended again.
func TestNoGrowthDuringReduction(t *testing.T) {
	name, extended := volume.Name{VG: "vg", LV: "a"}, errors.New("extended")
	for _, c := range []struct {
		now  volume.LV
		want string
	}{
		{volume.LV{Presence: volume.Present, Name: name, UUID: "u", Size: 100 << 20}, "lvreduce -r"},
		{volume.LV{Presence: volume.Present, Name: name, UUID: "new", Size: 160 << 20}, "not found as vg/a"},
		{volume.LV{Presence: volume.Absent, Name: name}, "not found as vg/a"},
		{volume.LV{}, "cannot be read"},
		{volume.LV{Presence: volume.Present, Name: name, UUID: "u", Size: 160 << 20}, extended.Error()},
	} {
		n := New(Parts{Config: config.NewLive(&config.Config{VolumeGroups: []config.VolumeGroup{{Name: "vg", Provider: "lvm"}}}),
			Ops: mount.Ops{Runner: failingRunner{extended}}, Boot: func() time.Duration { return time.Hour }})
		p := &changing{before: volume.LV{Presence: volume.Present, Name: name, UUID: "u", Size: 160 << 20}, after: c.now}
		n.Providers = map[string]Provider{"vg": p}
		l := n.lane("u", name)
		err := l.growFS(t.Context(), volume.Step{}, &volume.Have{LV: p.before, Device: volume.Device{Size: 160 << 20}, Mounts: []volume.Mount{{Dir: "/a", Type: "ext4"}}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %s", c.now, err, c.want)
		}
	}
}

// A changing provider has another volume after the metadata was read again.
type changing struct {
	Provider
	before, after volume.LV
}

func (c *changing) Reread(context.Context, string) error {
	if c.before = c.after; c.after.Name == (volume.Name{}) {
		return errors.New("locked")
	}
	return nil
}

func (c *changing) LookUp(context.Context, volume.Name) (volume.LV, error) { return c.before, nil }

// A failingRunner fails each command.
type failingRunner struct{ err error }

func (r failingRunner) Run(context.Context, run.Cmd) (run.Result, error) { return run.Result{}, r.err }

// An LVM volume whose group was renamed is used under its new name, although the old one cannot be looked up; a
// file may be a copy.
func TestLaneByNameOfRenamedGroup(t *testing.T) {
	was, now := volume.Name{VG: "old", LV: "a"}, volume.Name{VG: "new", LV: "a"}
	for directory, want := range map[string]bool{"": true, "/new": false} {
		boot := func() time.Duration { return time.Hour }
		records, err := dsw.OpenRecords(t.TempDir(), "boot", boot)
		if err != nil {
			t.Fatal(err)
		}
		n := New(Parts{Config: config.NewLive(&config.Config{VolumeGroups: []config.VolumeGroup{{Name: "old", Directory: directory}, {Name: "new", Directory: directory}}}),
			Records: records, Boot: boot})
		p := absent{}
		n.Providers = map[string]Provider{"old": p, "new": p}
		n.lane("u", was)
		l, err := n.laneByName(t.Context(), "u", now, p)
		if got := err == nil && l.nameNow() == now; got != want {
			t.Errorf("directory %q: used %t, %v; want %t", directory, got, err, want)
		}
	}
}

// An absent provider finds no group.
type absent struct{ Provider }

func (absent) LookUp(context.Context, volume.Name) (volume.LV, error) {
	return volume.LV{}, errors.New("no such group")
}

// A noRunner fails the test if a command is started.
type noRunner struct{ t *testing.T }

func (r noRunner) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	r.t.Errorf("%q is started", c.Argv)
	return run.Result{}, errors.New("no runner")
}
