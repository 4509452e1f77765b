package reconcile_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/volume"
)

// A note is damaged in every way while flexd is down. The mount table has the same information: the mount
// stays, and is released when kubelet asks.
func TestDamagedNotes(t *testing.T) {
	type damage struct {
		name string
		do   func(b []byte) []byte
		fine bool // it is still a note
	}
	edit := func(change func(*dsw.Claim)) func([]byte) []byte {
		return func(b []byte) []byte {
			var c dsw.Claim
			if err := json.Unmarshal(b, &c); err != nil {
				panic(err)
			}
			change(&c)
			b, _ = json.MarshalIndent(c, "", "  ")
			return b
		}
	}
	all := []damage{
		{"zeroed", func(b []byte) []byte { return make([]byte, len(b)) }, false},
		{"garbage", func([]byte) []byte { return []byte("\x7fELF\x00\xff{{{") }, false},
		{"another program's JSON", func([]byte) []byte { return []byte(`{"hello":"world"}`) }, false},
		{"a foreign version", edit(func(c *dsw.Claim) { c.Version = 99 }), false},
		{"an unknown phase", edit(func(c *dsw.Claim) { c.Phase = "flying" }), false},
		{"a directory that climbs", edit(func(c *dsw.Claim) { c.Dir += "/../../x" }), false},
		{"another directory by hand", edit(func(c *dsw.Claim) { c.Dir = "/etc" }), false},
		{"two notes in one", func(b []byte) []byte { return append(b, b...) }, false},
		{"1 MiB", func(b []byte) []byte { return append(b, make([]byte, 1<<20)...) }, false},
		{"an earlier boot", edit(func(c *dsw.Claim) { c.Boot = "before" }), true},
		{"making by hand", edit(func(c *dsw.Claim) { c.Phase = volume.Making }), true},
		{"releasing by hand", edit(func(c *dsw.Claim) { c.Phase = volume.Releasing }), true},
	}
	for n := 0; n < 700; n += 7 { // and torn at (nearly) every byte
		all = append(all, damage{fmt.Sprintf("torn after %d bytes", n), func(b []byte) []byte { return b[:min(n, len(b)-3)] }, false})
	}
	onSim(t, "each", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		k := hosttest.NewKubelet(e, true)
		for _, d := range all {
			a := pod("a")
			works(t, k.Start(a))
			e.AtRest()
			e.Crash()
			files, _ := filepath.Glob(filepath.Join(e.Notes(), "published-*.json"))
			if len(files) != 1 {
				t.Fatalf("%s: notes %q", d.name, files)
			}
			b, err := os.ReadFile(files[0])
			works(t, err)
			works(t, os.WriteFile(files[0], d.do(b), 0o600))
			mounts := e.Commands()
			problems := strings.Join(e.NoteProblems(), "\n")
			if reported := strings.Contains(problems, filepath.Base(files[0])); reported == d.fine {
				t.Errorf("%s: problems %q", d.name, problems)
			}
			e.Start()
			e.AtRest()
			mountsAre(t, e, k.Dir(a), k.Global("pv1"))
			if n := e.Sim.Count("umount"); n%2 != 0 {
				t.Errorf("%s: flexd unmounted something", d.name)
			}
			if e.Commands() > mounts+2 { // a look at whose loop device it is
				t.Errorf("%s: flexd started %d commands", d.name, e.Commands()-mounts)
			}
			works(t, k.Finish(a))
			_ = os.Remove(files[0])
			e.Again()
			e.Empty()
		}
		t.Logf("%d kinds of damage", len(all))
	})
}

func TestRunDirectoryGoneMountsAreAdopted(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a, b := pod("a"), readOnly(pod("b"))
		works(t, k.Start(a))
		works(t, k.Start(b))
		e.Patient = true
		e.Crash()
		works(t, os.RemoveAll(e.Config.RunDir))
		e.Start()
		e.AtRest()
		e.Eventually("status knows both pods", func() bool { // at any moment it shows only what flexd has observed by then
			s, ok := e.Node().VolumeDetail(hosttest.VG, "data")
			if ok && s.State == "missing" {
				t.Errorf("it takes what it has not looked at for missing: %+v", s.Claims)
			}
			return ok && len(s.Pods) == 2 && s.State == "mounted"
		})
		works(t, k.Start(pod("c")))
		works(t, k.Finish(pod("c")))
		works(t, k.Finish(a))
		works(t, k.Finish(b))
		e.Empty()
	})
}

// While notes cannot be written, set-up is refused and unmount works.
func TestNoteWriteFails(t *testing.T) {
	modes(t, onSim, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a, b := pod("a"), pod("b")
		works(t, k.Start(a))
		restore := e.BreakNotes()
		fails(t, k.Up(b), "note")
		k.Forget(b)
		works(t, k.Down(a))
		mountsAre(t, e)
		e.Eventually("no device is left", func() bool { return len(e.Active()) == 0 })
		restore()
		if k.Attach { // what could not be removed is found when flexd starts again
			e.Settle(0)
		}
		e.Crash()
		e.Empty()
	})
}

func TestNotesRemovedWhileFlexdRuns(t *testing.T) {
	modes(t, onBoth, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		a, b := pod("a"), pod("b")
		works(t, k.Start(a))
		works(t, os.RemoveAll(e.Notes()))
		works(t, k.Start(b))
		works(t, k.Finish(a))
		works(t, k.Finish(b))
		e.Empty()
	})
}
