package reconcile_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/status"
)

// cgroup makes the control group of a pod in one of kubelet's forms, with or without a process, or removes it
// ("").
func cgroup(t *testing.T, e *hosttest.Env, p hosttest.Pod, populated string) {
	t.Helper()
	works(t, os.MkdirAll(e.Cgroups()+"/kubepods.slice", 0o755))
	works(t, os.WriteFile(e.Cgroups()+"/cgroup.procs", nil, 0o644))
	dir := cgroupDir(e, p)
	if populated == "" {
		works(t, os.RemoveAll(dir))
		return
	}
	works(t, os.MkdirAll(dir, 0o755))
	works(t, os.WriteFile(dir+"/cpu.stat", []byte("usage_usec 1000\n"), 0o644)) // it has run
	works(t, os.WriteFile(dir+"/cgroup.events", []byte("populated "+populated+"\nfrozen 0\n"), 0o644))
}

func cgroupDir(e *hosttest.Env, p hosttest.Pod) string {
	return e.Cgroups() + "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(p.UID, "-", "_") + ".slice"
}

// after starts flexd anew with a grace period after which it releases orphans itself.
func after(e *hosttest.Env, grace time.Duration) {
	e.Patient = true
	e.Crash()
	e.Config.ReleaseOrphansAfter = grace
	e.Start()
	e.Patient = false
}

// ask runs `flexd release` with these targets, without --yes.
func ask(t *testing.T, e *hosttest.Env, targets ...string) status.Orphans {
	t.Helper()
	return e.Node().Orphans(t.Context(), targets)
}

// reclaim runs `flexd release --yes` for one orphan.
func reclaim(e *hosttest.Env, uuid, dir string) error {
	a := e.Flex().Serve(context.Background(), flexvolume.Request{V: flexvolume.Version, ID: "op1", Verb: flexvolume.Reclaim, Args: []string{uuid, dir}, Started: int64(e.M.Boot())}, 0)
	if a.Status != flexvolume.StatusSuccess {
		return &refusedError{a.Message}
	}
	return nil
}

type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// only returns the only orphan.
func only(t *testing.T, e *hosttest.Env, class string, targets ...string) status.Orphan {
	t.Helper()
	o := ask(t, e, targets...)
	if len(o.Orphans) != 1 || o.Orphans[0].Class != class {
		t.Fatalf("orphans: %+v\n%s", o, e.Describe())
	}
	return o.Orphans[0]
}

// orphaned starts a pod that dies while kubelet is down.
func orphaned(t *testing.T, e *hosttest.Env) (*hosttest.Kubelet, hosttest.Pod, status.Orphan) {
	t.Helper()
	k, a := hosttest.NewKubelet(e, false), pod("a")
	cgroup(t, e, a, "0")
	works(t, k.Start(a))
	e.Eventually("status names it", func() bool { return differ(e) == "orphaned-pod data" })
	return k, a, only(t, e, "orphaned-pod")
}

// says requires an error with these words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("got %v, want %q", err, w)
		}
	}
}

