package cluster

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/flexd/flexd/test/host"
)

// A mode is the way in which kubelet and the controller manager call the driver.
type mode string

const (
	attachTrue  mode = "attach true"
	attachFalse mode = "attach false"
)

// each runs a test in each mode, in a new cluster.
func each(t *testing.T, f func(*testing.T, *cluster)) {
	t.Parallel()
	for _, m := range []mode{attachFalse, attachTrue} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			f(t, newCluster(t, m))
		})
	}
}

// A cluster is a control plane with its nodes. At the end of its test nothing of it may remain on the
// machine.
type cluster struct {
	t *testing.T
	*plane
}

type plane struct {
	mode        mode
	dir         string
	api         *clientset.Clientset
	controllers *process

	mu    sync.Mutex
	nodes []*node
}

var ctx = context.Background()

func newCluster(t *testing.T, m mode) *cluster {
	t.Helper()
	dir, err := os.MkdirTemp(os.Getenv(place), "")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t, &plane{mode: m, dir: dir}}
	end, err := serveAPI(dir)
	c.must(err)
	t.Cleanup(end)
	t.Cleanup(c.close)
	c.api = newClient(dir, 1000, 1000)
	c.install(dir + "/plugins")
	c.startControllers()
	c.must(startScheduler(t.Context(), dir))
	return c
}

// parallel runs a part of a test in the same cluster at the same time as others.
func (c *cluster) parallel(name string, f func(*cluster)) {
	c.t.Run(name, func(t *testing.T) {
		t.Parallel()
		f(&cluster{t, c.plane})
	})
}

// install puts flexdriver into the plugin directory of kubelet or the controller manager by a rename, after
// the dotfile with the mode.
func (c *cluster) install(plugins string) {
	c.t.Helper()
	dir := plugins + "/flexd~lvm"
	c.must(os.MkdirAll(dir, 0o755))
	c.must(os.WriteFile(dir+"/.lvm.init.json", fmt.Appendf(nil, `{"attach": %t, "supportsMetrics": true}`, c.mode == attachTrue), 0o644))
	c.must(host.Install(built+"/flexdriver", dir+"/lvm"))
}

func (c *cluster) startControllers() {
	c.t.Helper()
	var err error
	c.controllers, err = start("controllers", c.dir+"/controllers.log", nil, place+"="+c.dir, pluginDir+"="+c.dir+"/plugins",
		callsFile+"="+c.dir+"/calls", "FLEXD_SOCKET=/nonexistent/flexd-is-not-here.sock")
	c.must(err)
}

func (c *cluster) killControllers() {
	c.t.Helper()
	c.must(c.controllers.kill())
	c.controllers = nil
}

// calls returns the calls of the driver until now.
func (c *cluster) calls() []call {
	all := readCalls(c.dir + "/calls")
	for _, n := range c.all() {
		for _, k := range readCalls(n.calls()) {
			k.Who = n.name
			all = append(all, k)
		}
	}
	slices.SortStableFunc(all, func(a, b call) int { return a.At.Compare(b.At) })
	return all
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// eventually waits until wrong returns "".
func (c *cluster) eventually(what string, wrong func() string) {
	c.t.Helper()
	s := ""
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if s = wrong(); s == "" {
			return
		}
	}
	c.t.Fatalf("%s: not after %v: %s", what, soon, s)
}

