package reconcile_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/flex"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/volume"
)

// Sequences in which the world changed between a look and what was made of it.

// startLooking starts flexd anew, whose first look at its volume does not end
// before it is released.
func startLooking(e *hosttest.Env) (release func()) {
	e.Patient = true
	e.Crash()
	hit, release := e.Sim.Hang("loop-identify", false, false)
	e.Start()
	<-hit
	return release
}

func TestACallThatComesDuringALookIsAnsweredFromTheNext(t *testing.T) {
	onSim(t, "a mount whose mount goes meanwhile", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		release := startLooking(e)
		works(t, e.M.Umount(k.Dir(a)))
		k = k.Kill()
		join := behind(func() error { return k.Up(a) })
		time.Sleep(2 * time.Second)
		release()
		works(t, join())
		mountsAre(t, e, k.Dir(a))
		works(t, e.M.Write(k.Dir(a)))
		works(t, k.Finish(a))
		e.Empty()
	})
	onSim(t, "an unmount of what has no claim yet", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		e.Crash()
		loseNotes(t, e)
		e.Sim.WhileLooking(func() { time.Sleep(time.Second) })
		e.Start()
		time.Sleep(time.Second / 2)
		r, err := k.Call(flex.Unmount, k.Dir(a))
		works(t, err)
		if r.Status == flex.StatusSuccess && e.M.IsMountPoint(k.Dir(a)) {
			t.Errorf("it is mounted, and unmount was answered %+v", r)
		}
		e.Sim.WhileLooking(nil)
		works(t, k.Finish(a))
		e.Empty()
	})
}

func TestAMountThatGoesDuringTheFirstLookIsNoticed(t *testing.T) {
	onSim(t, "and its directory, too", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		release := startLooking(e)
		works(t, e.M.Umount(k.Dir(a)))
		works(t, e.M.Remove(k.Dir(a)))
		time.Sleep(2 * time.Second)
		release()
		e.Empty()
	})
	onSim(t, "alone", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		release := startLooking(e)
		works(t, e.M.Umount(k.Dir(a)))
		time.Sleep(2 * time.Second)
		release()
		time.Sleep(time.Second) // not only at the next resync
		if s, _ := e.Node().Story(hosttest.VG, "data"); s.State != "missing" {
			t.Errorf("its state is %s\n%s", s.State, e.Describe())
		}
		e.Eventually("its device goes", func() bool { return len(e.Active()) == 0 })
		works(t, k.Finish(a))
		e.Empty()
	})
}

func TestAForeignMountThatLandsOnOursBetweenTheLookAndItsUmountIsNotUnmounted(t *testing.T) {
	onSim(t, "tmpfs", func(t *testing.T, e *hosttest.Env) {
		e.Sim.Lenient = true
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		var once sync.Once
		e.Sim.WhileLooking(func() {
			if c := e.Claims(); len(c) == 1 && c[0].Phase == volume.Releasing {
				once.Do(func() {
					works(t, e.M.MountTmpfs(k.Dir(a)))
					time.Sleep(time.Second) // whoever follows the table has seen it
				})
			}
		})
		fails(t, k.Down(a), k.Dir(a))
		e.Sim.WhileLooking(nil)
		if !strings.Contains(e.M.Text(), k.Dir(a)+" rw,relatime - tmpfs") {
			t.Errorf("the tmpfs is gone\n%s", e.M.Text())
		}
		fails(t, k.Down(a), "not by flexd")
		works(t, e.M.Umount(k.Dir(a)))
		works(t, k.Finish(a))
		e.Empty()
	})
}

func TestAnUnmountDuringWhichSomebodyElseUnmountsIsSuccess(t *testing.T) {
	modes(t, onSim, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a := pod("a")
		works(t, k.Up(a))
		hit, release := e.Sim.Hang("umount", false, false)
		join := behind(func() error { return k.Down(a) })
		<-hit
		works(t, e.M.Umount(k.Dir(a)))
		release()
		works(t, join())
		e.Empty()
	})
}

func TestOfVolumesWithAClaimToOneDirectoryTheMountedOneIsUnmountedFirst(t *testing.T) {
	onSim(t, "the others' mounts were taken by an operator", func(t *testing.T, e *hosttest.Env) {
		k, p := hosttest.NewKubelet(e, false), pod("a")
		for range 3 { // they once came in the order of a map
			for lv := range 8 {
				if lv > 0 {
					works(t, e.M.Umount(k.Dir(p)))
				}
				p.LV = fmt.Sprint("lv", lv)
				works(t, k.Up(p))
			}
			e.AtRest()
			if n := len(e.Claims()); n != 8 {
				t.Fatalf("%d claims\n%s", n, e.Describe())
			}
			works(t, k.Down(p))
			mountsAre(t, e)
			works(t, k.Finish(p))
			e.Empty()
		}
	})
}

func TestAClaimWhoseMountIsMissingInAGroupThatIsNeverDeactivatedIsNotNotedForEver(t *testing.T) {
	onSim(t, "an hour", func(t *testing.T, e *hosttest.Env) {
		e.Config.VolumeGroups[0].NeverDeactivate = true
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		works(t, e.M.Umount(k.Dir(a)))
		time.Sleep(time.Minute)
		from := time.Now()
		time.Sleep(time.Hour)
		s, _ := e.Node().Story(hosttest.VG, "data")
		if len(s.History) == 0 || s.History[0].Started.After(from) {
			t.Errorf("flexd is busy with nothing\n%s", e.Describe())
		}
		if s.State != "missing" || len(e.Active()) != 1 {
			t.Errorf("state %s, devices %q", s.State, e.Active())
		}
		works(t, k.Finish(a))
		e.Eventually("no claim is left", func() bool { return len(e.Claims()) == 0 })
	})
}

// A lane that rests once kept the mount table of its last look, each lane another:
// memory that grew with the number of volumes times that of mounts.
func TestALaneAtRestKeepsNoMountTable(t *testing.T) {
	onSim(t, "after a mount", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, true)
		works(t, k.Start(pod("a")))
		node := e.Node()
		e.Stop()
		synctest.Wait() // lanes end by themselves
		if n := node.TablesKept(); n > 0 {
			t.Errorf("%d lanes keep one", n)
		}
	})
}
