package reconcile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Sequences in which the state changed between an observation and its use.

// startLooking starts flexd anew; its first look at its volume ends when release is called.
func startLooking(e *hosttest.Env) (release func()) {
	e.Patient = true
	e.Crash()
	hit, release := e.Sim.Hang("loop-identify", false, false)
	e.Start()
	<-hit
	return release
}

// A mount that has appeared is Success even if the mount table cannot be read afterwards: kubelet forgets a
// failed mount, and would never unmount it.
func TestMountSuccessTableUnreadable(t *testing.T) {
	blind := func(e *hosttest.Env) { e.Sim.Mounted = func(string, string) { e.Sim.TearTable() } }
	onSim(t, "the next look fails", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		blind(e)
		works(t, k.Up(a))
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
	onSim(t, "its child says that it failed, and the next look fails", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		blind(e)
		e.ArmStep(hosttest.FailAfter, 1, "mount")
		works(t, k.Up(a))
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A caller that has ended gets no lease, with which flexd would deactivate an operator's device.
func TestCallEndsDuringLookNoLease(t *testing.T) {
	onSim(t, "of a volume that an operator has activated", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, true)
		works(t, e.Storage.Make("data", 64<<20))
		e.Sim.Activate(e.File("data"))
		e.Sim.WhileLooking(func() { time.Sleep(10 * time.Second) })
		up := behind(func() error { return k.Up(pod("a")) })
		time.Sleep(5 * time.Second)
		k.Kill()
		if err := up(); err == nil {
			t.Error("a kubelet that is dead has its volume")
		}
		time.Sleep(6 * time.Second)
		if e.Noted(volume.UUID(info(0).UUID)) {
			t.Error("a lease is noted, and no call waits for it")
		}
		e.Sim.WhileLooking(nil)
		e.Settle(5 * time.Minute)
		if active := e.Active(); len(active) != 1 {
			t.Errorf("active are %q, and flexd was never asked to let anything go", active)
		}
	})
}

// A volume that was active before kubelet asked is deactivated when its lease ends: its activation cannot be
// distinguished from one by flexd without a note. After that, an activation is the operator's again.
func TestActiveBeforeFirstCall(t *testing.T) {
	attached := func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, true)
		works(t, e.Storage.Make("data", 64<<20))
		e.Sim.Activate(e.File("data"))
		r, err := k.Call(flexvolume.WaitForAttach, "", k.Blob(pod("a"), false))
		works(t, err)
		if r.Status != flexvolume.StatusSuccess {
			t.Error(r)
		}
	}
	stays := func(t *testing.T, e *hosttest.Env, why string) {
		t.Helper()
		e.Settle(5 * time.Minute)
		if active := e.Active(); len(active) != 1 {
			t.Errorf("%s: active are %q", why, active)
		}
	}
	onSim(t, "unless it is open", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		attached(t, e)
		s, _ := e.Node().VolumeDetail(hosttest.VG, "data")
		if plan := strings.Join(s.Plan, "; "); !strings.HasPrefix(plan, "deactivate (when the lease ends") {
			t.Errorf("status does not show it: %q", plan)
		}
		closed := e.Sim.HoldDevice(e.File("data"))
		stays(t, e, "a process has it open")
		if c := e.Node().Check(t.Context()); len(c.Findings) != 1 || c.Findings[0].Class != "still-active" || !strings.Contains(c.Findings[0].Message, "has it open") {
			t.Errorf("check does not report it: %+v", c.Findings)
		}
		e.Again()
		stays(t, e, "the process lives longer than flexd")
		closed()
		e.Empty()
		e.Sim.Activate(e.File("data"))
		stays(t, e, "kubelet has not asked since")
	})
	onSim(t, "unless its group says never", func(t *testing.T, e *hosttest.Env) {
		e.Config.VolumeGroups[0].NeverDeactivate = true
		attached(t, e)
		stays(t, e, "deactivate: never")
	})
}

// A call that arrives during an observation is answered from the next one.
func TestCallDuringLook(t *testing.T) {
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
		r, err := k.Call(flexvolume.Unmount, k.Dir(a))
		works(t, err)
		if r.Status == flexvolume.StatusSuccess && e.M.IsMountPoint(k.Dir(a)) {
			t.Errorf("it is mounted, and unmount was answered %+v", r)
		}
		e.Sim.WhileLooking(nil)
		works(t, k.Finish(a))
		e.Empty()
	})
}

