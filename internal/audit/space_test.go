package audit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A spaceGroup is a provider with one group.
type spaceGroup struct {
	survey join.Survey
	space  volume.Space
	pools  []lvm.Pool
	err    error
	limit  int64
	takes  time.Duration
	asked  int
}

func (g *spaceGroup) Survey(context.Context, string, bool) join.Survey    { return g.survey }
func (g *spaceGroup) PoolStates(_ string, _ []string) ([]lvm.Pool, error) { return g.pools, nil }
func (g *spaceGroup) Space(_ context.Context, _ string, limit int64) (volume.Space, error) {
	g.asked, g.limit = g.asked+1, limit
	time.Sleep(g.takes)
	g.space.At = time.Now()
	return g.space, g.err
}

// The space of a group is observed when it is asked for, and at most once at a time. An
// answer waits only briefly; a group that does not respond keeps its last observation.
func TestSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &spaceGroup{space: volume.Space{Size: 100, Free: 50, Largest: 20}}
		a := auditor(t, g, func() []*View { return nil })
		vg := config.VolumeGroup{Name: "vg0", Provider: "lvm", Create: true, MaxSize: 77, ThinPoolWarning: 80}
		a.Config = config.NewLive(&config.Config{VolumeGroups: []config.VolumeGroup{vg, {Name: "other", Provider: "lvm"}}})
		a.Spaces, a.Pools = map[string]SpaceSource{"vg0": g}, map[string]PoolSource{"vg0": g}
		want := func(what, state, reason string, size int64, age time.Duration) status.Group {
			t.Helper()
			before := time.Now()
			a.LookAtSpace()
			all := a.Groups()
			if waited := time.Since(before); waited > spaceWait {
				t.Errorf("%s: waited %v", what, waited)
			}
			if len(all) != 2 || all[0].Name != "other" || all[0].State != status.GroupUnknown || !all[0].ObservedAt.IsZero() {
				t.Fatalf("%s: %+v", what, all)
			}
			one := all[1]
			if one.State != state || one.Error != reason || one.Size != size || size > 0 && (one.ObservedAt.IsZero() || before.Sub(one.ObservedAt).Round(time.Second) != age) {
				t.Errorf("%s: %+v", what, one)
			}
			time.Sleep(2*spaceAsked - time.Since(before))
			synctest.Wait()
			return one
		}
		if one := want("well", status.GroupOK, "", 100, 0); one.LargestVolume == nil || *one.LargestVolume != 20 || g.limit != 77 {
			t.Errorf("got %+v, limit %d", one, g.limit)
		}
		g.takes, g.space.Size = time.Minute, 101
		want("hangs", status.GroupOK, "", 100, spaceAsked*2)
		asked := g.asked
		want("still", status.GroupOK, "", 100, spaceAsked*4)
		if g.asked != asked {
			t.Error("asked again while it hangs")
		}
		g.takes = 0
		time.Sleep(time.Minute)
		want("answers", status.GroupOK, "", 101, 0)
		g.err = errors.New("it hangs")
		want("unread", status.GroupUnknown, "it hangs", 101, spaceAsked*2)
		g.err = nil
		g.survey.Metadata = "the report does not end"
		a.groups["vg0"].audit(t.Context(), false)
		want("unread metadata", status.GroupUnknown, "the report does not end", 101, spaceAsked*4)
		g.survey.Gone = true
		a.groups["vg0"].audit(t.Context(), false)
		want("gone", status.GroupMissing, "the report does not end", 101, spaceAsked*6)
		g.survey = join.Survey{}
		a.groups["vg0"].audit(t.Context(), false)
		g.space = volume.Space{Size: 100, Refused: errors.New("no space")}
		want("full", status.GroupFull, "no space", 100, 0)
		g.space.Unusable = true
		want("unusable", status.GroupUnusable, "no space", 100, 0)
		g.space = volume.Space{Size: 100, Free: 1, Largest: 1, Disks: []volume.Disk{{Device: "/dev/sda", NotAllocatable: true}, {Missing: true}}}
		name := func(lv string) volume.Name { return volume.Name{VG: "vg0", LV: lv} }
		g.pools = []lvm.Pool{
			{Name: name("fast"), Active: true, Mode: "rw", Size: 100, MetaSize: 9, Data: lvm.Usage{Used: 85, Total: 100}, Metadata: lvm.Usage{Used: 2, Total: 9}},
			{Name: name("full"), Active: true, Mode: "out_of_data_space"},
			{Name: name("broken"), Active: true, Mode: "Fail"},
			{Name: name("off"), Size: 3},
		}
		one := want("pools", status.GroupOK, "", 100, 0)
		states := ""
		for _, p := range one.ThinPools {
			states += p.Name + " " + p.State + ", "
			if (p.Problem != "") != (p.State == status.PoolFull || p.State == status.PoolFailed) || (p.Warning != "") != (p.Name == "fast") {
				t.Errorf("got %+v", p)
			}
		}
		if states != "fast ok, full full, broken failed, off inactive, " || one.ThinPools[0].Used != 85 || one.ThinPools[0].MetadataUsed != 2 || one.ThinPools[3].Size != 3 {
			t.Errorf("got %+v", one.ThinPools)
		}
		if len(one.Disks) != 2 || one.Disks[0].Problem == "" || one.Disks[1].Problem != "it is missing" {
			t.Errorf("got %+v", one.Disks)
		}
		vg.Create = false
		a.Config = config.NewLive(&config.Config{VolumeGroups: []config.VolumeGroup{vg, {Name: "other"}}})
		g.space.Largest = 0
		if one := want("no creation", status.GroupOK, "", 100, 0); one.LargestVolume != nil || g.limit != 0 {
			t.Errorf("got %+v, limit %d", one, g.limit)
		}
		g.space.Free = 0
		want("no creation, full", status.GroupFull, "nothing is free", 100, 0)

		// A reload allows creation while the group hangs: nothing is known of the largest volume.
		vg.Create = true
		a.Config = config.NewLive(&config.Config{VolumeGroups: []config.VolumeGroup{vg, {Name: "other"}}})
		g.takes = time.Minute
		if one := want("allowed by a reload", status.GroupOK, "", 100, spaceAsked*2); one.LargestVolume != nil {
			t.Errorf("got %+v", one)
		}
		time.Sleep(time.Minute)
	})
}
