package kubelet

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// grow expands a claim like the expand controller, which leaves the expansion to the node, and sets the
// volume's capacity.
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
	always(t, func(t *testing.T, n *node) {
		n.claim("a", 304*mib, "fsType", "xfs", "size", "304Mi")
		p := pod("web", "a")
		n.run(p)
		n.write(p, 0, "kept")
		before := n.space(p, 0)
		if before > 304*mib {
			t.Errorf("%d MiB before", before/mib)
		}
		n.grow("a", 400*mib)
		n.grown(p, before+90*mib)
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

// An expansion is refused: the event has the reason and both remedies. Running pods keep the volume. But
// kubelet treats the volume as unmounted until it has grown: after a restart of kubelet the syncs of these
// pods fail, and no other pod of the claim starts.
func TestRefusedExpansion(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.failures = true
		n.claim("a", 304*mib, "fsType", "xfs", "size", "304Mi")
		p, other := pod("web", "a"), pod("other", "a")
		n.run(p)
		n.write(p, 0, "kept")
		refused := func(size int64, pods ...*v1.Pod) {
			t.Helper()
			n.grow("a", size)
			n.ask("Start", p.UID, nil)
			n.warnedOne(pods, fmt.Sprint(size/mib, " MiB are wanted, more than the volume group's maxSize (400 MiB): raise it"),
				"; if that size is not possible, or not needed, lower spec.capacity.storage of the PersistentVolume")
			n.read(p, 0, "kept")
		}
		refused(500*mib, p)
		n.killKubelet()
		n.startKubelet()
		n.want(other)
		var syncs sync.WaitGroup
		for _, p := range []*v1.Pod{p, other} {
			syncs.Go(func() {
				if n.ask("Start", p.UID, nil) == nil {
					t.Errorf("pod %s is synced: docs/kubelet.md says otherwise", p.Name)
				}
			})
		}
		syncs.Wait()
		n.read(p, 0, "kept")
		n.write(p, 0, "kept")
		n.grow("a", 304*mib)
		// Kubelet syncs its pods at the same time. A pod that is not synced keeps the old size, and
		// its failures delay the operations of all pods of the volume.
		syncs.Go(func() {
			for end := time.Now().Add(soon); time.Now().Before(end) && n.ask("Start", other.UID, nil) != nil; {
			}
		})
		t.Logf("the capacity is lowered: the pods are synced after %v", n.started(p, other))
		syncs.Wait()
		n.read(other, 0, "kept")

		refused(600*mib, p, other)
		n.settings.Groups = strings.Replace(n.settings.Groups, "400MiB", "700MiB", 1)
		n.must(n.Configure(n.settings))
		n.endFlexd(syscall.SIGTERM)
		n.startFlexd()
		n.grown(p, 500*mib)
	}, func(n *node) { n.settings.Groups = strings.Replace(n.settings.Groups, "20GiB", "400MiB", 1) })
}

// The same where the group is full.
func TestExpansionOfFullGroup(t *testing.T) {
	t.Parallel()
	n := newNode(t, noAttach, func(n *node) {
		n.settings.Groups += "  - {name: small, provider: loopdev, directory: " + n.Dir + "/small, create: true, maxSize: 20GiB, namespaces: ['*']}\n"
		n.must(os.Mkdir(n.Dir+"/small", 0o755))
		n.must(unix.Mount("tmpfs", n.Dir+"/small", "tmpfs", 0, "size=350m"))
	})
	n.failures = true
	n.claim("a", 304*mib, "fsType", "xfs", "size", "304Mi", "volumegroup", "small")
	p := pod("web", "a")
	n.run(p)
	n.grow("a", 700*mib)
	n.ask("Start", p.UID, nil)
	n.warned(p, "small/a: expandfs", "free space on the filesystem of "+n.Dir+"/small", "; if that size is not possible, or not needed, lower spec.capacity.storage")
	n.must(unix.Mount("", n.Dir+"/small", "tmpfs", unix.MS_REMOUNT, "size=900m"))
	n.grown(p, 600*mib)
}

// grown waits until a container sees that much.
func (n *node) grown(p *v1.Pod, size int64) {
	n.t.Helper()
	n.eventually("the container sees the new size", func() string {
		n.started(p) // pods are synced every minute or so, and then the size is compared
		if got := n.space(p, 0); got < size {
			return fmt.Sprint(got)
		}
		return ""
	})
}