func TestMountGoneDuringFirstLook(t *testing.T) {
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
		if s, _ := e.Node().VolumeDetail(hosttest.VG, "data"); s.State != "missing" {
			t.Errorf("its state is %s\n%s", s.State, e.Describe())
		}
		e.Eventually("its device goes", func() bool { return len(e.Active()) == 0 })
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A foreign mount that appears over flexd's mount between the observation and the umount is not unmounted.
func TestForeignMountBeforeUnmount(t *testing.T) {
	onSim(t, "tmpfs", func(t *testing.T, e *hosttest.Env) {
		e.Sim.Lenient = true
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		var once sync.Once
		e.Sim.WhileLooking(func() {
			if c := e.Claims(); len(c) == 1 && c[0].Phase == volume.Releasing {
				once.Do(func() {
					works(t, e.M.MountTmpfs(k.Dir(a)))
					time.Sleep(time.Second) // all followers of the table have seen it
				})
			}
		})
		fails(t, k.Down(a), k.Dir(a))
		e.Sim.WhileLooking(nil)
		if strings.Count(e.M.Text(), " "+k.Dir(a)+" ") != 2 {
			t.Errorf("the tmpfs is gone\n%s", e.M.Text())
		}
		fails(t, k.Down(a), "in its place")
		works(t, e.M.Umount(k.Dir(a)))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// One of flexd's volumes bound over another one: the unmount of the upper one does not say that something other than
// flexd has mounted the lower one, and kubelet's next call unmounts that.
func TestBoundOverEachOther(t *testing.T) {
	onSim(t, "two volumes", func(t *testing.T, e *hosttest.Env) {
		k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
		b.LV, b.Volume = "other", "pv2"
		works(t, k.Up(a))
		works(t, k.Up(b))
		works(t, e.M.Bind(k.Dir(b), k.Dir(a)))
		fails(t, k.Down(a), "is mounted at "+k.Dir(a)+" in its place")
		works(t, k.Down(a))
		works(t, k.Down(b))
		e.Empty()
	})
}

// An unmount succeeds if another process unmounts meanwhile.
func TestUnmountedByOther(t *testing.T) {
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

// If two volumes have claims to one directory, the mounted one is unmounted first.
func TestTwoClaimsOneDirectory(t *testing.T) {
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

// A mount without a note is adopted even if another volume, whose mount an operator removed, has a claim to
// the directory.
func TestClaimOfOtherAtUnnotedMount(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		k, p := hosttest.NewKubelet(e, false), pod("a")
		for _, lv := range []string{"taken", "mounted"} {
			p.LV = lv
			works(t, k.Up(p))
			if lv == "taken" {
				works(t, e.M.Umount(k.Dir(p)))
			}
		}
		e.AtRest()
		e.Patient = true
		e.Crash()
		notes, _ := filepath.Glob(filepath.Join(e.Notes(), "*"))
		for _, note := range notes {
			if text, err := os.ReadFile(note); err == nil && strings.Contains(string(text), `"mounted"`) {
				works(t, os.Remove(note))
			}
		}
		e.Start()
		e.Settle(10 * time.Minute) // the mount table is read without an event
		if n := len(e.Claims()); n != 2 {
			t.Errorf("%d claims\n%s", n, e.Describe())
		}
		works(t, k.Finish(p))
		e.Empty()
	})
}

// In a group with `deactivate: never` the note of a claim with a missing mount is removed.
func TestMissingMountNeverDeactivate(t *testing.T) {
	onSim(t, "an hour", func(t *testing.T, e *hosttest.Env) {
		e.Config.VolumeGroups[0].NeverDeactivate = true
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		works(t, e.M.Umount(k.Dir(a)))
		time.Sleep(time.Minute)
		from := time.Now()
		time.Sleep(time.Hour)
		s, _ := e.Node().VolumeDetail(hosttest.VG, "data")
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

// A lane at rest does not keep the mount table of its last observation: memory would grow with the product of
// volumes and mounts.
func TestLaneAtRestKeepsNoMountTable(t *testing.T) {
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

// A foreign mount that appears after the observation for a mount is detected before that mount appears.
func TestForeignMountBeforeCommit(t *testing.T) {
	onSim(t, "by an administrator", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		hit, release := e.Sim.Hang("mount-built", false, false)
		up := behind(func() error { return k.Up(a) })
		<-hit
		works(t, e.Sim.MountElsewhere(e.File("data"), "/mnt/other"))
		release()
		if err := up(); err == nil || !strings.Contains(err.Error(), "/mnt/other") {
			t.Errorf("mounted at /mnt/other meanwhile: %v", err)
		}
		mountsAre(t, e)
		works(t, e.M.Umount("/mnt/other"))
		works(t, k.Up(a))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// The events of a lane's own activation cause no further look.
func TestEventsOfOwnStep(t *testing.T) {
	var steps [2]string
	for i, what := range []string{"none come", "they come during its step"} {
		onSim(t, what, func(t *testing.T, e *hosttest.Env) {
			works(t, e.Storage.Make("data", 64<<20))
			k := hosttest.NewKubelet(e, true)
			e.Command = func(c run.Cmd) {
				if time.Sleep(time.Second); i == 1 && c.Step == "activate" {
					e.Node().NotifyChanged(hosttest.VG, map[volume.UUID]time.Time{volume.UUID(info(0).UUID): time.Now()})
				}
			}
			e.Arm(hosttest.Never, 0)
			_, err := k.Call(flexvolume.WaitForAttach, "", k.Blob(pod("a"), false))
			works(t, err)
			e.Settle(10 * time.Second)
			steps[i] = e.Steps()
			e.Empty()
		})
	}
	t.Cleanup(func() {
		if steps[0] != steps[1] {
			t.Errorf("without events %s, with them %s", steps[0], steps[1])
		}
	})
}
