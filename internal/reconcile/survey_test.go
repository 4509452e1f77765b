package reconcile_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/status"
)

// differ returns the classes of disagreements in status.
func differ(e *hosttest.Env) string {
	var all []string
	for _, d := range e.Node().List().Findings {
		all = append(all, d.Class+" "+d.LV)
	}
	return strings.Join(all, ", ")
}

// verdict returns the classes of a check, which must equal those in status after it.
func verdict(t *testing.T, e *hosttest.Env) (string, status.Check) {
	t.Helper()
	c := e.Node().Check(t.Context())
	if len(c.Groups) != 1 || c.Groups[0].VG != hosttest.VG {
		t.Fatalf("groups: %+v", c.Groups)
	}
	return c.Verdict, c
}

func TestFindingOneSecondAfterEvent(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a := pod("a")
		if v, c := verdict(t, e); v != status.Agree || c.Groups[0].Volumes != 0 {
			t.Errorf("at first: %+v", c)
		}
		works(t, k.Up(a))
		e.AtRest()
		if v, c := verdict(t, e); v != status.Agree || len(c.Findings) > 0 || c.Groups[0].Volumes != 1 || c.Groups[0].Active != 1 {
			t.Errorf("mounted: %+v", c)
		}
		works(t, e.M.Umount(k.Dir(a)))
		begun := time.Now()
		e.Eventually("status names it", func() bool { return differ(e) == "claimed-missing data" })
		if took := time.Since(begun); e.Sim != nil && took > 2*time.Second {
			t.Errorf("status named it after %v", took)
		}
		s, _ := e.Node().VolumeDetail(hosttest.VG, "data")
		if len(s.Findings) != 1 || s.Findings[0].Dir != k.Dir(a) || !strings.Contains(s.Findings[0].Message, "pod ns/a") {
			t.Errorf("its story: %+v", s.Findings)
		}
		since := s.Findings[0].Since
		commands := e.Commands()
		for range 100 {
			e.Node().List()
		}
		if e.Commands() != commands {
			t.Error("status starts processes")
		}
		if v, c := verdict(t, e); v != status.Disagree || len(c.Findings) != 1 || !c.Findings[0].Since.Equal(since) {
			t.Errorf("unmounted: %+v", c)
		}
		works(t, k.Finish(a))
		e.Eventually("it is over", func() bool { return differ(e) == "" })
		e.Empty()
		if v, c := verdict(t, e); v != status.Agree || len(c.Findings) > 0 {
			t.Errorf("at the end: %+v", c)
		}
	})
}

func TestNoFindingDuringStep(t *testing.T) {
	onSim(t, "mkfs takes an hour", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		hit, release := e.Sim.Hang("format", false, false)
		join := behind(func() error { return k.Up(a) })
		<-hit
		for range 5 {
			time.Sleep(3 * time.Second)
			if v, c := verdict(t, e); v != status.Agree || len(c.Findings) > 0 || differ(e) != "" {
				t.Errorf("%+v %q", c, differ(e))
			}
		}
		release()
		works(t, join())
		works(t, k.Finish(a))
		e.Empty()
	})
}

func TestHangingGroupIsUnknown(t *testing.T) {
	onSim(t, "and a check ends all the same", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		e.AtRest()
		time.Sleep(5 * time.Second)
		hang := make(chan struct{})
		e.Sim.WhileLooking(func() { <-hang })
		for i, want := range []string{"no answer within 20s", "has been running since"} {
			begun := time.Now()
			v, c := verdict(t, e)
			if took := time.Since(begun); v != status.Unknown || !strings.Contains(c.Groups[0].Unknown, want) || took > 25*time.Second {
				t.Errorf("check %d, after %v: %+v", i, took, c)
			}
		}
		if p := e.Node().List().Problems; len(p) != 1 || !strings.Contains(p[0], "has been running since") {
			t.Errorf("problems: %q", p)
		}
		e.Sim.WhileLooking(nil)
		close(hang)
		time.Sleep(time.Second)
		if v, c := verdict(t, e); v != status.Agree {
			t.Errorf("it answers again: %+v", c)
		}
		if p := e.Node().List().Problems; len(p) > 0 {
			t.Errorf("problems: %q", p)
		}
		works(t, k.Finish(a))
		e.Empty()
	})
}

