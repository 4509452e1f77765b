package reconcile_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/flex"
	"github.com/flexd/flexd/internal/hosttest"
)

// Sequences that once broke designs like this one. Each test is named after its
// sentence in the issue.

// fails requires an error whose text says why.
func fails(t *testing.T, err error, why string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("got %v, want a failure that says %q", err, why)
	}
}

func works(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// mountsAre requires the volumes' mounts to be just these.
func mountsAre(t *testing.T, e *hosttest.Env, dirs ...string) {
	t.Helper()
	got := e.Mounts()
	for _, d := range dirs {
		if !contains(got, d) {
			t.Errorf("nothing is mounted at %s\n%s", d, e.Describe())
		}
	}
	if len(got) != len(dirs) {
		t.Errorf("mounted are %q, want %q\n%s", got, dirs, e.Describe())
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// behind does something while the test goes on, and gives its error.
func behind(do func() error) (join func() error) {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return func() error { return <-done }
}

func TestMountdeviceThatPassesItsDeadlineAndWhosePodIsDeletedLeavesNothingBehind(t *testing.T) {
	onSim(t, "during mkfs", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, true)
		_, release := e.Sim.Hang("format-half", false, false)
		began := time.Now()
		fails(t, k.Up(pod("a")), "still preparing: mkfs")
		if took := time.Since(began); took > 5*time.Minute {
			t.Errorf("kubelet waited for %v", took)
		}
		works(t, e.M.Remove(k.Global("pv1"))) // no more than that does kubelet do for a deleted pod
		release()
		e.Settle(time.Minute)
		mountsAre(t, e)
		e.Empty()
		if n := e.Sim.Count("mount"); n != 0 {
			t.Errorf("%d mounts were prepared", n)
		}
	})
	for _, op := range []string{"loop-attach", "probe", "check", "mount"} {
		onSim(t, "during "+op, func(t *testing.T, e *hosttest.Env) {
			e.Sim.AddFile(hosttest.File{FileInfo: info(64 << 20), Type: "ext4", State: hosttest.Whole, Bytes: 64 << 20, Data: 1}, e.File("data"))
			k := hosttest.NewKubelet(e, true)
			_, release := e.Sim.Hang(op, false, true)
			fails(t, k.Up(pod("a")), "")
			release()
			e.Settle(time.Hour)
			mountsAre(t, e)
			e.Empty()
		})
	}
	onReal(t, "in any step", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, true)
		mountdevice := func(lv string) {
			p := pod("a")
			p.LV = lv
			if _, err := k.Call(flex.MountDevice, k.Global("pv1"), "", k.Blob(p, false)); err != nil {
				t.Fatal(err)
			}
		}
		unmount := func() {
			for _, dir := range e.Mounts() {
				a, err := k.Call(flex.UnmountDevice, dir)
				works(t, err)
				if a.Status != flex.StatusSuccess {
					t.Error(a)
				}
			}
			_ = e.M.Remove(k.Global("pv1"))
		}
		works(t, e.M.Mkdir(k.Global("pv1")))
		began := time.Now()
		mountdevice("whole")
		took := time.Since(began)
		mountsAre(t, e, k.Global("pv1"))
		unmount()
		n := max(4, times(8))
		for i := range n {
			e.Config.CallDeadline = took * time.Duration(2*i+1) / time.Duration(2*n)
			works(t, e.M.Mkdir(k.Global("pv1")))
			mountdevice(fmt.Sprint("lv", i))
			e.Config.CallDeadline = time.Minute
			unmount() // the one or other was fast enough
		}
		e.Empty()
	})
}

func TestDeadlineDuringMkfsAndTheNextCallUsesWhatItMade(t *testing.T) {
	onSim(t, "mkfs", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		_, release := e.Sim.Hang("format-half", false, false)
		fails(t, k.Up(pod("a")), "still preparing: mkfs, 4m30s")
		join := behind(func() error { return k.Up(pod("a")) })
		time.Sleep(time.Minute)
		release()
		works(t, join())
		if n := e.Sim.FileAt(e.File("data")).Mkfs; n != 1 {
			t.Errorf("mkfs ran %d times", n)
		}
		mountsAre(t, e, k.Dir(pod("a")))
		works(t, k.Down(pod("a")))
		e.Empty()
	})
}

