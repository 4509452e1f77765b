package audit

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A slowGroup has one active volume without a claim. Observing it takes time.
type slowGroup struct{ during func() }

func (g slowGroup) Survey(context.Context, string, bool) join.Survey {
	time.Sleep(time.Second)
	g.during()
	return join.Survey{Kind: "loopdev", Volumes: []join.Volume{{Name: "a", UUID: "u", Size: 1 << 20}, {Name: "b", UUID: "v", Size: 1 << 20, Making: true}},
		Devices: []join.Device{{UUID: "u", Path: "/dev/loop1", Number: "7:1", Size: 1 << 20}, {UUID: "v", Path: "/dev/loop2", Number: "7:2", Size: 1 << 20}}}
}

// noMounts is a mount table without volumes.
type noMounts struct{}

func (noMounts) Open() (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("1 0 0:1 / / rw - tmpfs none rw\n")), nil
}
func (noMounts) Changed() bool                  { return true }
func (noMounts) Wait(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// auditor audits vg0 over the given views.
func auditor(t *testing.T, s Surveyor, views func() []*View) *Auditor {
	log := logrus.New()
	log.SetLevel(logrus.PanicLevel)
	return New(t.Context(), Parts{
		Config: config.NewLive(&config.Config{VolumeGroups: []config.VolumeGroup{{Name: "vg0", Provider: "loopdev"}}}), Log: logrus.NewEntry(log),
		Observer:  asw.New(nil, nil, func(volume.UUID) (volume.RecordFacts, error) { return volume.RecordFacts{}, nil }, noMounts{}),
		Boot:      func() time.Duration { return time.Hour },
		Surveyors: map[string]Surveyor{"vg0": s},
		Views:     views,
		Record:    func(status.Event) {},
	})
}

// A volume is judged only if its lane was at rest while the group was observed: no step
// runs, and none began and ended meanwhile.
func TestBusyVolumesNotJudged(t *testing.T) {
	for _, row := range []struct {
		name   string
		before View // of lane u
		during View
		named  View // of the lane of the name b
		found  string
	}{
		{"at rest", View{}, View{}, View{}, "a b"},
		{"working", View{Busy: true}, View{Busy: true}, View{}, "b"},
		{"from then on", View{}, View{Busy: true}, View{}, "b"},
		{"until then", View{Busy: true}, View{Acted: time.Now()}, View{}, "b"},
		{"meanwhile", View{}, View{Acted: time.Now()}, View{}, "b"},
		{"creating", View{}, View{}, View{Busy: true}, "a"},
		{"created, its own lease not noted", View{}, View{}, View{Lease: dsw.Lease{VG: "vg0", LV: "b"}}, "a"},
	} {
		synctest.Test(t, func(t *testing.T) {
			seen := row.before
			a := auditor(t, slowGroup{func() {
				if seen = row.during; !seen.Acted.IsZero() {
					seen.Acted = time.Now()
				}
			}}, func() []*View {
				v, named := seen, row.named
				v.UUID, v.Name = "u", volume.Name{VG: "vg0", LV: "a"}
				named.UUID, named.Name, named.ByName = "name:vg0:b", volume.Name{VG: "vg0", LV: "b"}, true
				return []*View{&v, &named}
			})
			a.groups["vg0"].audit(t.Context(), true)
			all, _ := a.Findings()
			var found []string
			for _, d := range all {
				found = append(found, d.LV)
			}
			if got := strings.Join(found, " "); got != row.found {
				t.Errorf("%s: found %q, want %q: %+v", row.name, got, row.found, all)
			}
		})
	}
}

// quickGroup has one active volume that nothing uses.
type quickGroup struct{}

func (quickGroup) Survey(context.Context, string, bool) join.Survey {
	return join.Survey{Kind: "loopdev", Volumes: []join.Volume{{Name: "a", UUID: "u", Size: 1 << 20}},
		Devices: []join.Device{{UUID: "u", Path: "/dev/loop1", Number: "7:1", Size: 1 << 20}}}
}

// A check waits for a lane that has just answered, and not for one that works on.
func TestCheckBusy(t *testing.T) {
	for busy, found := range map[time.Duration]int{0: 1, busyLimit / 2: 1, time.Hour: 0} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			a := auditor(t, quickGroup{}, func() []*View {
				return []*View{{UUID: "u", Name: volume.Name{VG: "vg0", LV: "a"}, Busy: time.Since(begun) < busy}}
			})
			a.checkGroup(t.Context(), "vg0", "loopdev")
			if all, _ := a.Findings(); len(all) != found || time.Since(begun) > 2*busyLimit {
				t.Errorf("busy for %v: %+v after %v", busy, all, time.Since(begun))
			}
		})
	}
}

