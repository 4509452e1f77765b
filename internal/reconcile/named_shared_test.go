package reconcile_test

import (
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
)

// In a shared group the last unmount deactivates: another node may wait for the volume. A
// volume that kubelet has asked for stays active until its mount.
func TestSharedLease(t *testing.T) {
	for _, attach := range []bool{true, false} {
		onSim(t, map[bool]string{true: "attach", false: "mount"}[attach], func(t *testing.T, e *hosttest.Env) {
			e.Config.VolumeGroups[0].Shared = true
			k := hosttest.NewKubelet(e, attach)
			if attach {
				r, err := k.Call(flexvolume.WaitForAttach, "", k.Blob(pod("a"), false))
				works(t, err)
				if r.Status != flexvolume.StatusSuccess {
					t.Error(r)
				}
				time.Sleep(e.Config.Lease * 2 / 3)
				if len(e.Active()) != 1 {
					t.Error("deactivated between two calls of kubelet")
				}
			}
			works(t, k.Start(pod("a")))
			time.Sleep(e.Config.Lease * 2)
			works(t, k.Start(pod("b")))
			works(t, k.Finish(pod("a")))
			if time.Sleep(e.Config.Lease * 2); len(e.Active()) != 1 {
				t.Error("deactivated under a pod")
			}
			works(t, k.Finish(pod("b")))
			if time.Sleep(e.Config.Lease / 10); len(e.Active()) != 0 {
				t.Errorf("active after the last unmount\n%s", e.Describe())
			}
			e.Empty()
		})
	}
}

// A waitforattach that finds a lease starts it anew.
func TestLeaseRenewed(t *testing.T) {
	onSim(t, "", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, true), pod("a")
		for range 2 {
			works(t, k.Insist(flexvolume.WaitForAttach, "", k.Blob(a, false)))
			time.Sleep(e.Config.Lease * 2 / 3)
		}
		if s, _ := e.Node().VolumeDetail(hosttest.VG, "data"); s.Lease == nil || !s.Lease.Live || len(e.Active()) != 1 {
			t.Errorf("%+v, active: %q", s, e.Active())
		}
		works(t, k.Insist(flexvolume.Detach, a.Volume, e.Config.NodeName))
		e.Empty()
	})
}

// With `lease: 0` a volume that kubelet has asked for stays active until its mount, or for a short time.
func TestNoLease(t *testing.T) {
	for _, shared := range []bool{true, false} {
		onSim(t, map[bool]string{true: "shared", false: "local"}[shared], func(t *testing.T, e *hosttest.Env) {
			e.Config.VolumeGroups[0].Shared, e.Config.Lease = shared, 0
			k := hosttest.NewKubelet(e, true)
			r, err := k.Call(flexvolume.WaitForAttach, "", k.Blob(pod("a"), false))
			works(t, err)
			if r.Status != flexvolume.StatusSuccess || len(e.Active()) != 1 {
				t.Error(r)
			}
			works(t, k.Start(pod("a")))
			works(t, k.Finish(pod("a")))
			if time.Sleep(time.Minute); len(e.Active()) != 0 {
				t.Errorf("active after the last unmount\n%s", e.Describe())
			}
			e.Empty()
		})
	}
}
