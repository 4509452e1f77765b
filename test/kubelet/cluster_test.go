package kubelet

import (
	"fmt"
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexd/flexd/test/host"
)

// A process is a kubelet that runs.
type process struct {
	cmd    *exec.Cmd
	client *rpc.Client
	ended  chan struct{}
}

// startKubelet starts one with the world as it is.
func (n *node) startKubelet(change ...func(*exec.Cmd, *Setup)) {
	n.t.Helper()
	n.mu.Lock()
	n.kubelets++
	s := Setup{
		Name: fmt.Sprint("kubelet ", n.kubelets), Root: n.Root, Plugins: n.plugins, Driver: n.DriverDir(), ControllerAttach: n.mode != byKubelet,
		Calls: n.calls(), Events: n.eventsFile(),
	}
	n.mu.Unlock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	n.must(err)
	ours, theirs := os.NewFile(uintptr(fds[0]), "kubelet"), os.NewFile(uintptr(fds[1]), "test")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	n.must(err)
	log, err := os.OpenFile(n.Dir+"/kubelet.log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	n.must(err)
	defer log.Close()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), role+"="+isKubelet, "FLEXD_SOCKET="+n.DriverSocket())
	c.Dir = "/"
	c.Stdout, c.Stderr = log, log
	c.ExtraFiles = []*os.File{theirs}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	for _, f := range change {
		f(c, &s)
	}
	n.must(c.Start())
	p := &process{cmd: c, client: jsonrpc.NewClient(conn), ended: make(chan struct{})}
	go func() { c.Wait(); close(p.ended) }()
	n.mu.Lock()
	n.kubelet = p
	err = p.client.Call("Kubelet.Begin", struct {
		Setup Setup
		World World
	}{s, n.world}, nil)
	n.mu.Unlock()
	n.must(err)
	go n.report(p)
}

// killKubelet is kill -9. What kubelet has started lives on.
func (n *node) killKubelet() {
	n.mu.Lock()
	p := n.kubelet
	n.kubelet = nil
	n.mu.Unlock()
	if p == nil {
		return
	}
	select {
	case <-p.ended:
		n.t.Errorf("kubelet has ended by itself: %s\n%s", p.cmd.ProcessState, host.Tail(n.Dir+"/kubelet.log", 40))
	default:
	}
	p.cmd.Process.Kill()
	<-p.ended
	p.client.Close()
}

// ask calls a method of the kubelet that runs now.
func (n *node) ask(method string, arg, reply any) error {
	n.mu.Lock()
	p := n.kubelet
	n.mu.Unlock()
	if p == nil {
		return fmt.Errorf("no kubelet runs")
	}
	return p.client.Call("Kubelet."+method, arg, reply)
}

// report carries volumesInUse to the API server while that kubelet lives.
func (n *node) report(p *process) {
	for ; ; time.Sleep(100 * time.Millisecond) {
		var r Status
		if err := p.client.Call("Kubelet.Report", struct{}{}, &r); err != nil {
			return
		}
		if r.Known {
			n.mu.Lock()
			n.inUse = r.InUse
			n.mu.Unlock()
		}
	}
}

// change changes the world, and notifies kubelet if it runs.
func (n *node) change(f func(*World)) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	f(&n.world)
	if n.kubelet != nil {
		if err := n.kubelet.client.Call("Kubelet.Set", n.world, nil); err != nil {
			n.t.Errorf("kubelet does not listen: %v", err)
		}
	}
}

// flex is the source of a volume of vg0 that flexd makes: ext4 of 16 MiB, unless the
// options (key, value, ...; or "fsType", value) say else.
func flex(lv string, options ...string) *v1.FlexVolumeSource {
	f := &v1.FlexVolumeSource{Driver: driver, FSType: "ext4", Options: map[string]string{"volumegroup": "vg0", "volumeID": lv, "size": "16Mi"}}
	for i := 0; i < len(options); i += 2 {
		if options[i] == "fsType" {
			f.FSType = options[i+1]
		} else {
			f.Options[options[i]] = options[i+1]
		}
	}
	return f
}

// claim makes a PersistentVolume pv-LV on this node, and a claim LV bound to it.
func (n *node) claim(lv string, size int64, options ...string) {
	n.t.Helper()
	f := flex(lv, options...)
	f.Driver = strings.Replace(n.DriverDir(), "~", "/", 1)
	capacity := v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}
	filesystem := v1.PersistentVolumeFilesystem
	access := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + lv}, Spec: v1.PersistentVolumeSpec{
		Capacity: capacity, AccessModes: access, VolumeMode: &filesystem,
		ClaimRef: &v1.ObjectReference{Namespace: "default", Name: lv, UID: types.UID("claim-" + lv)},
		PersistentVolumeSource: v1.PersistentVolumeSource{FlexVolume: &v1.FlexPersistentVolumeSource{
			Driver: f.Driver, FSType: f.FSType, Options: f.Options,
		}},
		NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{nodeName}}},
		}}}},
	}}
	pvc := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: lv, UID: types.UID("claim-" + lv)},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv-" + lv, AccessModes: access, Resources: v1.VolumeResourceRequirements{Requests: capacity}},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: capacity, AccessModes: access},
	}
	n.change(func(w *World) { w.PVs, w.PVCs = append(w.PVs, pv), append(w.PVCs, pvc) })
}