// A known finding stays, with its time, if the volume was not compared in the first observation of a check because
// its lane tried its step again, as a deactivation that fails.
func TestKnownWhileRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var acted time.Time
		looks := 0
		a := auditor(t, slowGroup{func() {
			if looks++; looks == 3 {
				acted = time.Now()
			}
		}}, func() []*View { return []*View{{UUID: "u", Name: volume.Name{VG: "vg0", LV: "a"}, Acted: acted}} })
		a.groups["vg0"].audit(t.Context(), true)
		before, _ := a.Findings()
		a.groups["vg0"].audit(t.Context(), true)
		if after, _ := a.Findings(); len(before) == 0 || !slices.Equal(before, after) || looks != 4 {
			t.Errorf("%d looks: before %+v, after %+v", looks, before, after)
		}
	})
}

// hangingGroup answers at the time limit, with the cause.
type hangingGroup struct{}

func (hangingGroup) Survey(ctx context.Context, _ string, _ bool) join.Survey {
	<-ctx.Done()
	return join.Survey{Kind: "lvm", Metadata: "LVM's lock of the group is held by pid 7 (lvm)"}
}

// A provider that needs the whole time leaves none for the mount table: its own error is reported.
func TestHangingProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := auditor(t, hangingGroup{}, func() []*View { return nil })
		ctx, cancel := context.WithTimeout(t.Context(), Limit)
		defer cancel()
		g := a.groups["vg0"].audit(ctx, true)
		if !strings.HasSuffix(g.Metadata, "is held by pid 7 (lvm)") || g.Kernel != "" {
			t.Errorf("got %+v", g.Survey)
		}
	})
}

// fileGroup has the volume u as a file, if it is there.
type fileGroup struct {
	dir   string
	there bool
	same  bool // it has the directory of the other group
}

func (g *fileGroup) SameDirectory(string, string) bool { return g.same }

func (g *fileGroup) Survey(context.Context, string, bool) join.Survey {
	s := join.Survey{Kind: "loopdev", Directory: g.dir}
	if g.there {
		s.Volumes = []join.Volume{{Name: "a", UUID: "u", Size: 1 << 20}}
	}
	return s
}

// A group that was removed from the configuration while pods use its volumes is unknown, not in agreement.
func TestRemovedGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := auditor(t, &fileGroup{dir: "/one"}, func() []*View {
			return []*View{
				{Name: volume.Name{VG: "vg0", LV: "a"}, Claims: []dsw.Claim{{}}},
				{Name: volume.Name{VG: "vg1", LV: "a"}, Claims: []dsw.Claim{{}}},
				{Name: volume.Name{VG: "vg1", LV: "b"}, Claims: []dsw.Claim{{}}},
				{Name: volume.Name{VG: "vg1", LV: "c"}, Have: &volume.Have{Device: volume.Device{Activity: volume.Active}}},
				{Claims: []dsw.Claim{{}}}, // only its uuid is known
				{Name: volume.Name{VG: "vg2", LV: "a"}},
				{Name: volume.Name{VG: "vg2", LV: "b"}, Have: &volume.Have{Device: volume.Device{Activity: volume.Inactive}}},
			}
		})
		all := a.Check(t.Context())
		if len(all) != 3 || all[0].Unknown != "" || all[1].VG != "?" || all[2].VG != "vg1" || !strings.Contains(all[2].Unknown, "3 of its volumes are in use or still active") {
			t.Errorf("got %+v", all)
		}
	})
}

// lvmGroup is empty.
type lvmGroup struct{}

func (lvmGroup) Survey(context.Context, string, bool) join.Survey { return join.Survey{Kind: "lvm"} }

// oneMount is a mount table with a mount at dir. Its device is the volume u, which has that name now.
type oneMount struct {
	noMounts
	asw.Provider
	dir string
	now volume.Name
}

func (m oneMount) Open() (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("1 0 0:1 / / rw - tmpfs none rw\n2 1 253:1 / " + m.dir + " rw - ext4 /dev/dm-1 rw\n")), nil
}

func (m oneMount) Identify(context.Context, string) (volume.Identity, error) {
	return volume.Identity{UUID: "u", Name: m.now}, nil
}

// The group of a volume in use is renamed, and another has its name now: that is reported, unless the
// configuration has the new name, so that its group reports it.
func TestRenamedGroup(t *testing.T) {
	for now, found := range map[string]int{"old": 1, "vg1": 0} {
		dir := t.TempDir()
		a := auditor(t, lvmGroup{}, func() []*View {
			return []*View{{UUID: "u", Name: volume.Name{VG: "vg0", LV: "a"}, Claims: []dsw.Claim{{UUID: "u", VG: "vg0", LV: "a", Dir: dir, Phase: volume.Held}}}}
		})
		a.groups["vg1"] = &group{a: a, vg: "vg1"}
		m := oneMount{dir: dir, now: volume.Name{VG: now, LV: "a"}}
		a.Observer = asw.New(nil, map[string]asw.Provider{"vg0": m}, func(volume.UUID) (volume.RecordFacts, error) { return volume.RecordFacts{}, nil }, m)
		a.Observer.NoDevice = func(string) bool { return false }
		a.groups["vg0"].audit(t.Context(), true)
		if all, _ := a.Findings(); len(all) != found || found > 0 && (all[0].Class != string(join.StaleMapping) || all[0].Dir != dir || !strings.HasSuffix(all[0].Message, "is now old/a")) {
			t.Errorf("%s: %+v", now, all)
		}
	}
}

