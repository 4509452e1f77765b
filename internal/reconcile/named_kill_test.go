package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/volume"
)

// modes runs a test in both attach modes.
func modes(t *testing.T, run func(*testing.T, string, func(*testing.T, *hosttest.Env)), test func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet)) {
	t.Helper()
	for _, attach := range some(t, []bool{true, false}) {
		name := "attach:false"
		if attach {
			name = "attach:true"
		}
		run(t, name, func(t *testing.T, e *hosttest.Env) { test(t, e, hosttest.NewKubelet(e, attach)) })
	}
}

// flexd is killed between a mount and its note or answer: the mount stays.
func TestKilledAfterMount(t *testing.T) {
	for _, m := range some(t, []hosttest.Moment{hosttest.CrashAfter, hosttest.CrashAnswer, hosttest.CrashLooking}) {
		onBoth(t, m.String(), func(t *testing.T, e *hosttest.Env) {
			e.Patient = true
			k := hosttest.NewKubelet(e, false)
			switch m {
			case hosttest.CrashAnswer:
				e.Arm(m, 1)
			default:
				e.ArmStep(hosttest.CrashAfter, 1, "mount")
			}
			join := behind(func() error { return k.Up(pod("a")) })
			e.Eventually("flexd is dead", e.Dead)
			dead := k
			k = k.Kill() // no kubelet waits for the answer
			_ = join()
			mountsAre(t, e, k.Dir(pod("a")))
			if m == hosttest.CrashLooking {
				// It dies again, this time while it takes up what it left.
				e.Arm(m, 1)
			}
			e.Start()
			if m == hosttest.CrashLooking {
				e.Eventually("flexd is dead again", e.Dead)
				e.Start()
			}
			e.AtRest()
			e.Settle(time.Hour)
			mountsAre(t, e, dead.Dir(pod("a")))
			for _, c := range e.Claims() {
				if c.Phase != volume.Held || c.Pod == nil || c.Pod.UID != "a" || c.Pod.Namespace != "ns" {
					t.Errorf("the note has less than before: %+v %+v", c, c.Pod)
				}
			}
			works(t, e.M.Write(k.Dir(pod("a"))))
			works(t, k.Finish(pod("a")))
			e.Empty()
		})
	}
}

// A volume is deactivated if flexd is killed after waitforattach.
func TestKilledAfterWaitForAttach(t *testing.T) {
	for _, m := range some(t, []hosttest.Moment{hosttest.CrashAnswer, hosttest.CrashAfter, hosttest.CrashWithin}) {
		onBoth(t, m.String(), func(t *testing.T, e *hosttest.Env) {
			e.Patient = true
			blankVolume(e)
			k := hosttest.NewKubelet(e, true)
			if m == hosttest.CrashAnswer {
				e.Arm(m, 1)
			} else {
				e.ArmStep(m, 1, "activate")
			}
			join := behind(func() error { _, err := k.Call(flexvolume.WaitForAttach, "", k.Blob(pod("a"), false)); return err })
			e.Eventually("flexd is dead", e.Dead)
			k.Kill()
			_ = join()
			e.Eventually("the command that lived on has ended", func() bool { return len(e.Active()) == 1 })
			e.Start()
			e.Empty()
		})
	}
}

// An unmountdevice whose answer is lost to a kill does not cause a new mount.
func TestUnmountDeviceAnswerLost(t *testing.T) {
	for _, m := range some(t, []hosttest.Moment{hosttest.CrashAnswer, hosttest.CrashAfter, hosttest.CrashWithin, hosttest.CrashBefore}) {
		onBoth(t, m.String(), func(t *testing.T, e *hosttest.Env) {
			e.Patient = true
			k := hosttest.NewKubelet(e, true)
			works(t, k.Start(pod("a")))
			global := k.Global("pv1")
			_, err := k.Call(flexvolume.Unmount, k.Dir(pod("a")))
			works(t, err)
			works(t, e.M.Remove(k.Dir(pod("a"))))
			if m == hosttest.CrashAnswer {
				e.Arm(m, 1)
			} else {
				e.ArmStep(m, 1, "umount")
			}
			join := behind(func() error { _, err := k.Call(flexvolume.UnmountDevice, global); return err })
			e.Eventually("flexd is dead", e.Dead)
			k = k.Kill()
			_ = join()
			e.Settle(time.Second) // the command that lived on ends
			still := e.M.IsMountPoint(global)
			e.Start()
			e.AtRest()
			e.Settle(time.Hour)
			if now := e.M.IsMountPoint(global); now && !still {
				t.Error("it came back")
			} else if now { // kubelet may have counted it by now: only unmountdevice takes it away
				works(t, k.Finish(pod("a")))
			}
			_ = e.M.Remove(global)
			e.Empty()
		})
	}
}