// A pod that died while kubelet was down is found within a minute and can be released.
func TestOrphanFoundAndReleased(t *testing.T) {
	for _, end := range []string{"0", ""} { // no process in its control group; none any more
		onSim(t, "populated "+end, func(t *testing.T, e *hosttest.Env) {
			k, a := hosttest.NewKubelet(e, true), pod("a-b-c")
			works(t, k.Start(a))
			cgroup(t, e, a, "1")
			time.Sleep(time.Hour)
			if d := differ(e); d != "" {
				t.Fatalf("it runs: %s", d)
			}
			says(t, reclaim(e, e.Node().List().Volumes[0].UUID, k.Dir(a)), "it is not an orphan")
			if o := ask(t, e, k.Dir(a)); len(o.Orphans) != 0 || len(o.Refused) != 1 || !strings.Contains(o.Refused[0].Message, "its pod still runs") {
				t.Errorf("while it runs: %+v", o)
			}
			k.Kill()
			cgroup(t, e, a, end)
			died := time.Now()
			e.Eventually("status names it", func() bool { return differ(e) == "orphaned-pod data" })
			if took := time.Since(died); took > time.Minute || took < 25*time.Second {
				t.Errorf("found after %v", took)
			}
			if v, c := verdict(t, e); v != status.Disagree || len(c.Findings) != 1 || c.Findings[0].Dir != k.Dir(a) || !strings.Contains(c.Findings[0].Message, "pod ns/a-b-c") {
				t.Errorf("%+v", c)
			}
			if s, _ := e.Node().VolumeDetail(hosttest.VG, "data"); s.State != status.Orphaned {
				t.Errorf("its state: %s", s.State)
			}
			o := only(t, e, "orphaned-pod", hosttest.VG+"/data")
			if plan := strings.Join(o.Plan, ", "); o.Refused != "" || !strings.Contains(plan, "umount "+k.Dir(a)) {
				t.Errorf("would do: %+v", o)
			}
			mountsAre(t, e, k.Global(a.Volume), k.Dir(a)) // nothing was done yet
			works(t, reclaim(e, o.UUID, o.Dir))
			if d := differ(e); d != "" {
				t.Errorf("it is released, and still reported: %s", d)
			}
			mountsAre(t, e, k.Global(a.Volume))
			// Now the global mount has no pod.
			let := time.Now()
			e.Eventually("status names the global mount", func() bool { return differ(e) == "orphaned-global data" })
			if took := time.Since(let); took > time.Minute {
				t.Errorf("found after %v", took)
			}
			o = only(t, e, "orphaned-global", o.UUID)
			works(t, reclaim(e, o.UUID, o.Dir))
			e.Empty()
			if o := ask(t, e); len(o.Orphans) != 0 || differ(e) != "" {
				t.Errorf("at the end: %+v", o)
			}
		})
	}
}

func TestUnknownPodIsNoOrphan(t *testing.T) {
	onSim(t, "no control groups", func(t *testing.T, e *hosttest.Env) {
		after(e, 5*time.Minute)
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Start(a))
		k.Kill()
		time.Sleep(time.Hour)
		mountsAre(t, e, k.Dir(a))
		o := ask(t, e, k.Dir(a), "/nowhere", "vg0/none", "vg0/data")
		if len(o.Orphans) != 0 || !strings.Contains(o.Unknown, "kubelet has no control groups") || len(o.Refused) != 4 {
			t.Fatalf("%+v", o)
		}
		for i, want := range []string{"whether its pod still runs is unknown", "flexd has no claim", "flexd knows no such volume", "its state is mounted"} {
			if !strings.Contains(o.Refused[i].Message, want) {
				t.Errorf("%s: %s", o.Refused[i].Target, o.Refused[i].Message)
			}
		}
		says(t, reclaim(e, e.Node().List().Volumes[0].UUID, k.Dir(a)), "it is not an orphan")
		works(t, hosttest.NewKubelet(e, false).Finish(a))
		e.Empty()
	})
}

