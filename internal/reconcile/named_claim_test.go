package reconcile_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// An unmount fails as busy and a new pod asks for the volume: after the holder ends, the new pod keeps its
// mount.
func TestBusyUnmountThenNewPod(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a := pod("a")
		works(t, k.Start(a))
		release := e.M.Hold(k.Dir(a))
		fails(t, k.Down(a), "busy")
		e.AtRest()
		works(t, k.Up(a)) // kubelet finds a mount point and makes no call
		release()
		e.Settle(time.Hour)
		if !e.M.IsMountPoint(k.Dir(a)) {
			t.Errorf("the new pod lost its mount\n%s", e.Describe())
		}
		for _, c := range e.Claims() {
			if c.Phase != volume.Held || c.Kind == volume.Published && !strings.HasPrefix(c.Note, "release failed") {
				t.Errorf("claim %s %q, want held and why", c.Phase, c.Note)
			}
		}
		works(t, e.M.Write(k.Dir(a)))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A busy unmount names the process that holds the mount, and succeeds once that process
// has ended.
func TestBusyUnmountNamesHolder(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a := pod("a")
		works(t, k.Start(a))
		release := e.M.Hold(k.Dir(a))
		for range 3 {
			fails(t, k.Down(a), "pid ")
			if !e.M.IsMountPoint(k.Dir(a)) {
				t.Error("it was taken away although it is busy")
			}
		}
		release()
		works(t, k.Down(a))
		e.Empty()
	})
}

// A claim whose mount an operator removed does not keep the volume active forever.
func TestHeldClaimMountGone(t *testing.T) {
	onBoth(t, "umount", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		works(t, k.Start(a))
		works(t, e.M.Umount(k.Dir(a)))
		e.Eventually("the device goes although the claim stands", func() bool { return len(e.Active()) == 0 })
		if claims := e.Claims(); len(claims) != 1 || claims[0].Phase != volume.Held {
			t.Errorf("claims: %+v", claims)
		}
		works(t, k.Finish(a))
		e.Empty()
	})
	onBoth(t, "and its directory went, too", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		works(t, k.Start(a))
		works(t, e.M.Umount(k.Dir(a)))
		works(t, e.M.Remove(k.Dir(a)))
		e.Empty()
	})
}

// An operator's umount under a running pod is reported and not repaired.
func TestOperatorUnmountReported(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a := pod("a")
		works(t, k.Start(a))
		works(t, e.M.Umount(k.Dir(a)))
		reported := func() bool {
			s, _ := e.Node().VolumeDetail(hosttest.VG, "data")
			for _, c := range s.Claims {
				if strings.HasPrefix(c.Note, "claimed-missing") {
					return s.State == "missing"
				}
			}
			return false
		}
		e.Eventually("status says claimed-missing", reported)
		e.Settle(time.Hour)
		if e.M.IsMountPoint(k.Dir(a)) {
			t.Error("it was repaired")
		}
		e.Eventually("status still says so", reported)
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A mount that has appeared is never rolled back, whatever fails later.
func TestMountNeverRolledBack(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a := pod("a")
		e.ArmStep(hosttest.FailAfter, 1, "mount")
		works(t, k.Up(a)) // the command lies: the table decides
		works(t, e.M.Write(k.Dir(a)))
		works(t, k.Finish(a))
		e.Empty()
	})
	onSim(t, "its note cannot be written", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		hit, release := e.Sim.Hang("mount", true, false)
		join := behind(func() error { return k.Up(a) })
		<-hit
		restore := e.BreakNotes()
		release()
		works(t, join())
		restore()
		mountsAre(t, e, k.Dir(a))
		e.Crash()
		e.Settle(time.Minute)
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
	onSim(t, "its caller goes while it lands", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		hit, release := e.Sim.Hang("mount", true, false)
		join := behind(func() error { return k.Up(a) })
		<-hit
		k = k.Kill()
		release()
		_ = join()
		e.AtRest()
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
	onSim(t, "the deadline passes while it lands", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a := pod("a")
		hit, release := e.Sim.Hang("mount", true, false)
		join := behind(func() error { return k.Up(a) })
		<-hit
		time.Sleep(e.Config.CallDeadline + 10*time.Second)
		release()
		works(t, join())
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A mount fails and its pod is deleted: flexd cleans up without an operator.
func TestFailedMountPodDeleted(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a := pod("a")
		e.Refuse("mount", errSimulated)
		fails(t, k.Up(a), "simulated failure")
		_ = e.M.Remove(k.Global("pv1")) // kubelet forgets the volume, and makes no call
		e.Refuse("mount", nil)
		e.Empty()
	})
}

// The second of two names that kubelet uses for one volume is refused.
func TestTwoKubeletNamesRefused(t *testing.T) {
	onBoth(t, "attach:true", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, true)
		a, b := pod("a"), pod("b")
		b.Volume = "pv2"
		works(t, k.Start(a))
		fails(t, k.Up(b), "two names")
		mountsAre(t, e, k.Dir(a), k.Global("pv1"))
		works(t, k.Finish(a))
		works(t, k.Start(b))
		works(t, k.Finish(b))
		e.Empty()
	})
	onSim(t, "both at once", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, true)
		a, b := pod("a"), pod("b")
		b.Volume = "pv2"
		first, second := behind(func() error { return k.Up(a) }), behind(func() error { return k.Up(b) })
		e1, e2 := first(), second()
		if (e1 == nil) == (e2 == nil) {
			t.Errorf("got %v and %v, want one success", e1, e2)
		}
		if e1 == nil {
			works(t, k.Finish(a))
		} else {
			works(t, k.Finish(b))
		}
		_ = e.M.Remove(k.Global("pv1"))
		_ = e.M.Remove(k.Global("pv2"))
		e.Empty()
	})
}