// pod is a pod that uses claims, each under the claim's name.
func pod(name string, claims ...string) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1.PodSpec{NodeName: nodeName, Containers: []v1.Container{{Name: "c"}}},
	}
	for _, c := range claims {
		with(p, c, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: c}})
	}
	return p
}

// inline adds a volume that the pod itself describes.
func inline(p *v1.Pod, name string, f *v1.FlexVolumeSource) *v1.Pod {
	return with(p, name, v1.VolumeSource{FlexVolume: f})
}

func with(p *v1.Pod, name string, source v1.VolumeSource) *v1.Pod {
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	c := &p.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: name, MountPath: "/" + name})
	return p
}

// readOnly makes the pod's claims so.
func readOnly(p *v1.Pod) *v1.Pod {
	for i := range p.Spec.Volumes {
		if c := p.Spec.Volumes[i].PersistentVolumeClaim; c != nil {
			c.ReadOnly = true
		}
	}
	return p
}

// volumeName is kubelet's name of the i'th volume of a pod.
func volumeName(p *v1.Pod, i int) string {
	if c := p.Spec.Volumes[i].PersistentVolumeClaim; c != nil {
		return "pv-" + c.ClaimName
	}
	return p.Spec.Volumes[i].Name
}

// podDir is where the pod's i'th volume is mounted.
func (n *node) podDir(p *v1.Pod, i int) string {
	return filepath.Join(n.Root, "pods", string(p.UID), "volumes", n.DriverDir(), volumeName(p, i))
}

// globalDir is where kubelet mounts a volume once, with attach:true.
func (n *node) globalDir(name string) string {
	return n.GlobalDir(host.Volume{Name: name})
}

// want adds pods to the world.
func (n *node) want(pods ...*v1.Pod) {
	n.t.Helper()
	n.change(func(w *World) { w.Pods = append(w.Pods, pods...) })
}

// started waits until kubelet says that the pods' volumes are there, and sees
// that they are. It returns how long that took.
func (n *node) started(pods ...*v1.Pod) time.Duration {
	n.t.Helper()
	begin := time.Now()
	for _, p := range pods {
		n.eventually(p.Name+" starts", func() string {
			if err := n.ask("Start", p.UID, nil); err != nil {
				return err.Error()
			}
			return ""
		})
		for i := range p.Spec.Volumes {
			if !mounted(n.podDir(p, i)) {
				n.t.Errorf("kubelet thinks that %s is mounted", n.podDir(p, i))
			}
		}
	}
	return time.Since(begin)
}

// run starts pods.
func (n *node) run(pods ...*v1.Pod) {
	n.t.Helper()
	n.want(pods...)
	n.started(pods...)
}

// web starts a pod of that name with a volume of its own, a.
func (n *node) web() *v1.Pod {
	n.t.Helper()
	n.claim("a", 16*mib)
	p := pod("web", "a")
	n.run(p)
	return p
}

// forget takes pods out of the world: deleted, with no container left.
func (n *node) forget(pods ...*v1.Pod) {
	n.t.Helper()
	n.change(func(w *World) {
		w.Pods = slices.DeleteFunc(w.Pods, func(p *v1.Pod) bool { return slices.Contains(pods, p) })
	})
}

// ended waits until kubelet has cleaned up after the pods.
func (n *node) ended(pods ...*v1.Pod) {
	n.t.Helper()
	for _, p := range pods {
		n.eventually(p.Name+" ends", func() string {
			if err := n.ask("End", p, nil); err != nil {
				return err.Error()
			}
			// A mount that was under way may make it again, and the next housekeeping removes it.
			if _, err := os.Lstat(filepath.Join(n.Root, "pods", string(p.UID))); !os.IsNotExist(err) {
				return fmt.Sprintf("its directory is still there (%v)", err)
			}
			return ""
		})
	}
}

// end ends pods.
func (n *node) end(pods ...*v1.Pod) {
	n.t.Helper()
	n.forget(pods...)
	n.ended(pods...)
}

// detached waits until nothing is attached: kubelet pauses after an unmountdevice that it
// takes for failed.
func (n *node) detached() {
	n.t.Helper()
	n.eventually("everything is detached", func() string {
		var r Status
		if err := n.ask("Report", struct{}{}, &r); err != nil {
			return err.Error()
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if !r.Known || len(r.InUse) > 0 || len(n.world.Attached) > 0 {
			return fmt.Sprint(r, n.world.Attached)
		}
		return ""
	})
}

// write and read are the container's.

func (n *node) write(p *v1.Pod, i int, text string) {
	n.t.Helper()
	n.must(os.WriteFile(n.podDir(p, i)+"/data", []byte(text), 0o644))
}

func (n *node) read(p *v1.Pod, i int, want string) {
	n.t.Helper()
	got, err := os.ReadFile(n.podDir(p, i) + "/data")
	if err != nil || string(got) != want {
		n.t.Errorf("%s reads %q (%v), want %q", p.Name, got, err, want)
	}
}
