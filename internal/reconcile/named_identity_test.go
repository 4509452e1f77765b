package reconcile_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/volume"
)

// Sequences in which the identity of a volume was unknown or wrong.

// another is a uuid for a copy.
const another = "bbbbbbbb-0000-4000-8000-000000000002"

// clone copies a volume's file with cp --preserve=all.
func clone(t *testing.T, e *hosttest.Env, from, to string) {
	t.Helper()
	if e.Sim != nil {
		f := e.Sim.FileAt(e.File(from))
		e.Sim.AddFile(hosttest.File{FileInfo: f.FileInfo, Type: f.Type, State: f.State, Bytes: f.Bytes, Data: f.Data}, e.File(to))
		return
	}
	shell(t, "cp --preserve=all "+e.File(from)+" "+e.File(to))
}

// rename gives a copy a uuid of its own.
func rename(t *testing.T, e *hosttest.Env, lv, uuid string) {
	t.Helper()
	if e.Sim != nil {
		e.Sim.Change(e.File(lv), func(f *hosttest.File) { f.UUID = uuid })
		return
	}
	works(t, unix.Setxattr(e.File(lv), "trusted.flexd.uuid", []byte(uuid), 0))
}

// A copy of a volume's file that has the file's attributes is never used as the volume.
func TestCopyOfVolumeFile(t *testing.T) {
	// On each file are at most the pods that asked for it.
	apart := func(t *testing.T, e *hosttest.Env, up ...string) {
		t.Helper()
		if loops := e.Active(); strings.Join(loops, " ") != strings.Join(up, " ") {
			t.Errorf("files with a device: %q, want %q\n%s", loops, up, e.Describe())
		}
		if n := len(e.Mounts()); n != len(up) {
			t.Errorf("%d mounts, want %d\n%s", n, len(up), e.Describe())
		}
	}
	refused := func(t *testing.T, err error) {
		t.Helper()
		fails(t, err, "same uuid")
		for _, name := range []string{"data", "copy"} {
			fails(t, err, name)
		}
	}
	prepare := func(t *testing.T, e *hosttest.Env) (k *hosttest.Kubelet, a, b hosttest.Pod) {
		e.Patient = true
		k, a, b = hosttest.NewKubelet(e, false), pod("a"), pod("b")
		b.LV, b.Volume = "copy", "pv2"
		works(t, k.Up(a))
		works(t, e.M.Write(k.Dir(a)))
		works(t, k.Down(a))
		return k, a, b
	}
	onFiles(t, "both start at once", func(t *testing.T, e *hosttest.Env) {
		k, a, b := prepare(t, e)
		e.Empty()
		clone(t, e, "data", "copy")
		for range 3 {
			e.Crash()
			e.Start() // it knows neither
			first, second := behind(func() error { return k.Up(a) }), behind(func() error { return k.Up(b) })
			e1, e2 := first(), second()
			switch {
			case e1 == nil && e2 != nil:
				refused(t, e2)
				apart(t, e, "data")
			case e1 != nil && e2 == nil:
				refused(t, e1)
				apart(t, e, "copy")
			default:
				t.Errorf("got %v and %v, want one success\n%s", e1, e2, e.Describe())
			}
			for _, p := range []hosttest.Pod{a, b} {
				works(t, e.M.Mkdir(k.Dir(p)))
				works(t, k.Finish(p))
			}
			e.Empty()
		}
		rename(t, e, "copy", another)
		works(t, k.Up(a))
		works(t, k.Up(b))
		apart(t, e, "copy", "data")
		works(t, k.Finish(a))
		works(t, k.Finish(b))
		e.Empty()
	})
	onFiles(t, "the volume is active since before a restart", func(t *testing.T, e *hosttest.Env) {
		e.Config.VolumeGroups[0].NeverDeactivate = true
		k, a, b := prepare(t, e)
		e.Settle(time.Hour)
		clone(t, e, "data", "copy")
		e.Again()
		refused(t, k.Up(b))
		mountsAre(t, e)
		// The cause is unknown: the volume itself may be refused, too.
		if err := k.Up(a); err != nil {
			refused(t, err)
			mountsAre(t, e)
		} else {
			apart(t, e, "data")
		}
		refused(t, k.Up(b))
		works(t, e.M.Mkdir(k.Dir(a)))
		works(t, k.Finish(a))
		e.Crash()
		// Another configuration: what the dead flexd has of the old one it may still read.
		cfg := *e.Config
		cfg.VolumeGroups = slices.Clone(cfg.VolumeGroups)
		cfg.VolumeGroups[0].NeverDeactivate = false
		e.Config = &cfg
		e.Start()
		rename(t, e, "copy", "cccccccc-0000-4000-8000-000000000003") // the other subtest uses `another` at the same time
		works(t, k.Up(b))
		mountsAre(t, e, k.Dir(b))
		works(t, k.Finish(b))
		works(t, k.Up(a))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A device whose identity is unknown when its lease ends is deactivated once it is known.
func TestUnknownDeviceAtLeaseEnd(t *testing.T) {
	attached := func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		k := hosttest.NewKubelet(e, true)
		r, err := k.Call(flexvolume.WaitForAttach, "", k.Blob(pod("a"), false))
		works(t, err)
		if r.Status != flexvolume.StatusSuccess {
			t.Error(r)
		}
		e.Crash()
	}
	onSim(t, "its identification failed", func(t *testing.T, e *hosttest.Env) {
		attached(t, e)
		loseIdentities(t, e)
		e.Refuse("identify", errSimulated)
		e.Start()
		time.Sleep(5 * time.Minute)
		if len(e.Active()) != 1 {
			t.Error("a device of unknown identity was released")
		}
		e.Refuse("identify", nil)
		e.Empty()
	})
	onSim(t, "an operator had a second device on its file", func(t *testing.T, e *hosttest.Env) {
		attached(t, e)
		time.Sleep(e.Config.Lease)
		detach := e.Sim.Losetup(e.File("data"))
		e.Start()
		time.Sleep(time.Second)
		// Flexd's own device is detached, although it may not be used any more; the operator's stays.
		if loops := e.Active(); len(loops) != 1 || loops[0] == "loop0" {
			t.Errorf("devices %v\n%s", loops, e.Describe())
		}
		detach()
		e.Empty()
	})
}

// An unmount fails, and loses nothing, while the mounted volume is unknown.
func TestUnmountUnknownMount(t *testing.T) {
	asks := func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, a hosttest.Pod) {
		t.Helper()
		for range 2 {
			err := k.Down(a)
			fails(t, err, "is unknown")
			if err != nil && (strings.Contains(err.Error(), "foreign") || strings.Contains(err.Error(), "in its place")) {
				t.Errorf("it is regarded as another driver's: %v", err)
			}
		}
		mountsAre(t, e, k.Dir(a))
	}
	for name, claims := range map[string]int{"held": 1, "its notes are lost": 0} {
		onSim(t, name, func(t *testing.T, e *hosttest.Env) {
			e.Patient = true
			k, a := hosttest.NewKubelet(e, false), pod("a")
			works(t, k.Up(a))
			e.Crash()
			if claims == 0 {
				loseNotes(t, e)
			}
			loseIdentities(t, e)
			e.Refuse("identify", errSimulated)
			e.Start()
			asks(t, e, k, a)
			if got := e.Claims(); len(got) != claims {
				t.Errorf("claims: %+v", got)
			}
			e.Refuse("identify", nil)
			works(t, k.Down(a))
			e.Empty()
		})
	}
	onSim(t, "releasing", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		e.ArmStep(hosttest.CrashBefore, 1, "umount")
		join := behind(func() error { return k.Down(a) })
		e.Eventually("flexd is dead", e.Dead)
		k = k.Kill()
		_ = join()
		loseIdentities(t, e)
		e.Refuse("identify", errSimulated)
		e.Start()
		time.Sleep(time.Minute)
		if got := e.Claims(); len(got) != 1 || got[0].Phase != volume.Releasing {
			t.Errorf("claims: %+v", got)
		}
		asks(t, e, k, a)
		e.Refuse("identify", nil)
		e.AtRest() // it stays until a call asks for it
		mountsAre(t, e, k.Dir(a))
		works(t, k.Down(a))
		e.Empty()
	})
}

// A volume's file is renamed while the volume is mounted: its device is still released
// after the unmount.
func TestFileRenamedWhileMounted(t *testing.T) {
	onLoops(t, "mv", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		works(t, os.Rename(e.File("data"), e.File("other")))
		works(t, k.Down(a))
		e.Empty()
		a.LV = "other"
		works(t, k.Up(a))
		works(t, k.Finish(a))
		e.Empty()
	})
	onLoops(t, "to another directory", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		away := filepath.Join(e.Root, "away")
		works(t, os.Rename(e.File("data"), away))
		works(t, k.Down(a))
		e.Eventually("its device is released", func() bool {
			loops, err := loopdev.NewKernel().Loops()
			for _, l := range loops {
				err = errors.Join(err, map[bool]error{true: errSimulated}[l.BackingFile == away])
			}
			return err == nil
		})
		e.Empty()
	})
}