// After a reboot nothing is mounted before kubelet asks.
func TestNothingMountedAfterReboot(t *testing.T) {
	modes(t, onSim, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		works(t, k.Start(pod("a")))
		works(t, e.M.Write(k.Dir(pod("a"))))
		commands := e.Commands()
		k.Kill()
		e.Reboot()
		e.Start()
		e.Settle(time.Hour)
		mountsAre(t, e)
		if n := e.Commands(); n != commands {
			t.Errorf("flexd started %d commands without a call", n-commands)
		}
		k = hosttest.NewKubelet(e, k.Attach)
		works(t, k.Start(pod("a")))
		if f := e.Sim.FileAt(e.File("data")); f.Data != 1 || f.Mkfs != 1 {
			t.Errorf("the volume is not what it was: %+v", f)
		}
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
}

// A repeated unmount waits for a hung one, and a restarted flexd finds the hung one by its lock. The hung
// umount has removed the mount from the table, but its process still has the device open, with unwritten
// data.
func TestRepeatedUnmountHung(t *testing.T) {
	onSim(t, "the same flexd", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		works(t, k.Start(pod("a")))
		_, release := e.Sim.Hang("umount", true, true)
		fails(t, k.Down(pod("a")), "") // after a minute it is reported stuck
		mountsAre(t, e)
		s, _ := e.Node().VolumeDetail(hosttest.VG, "data")
		if s.Stuck == nil || s.Stuck.Pid == 0 || s.Stuck.Wchan == "" || s.State != "stuck" {
			t.Errorf("status does not show it: %+v %+v", s.State, s.Stuck)
		}
		join := behind(func() error { return k.Down(pod("a")) })
		time.Sleep(time.Minute)
		if claims := e.Claims(); len(claims) != 1 || claims[0].Phase != volume.Releasing {
			t.Errorf("the claim ended before the umount: %+v", claims)
		}
		release()
		works(t, join())
		e.Empty()
	})
	onSim(t, "a new flexd", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		works(t, k.Start(pod("a")))
		hit, release := e.Sim.Hang("umount", true, true)
		join := behind(func() error { return k.Down(pod("a")) })
		<-hit
		e.Again()
		// Now a thread waits for the lock in the kernel, and time stands still.
		hosttest.Spin(func() bool {
			s, _ := e.Node().VolumeDetail(hosttest.VG, "data")
			return s.Stuck != nil && len(s.Calls) == 1
		})
		mountsAre(t, e)
		if claims := e.Claims(); len(claims) != 1 {
			t.Errorf("the claim ended before the umount: %+v", claims)
		}
		release()
		works(t, join())
		e.Empty()
	})
}

func TestStopDoesNotWaitForMount(t *testing.T) {
	onSim(t, "stop", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		hit, release := e.Sim.Hang("mount", true, false)
		e.Patient = true
		join := behind(func() error { return k.Up(pod("a")) })
		<-hit
		began := time.Now()
		node := e.Node()
		ended := make(chan struct{})
		go func() { k.Kill(); close(ended) }()
		<-ended
		e.Crash()
		_ = join()
		if took := time.Since(began); took > time.Second {
			t.Errorf("a waiting call kept %v alive for %v", node, took)
		}
		release()
		e.Start()
		e.AtRest()
		mountsAre(t, e, k.Dir(pod("a")))
		works(t, hosttest.NewKubelet(e, false).Finish(pod("a")))
		e.Empty()
	})
}

// flexd is killed between the creation of a volume and the look at it: the volume is used.
func TestKilledAfterCreation(t *testing.T) {
	for _, m := range []hosttest.Moment{hosttest.CrashAfter, hosttest.CrashWithin, hosttest.FailAfter} {
		modes(t, func(t *testing.T, mode string, test func(*testing.T, *hosttest.Env)) {
			t.Helper()
			onFiles(t, m.String()+" "+mode, test)
		}, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
			e.ArmStep(m, 1, "create")
			works(t, k.Start(pod("a")))
			if len(e.Struck()) != 1 {
				t.Error("it did not come to that")
			}
			if steps := e.Steps(); !strings.Contains(steps, "1 create") {
				t.Errorf("it took %s", steps)
			}
			works(t, k.Finish(pod("a")))
			e.Empty()
		})
	}
}