func TestBrieflyNoProcessIsNoOrphan(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		after(e, 5*time.Minute)
		k, a := hosttest.NewKubelet(e, false), pod("a")
		cgroup(t, e, a, "0")
		works(t, k.Start(a))
		for range 20 { // its containers start and fail
			time.Sleep(20 * time.Second)
			if d := differ(e); d != "" {
				t.Fatalf("it is called %s", d)
			}
			cgroup(t, e, a, "1")
			time.Sleep(30 * time.Second)
			cgroup(t, e, a, "0")
			e.Node().Orphans(t.Context(), nil) // an operator asks
		}
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A call of kubelet that succeeds restarts the age of an orphan: kubelet still wants the pod. A call for another
// pod's mount does not.
func TestServedIsNoOrphan(t *testing.T) {
	const grace = 10 * time.Minute
	for _, attach := range []bool{false, true} {
		onSim(t, fmt.Sprintf("attach %v", attach), func(t *testing.T, e *hosttest.Env) {
			after(e, grace)
			k, a, b := hosttest.NewKubelet(e, attach), pod("a"), pod("b")
			cgroup(t, e, a, "0")
			cgroup(t, e, b, "1")
			works(t, k.Start(a))
			uuid := e.Node().List().Volumes[0].UUID
			verb, args := "mount", []string{k.Dir(a), k.Blob(a, true)}
			if attach {
				verb, args = "waitforattach", []string{"", k.Blob(a, false)}
			}
			for range 10 {
				e.Eventually("status names it", func() bool { return differ(e) == "orphaned-pod data" })
				time.Sleep(grace - time.Minute)
				works(t, k.Insist(verb, args...))
				if d := differ(e); d != "" {
					t.Errorf("just served: %s", d)
				}
				says(t, reclaim(e, uuid, k.Dir(a)), "it is not an orphan")
			}
			if !attach {
				time.Sleep(grace - time.Minute)
				works(t, k.Start(b))
				time.Sleep(2 * time.Minute)
				mountsAre(t, e, k.Dir(b))
				works(t, k.Finish(b))
			}
			time.Sleep(3 * grace)
			e.Empty()
		})
	}
	onSim(t, "a global mount", func(t *testing.T, e *hosttest.Env) {
		after(e, grace)
		k, a := hosttest.NewKubelet(e, true), pod("a")
		works(t, k.Start(a))
		works(t, k.Insist("unmount", k.Dir(a)))
		device := e.Node().List().Volumes[0].Device
		for range 3 {
			e.Eventually("status names it", func() bool { return differ(e) == "orphaned-global data" })
			time.Sleep(grace - time.Minute)
			works(t, k.Insist("mountdevice", k.Global(a.Volume), device, k.Blob(a, false)))
			if d := differ(e); d != "" {
				t.Errorf("just served: %s", d)
			}
			mountsAre(t, e, k.Global(a.Volume))
		}
		time.Sleep(3 * grace)
		e.Empty()
	})
}

// A PV is deleted while kubelet's global mount of it is left, and another PV gets the volume. Its calls are refused, with
// the release as the remedy, and do not restart the age of that mount: kubelet has another name for it.
func TestOrphanOfDeletedPV(t *testing.T) {
	leave := func(t *testing.T, e *hosttest.Env) (k *hosttest.Kubelet, b hosttest.Pod, global string) {
		k, a, b := hosttest.NewKubelet(e, true), pod("a"), pod("b")
		b.Volume = "pv2"
		works(t, k.Start(a))
		fails(t, k.Up(b), "two names")
		works(t, k.Insist("unmount", k.Dir(a)))
		works(t, e.M.Remove(k.Dir(a)))
		return k.Kill(), b, k.Global(a.Volume)
	}
	onSim(t, "an operator", func(t *testing.T, e *hosttest.Env) {
		k, b, global := leave(t, e)
		for range 3 {
			fails(t, k.Up(b), "no pod has it mounted: if a PV or pod still has that name, use one PV")
			time.Sleep(10 * time.Second)
		}
		says(t, k.Up(b), "flexd release --yes "+global)
		o := only(t, e, "orphaned-global", hosttest.VG+"/data")
		works(t, reclaim(e, o.UUID, o.Dir))
		works(t, k.Start(b))
		mountsAre(t, e, k.Global(b.Volume), k.Dir(b))
		works(t, k.Finish(b))
		e.Empty()
	})
	onSim(t, "flexd itself", func(t *testing.T, e *hosttest.Env) {
		after(e, 5*time.Minute)
		k, b, _ := leave(t, e)
		left := time.Now()
		for k.Up(b) != nil && time.Since(left) < time.Hour {
			time.Sleep(122 * time.Second) // kubelet's longest pause
		}
		if took := time.Since(left); took > 10*time.Minute {
			t.Errorf("the pod waits for %v", took)
		}
		mountsAre(t, e, k.Global(b.Volume), k.Dir(b))
		works(t, k.Finish(b))
		e.Empty()
	})
	onSim(t, "another pod of its PV", func(t *testing.T, e *hosttest.Env) {
		after(e, 5*time.Minute)
		k, b, global := leave(t, e)
		c := pod("c")
		for range 20 { // its mount fails for another reason, for example a missing Secret
			time.Sleep(122 * time.Second)
			works(t, k.Insist("waitforattach", "", k.Blob(c, false)))
			fails(t, k.Up(b), "flexd release")
			mountsAre(t, e, global)
		}
		works(t, k.Start(c))
		fails(t, k.Up(b), "two names")
		works(t, k.Finish(c))
		works(t, k.Start(b))
		works(t, k.Finish(b))
		e.Empty()
	})
}

// A release of a busy mount names the process that keeps it busy, and changes nothing.
func TestReleaseBusy(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) { // really: test/e2e
		k, a := hosttest.NewKubelet(e, false), pod("a")
		cgroup(t, e, a, "0")
		works(t, k.Start(a))
		e.Eventually("status names it", func() bool { return differ(e) == "orphaned-pod data" })
		leave := e.M.Hold(k.Dir(a))
		o := only(t, e, "orphaned-pod")
		says(t, reclaim(e, o.UUID, o.Dir), "is busy", "pid 4711 (pod, open file)")
		mountsAre(t, e, k.Dir(a))
		e.AtRest()
		if c := e.Claims(); len(c) != 1 || c[0].Phase != "held" || !strings.Contains(c[0].Note, "release failed") || c[0].Pod == nil || c[0].Pod.Name != "a" {
			t.Errorf("claims: %+v", c)
		}
		leave()
		works(t, reclaim(e, o.UUID, o.Dir))
		e.Empty()
	})
}

