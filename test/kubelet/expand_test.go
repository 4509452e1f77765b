package kubelet

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// grow is what the expand controller does for a claim: it leaves everything to
// the node, and says so in the volume's capacity.
func (n *node) grow(lv string, size int64) {
	n.t.Helper()
	n.change(func(w *World) {
		for i, pv := range w.PVs {
			if pv.Name == "pv-"+lv {
				w.PVs[i] = pv.DeepCopy()
				w.PVs[i].Spec.Capacity = v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}
			}
		}
	})
}

// capacity is what grow has said last.
func (n *node) capacity(lv string) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, pv := range n.world.PVs {
		if pv.Name == "pv-"+lv {
			return pv.Spec.Capacity.Storage().Value()
		}
	}
	return 0
}

// space is what a container sees of its volume, in bytes.
func (n *node) space(p *v1.Pod, i int) int64 {
	n.t.Helper()
	var st unix.Statfs_t
	n.must(unix.Statfs(n.podDir(p, i), &st))
	return int64(st.Blocks) * st.Bsize
}

// claimed is the size that kubelet has reported for a claim.
func (n *node) claimed(name string) int64 {
	n.t.Helper()
	var pvc v1.PersistentVolumeClaim
	n.must(n.ask("Claim", name, &pvc))
	return pvc.Status.Capacity.Storage().Value()
}

// A volume grows while a pod uses it, and another one before its pod starts. It
// is xfs: to grow a mounted ext4 takes a capability that containers lack.
func TestExpansion(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.claim("a", 300*mib, "fsType", "xfs", "size", "300Mi")
		p := pod("web", "a")
		n.run(p)
		n.write(p, 0, "kept")
		before := n.space(p, 0)
		if before > 300*mib {
			t.Errorf("%d MiB before", before/mib)
		}
		n.grow("a", 400*mib)
		n.eventually("the container sees the new size", func() string {
			n.started(p) // pods are synced every minute or so, and then the size is compared
			if n.space(p, 0) < before+90*mib {
				return "not yet"
			}
			return ""
		})
		n.eventually("the claim says the new size", func() string {
			if n.claimed("a") != 400*mib {
				return "not yet"
			}
			return ""
		})
		n.read(p, 0, "kept")
		n.end(p)
		n.quiet()
		n.golden("expansion")

		n.grow("a", 500*mib)
		n.run(p)
		if got := n.space(p, 0); got < before+190*mib {
			t.Errorf("%d MiB after the second expansion, to 500", got/mib)
		}
		n.read(p, 0, "kept")
		if got := n.claimed("a"); got != 500*mib {
			t.Errorf("the claim says %d MiB", got/mib)
		}
	})
}

// A volume that may not grow so far: the pod's event says why, and a pod that
// runs goes on.
func TestExpansionThatIsNotAllowed(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.failures = true
		n.claim("a", 300*mib, "fsType", "xfs", "size", "300Mi")
		p := pod("web", "a")
		n.run(p)
		n.write(p, 0, "kept")
		n.grow("a", 21<<30)
		n.eventually("an event says why", func() string {
			n.ask("Start", p.UID, nil)
			for _, e := range n.warnings() {
				if strings.Contains(e.Message, "maxSize") {
					return ""
				}
			}
			return "none"
		})
		n.telling()
		n.read(p, 0, "kept")
		n.write(p, 0, "still writable")
		n.grow("a", 300*mib)
	})
}