func TestTwoInlineVolumesOfOneName(t *testing.T) {
	a, b := pod("a"), pod("b")
	a.Volume, b.Volume, b.LV = "data", "data", "other"
	onBoth(t, "collide with attach:true and the second is refused", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, true)
		works(t, k.Start(a))
		fails(t, k.Up(b), "two inline volumes have the same name")
		mountsAre(t, e, k.Dir(a), k.Global("data"))
		k.Forget(b)
		works(t, k.Finish(a))
		e.Empty()
	})
	onBoth(t, "are two volumes with attach:false", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		works(t, k.Start(a))
		works(t, k.Start(b))
		mountsAre(t, e, k.Dir(a), k.Dir(b))
		works(t, k.Finish(a))
		works(t, k.Finish(b))
		e.Empty()
	})
}

// A read-only mount before a read-write one, and the reverse, in both attach modes.
func TestReadOnlyThenReadWrite(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		for _, order := range [][2]hosttest.Pod{{readOnly(pod("ro")), pod("rw")}, {pod("rw"), readOnly(pod("ro"))}} {
			works(t, k.Start(order[0]))
			works(t, k.Start(order[1]))
			works(t, e.M.Write(k.Dir(pod("rw"))))
			if e.M.Write(k.Dir(pod("ro"))) == nil {
				t.Error("a read-only pod can write")
			}
			works(t, k.Finish(order[0]))
			works(t, k.Finish(order[1]))
		}
		e.Empty()
	})
}

func TestDifferingMountOptions(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a, b, c := pod("a"), pod("b"), pod("c")
		a.Mount, b.Mount, c.Mount = "commit=30", "commit=60", "commit=30,noatime"
		works(t, k.Start(a))
		fails(t, k.Up(b), "mount options")
		k.Forget(b)
		works(t, k.Start(c)) // an attribute is a mount's own
		works(t, k.Finish(a))
		works(t, k.Finish(c))
		works(t, k.Start(b))
		works(t, k.Finish(b))
		e.Empty()
	})
	onSim(t, "after the notes are lost the mount table decides", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a, b := pod("a"), pod("b")
		a.Mount, b.Mount = "commit=30", "commit=60"
		works(t, k.Start(a))
		e.Patient = true
		e.Crash()
		loseNotes(t, e)
		e.Start()
		fails(t, k.Up(b), "mount options")
		b.Mount = "commit=30"
		works(t, k.Start(b))
		works(t, k.Finish(a))
		works(t, k.Finish(b))
		e.Empty()
	})
}

func TestDetachIsAHint(t *testing.T) {
	onBoth(t, "it ends a lease and takes nothing", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, true)
		a := pod("a")
		works(t, k.Start(a))
		for range 2 {
			if r, err := k.Call(flexvolume.Detach, "pv1", "node1"); err != nil || r.Status != flexvolume.StatusSuccess {
				t.Error(r, err)
			}
		}
		e.AtRest()
		mountsAre(t, e, k.Dir(a), k.Global("pv1"))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// After an operator removed a global mount, kubelet removes the directory and calls detach. The lane must run
// then, even if the lease has ended.
func TestDetachAfterGlobalMountGone(t *testing.T) {
	onSim(t, "its lease has ended", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, true), pod("a")
		works(t, k.Start(a))
		global := k.Global(a.Volume)
		works(t, k.Insist("unmount", k.Dir(a)))
		works(t, e.M.Remove(k.Dir(a)))
		works(t, e.M.Umount(global))
		e.Eventually("it is inactive", func() bool { return len(e.Active()) == 0 })
		works(t, e.M.Remove(global))
		works(t, k.Insist("detach", a.Volume, e.Config.NodeName))
		time.Sleep(5 * time.Second)
		if c := e.Claims(); len(c) > 0 {
			t.Errorf("left: %+v", c)
		}
	})
}