func TestReleaseYieldsToKubelet(t *testing.T) {
	onSim(t, "a pod comes back while its mount is released", func(t *testing.T, e *hosttest.Env) {
		k, a, o := orphaned(t, e)
		hit, release := e.Sim.Hang("umount", true, false)
		join := behind(func() error { return reclaim(e, o.UUID, o.Dir) })
		<-hit // it is unmounted, and the child has not ended
		k = k.Kill()
		up := behind(func() error { return k.Start(a) })
		time.Sleep(time.Second)
		release()
		_ = join() // the answer to the operator depends on which call is faster
		works(t, up())
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
	onSim(t, "kubelet unmounts it in the same moment", func(t *testing.T, e *hosttest.Env) {
		k, a, o := orphaned(t, e)
		hit, release := e.Sim.Hang("umount", false, false)
		down := behind(func() error { return k.Down(a) })
		<-hit
		time.Sleep(time.Second)
		join := behind(func() error { return reclaim(e, o.UUID, o.Dir) })
		time.Sleep(time.Second)
		release()
		works(t, down()) // at its first attempt
		_ = join()
		if n := e.Sim.Count("umount"); n != 1 {
			t.Errorf("unmounted %d times", n)
		}
		e.Empty()
	})
	onSim(t, "its pod runs again when it comes to the step", func(t *testing.T, e *hosttest.Env) {
		k, a, o := orphaned(t, e)
		e.Sim.WhileLooking(func() {
			for _, c := range e.Claims() { // the look after the release is noted
				if c.Phase == "releasing" {
					cgroup(t, e, a, "1")
				}
			}
		})
		says(t, reclaim(e, o.UUID, o.Dir), "its pod still runs")
		e.Sim.WhileLooking(nil)
		e.AtRest()
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// bindSubPath mounts a subPath of a pod as kubelet does, and returns its directory.
func bindSubPath(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, a hosttest.Pod) string {
	t.Helper()
	dir := e.Root + "/pods/" + a.UID + "/volume-subpaths/data/c/0"
	works(t, e.M.Mkdir(dir))
	works(t, e.M.Bind(k.Dir(a)+"/sub", dir))
	return dir
}

// A subPath that kubelet has left would keep the volume from other pods after the release. So the release is refused until it
// is unmounted, and the listing names it.
func TestOrphanWithSubPath(t *testing.T) {
	onSim(t, "an operator", func(t *testing.T, e *hosttest.Env) {
		k, a, o := orphaned(t, e)
		dir := bindSubPath(t, e, k, a)
		listed := func(text string) bool {
			return strings.Contains(text, "restart kubelet") && strings.Contains(text, "first: umount "+dir)
		}
		e.Eventually("its hint names the subPath", func() bool { return listed(only(t, e, "orphaned-pod").Hint) })
		if o = only(t, e, "orphaned-pod"); !listed(o.Refused) || len(o.Plan) > 0 {
			t.Errorf("with the subPath: %+v", o)
		}
		says(t, reclaim(e, o.UUID, o.Dir), "first: umount "+dir)
		works(t, e.M.Umount(dir))
		works(t, e.M.Remove(dir))
		e.Eventually("its hint does not name the subPath", func() bool { return !listed(only(t, e, "orphaned-pod").Hint) })
		works(t, reclaim(e, o.UUID, o.Dir))
		e.Empty()
	})
	onSim(t, "flexd itself", func(t *testing.T, e *hosttest.Env) {
		after(e, time.Hour)
		k, a, _ := orphaned(t, e)
		dir := bindSubPath(t, e, k, a)
		k.Kill()
		time.Sleep(3 * time.Hour)
		if !e.M.IsMountPoint(k.Dir(a)) {
			t.Error("released although the subPath is left")
		}
		works(t, e.M.Umount(dir))
		works(t, e.M.Remove(dir))
		time.Sleep(2 * time.Hour)
		e.Empty()
	})
}

// flexd itself releases an orphan after the grace period, if no process and no other mount namespace uses it.
func TestOrphanReclaimed(t *testing.T) {
	const grace = time.Hour
	onSim(t, "off by default", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, true), pod("a")
		cgroup(t, e, a, "0")
		works(t, k.Start(a))
		time.Sleep(3 * 24 * time.Hour)
		mountsAre(t, e, k.Global(a.Volume), k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
	onSim(t, "the pod's, then the global one", func(t *testing.T, e *hosttest.Env) {
		after(e, grace)
		k, a := hosttest.NewKubelet(e, true), pod("a")
		cgroup(t, e, a, "0")
		works(t, k.Start(a))
		k.Kill()
		time.Sleep(grace - time.Second)
		mountsAre(t, e, k.Global(a.Volume), k.Dir(a))
		time.Sleep(time.Minute)
		mountsAre(t, e, k.Global(a.Volume))
		time.Sleep(grace - 2*time.Minute)
		mountsAre(t, e, k.Global(a.Volume))
		time.Sleep(3 * time.Minute)
		e.Empty()
	})
	onSim(t, "a restart starts the grace anew", func(t *testing.T, e *hosttest.Env) {
		after(e, grace)
		k, a := hosttest.NewKubelet(e, false), pod("a")
		cgroup(t, e, a, "0")
		works(t, k.Start(a))
		k.Kill()
		for range 3 {
			time.Sleep(grace - time.Minute)
			mountsAre(t, e, k.Dir(a))
			e.Crash()
			time.Sleep(5 * time.Second)
		}
		mountsAre(t, e, k.Dir(a))
		time.Sleep(grace + time.Minute)
		e.Empty()
	})
	onSim(t, "another mount namespace has it", func(t *testing.T, e *hosttest.Env) {
		after(e, grace)
		k, a := hosttest.NewKubelet(e, false), pod("a")
		cgroup(t, e, a, "0")
		works(t, k.Start(a))
		k.Kill()
		e.Sim.MountInNamespace(e.File("data"), "/data")
		time.Sleep(3 * grace)
		mountsAre(t, e, k.Dir(a))
		s, _ := e.Node().VolumeDetail(hosttest.VG, "data")
		if s.Error == nil || !strings.Contains(s.Error.Message, "mounted in its mount namespace mnt:[4026532208] at /data") {
			t.Errorf("its error: %+v", s.Error)
		}
		if n := e.Sim.Count("umount"); n < 2 || n > 12 {
			t.Errorf("tried %d times", n)
		}
		e.Sim.MountInNamespace(e.File("data"), "")
		time.Sleep(2 * grace)
		e.Empty()
	})
	onSim(t, "its pod runs again at the moment of action", func(t *testing.T, e *hosttest.Env) {
		after(e, grace)
		k, a := hosttest.NewKubelet(e, false), pod("a")
		cgroup(t, e, a, "0")
		works(t, k.Start(a))
		e.Sim.WhileLooking(func() {
			for _, c := range e.Claims() {
				if c.Phase == "releasing" {
					cgroup(t, e, a, "1")
				}
			}
		})
		time.Sleep(2 * grace)
		e.Sim.WhileLooking(nil)
		mountsAre(t, e, k.Dir(a))
		if n := e.Sim.Count("umount"); n != 0 {
			t.Errorf("tried %d times", n)
		}
		works(t, k.Finish(a))
		e.Empty()
	})
	// Real mount namespaces, all of which flexd can look into.
	onLVM(t, "one is free, the other is in another mount namespace", func(t *testing.T, e *hosttest.Env) {
		after(e, time.Second)
		k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
		a.Volume, a.LV, b.Volume, b.LV = "pv-free", "free", "pv-held", "held"
		for _, p := range []hosttest.Pod{a, b} {
			cgroup(t, e, p, "1")
			works(t, k.Start(p))
		}
		holder := exec.Command("sleep", "1000") // it takes a copy of every mount along
		holder.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		works(t, holder.Start())
		end := func() { _ = holder.Process.Kill(); _ = holder.Wait() }
		defer end()
		works(t, exec.Command("nsenter", "-t", strconv.Itoa(holder.Process.Pid), "-m", "umount", k.Dir(a)).Run())
		next := k.Kill()
		died := time.Now()
		for _, p := range []hosttest.Pod{a, b} {
			cgroup(t, e, p, "0")
		}
		time.Sleep(5 * time.Second) // they are seen, and then the wall clock is set: ages do not depend on it
		setClock(t, -24*time.Hour)
		defer setClock(t, 24*time.Hour)
		e.Eventually("the free one is released", func() bool { return !slices.Contains(e.Mounts(), k.Dir(a)) })
		if took := time.Since(died); took < 25*time.Second || took > time.Minute {
			t.Errorf("released after %v", took)
		}
		e.Eventually("the other is refused", func() bool {
			s, _ := e.Node().VolumeDetail(hosttest.VG, "held")
			return s.Error != nil && strings.Contains(s.Error.Message, "in its mount namespace mnt:[") && strings.Contains(s.Error.Message, fmt.Sprintf("pid %d (sleep", holder.Process.Pid))
		})
		mountsAre(t, e, k.Dir(b))
		end()
		if soak { // the next try is a minute later
			e.Eventually("it is mounted nowhere", func() bool { return len(e.Mounts()) == 0 })
			e.Empty()
			return
		}
		works(t, next.Finish(b))
		e.Empty()
	})
}

// setClock sets the wall clock of a virtual machine.
func setClock(t *testing.T, by time.Duration) {
	t.Helper()
	now := unix.NsecToTimeval(time.Now().Add(by).UnixNano())
	works(t, unix.Settimeofday(&now))
}

// Claims without mounts and devices without claims are released.
func TestReleaseWithoutMount(t *testing.T) {
	onBoth(t, "a claim without its mount", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		cgroup(t, e, a, "1")
		works(t, k.Start(a))
		works(t, e.M.Umount(k.Dir(a)))
		e.Eventually("status names it", func() bool { return differ(e) == "claimed-missing data" })
		o := only(t, e, "claimed-missing", k.Dir(a))
		if !strings.Contains(o.Refused, "its pod still runs") || !strings.HasPrefix(o.Message, "pod ns/a writes to the node's disk") {
			t.Errorf("%+v", o)
		}
		says(t, reclaim(e, o.UUID, o.Dir), "its pod still runs")
		if n := len(e.Claims()); n != 1 {
			t.Errorf("%d claims", n)
		}
		cgroup(t, e, a, "0")
		if _, c := verdict(t, e); len(c.Findings) != 1 || !strings.Contains(c.Findings[0].Message, "for pod ns/a, which has no process any more") {
			t.Errorf("%+v", c)
		}
		if o = only(t, e, "claimed-missing", hosttest.VG+"/data"); o.Refused != "" || len(o.Plan) == 0 || o.Plan[0] != "forget the claim" {
			t.Errorf("%+v", o)
		}
		works(t, reclaim(e, o.UUID, o.Dir))
		e.Empty()
		works(t, k.Finish(a))
	})
	onSim(t, "a claim whose subPath is left", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		cgroup(t, e, a, "0")
		works(t, k.Start(a))
		dir := bindSubPath(t, e, k, a)
		works(t, e.M.Umount(k.Dir(a)))
		e.Eventually("status names it", func() bool { return strings.Contains(differ(e), "claimed-missing data") })
		o := only(t, e, "claimed-missing", k.Dir(a))
		if !strings.Contains(o.Hint, "umount "+dir) || !strings.Contains(o.Refused, "first: umount "+dir) || len(o.Plan) > 0 {
			t.Errorf("%+v", o)
		}
		says(t, reclaim(e, o.UUID, o.Dir), "first: umount "+dir)
		works(t, e.M.Umount(dir))
		works(t, e.M.Remove(dir))
		e.Eventually("the hint does not name the subPath", func() bool { return !strings.Contains(only(t, e, "claimed-missing").Hint, dir) })
		works(t, reclaim(e, o.UUID, o.Dir))
		e.Empty()
	})
	onSim(t, "a claim of a volume that is mounted elsewhere", func(t *testing.T, e *hosttest.Env) {
		k, a, other := hosttest.NewKubelet(e, false), pod("a"), e.Root+"/other"
		cgroup(t, e, a, "0")
		works(t, k.Start(a))
		works(t, e.M.Mkdir(other))
		works(t, e.M.Bind(k.Dir(a), other))
		works(t, e.M.Umount(k.Dir(a)))
		e.Eventually("status names it", func() bool { return strings.Contains(differ(e), "claimed-missing data") })
		o := only(t, e, "claimed-missing", k.Dir(a))
		if strings.Join(o.Plan, ",") != "forget the claim,leave the volume active: it is mounted at "+other {
			t.Errorf("%+v", o)
		}
		works(t, reclaim(e, o.UUID, o.Dir))
		works(t, e.M.Umount(other))
		works(t, e.M.Remove(other))
		e.Empty()
	})
	onSim(t, "a claim whose volume is gone", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		cgroup(t, e, a, "0")
		works(t, k.Start(a))
		works(t, e.M.Umount(k.Dir(a)))
		time.Sleep(time.Minute) // its lease ends
		_, gone := e.Sim.Hide(e.File("data"))
		if !gone {
			t.Fatal("no file")
		}
		e.Node().Check(t.Context())
		o := only(t, e, "claimed-missing")
		if !strings.Contains(o.Message, "the volume itself is gone") || !strings.Contains(strings.Join(o.Plan, ","), "forget the claim") {
			t.Errorf("%+v", o)
		}
		works(t, reclaim(e, o.UUID, o.Dir))
		if n := len(e.Claims()); n != 0 {
			t.Errorf("%d claims", n)
		}
		e.AtRest()
	})
	onLoops(t, "a device without a claim", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		s, _ := e.Node().VolumeDetail(hosttest.VG, "data")
		works(t, k.Finish(a))
		works(t, loseLease(e)) // of a flexd that is no more
		e.Eventually("status names it", func() bool {
			e.Node().Check(t.Context())
			return differ(e) == "active-unclaimed data"
		})
		o := only(t, e, "active-unclaimed", s.UUID)
		if strings.Join(o.Plan, ",") != "deactivate the volume" {
			t.Errorf("%+v", o)
		}
		f, err := os.Open(s.Device)
		works(t, err)
		says(t, reclaim(e, o.UUID, ""), "busy")
		works(t, f.Close())
		works(t, reclaim(e, o.UUID, ""))
		e.Empty()
	})
}

// loseLease removes the lease while flexd is down, so that the active device belongs to no claim.
func loseLease(e *hosttest.Env) error {
	e.Patient = true
	e.Crash()
	files, err := filepath.Glob(e.Notes() + "/*")
	for _, f := range files {
		if err == nil {
			err = os.Remove(f)
		}
	}
	e.Start()
	return err
}

// A pod without a process that has not started yet is no orphan: it may wait long for a Secret, another
// volume, or the node's network.
func TestPodNotStartedIsNoOrphan(t *testing.T) {
	for what, prepare := range map[string]func(*testing.T, *hosttest.Env, hosttest.Pod){
		"no control group yet": func(t *testing.T, e *hosttest.Env, a hosttest.Pod) { cgroup(t, e, a, "") },
		"an unused control group": func(t *testing.T, e *hosttest.Env, a hosttest.Pod) {
			cgroup(t, e, a, "0")
			works(t, os.WriteFile(cgroupDir(e, a)+"/cpu.stat", []byte("usage_usec 0\n"), 0o644))
		},
	} {
		onSim(t, what, func(t *testing.T, e *hosttest.Env) {
			k, a := hosttest.NewKubelet(e, false), pod("a")
			after(e, 5*time.Minute)
			prepare(t, e, a)
			works(t, k.Start(a))
			time.Sleep(time.Hour)
			if d := differ(e); d != "" {
				t.Errorf("it is called %s", d)
			}
			if o := ask(t, e, k.Dir(a)); len(o.Orphans) != 0 || len(o.Refused) != 1 || !strings.Contains(o.Refused[0].Message, "may not have started yet") {
				t.Errorf("asked for: %+v", o)
			}
			mountsAre(t, e, k.Dir(a))
			works(t, k.Finish(a))
			e.Empty()
		})
	}
}