func TestMkfsKilledInTheMiddleAndAskedForAgain(t *testing.T) {
	onSim(t, "killed at its own deadline", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		e.Sim.Hang("format-half", false, false)
		fails(t, k.Up(pod("a")), "still preparing: mkfs")
		time.Sleep(time.Hour)
		if f := e.Sim.FileAt(e.File("data")); f.State != hosttest.HalfMade {
			t.Errorf("the volume is not half made: %v", f.State)
		}
		works(t, k.Start(pod("a")))
		works(t, e.M.Write(k.Dir(pod("a"))))
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
	onSim(t, "killed with flexd", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, true)
		e.ArmStep(hosttest.CrashWithin, 1, "mkfs")
		e.Sim.DieHalfway("format-half")
		works(t, k.Start(pod("a")))
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
	onSim(t, "and somebody else wrote there since", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		e.Sim.Hang("format-half", false, false)
		fails(t, k.Up(pod("a")), "still preparing: mkfs")
		time.Sleep(time.Hour)
		e.Sim.Change(e.File("data"), func(f *hosttest.File) { f.State, f.Note = hosttest.Foreign, "crypto_LUKS" })
		fails(t, k.Up(pod("a")), "something else has written to it")
		e.Sim.Change(e.File("data"), func(f *hosttest.File) {
			if f.Mkfs != 1 || f.State != hosttest.Foreign {
				t.Errorf("%+v", f)
			}
		})
		e.Empty()
	})
	onReal(t, "its leavings are on the device", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		e.Refuse("mkfs", errSimulated)
		fails(t, k.Up(pod("a")), "simulated")
		smear(t, e)
		e.Refuse("mkfs", nil)
		works(t, k.Start(pod("a")))
		works(t, e.M.Write(k.Dir(pod("a"))))
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
	onReal(t, "data that no mkfs of ours left is never formatted", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		e.Refuse("mkfs", errSimulated)
		fails(t, k.Up(pod("a")), "simulated")
		e.Refuse("mkfs", nil)
		e.Empty()
		forgetRecords(t, e)
		smear(t, e)
		fails(t, k.Up(pod("a")), "not blank")
		e.Empty()
	})
}

func TestFailingSeenRecordRefusesTheMountWhenAFormattingRecordStands(t *testing.T) {
	onSim(t, "seen", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		hit, release := e.Sim.Hang("format", true, false)
		join := behind(func() error { return k.Up(pod("a")) })
		<-hit
		restore := e.BreakRecords()
		release()
		fails(t, join(), "format record")
		mountsAre(t, e)
		restore()
		works(t, k.Start(pod("a")))
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
	onSim(t, "where no mkfs record stands it only warns", func(t *testing.T, e *hosttest.Env) {
		e.Sim.AddFile(hosttest.File{FileInfo: info(64 << 20), Type: "ext4", State: hosttest.Whole, Bytes: 64 << 20, Data: 1}, e.File("data"))
		k := hosttest.NewKubelet(e, false)
		// A directory where the record is to be written: it can be read that there is none.
		works(t, os.Mkdir(filepath.Join(e.Records(), info(0).UUID+".json.tmp"), 0o700))
		works(t, k.Up(pod("a")))
		works(t, os.Remove(filepath.Join(e.Records(), info(0).UUID+".json.tmp")))
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
}

// A call whose mount lands while it waits fails only because the kernel does not
// answer, and says so, although flexd has not come to it yet.
func TestAMountThatLandsForAnotherCallIsTheAnswerToOneThatIsStillOnItsWay(t *testing.T) {
	for name, hung := range map[string]time.Duration{"the kernel answers": 5 * time.Second, "the kernel does not answer": time.Minute} {
		onSim(t, name, func(t *testing.T, e *hosttest.Env) {
			gate, later := make(chan struct{}), make(chan struct{})
			var looks atomic.Int32 // since the mount is about to land
			looks.Store(-1000)
			e.Pause = func(what string, over <-chan struct{}) {
				n := int32(0)
				if what == "look" {
					n = looks.Add(1)
				}
				on := later
				switch {
				case n <= 0:
					return
				case n == 1: // the gate's; the second call's own comes after it
					on = gate
				}
				select {
				case <-on:
				case <-over:
				}
			}
			k, a := hosttest.NewKubelet(e, false), pod("a")
			hit, release := e.Sim.Hang("mount", false, false)
			up := func() error {
				works(t, e.M.Mkdir(k.Dir(a)))
				r, err := k.Call(flex.Mount, k.Dir(a), k.Blob(a, true))
				works(t, err)
				if r.Status != flex.StatusSuccess {
					return errors.New(r.Message)
				}
				return nil
			}
			first := behind(up)
			<-hit
			looks.Store(0)
			release()
			synctest.Wait()
			second := behind(up)
			synctest.Wait()
			close(gate)
			time.Sleep(e.Config.CallDeadline + hung)
			if !e.M.IsMountPoint(k.Dir(a)) || looks.Load() < 2 {
				t.Fatalf("it is not mounted, or is looked for no more: %d looks\n%s", looks.Load(), e.Describe())
			}
			close(later)
			for _, join := range []func() error{first, second} {
				if hung > time.Minute/2 {
					fails(t, join(), "it counts if it appears")
				} else {
					works(t, join())
				}
			}
			e.Settle(time.Second)
			mountsAre(t, e, k.Dir(a))
			works(t, k.Up(a))
			works(t, k.Finish(a))
			e.Empty()
		})
	}
}

func TestACallThatComesAfterItsMountWasLetGoIsAnsweredByWhatComesOfIt(t *testing.T) {
	onSim(t, "its child hangs after it", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		hit, release := e.Sim.Hang("mount", true, true)
		first := behind(func() error { return k.Up(a) })
		<-hit
		time.Sleep(10 * time.Second)
		second := behind(func() error {
			r, err := k.Call(flex.Mount, k.Dir(a), k.Blob(a, true))
			if err == nil && r.Status != flex.StatusSuccess {
				err = errors.New(r.Message)
			}
			return err
		})
		time.Sleep(e.Config.CallDeadline + 5*time.Second)
		release()
		works(t, first())
		works(t, second())
		mountsAre(t, e, k.Dir(a))
		works(t, k.Finish(a))
		e.Empty()
	})
}
