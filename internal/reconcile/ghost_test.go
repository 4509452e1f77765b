package reconcile_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/status"
)

// rows returns the listed volumes with a name.
func rows(e *hosttest.Env, lv string) (found []status.Volume) {
	for _, v := range e.Node().List().Volumes {
		if v.LV == lv {
			found = append(found, v)
		}
	}
	return found
}

// A deleted volume is not listed once flexd has noticed, also if a call for it fails or a new volume has its
// name.
func TestDeletedVolumeIsNotListed(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, a hosttest.Pod){
		"refused": func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, a hosttest.Pod) {
			fails(t, k.Up(a), "flexd has seen a filesystem on a volume of that name")
			e.Eventually("only the failure is listed", func() bool {
				all := rows(e, "data")
				return len(all) == 1 && all[0].State == status.Failed && all[0].UUID == ""
			})
			if d, ok := e.Node().VolumeDetail(hosttest.VG, "data"); !ok || d.State != status.Failed {
				t.Errorf("by its name it is %+v", d)
			}
			works(t, k.Finish(a))
		},
		"made again": func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, a hosttest.Pod) {
			records, _ := filepath.Glob(filepath.Join(e.Records(), "*.json"))
			if len(records) != 1 {
				t.Fatalf("records: %q", records)
			}
			works(t, os.Remove(records[0]))
			works(t, k.Up(a))
			e.Eventually("only the new volume is listed", func() bool {
				all := rows(e, "data")
				return len(all) == 1 && all[0].State == status.Mounted
			})
			works(t, k.Finish(a))
		},
		"made by hand": func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, a hosttest.Pod) {
			works(t, os.WriteFile(e.File("data"), make([]byte, 16<<20), 0o600))
			rename(t, e, "data", another)
			works(t, k.Up(a))
			e.Eventually("only the new volume is listed", func() bool {
				all := rows(e, "data")
				return len(all) == 1 && all[0].UUID == another
			})
			works(t, k.Finish(a))
		},
	} {
		onLoops(t, name, func(t *testing.T, e *hosttest.Env) {
			k, a := hosttest.NewKubelet(e, false), pod("a")
			works(t, k.Up(a))
			works(t, k.Finish(a))
			e.Empty()
			if n := len(rows(e, "data")); n != 1 {
				t.Fatalf("%d rows of an idle volume", n)
			}
			works(t, os.Remove(e.File("data")))
			again(t, e, k, a)
			e.Empty()
		})
	}
}

// A volume whose pod is deleted after a failure is not listed five minutes later, although kubelet makes no
// call for it.
func TestFailedIsForgotten(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		works(t, k.Finish(a))
		e.Refuse("mount", errors.New("broken"))
		fails(t, k.Up(a), "broken")
		time.Sleep(time.Minute) // its lease has ended
		if all := rows(e, "data"); len(all) != 1 || all[0].State != status.Failed {
			t.Errorf("after the failure: %+v", all)
		}
		time.Sleep(5 * time.Minute)
		if all := rows(e, "data"); len(all) != 0 {
			t.Errorf("six minutes later: %+v", all)
		}
		e.Refuse("mount", nil)
		e.Empty()
	})
}

// The error of a deleted pod's call is shown for an hour, while other pods use the volume.
func TestErrorIsForgotten(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
		works(t, k.Up(a))
		e.Refuse("mount", errors.New("broken"))
		fails(t, k.Up(b), "broken")
		e.Refuse("mount", nil)
		e.AtRest()
		if v := rows(e, "data")[0]; v.State != status.Mounted || v.Error == nil {
			t.Errorf("after the failure: %+v", v)
		}
		time.Sleep(61 * time.Minute)
		if v := rows(e, "data")[0]; v.State != status.Mounted || v.Error != nil {
			t.Errorf("an hour later: %+v", v)
		}
		works(t, k.Finish(a))
		e.Empty()
	})
}

// The notes of a volume have a group name that is not configured, as after a rename of the group by hand.
// Pods get the volume under the new name, also while it is mounted. It is not listed after its lease, when it
// is inactive.
func TestNotesOfFormerGroup(t *testing.T) {
	former := func(t *testing.T, e *hosttest.Env, pattern string) {
		e.Patient = true
		e.Crash()
		notes, _ := filepath.Glob(filepath.Join(e.Notes(), pattern))
		if len(notes) != 1 {
			t.Fatalf("notes: %q", notes)
		}
		b, err := os.ReadFile(notes[0])
		works(t, err)
		works(t, os.WriteFile(notes[0], bytes.Replace(b, []byte(`"`+hosttest.VG+`"`), []byte(`"former"`), 1), 0o600))
	}
	onSim(t, "unused", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		works(t, k.Finish(a))
		former(t, e, "lease-*.json")
		if !e.Sim.Deactivate(e.File("data")) {
			t.Fatal("it has no device")
		}
		e.Start()
		if all := rows(e, "data"); len(all) != 1 || all[0].VG != "former" {
			t.Errorf("with its lease: %+v", all)
		}
		time.Sleep(time.Minute) // its lease has ended
		if all := rows(e, "data"); len(all) != 0 {
			t.Errorf("afterwards: %+v", all)
		}
		works(t, k.Up(a))
		works(t, k.Finish(a))
		e.Empty()
	})
	onSim(t, "mounted", func(t *testing.T, e *hosttest.Env) {
		k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
		works(t, k.Up(a))
		former(t, e, "published-*.json")
		e.Start()
		e.AtRest()
		works(t, k.Up(b))
		mountsAre(t, e, k.Dir(a), k.Dir(b))
		if all := rows(e, "data"); len(all) != 1 || all[0].VG != hosttest.VG || all[0].State != status.Mounted {
			t.Errorf("with two pods: %+v", all)
		}
		works(t, k.Finish(a))
		works(t, k.Finish(b))
		e.Empty()
	})
}

// A restarted flexd does not report a volume that it has not observed yet as one that it could not observe.
func TestNotObservedYet(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		e.Crash()
		release := e.Sim.HangGroup()
		e.Start()
		if all := rows(e, "data"); len(all) != 1 || all[0].State != status.Working || all[0].Step != "observe" {
			t.Errorf("before the first look: %+v", all)
		}
		release()
		e.AtRest()
		if all := rows(e, "data"); len(all) != 1 || all[0].State != status.Mounted || all[0].Step != "" {
			t.Errorf("after it: %+v", all)
		}
		works(t, k.Finish(a))
		e.Empty()
	})
}
