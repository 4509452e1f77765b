package reconcile_test

import (
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/volume"
)

// Ensure that a refusal has the code of its cause. (hosttest's kubelet checks that each failure has a code.)
func TestCodes(t *testing.T) {
	mount := func(k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
		if err := k.E.M.Mkdir(k.Dir(p)); err != nil {
			return flexvolume.Answer{}, err
		}
		return k.Call(flexvolume.Mount, k.Dir(p), k.Blob(p, true))
	}
	for _, row := range []struct {
		want volume.Code
		name string
		call func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error)
	}{
		{volume.Invalid, "malformed options", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			return k.Call(flexvolume.Mount, k.Dir(p), "{")
		}},
		{volume.NotAllowed, "outside the roots", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			return k.Call(flexvolume.Mount, "/elsewhere/x", k.Blob(p, true))
		}},
		{volume.NotFound, "no size", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			p.Size = ""
			return mount(k, p)
		}},
		{volume.NoSpace, "more than maxSize", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			p.Size = "5Gi"
			return mount(k, p)
		}},
		{volume.Invalid, "a name of no volume", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			p.LV = ".hidden"
			return mount(k, p)
		}},
		{volume.Conflict, "another fsType", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			works(t, k.Up(p))
			other := pod("b")
			other.LV, other.FSType = p.LV, "xfs"
			return mount(k, other)
		}},
		{volume.Busy, "an open file", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			works(t, k.Up(p))
			release := e.M.Hold(k.Dir(p))
			defer release()
			return k.Call(flexvolume.Unmount, k.Dir(p))
		}},
		{volume.Superseded, "a late mount", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			e.Settle(time.Minute)
			started := e.M.Boot()
			e.Settle(time.Second)
			works(t, e.M.Mkdir(k.Dir(p)))
			if _, err := k.Call(flexvolume.Unmount, k.Dir(p)); err != nil {
				t.Fatal(err)
			}
			return k.CallAt(started, flexvolume.Mount, k.Dir(p), k.Blob(p, true))
		}},
		{volume.NotBlank, "raw data", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			works(t, e.Storage.Make(p.LV, 64<<20))
			e.Sim.WriteRaw(e.File(p.LV))
			return mount(k, p)
		}},
		{volume.DataMissing, "missing", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			works(t, k.Up(p))
			works(t, k.Finish(p))
			e.Settle(time.Hour)
			show, ok := e.Sim.Hide(e.File(p.LV))
			if !ok {
				t.Fatal("the file is in use")
			}
			defer show()
			return mount(k, p)
		}},
		{volume.InProgress, "mkfs takes long", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			_, release := e.Sim.Hang("format-half", false, false)
			defer release()
			return mount(k, p)
		}},
		{volume.InProgress, "the group hangs behind a probe", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			works(t, e.Storage.Make(p.LV, 64<<20))
			hit, probed := e.Sim.Hang("probe", false, false)
			answers := make(chan flexvolume.Answer)
			go func() {
				a, _ := mount(k, p)
				answers <- a
			}()
			<-hit
			defer e.Sim.HangGroup()()
			probed()
			return <-answers, nil
		}},
		{volume.Failed, "mkfs fails", func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, p hosttest.Pod) (flexvolume.Answer, error) {
			e.Refuse("mkfs", errSimulated)
			defer e.Refuse("mkfs", nil)
			return mount(k, p)
		}},
	} {
		onSim(t, row.name, func(t *testing.T, e *hosttest.Env) {
			k := hosttest.NewKubelet(e, false)
			a, err := row.call(t, e, k, pod("a"))
			works(t, err)
			if a.Status != flexvolume.StatusFailure || a.Code != string(row.want) {
				t.Errorf("got %+v, want the code %s", a, row.want)
			}
			if a, _ := k.Call(flexvolume.Detach, "pv1", e.Config.NodeName); a.Code != "" {
				t.Errorf("a success has a code: %+v", a)
			}
		})
	}
}
