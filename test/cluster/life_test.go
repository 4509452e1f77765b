package cluster

import (
	"fmt"
	"os"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A volume is claimed, placed with its pod, attached, mounted, shared by a second pod, expanded, unmounted,
// detached, with the expected number of calls of the driver.
func TestLife(t *testing.T) {
	each(t, func(t *testing.T, c *cluster) {
		a, b := c.newNode("a"), c.newNode("b")
		c.registered("a")
		c.registered("b")
		c.claim("data", []string{"b"}, func(pv *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) {
			// To grow a mounted ext4 takes a capability that containers lack.
			pv.Spec.FlexVolume.FSType, pv.Spec.FlexVolume.Options["size"] = "xfs", "304Mi"
		})

		c.run("first", "data")
		p := c.started("first")
		if p.Spec.NodeName != "b" {
			t.Errorf("the scheduler has placed %s on %s, in spite of the volume's nodeAffinity", p.Name, p.Spec.NodeName)
		}
		c.write(p, "data", "first")
		c.run("second", "data")
		q := c.started("second")
		c.read(q, "data", "first")

		c.expand("data", "320Mi")
		if info, err := os.Stat(b.Dir + "/vg0/data"); err != nil || info.Size() < 320*mib {
			t.Errorf("the expanded volume: %v, %v", info, err)
		}
		c.read(q, "data", "first")
		c.end("first")
		c.read(q, "data", "first")
		c.end("second")
		c.quiet(a, b)

		p = c.again("third", "data")
		c.read(p, "data", "first")
		c.end("third")
		c.quiet(a, b)
		c.expectCalls(map[string]int{
			// Kubelet waits and mounts for each pod. When the first one comes and the last one
			// has gone, the volume is attached, staged, unstaged and detached.
			"controller attach": c.ifAttached(2), "controller detach": c.ifAttached(2),
			"b waitforattach": c.ifAttached(3), "b mountdevice": c.ifAttached(2), "b unmountdevice": c.ifAttached(2),
			"b mount": 3, "b unmount": 3,
			"controller init": 1, "a init": 1, "b init": 1,
		})
	})
}

// ifAttached returns n in the mode in which volumes are attached, otherwise 0.
func (c *cluster) ifAttached(n int) int {
	if c.mode == attachTrue {
		return n
	}
	return 0
}

// again runs a pod, and returns it when it has started.
func (c *cluster) again(name string, claims ...string) *v1.Pod {
	c.t.Helper()
	c.run(name, claims...)
	return c.started(name)
}

// expand increases a claim: the controller updates its PersistentVolume without a call of the driver, and
// kubelet makes the call. It waits for kubelet.
func (c *cluster) expand(claim, size string) {
	c.t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)
	_, err := c.api.CoreV1().PersistentVolumeClaims("default").Patch(ctx, claim, types.MergePatchType, patch, metav1.PatchOptions{})
	c.must(err)
	want := resource.MustParse(size)
	c.eventually(claim+" is expanded", func() string {
		pvc, err := c.api.CoreV1().PersistentVolumeClaims("default").Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if is := pvc.Status.Capacity[v1.ResourceStorage]; is.Cmp(want) != 0 {
			return fmt.Sprintf("%s %+v", is.String(), pvc.Status.Conditions)
		}
		return ""
	})
}

// varies are calls whose number depends on timing: the controller's isattached, kubelet's expansion for one
// or both pods, and its first getvolumename.
var varies = []string{"controller isattached", "b expandfs", "a getvolumename", "b getvolumename", "controller getvolumename"}

// expectCalls compares all calls with the wanted ones; every call must have succeeded.
func (c *cluster) expectCalls(want map[string]int) {
	c.t.Helper()
	c.eventually("all calls have ended", func() string { // a detach begins when the API shows it already
		is := count(c.calls())
		for what, n := range want {
			if is[what] < n {
				return fmt.Sprintf("%s: %d times, want %d", what, is[what], n)
			}
		}
		return ""
	})
	all := c.calls()
	for _, k := range all {
		if k.failed() {
			c.t.Errorf("failed: %s", k)
		}
	}
	is := count(all)
	for what, n := range want {
		if is[what] != n {
			c.t.Errorf("%s: %d times, want %d", what, is[what], n)
		}
	}
	for what, n := range is {
		if want[what] == 0 && !slices.Contains(varies, what) {
			c.t.Errorf("%s: %d times, want none", what, n)
		}
	}
	c.t.Logf("calls: %s", counts(is))
}