// close ends the test.
func (c *cluster) close() {
	t := c.t
	if t.Failed() {
		calls := c.calls()
		for _, k := range calls[max(0, len(calls)-60):] {
			t.Log(k)
		}
		if pods, err := c.api.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err == nil {
			for _, p := range pods.Items {
				t.Logf("pod %s on %q: %s deleted %v %+v", p.Name, p.Spec.NodeName, p.Status.Phase, p.DeletionTimestamp, p.Status.Conditions)
			}
		}
		if events, err := c.api.CoreV1().Events("").List(ctx, metav1.ListOptions{}); err == nil {
			for _, e := range events.Items {
				t.Logf("event: %s %s %s: %s", e.InvolvedObject.Name, e.Type, e.Reason, e.Message)
			}
		}
		for _, n := range c.nodes {
			t.Logf("%s: flexd's log:\n%s", n.name, n.LogTail(20))
			t.Logf("%s: kubelet's log:\n%s", n.name, host.Tail(n.Dir+"/kubelet.log", 40))
		}
		t.Logf("the controllers' log:\n%s", host.Tail(c.dir+"/controllers.log", 40))
	}
	for _, n := range c.nodes {
		if log := n.LogTail(1 << 20); strings.Contains(log, "panic: ") {
			t.Errorf("%s: flexd panicked", n.name)
		}
		for _, p := range []*process{n.kubelet, n.machine} {
			if err := p.kill(); err != nil {
				t.Error(err)
			}
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := c.controllers.kill(); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(c.dir); err != nil {
		t.Error(err)
	}
}

// claim makes a PersistentVolume pv-NAME for a volume NAME of vg0 of 16 MiB on these
// nodes (none: on any), and a claim NAME for it.
func (c *cluster) claim(name string, nodes []string, change ...func(*v1.PersistentVolume, *v1.PersistentVolumeClaim)) {
	c.t.Helper()
	access := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	class := ""
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: v1.PersistentVolumeSpec{
		Capacity: capacity(), AccessModes: access, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
		ClaimRef: &v1.ObjectReference{Namespace: "default", Name: name},
		PersistentVolumeSource: v1.PersistentVolumeSource{FlexVolume: &v1.FlexPersistentVolumeSource{
			Driver: "flexd/lvm", FSType: "ext4", Options: map[string]string{"volumegroup": "vg0", "volumeID": name, "size": "16Mi"},
		}},
	}}
	if len(nodes) > 0 {
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: nodes}},
		}}}}
	}
	pvc := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PersistentVolumeClaimSpec{
		VolumeName: "pv-" + name, AccessModes: access, StorageClassName: &class, Resources: v1.VolumeResourceRequirements{Requests: capacity()},
	}}
	for _, f := range change {
		f(pv, pvc)
	}
	_, err := c.api.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	c.must(err)
	_, err = c.api.CoreV1().PersistentVolumeClaims("default").Create(ctx, pvc, metav1.CreateOptions{})
	c.must(err)
}

// capacity is what a volume has.
func capacity() v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(16*mib, resource.BinarySI)}
}

// tolerations are for nodes that are busy, and for those that are dead: their pods stay.
var tolerations = []v1.Toleration{
	{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists},
	{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists},
}

// podSpec returns a pod with a container that ends on SIGTERM, and with claims, each under its name.
func podSpec(claims ...string) v1.PodSpec {
	no, grace := false, int64(1)
	s := v1.PodSpec{
		Containers:                   []v1.Container{{Name: "c", Image: "image", ImagePullPolicy: v1.PullIfNotPresent}},
		AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &grace, Tolerations: tolerations, EnableServiceLinks: &no, DNSPolicy: v1.DNSDefault,
	}
	for _, claim := range claims {
		s.Volumes = append(s.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
		s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, v1.VolumeMount{Name: claim, MountPath: "/" + claim})
	}
	return s
}

// run makes a pod, which the scheduler places.
func (c *cluster) run(name string, claims ...string) *v1.Pod {
	c.t.Helper()
	return c.runOn("", name, claims...)
}

// runOn makes a pod on a node, without asking the scheduler.
func (c *cluster) runOn(node, name string, claims ...string) *v1.Pod {
	c.t.Helper()
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: podSpec(claims...)}
	p.Spec.NodeName = node
	p, err := c.api.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	c.must(err)
	return p
}

// started waits until a pod runs, and its volumes are mounted, and returns it.
func (c *cluster) started(name string) *v1.Pod {
	c.t.Helper()
	p := c.running(name)
	for _, v := range p.Spec.Volumes {
		if dir := c.dirOf(p, v.Name); !host.Mounted(dir) {
			c.t.Errorf("kubelet thinks that %s is mounted", dir)
		}
	}
	return p
}