// A copy in the directory of another group is found, and a file that was moved there is not taken
// for one.
func TestCopyInOtherGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := &fileGroup{dir: "/one", there: true}, &fileGroup{dir: "/two", there: true}
		a := auditor(t, one, func() []*View { return nil })
		a.Config = config.NewLive(&config.Config{VolumeGroups: []config.VolumeGroup{{Name: "vg0", Provider: "loopdev"}, {Name: "vg1", Provider: "loopdev"}}})
		a.groups["vg1"], a.Surveyors["vg1"] = &group{a: a, vg: "vg1"}, two
		found := func(about string, want int) {
			t.Helper()
			synctest.Wait()
			all, _ := a.Findings()
			for _, f := range all {
				if !strings.Contains(f.Message, "/one/a") || !strings.Contains(f.Message, "/two/a") {
					t.Errorf("%s: %s", about, f.Message)
				}
			}
			if len(all) != want {
				t.Errorf("%s: %d findings, want %d: %+v", about, len(all), want, all)
			}
		}
		audit := func(vgs ...string) {
			for _, vg := range vgs {
				a.groups[vg].audit(t.Context(), true)
			}
		}
		audit("vg0", "vg1")
		found("a copy, as the first check sees it", 1)
		audit("vg0")
		found("a copy", 2)
		one.same, two.same = true, true
		audit("vg0", "vg1")
		found("two groups of one directory", 0)
		one.same, two.same = false, false
		audit("vg0", "vg1")
		found("a copy again", 2)
		two.there = false
		audit("vg1")
		time.Sleep(2 * quiet)
		found("it was removed", 0)
		one.there, two.there = false, true
		audit("vg1", "vg0") // as if the file were in both, until vg0 is read
		time.Sleep(2 * quiet)
		found("it was moved", 0)
	})
}

// A changingGroup loses its volume between two observations, and the first one takes longer.
type changingGroup struct{ asked *atomic.Int32 }

func (g changingGroup) Survey(ctx context.Context, vg string, fresh bool) join.Survey {
	if g.asked.Add(1) > 2 { // the first audit confirms its finding
		return join.Survey{Kind: "loopdev"}
	}
	time.Sleep(10 * time.Second)
	return quickGroup{}.Survey(ctx, vg, fresh)
}

// An audit that a later one has overtaken does not bring back what is over.
func TestAuditOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := auditor(t, changingGroup{new(atomic.Int32)}, func() []*View { return nil })
		go a.groups["vg0"].run()
		time.Sleep(15 * time.Second)
		a.groups["vg0"].run()
		time.Sleep(time.Minute)
		if all, _ := a.Findings(); len(all) > 0 {
			t.Errorf("%+v", all)
		}
	})
}

// hidingMount is a mount table in which one over all of a directory hides that of a claim.
type hidingMount struct {
	noMounts
	over string
}

func (m hidingMount) Open() (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("1 0 0:1 / / rw - tmpfs none rw\n2 1 7:1 / " + m.over + "/a rw - ext4 /dev/loop1 rw\n3 1 0:9 / " + m.over + " rw - fuse none rw\n")), nil
}

// The path of a hidden claim is not resolved: the mount that hides it may not respond.
func TestClaimBehindMount(t *testing.T) {
	base := t.TempDir()
	over := base + "/link" // a lookup below it would lead elsewhere
	if err := os.Symlink(t.TempDir(), over); err != nil {
		t.Fatal(err)
	}
	a := auditor(t, quickGroup{}, func() []*View {
		return []*View{{UUID: "u", Name: volume.Name{VG: "vg0", LV: "a"}, Claims: []dsw.Claim{{UUID: "u", VG: "vg0", LV: "a", Dir: over + "/a", Phase: volume.Held}}}}
	})
	a.Observer = asw.New(nil, nil, func(volume.UUID) (volume.RecordFacts, error) { return volume.RecordFacts{}, nil }, hidingMount{over: over})
	g := a.groups["vg0"].gather(t.Context(), true, true)
	if len(g.Claims) != 1 || g.Claims[0].Dir != over+"/a" {
		t.Errorf("%+v", g.Claims)
	}
}
