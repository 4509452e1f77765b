package reconcile_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/volume"
)

// Sequences that broke similar designs.

// fails requires an error whose text contains why.
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

// mountsAre requires the volumes' mounts to be exactly these.
func mountsAre(t *testing.T, e *hosttest.Env, dirs ...string) {
	t.Helper()
	got := e.Mounts()
	for _, d := range dirs {
		if !slices.Contains(got, d) {
			t.Errorf("nothing is mounted at %s\n%s", d, e.Describe())
		}
	}
	if len(got) != len(dirs) {
		t.Errorf("mounted are %q, want %q\n%s", got, dirs, e.Describe())
	}
}

// behind runs do in the background; join returns its error.
func behind(do func() error) (join func() error) {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return func() error { return <-done }
}

// A mountdevice exceeds its deadline and its pod is deleted: nothing is left behind.
func TestMountDeviceDeadlinePodDeleted(t *testing.T) {
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
			if _, err := k.Call(flexvolume.MountDevice, k.Global("pv1"), "", k.Blob(p, false)); err != nil {
				t.Fatal(err)
			}
		}
		unmount := func() {
			for _, dir := range e.Mounts() {
				a, err := k.Call(flexvolume.UnmountDevice, dir)
				works(t, err)
				if a.Status != flexvolume.StatusSuccess {
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

// The deadline expires during mkfs, and the next call uses the new filesystem.
func TestDeadlineDuringMkfs(t *testing.T) {
	onSim(t, "mkfs", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		_, release := e.Sim.Hang("format-half", false, false)
		first := k.Up(pod("a"))
		fails(t, first, "still preparing: mkfs since ")
		again := k.Up(pod("a"))
		fails(t, again, first.Error()) // the same text is the same event
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

// An mkfs that was interrupted by a crash is repeated on a volume that flexd created, if its remains are the
// only data and its record is new.
func TestMkfsCut(t *testing.T) {
	// cut kills flexd, and the child in the middle of mkfs.
	cut := func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		t.Helper()
		e.Patient = true
		e.Sim.DieHalfway("format-half")
		e.ArmStep(hosttest.CrashAfter, 1, "mkfs")
		join := behind(func() error { return k.Up(pod("a")) })
		e.Eventually("flexd is dead", e.Dead)
		k.Kill()
		_ = join()
		if f := e.Sim.FileAt(e.File("data")); f.State != hosttest.HalfMade {
			t.Fatalf("the volume is not half made: %v", f.State)
		}
	}
	use := func(t *testing.T, e *hosttest.Env) {
		t.Helper()
		k := hosttest.NewKubelet(e, false)
		works(t, k.Up(pod("a")))
		works(t, e.M.Write(k.Dir(pod("a"))))
		works(t, k.Finish(pod("a")))
		e.Empty()
	}
	kept := func(t *testing.T, e *hosttest.Env, words string) {
		t.Helper()
		fails(t, hosttest.NewKubelet(e, false).Up(pod("a")), words)
		e.Sim.Change(e.File("data"), func(f *hosttest.File) {
			if f.Mkfs != 1 {
				t.Errorf("mkfs ran again: %+v", f)
			}
		})
		e.Empty()
	}
	onSim(t, "with flexd", func(t *testing.T, e *hosttest.Env) {
		cut(t, e, hosttest.NewKubelet(e, false))
		e.Start()
		use(t, e)
	})
	onSim(t, "with the machine", func(t *testing.T, e *hosttest.Env) {
		cut(t, e, hosttest.NewKubelet(e, false))
		e.Sim.Reboot()
		e.Start()
		use(t, e)
	})
	onSim(t, "long ago", func(t *testing.T, e *hosttest.Env) {
		cut(t, e, hosttest.NewKubelet(e, false))
		e.Start()
		time.Sleep(volume.RepeatWithin)
		kept(t, e, "is repeated within 1h0m0s only")
	})
	onSim(t, "before the last boot", func(t *testing.T, e *hosttest.Env) {
		cut(t, e, hosttest.NewKubelet(e, false))
		time.Sleep(volume.RepeatWithin)
		e.Sim.Reboot()
		e.Start()
		kept(t, e, "is repeated within 1h0m0s only")
	})
	onSim(t, "and the owner wrote there since", func(t *testing.T, e *hosttest.Env) {
		cut(t, e, hosttest.NewKubelet(e, false))
		e.Sim.WriteRaw(e.File("data"))
		e.Start()
		kept(t, e, "another program has written to it")
	})
	onSim(t, "and its record is removed", func(t *testing.T, e *hosttest.Env) {
		cut(t, e, hosttest.NewKubelet(e, false))
		e.Start()
		removeRecord(t, e)
		kept(t, e, "not blank")
	})
	onSim(t, "on a volume of an administrator", func(t *testing.T, e *hosttest.Env) {
		blankVolume(e)
		cut(t, e, hosttest.NewKubelet(e, false))
		e.Start()
		kept(t, e, "flexd did not create this volume")
	})
}

// An mkfs that never started, or that failed by itself, leaves no record: data that the owner writes
// afterwards stays.
func TestMkfsFailed(t *testing.T) {
	ends := func(t *testing.T, e *hosttest.Env, words string, mkfs int) {
		t.Helper()
		k := hosttest.NewKubelet(e, false)
		fails(t, k.Up(pod("a")), words)
		if records, _ := filepath.Glob(filepath.Join(e.Records(), "*.json")); len(records) != 0 {
			t.Errorf("records: %q", records)
		}
		e.Empty()
		e.Sim.WriteRaw(e.File("data"))
		fails(t, k.Up(pod("a")), "not blank")
		e.Sim.Change(e.File("data"), func(f *hosttest.File) {
			if f.Mkfs != mkfs || f.State != hosttest.Foreign {
				t.Errorf("%+v", f)
			}
		})
		e.Empty()
	}
	at := func(e *hosttest.Env, where string, fate hosttest.Fate) {
		e.Sim.Pace = func(p hosttest.Point) hosttest.Fate {
			if p.Op == "format" && p.Where == where {
				return fate
			}
			return hosttest.Lives
		}
	}
	onSim(t, "before it started", func(t *testing.T, e *hosttest.Env) {
		at(e, "before", hosttest.Fails)
		ends(t, e, "exit status 1", 0)
	})
	onSim(t, "busy", func(t *testing.T, e *hosttest.Env) {
		e.Sim.Pace = func(p hosttest.Point) hosttest.Fate {
			if p.Op == "format" && p.Where == "before" {
				time.AfterFunc(time.Second, e.Sim.HoldDevice(e.File("data")))
			}
			return hosttest.Lives
		}
		ends(t, e, "busy", 0)
	})
	onSim(t, "its record cannot be written", func(t *testing.T, e *hosttest.Env) {
		e.Sim.Pace = func(p hosttest.Point) hosttest.Fate {
			if p.Op == "format" && p.Where == "before" {
				time.AfterFunc(time.Second, e.BreakRecords())
			}
			return hosttest.Lives
		}
		ends(t, e, "format record", 0)
	})
	onSim(t, "by itself", func(t *testing.T, e *hosttest.Env) {
		at(e, "within", hosttest.Fails)
		ends(t, e, "exit status 1", 1)
	})
	onSim(t, "by itself, before it wrote anything", func(t *testing.T, e *hosttest.Env) {
		at(e, "start", hosttest.Fails)
		ends(t, e, "exit status 1", 0)
	})
	onSim(t, "by itself, while flexd is dead", func(t *testing.T, e *hosttest.Env) {
		at(e, "within", hosttest.Fails)
		e.ArmStep(hosttest.CrashAfter, 1, "mkfs")
		ends(t, e, "exit status 1", 2)
	})
	onReal(t, "and then raw data", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		e.Refuse("mkfs", errSimulated)
		fails(t, k.Up(pod("a")), "simulated")
		e.Refuse("mkfs", nil)
		smear(t, e)
		fails(t, k.Up(pod("a")), "not blank")
		e.Empty()
	})
	onSim(t, "flexd dies with the record written", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		k := hosttest.NewKubelet(e, false)
		e.ArmStep(hosttest.CrashWithin, 1, "mkfs")
		join := behind(func() error { return k.Up(pod("a")) })
		e.Eventually("flexd is dead", e.Dead)
		k.Kill()
		_ = join()
		e.Sim.WriteRaw(e.File("data"))
		e.Start()
		e.Empty()
		fails(t, hosttest.NewKubelet(e, false).Up(pod("a")), "not blank")
		e.Empty()
	})
	// Its bytes remain and its record goes, so that no mkfs is repeated over them.
	onSim(t, "and what it wrote stays", func(t *testing.T, e *hosttest.Env) {
		e.Sim.Pace = func(p hosttest.Point) hosttest.Fate {
			if p.Op == "format" && (p.Where == "within" || p.Where == "cleaning") {
				return hosttest.Fails
			}
			return hosttest.Lives
		}
		k := hosttest.NewKubelet(e, false)
		fails(t, k.Up(pod("a")), "could not be erased")
		e.Empty()
		fails(t, k.Up(pod("a")), "not blank")
		e.Sim.WriteRaw(e.File("data"))
		fails(t, k.Up(pod("a")), "not blank")
		e.Empty()
	})
}

func removeRecord(t *testing.T, e *hosttest.Env) {
	t.Helper()
	records, _ := filepath.Glob(filepath.Join(e.Records(), "*.json"))
	if len(records) != 1 {
		t.Fatalf("records: %q", records)
	}
	works(t, os.Remove(records[0]))
}

// While a formatting record exists, a failure to write the seen record refuses the mount.
func TestSeenRecordFails(t *testing.T) {
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

// A mount that appears for one call also answers a call that is still looking up the volume. A call whose
// mount completes while it waits fails only if the kernel does not answer, and reports that.
func TestMountAnswersLaterCall(t *testing.T) {
	for name, hung := range map[string]time.Duration{"the kernel answers": 5 * time.Second, "the kernel does not answer": time.Minute} {
		onSim(t, name, func(t *testing.T, e *hosttest.Env) {
			gate, later := make(chan struct{}), make(chan struct{})
			var looks atomic.Int32 // since the mount is about to land
			looks.Store(-1000)
			e.SetPause(func(what string, over <-chan struct{}) {
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
			})
			k, a := hosttest.NewKubelet(e, false), pod("a")
			hit, release := e.Sim.Hang("mount", false, false)
			up := func() error {
				works(t, e.M.Mkdir(k.Dir(a)))
				r, err := k.Call(flexvolume.Mount, k.Dir(a), k.Blob(a, true))
				works(t, err)
				if r.Status != flexvolume.StatusSuccess {
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
					fails(t, join(), "if it appears, it stays")
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

// A call that arrives after its mount was committed gets the outcome of that mount.
func TestCallAfterCommit(t *testing.T) {
	onSim(t, "its child hangs after it", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		hit, release := e.Sim.Hang("mount", true, true)
		first := behind(func() error { return k.Up(a) })
		<-hit
		time.Sleep(10 * time.Second)
		second := behind(func() error {
			r, err := k.Call(flexvolume.Mount, k.Dir(a), k.Blob(a, true))
			if err == nil && r.Status != flexvolume.StatusSuccess {
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