// Mounts below a root that was removed from the configuration are unmounted, and nothing new is mounted
// there.
func TestKubeletRootsChangeUnderAMount(t *testing.T) {
	onBoth(t, "and the driver's name", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		dir := k.Dir(a)
		e.Patient = true
		e.Crash()
		e.Config.KubeletRoots, e.Config.Driver = []string{e.Root + "2"}, "flexd/renamed"
		e.Start()
		works(t, k.Insist(flexvolume.Unmount, dir))
		works(t, k.Insist(flexvolume.Unmount, dir)) // nothing is there any more
		e.Empty()
	})
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a, b := pod("a"), pod("b")
		works(t, k.Start(a))
		e.Patient = true
		e.Crash()
		e.Config.KubeletRoots = []string{e.Root + "2"}
		e.Start()
		fails(t, k.Up(b), "outside kubelet's directories")
		k.Forget(b)
		works(t, e.M.Write(k.Dir(a)))
		works(t, k.Down(a))
		// The answer may be lost on its way to kubelet, which asks again then.
		works(t, k.Insist(flexvolume.Unmount, k.Dir(a)))
		e.Empty()
	})
	onBoth(t, "two roots", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a, b := pod("a"), pod("b")
		works(t, k.Start(a))
		e.Patient = true
		e.Crash()
		old, now := e.Root, e.Root+"2"
		works(t, e.M.Mkdir(now))
		e.Config.KubeletRoots = []string{now}
		e.Start()
		e.Root = now
		works(t, k.Start(b)) // the mount that is left is no stranger's
		works(t, k.Finish(b))
		e.Root = old
		works(t, k.Finish(a))
		e.Root = now
		e.Empty()
	})
}

// The same without notes: the mount table and kubelet's path are enough. Other paths, and foreign mounts, are
// refused.
func TestKubeletRootsChangeWithoutNotes(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a, b := pod("a"), pod("b")
		works(t, k.Start(a))
		e.Patient = true
		e.Crash()
		loseNotes(t, e)
		e.Config.KubeletRoots = []string{e.Root + "2"}
		e.Start()
		works(t, e.M.Write(k.Dir(a)))
		e.Node().Check(t.Context())
		if found := e.Node().List().Findings; !slices.ContainsFunc(found, func(d status.Finding) bool {
			return d.Dir == k.Dir(a) && strings.Contains(d.Message, "a path as below a root directory of kubelet")
		}) {
			t.Errorf("check: %+v", found)
		}
		works(t, k.Finish(a))
		works(t, k.Insist(flexvolume.Unmount, k.Dir(a))) // nothing is there any more
		refused := func(dir, why string) {
			t.Helper()
			if a, err := k.Call(flexvolume.Unmount, dir); err != nil || !strings.Contains(a.Message, why) {
				t.Errorf("unmount %s: %+v, %v", dir, a, err)
			}
		}
		refused(e.Root+"/pods/u/volumes/other~lvm/data", "outside kubelet's directories")
		works(t, e.M.Mkdir(k.Dir(b)))
		works(t, e.M.MountTmpfs(k.Dir(b)))
		refused(k.Dir(b), "which flexd did not mount")
		works(t, e.M.Umount(k.Dir(b)))
		works(t, e.M.Remove(k.Dir(b)))
		e.Empty()
	})
}

// A volume that was bind mounted over its own mount is unmounted once per mount.
func TestMountBoundOnItself(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a := pod("a")
		works(t, k.Start(a))
		for range 2 {
			works(t, e.M.Bind(k.Dir(a), k.Dir(a)))
		}
		covered(t, e, k.Dir(a), "same volume")
		works(t, e.M.Write(k.Dir(a)))
		if answer, err := k.Call(flexvolume.Unmount, k.Dir(a)); err != nil || answer.Status != flexvolume.StatusSuccess {
			t.Errorf("unmount: %+v, %v", answer, err)
		}
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A mount that is covered by a part of itself cannot be unmounted, and is reported.
func TestMountCoveredByItsOwnPart(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a := pod("a")
		works(t, k.Start(a))
		works(t, e.M.Bind(k.Dir(a)+"/sub", k.Dir(a)))
		covered(t, e, k.Dir(a), "/sub of the ext4")
		fails(t, k.Down(a), "/sub of volume vg0/data (uuid ")
		works(t, e.M.Umount(k.Dir(a)))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// covered waits until the mount at a directory is reported as covered.
func covered(t *testing.T, e *hosttest.Env, dir, by string) {
	t.Helper()
	e.AtRest()
	_, c := verdict(t, e)
	if len(c.Findings) != 1 || c.Findings[0].Class != "covered" || c.Findings[0].Dir != dir || !strings.Contains(c.Findings[0].Message, by) {
		t.Errorf("check does not say that the mount at %s is covered: %+v", dir, c.Findings)
	}
}