func TestRemovedFileLeavesDevice(t *testing.T) {
	onLoops(t, "mounted", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		works(t, os.Remove(e.File("data")))
		v, c := verdict(t, e)
		if v != status.Disagree || len(c.Findings) != 1 || c.Findings[0].Class != "dm-only" || !strings.Contains(c.Findings[0].Message, "for pod ns/a") {
			t.Errorf("%+v", c)
		}
		s, _ := e.Node().VolumeDetail(hosttest.VG, "data")
		works(t, k.Finish(a))
		works(t, exec.Command("losetup", "-d", s.Device).Run()) // flexd keeps the only copy
		e.Empty()
		if v, c := verdict(t, e); v != status.Agree {
			t.Errorf("at the end: %+v", c)
		}
	})
	onLoops(t, "a mount elsewhere, and a directory that is gone", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		s, _ := e.Node().VolumeDetail(hosttest.VG, "data")
		dir := t.TempDir()
		works(t, e.Storage.Shell("data", "mount "+s.Device+" "+dir))
		e.Eventually("status names it", func() bool { return differ(e) == "mounted-unknown data" })
		works(t, e.M.Umount(dir))
		e.Eventually("it is over", func() bool { return differ(e) == "" })
		works(t, os.Rename(e.Dir(), e.Dir()+".away"))
		if v, c := verdict(t, e); v != status.Unknown || c.Groups[0].Unknown == "" || len(c.Findings) > 0 {
			t.Errorf("its directory is gone: %+v", c)
		}
		works(t, os.Rename(e.Dir()+".away", e.Dir()))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// The kernel shows the path of a loop device's file in the mount where it was opened. This mount may be
// unmounted lazily, or be in another namespace.
func TestDeviceWhoseMountIsDetached(t *testing.T) {
	onLoops(t, "its directory was a bind", func(t *testing.T, e *hosttest.Env) {
		k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
		works(t, e.M.Bind(e.Dir(), e.Dir()))
		works(t, k.Up(a))
		works(t, unix.Unmount(e.Dir(), unix.MNT_DETACH))
		e.Again()
		if v, c := verdict(t, e); v != status.Agree {
			t.Errorf("%+v", c)
		}
		works(t, k.Up(b))
		works(t, k.Finish(a))
		works(t, k.Finish(b))
		e.Empty()
	})
}

func TestMountedFileNoVolumeAnyMore(t *testing.T) {
	for _, row := range []struct {
		about, says string
		do, undo    func(e *hosttest.Env) error
	}{
		{"its directory is replaced", " has no file of that volume",
			func(e *hosttest.Env) error {
				return errors.Join(os.Rename(e.Dir(), e.Dir()+".away"), os.Mkdir(e.Dir(), 0o700))
			},
			func(e *hosttest.Env) error {
				return errors.Join(os.Remove(e.Dir()), os.Rename(e.Dir()+".away", e.Dir()))
			}},
		{"it has two hard links", "data has 2 hard links",
			func(e *hosttest.Env) error { return os.Link(e.File("data"), e.Dir()+".link") },
			func(e *hosttest.Env) error { return os.Remove(e.Dir() + ".link") }},
	} {
		onLoops(t, row.about, func(t *testing.T, e *hosttest.Env) {
			k, a := hosttest.NewKubelet(e, false), pod("a")
			works(t, k.Up(a))
			works(t, row.do(e))
			v, c := verdict(t, e)
			if v != status.Disagree || len(c.Findings) != 1 || c.Findings[0].Class != "dm-only" || !strings.Contains(c.Findings[0].Message, row.says) {
				t.Errorf("%+v", c)
			}
			works(t, row.undo(e))
			if v, c := verdict(t, e); v != status.Agree {
				t.Errorf("undone: %+v", c)
			}
			works(t, row.do(e))
			works(t, k.Finish(a))
			works(t, row.undo(e))
			e.Empty()
		})
	}
}

func TestInterruptedCreationReported(t *testing.T) {
	onLVM(t, "and the next pod finishes it", func(t *testing.T, e *hosttest.Env) {
		out, err := exec.Command("lvm", "lvcreate", "-q", "-y", "-ay", "-W", "y", "-L", "64m", "--addtag", "flexd.creating", "-n", "data", hosttest.VG).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		e.Eventually("status names it", func() bool { return differ(e) == "active-unclaimed data" })
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Start(a))
		e.Eventually("it is a volume like any other", func() bool { return differ(e) == "" })
		works(t, k.Finish(a))
		e.Empty()
	})
}

// Metadata from the time of its creation was restored: a volume with data is not said to be missing.
func TestCreationRestored(t *testing.T) {
	onLVM(t, "and is used as it is", func(t *testing.T, e *hosttest.Env) {
		k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
		works(t, k.Start(a))
		works(t, k.Finish(a))
		e.Empty()
		tag := func(option string) {
			t.Helper()
			if out, err := exec.Command("lvm", "lvchange", "-q", option, "flexd.creating", hosttest.VG+"/data").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		tag("--addtag")
		e.Eventually("the refusal", func() bool {
			err := k.Up(b)
			return err != nil && strings.Contains(err.Error(), "flexd has seen a filesystem on it") && strings.Contains(err.Error(), "lvchange --deltag flexd.creating "+hosttest.VG+"/data")
		})
		tag("--deltag")
		e.Eventually("the mount", func() bool { return k.Up(b) == nil })
		works(t, k.Finish(b))
		e.Empty()
	})
}

// A finding stays while flexd works on its volume: an operator can repeat a release that was refused as busy.
func TestFindingKeptWhileBusy(t *testing.T) {
	onSim(t, "and is judged after that", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		cgroup(t, e, a, "0")
		works(t, k.Start(a))
		works(t, e.M.Umount(k.Dir(a)))
		e.Eventually("the finding", func() bool { return differ(e) == "claimed-missing data" })
		since := e.Node().List().Findings[0].Since
		hit, release := e.Sim.Hang("probe", false, false)
		up := behind(func() error { return k.Up(pod("b")) })
		<-hit
		time.Sleep(time.Minute) // a survey comes by
		e.Node().Check(t.Context())
		if d := e.Node().List().Findings; len(d) != 1 || !d[0].Since.Equal(since) {
			t.Errorf("while it is worked on: %+v, and it was found at %s", d, since)
		}
		release()
		works(t, up())
		works(t, k.Finish(a))
		e.Eventually("it is over", func() bool { return differ(e) == "" })
		works(t, k.Finish(pod("b")))
		e.Empty()
	})
}