// running waits until kubelet reports that a pod runs, and returns it.
func (c *cluster) running(name string) *v1.Pod {
	c.t.Helper()
	var p *v1.Pod
	c.eventually(name+" starts", func() string {
		var err error
		if p, err = c.api.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if p.DeletionTimestamp != nil || p.Status.Phase != v1.PodRunning || !slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
		}) {
			return fmt.Sprintf("%s, on %q", p.Status.Phase, p.Spec.NodeName)
		}
		return ""
	})
	return p
}

// delete deletes pods and does not wait.
func (c *cluster) delete(names ...string) {
	c.t.Helper()
	for _, name := range names {
		err := c.api.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			c.must(err)
		}
	}
}

// ended waits until a pod is gone.
func (c *cluster) ended(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.eventually(name+" ends", func() string {
			p, err := c.api.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return ""
			}
			return fmt.Sprint(p.Status.Phase, err)
		})
	}
}

func (c *cluster) end(names ...string) {
	c.t.Helper()
	c.delete(names...)
	c.ended(names...)
}

// all are the cluster's nodes.
func (c *cluster) all() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

// node is the machine of that name.
func (c *cluster) node(name string) *node {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.nodes, func(n *node) bool { return n.name == name })
	if i < 0 {
		c.t.Fatalf("no node %q", name)
	}
	return c.nodes[i]
}

// dirOf returns the directory of a pod's volume in this process's mount namespace.
func (c *cluster) dirOf(p *v1.Pod, volume string) string {
	c.t.Helper()
	n := c.node(p.Spec.NodeName)
	name := volume
	for _, v := range p.Spec.Volumes {
		if v.Name == volume && v.PersistentVolumeClaim != nil {
			name = "pv-" + v.PersistentVolumeClaim.ClaimName
		}
	}
	return n.inside(filepath.Join(n.Root, "pods", string(p.UID), "volumes", "flexd~lvm", name))
}

// write and read are the container's.

func (c *cluster) write(p *v1.Pod, volume, text string) {
	c.t.Helper()
	c.must(os.WriteFile(c.dirOf(p, volume)+"/data", []byte(text), 0o644))
}

func (c *cluster) read(p *v1.Pod, volume, want string) {
	c.t.Helper()
	got, err := os.ReadFile(c.dirOf(p, volume) + "/data")
	if err != nil || string(got) != want {
		c.t.Errorf("%s reads %q (%v), want %q", p.Name, got, err, want)
	}
}

// attached lists the volumes of a node in the API: those of the controller and those of kubelet.
func (c *cluster) attached(node string) (attached, inUse []v1.UniqueVolumeName) {
	c.t.Helper()
	n, err := c.api.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	c.must(err)
	for _, a := range n.Status.VolumesAttached {
		attached = append(attached, a.Name)
	}
	return attached, n.Status.VolumesInUse
}

// quiet waits until nothing remains of any pod, on the nodes and in the API.
func (c *cluster) quiet(nodes ...*node) {
	c.t.Helper()
	for _, n := range nodes {
		c.eventually("nothing is left on "+n.name, func() string {
			if a, u := c.attached(n.name); len(a)+len(u) > 0 {
				return fmt.Sprintf("attached %v, in use %v", a, u)
			}
			return n.left()
		})
	}
}

// registered waits until pods may be placed on a node.
func (c *cluster) registered(name string) {
	c.t.Helper()
	c.eventually(name+" is ready", func() string {
		n, err := c.api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == v1.NodeReady && condition.Status == v1.ConditionTrue && len(n.Spec.Taints) == 0 {
				return ""
			}
		}
		return fmt.Sprint(n.Spec.Taints, n.Status.Conditions)
	})
}

// count counts calls by who and verb, such as "a mount".
func count(calls []call) map[string]int {
	n := map[string]int{}
	for _, k := range calls {
		n[k.Who+" "+k.verb()]++
	}
	return n
}

// counts prints them.
func counts(n map[string]int) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(n)) {
		all = append(all, fmt.Sprint(k, " ", n[k]))
	}
	return strings.Join(all, ", ")
}
