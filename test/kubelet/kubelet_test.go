package kubelet

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/flexvolume"
	"k8s.io/kubernetes/pkg/volume/util"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"
	"k8s.io/kubernetes/pkg/volume/util/volumepathhandler"
	"k8s.io/mount-utils"
)

// A Setup is a kubelet's configuration.
type Setup struct {
	Name             string // in the trace
	Root             string // --root-dir
	Plugins          string // --volume-plugin-dir
	Driver           string // the directory of the driver there
	ControllerAttach bool   // enableControllerAttachDetach
	WaitForAttach    time.Duration
	Private          string // a mount point that gets and gives no mounts any more
	Calls, Events    string // files to append to
}

// A World is what the API server says.
type World struct {
	Pods     []*v1.Pod
	PVs      []*v1.PersistentVolume
	PVCs     []*v1.PersistentVolumeClaim
	Attached []v1.AttachedVolume // node.status.volumesAttached
}

// An event is one that kubelet would have sent.
type event struct{ Pod, Type, Reason, Message string }

// A Kubelet is the part of kubelet that looks after volumes. Its methods are
// called by the test (net/rpc): they are the API server's watch, the pod
// workers, and the container runtime.
type Kubelet struct {
	setup   Setup
	client  *fake.Clientset
	tracer  *tracer
	mounter mount.Interface
	volumes volumemanager.VolumeManager

	mu   sync.Mutex
	pods map[types.UID]*v1.Pod
}

// serveKubelet is this process when it is a kubelet. It lives until the test
// hangs up.
func serveKubelet() {
	const fd = 3
	syscall.CloseOnExec(fd) // a driver must not inherit it
	fs := flag.NewFlagSet("klog", flag.ExitOnError)
	klog.InitFlags(fs)
	fs.Set("v", "3")
	conn, err := net.FileConn(os.NewFile(fd, "test"))
	if err == nil {
		err = rpc.Register(&Kubelet{pods: map[types.UID]*v1.Pod{}})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	jsonrpc.ServeConn(conn)
	os.Exit(0)
}

// Begin starts kubelet with the world as it is, in the order of kubelet's own
// start: its root is a shared mount before the plugins are probed.
func (k *Kubelet) Begin(b struct {
	Setup Setup
	World World
}, _ *struct{}) error {
	k.setup = b.Setup
	k.mounter = mount.New("")
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{v1.LabelHostname: nodeName}}}
	// NewClientset, which tracks the fields' managers, costs milliseconds of a processor
	// for each request.
	k.client = fake.NewSimpleClientset(node)
	if err := k.Set(b.World, nil); err != nil {
		return err
	}
	if err := os.MkdirAll(k.setup.Root, 0o750); err != nil {
		return err
	}
	if k.setup.Private != "" {
		if err := unix.Mount("", k.setup.Private, "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
	}
	if err := hostutil.NewHostUtil().MakeRShared(k.setup.Root); err != nil {
		return err
	}
	var err error
	if k.tracer, err = newTracer(k.setup.Name, k.setup.Calls); err != nil {
		return err
	}
	events, err := os.OpenFile(k.setup.Events, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	host := &volumeHost{
		root: k.setup.Root, client: k.client, informers: informers.NewSharedInformerFactory(k.client, 0),
		mounter: k.mounter, recorder: recorder{events},
	}
	plugins := &volume.VolumePluginMgr{}
	prober := flexvolume.GetDynamicPluginProber(context.Background(), k.setup.Plugins, k.tracer)
	if err := plugins.InitPlugins(nil, prober, host); err != nil {
		return err
	}
	k.volumes = volumemanager.NewVolumeManager(k.setup.ControllerAttach, nodeName, k, k, k.client, plugins,
		k.mounter, hostutil.NewHostUtil(), host.GetPodsDir(), host.recorder, volumepathhandler.NewBlockVolumePathHandler())
	if k.setup.WaitForAttach > 0 {
		waitForAttach(k.volumes, k.setup.WaitForAttach)
	}
	go k.volumes.Run(context.Background(), ready{})
	return nil
}

// waitForAttach sets how long kubelet waits for waitforattach: ten minutes, in a
// constant.
func waitForAttach(vm volumemanager.VolumeManager, d time.Duration) {
	f := reflect.ValueOf(vm).Elem().FieldByName("reconciler").Elem().Elem().FieldByName("waitForAttachTimeout")
	*(*time.Duration)(unsafe.Pointer(f.UnsafeAddr())) = d
}

// ready says that every source of pods has been heard: Begin got them all.
type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

// Set changes the objects of the API server. Kubelet sets the status of a claim.
func (k *Kubelet) Set(w World, _ *struct{}) error {
	ctx, core := context.Background(), k.client.CoreV1()
	for _, pv := range w.PVs {
		_, err := core.PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = core.PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	for _, pvc := range w.PVCs {
		old, err := core.PersistentVolumeClaims(pvc.Namespace).Get(ctx, pvc.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = core.PersistentVolumeClaims(pvc.Namespace).Create(ctx, pvc, metav1.CreateOptions{})
		} else if err == nil {
			old.Spec = pvc.Spec
			_, err = core.PersistentVolumeClaims(pvc.Namespace).Update(ctx, old, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	n, err := core.Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	n.Status.VolumesAttached = w.Attached
	if _, err := core.Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = map[types.UID]*v1.Pod{}
	for _, p := range w.Pods {
		k.pods[p.UID] = p
	}
	return nil
}

// The pods, as the volume manager asks for them. The containers of a pod that
// the API server does not know any more have ended.

func (k *Kubelet) GetPodByUID(uid types.UID) (*v1.Pod, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, ok := k.pods[uid]
	return p, ok
}

func (k *Kubelet) GetPods() []*v1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []*v1.Pod
	for _, p := range k.pods {
		all = append(all, p)
	}
	return all
}

func (k *Kubelet) ShouldPodContainersBeTerminating(uid types.UID) bool {
	_, known := k.GetPodByUID(uid)
	return !known
}

func (k *Kubelet) ShouldPodRuntimeBeRemoved(uid types.UID) bool {
	return k.ShouldPodContainersBeTerminating(uid)
}

// A Status is kubelet's part of the node's.
type Status struct {
	Known bool // is complete: kubelet has found what was mounted before it began
	InUse []v1.UniqueVolumeName
}

// Report is kubelet's update of the node's status: volumesInUse, if it is known.
func (k *Kubelet) Report(_ struct{}, r *Status) error {
	if r.Known = k.volumes.ReconcilerStatesHasBeenSynced(); r.Known {
		r.InUse = k.volumes.GetVolumesInUse()
		k.volumes.MarkVolumesAsReportedInUse(r.InUse)
	}
	return nil
}

// syncTimeout is how long one sync of a pod waits: kubelet's own 2m3s are too long for a
// test that waits for an error.
const syncTimeout = 5 * time.Second

// Start is a pod worker's sync of a pod that is to run: it waits for the volumes.
func (k *Kubelet) Start(uid types.UID, _ *struct{}) error {
	p, ok := k.GetPodByUID(uid)
	if !ok {
		return fmt.Errorf("no pod %s", uid)
	}
	ctx, cancel := context.WithTimeout(context.Background(), syncTimeout)
	defer cancel()
	return k.volumes.WaitForAttachAndMount(ctx, p)
}

// End is a pod worker's sync of a pod that has ended, and what the housekeeping
// does then: it removes the pod's directories if they are empty.
func (k *Kubelet) End(p *v1.Pod, _ *struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), syncTimeout)
	defer cancel()
	if err := k.volumes.WaitForUnmount(ctx, p); err != nil {
		return err
	}
	dir := filepath.Join(k.setup.Root, "pods", string(p.UID))
	for _, d := range []string{dir + "/volumes/" + k.setup.Driver, dir + "/volumes", dir + "/volume-subpaths", dir} {
		if err := os.Remove(d); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

// A VolumeOf is a pod's volume, by its name in the pod, and a path in it.
type VolumeOf struct {
	UID          types.UID
	Volume, Path string
}

// Metrics is what kubelet would show for a pod's volume.
func (k *Kubelet) Metrics(q VolumeOf, r *struct{ Capacity, Used int64 }) error {
	info, ok := k.volumes.GetMountedVolumesForPod(volumetypes.UniquePodName(q.UID))[q.Volume]
	if !ok {
		return fmt.Errorf("%s is not mounted", q.Volume)
	}
	m, err := info.Mounter.GetMetrics()
	if err == nil {
		r.Capacity, r.Used = m.Capacity.Value(), m.Used.Value()
	}
	return err
}

// Subpath prepares a directory of a volume for a container, as makeMounts of
// pkg/kubelet/kubelet_pods.go does, and returns where the container gets it from.
func (k *Kubelet) Subpath(q VolumeOf, r *string) error {
	info, ok := k.volumes.GetMountedVolumesForPod(volumetypes.UniquePodName(q.UID))[q.Volume]
	if !ok {
		return fmt.Errorf("%s is not mounted", q.Volume)
	}
	base, err := util.GetPath(info.Mounter)
	if err != nil {
		return err
	}
	sub := subpath.New(k.mounter)
	if err := sub.SafeMakeDir(q.Path, base, 0o755); err != nil {
		return err
	}
	path, cleanup, err := sub.PrepareSafeSubpath(subpath.Subpath{
		Path: filepath.Join(base, q.Path), VolumeName: info.InnerVolumeSpecName, VolumePath: base,
		PodDir: filepath.Join(k.setup.Root, "pods", string(q.UID)), ContainerName: "c",
	})
	if err != nil {
		return err
	}
	if cleanup != nil {
		cleanup()
	}
	*r = path
	return nil
}

// Claim is a claim as the API server has it, kubelet's part of it included.
func (k *Kubelet) Claim(name string, r *v1.PersistentVolumeClaim) error {
	pvc, err := k.client.CoreV1().PersistentVolumeClaims("default").Get(context.Background(), name, metav1.GetOptions{})
	if err == nil {
		*r = *pvc
	}
	return err
}

// A StopAt names a verb, and a process to stop.
type StopAt struct {
	Verb string
	Pid  int
}

// StopAt stops a process just before the next call of a verb.
func (k *Kubelet) StopAt(q StopAt, _ *struct{}) error {
	k.tracer.stopAt(q.Verb, q.Pid)
	return nil
}

// recorder writes events down.
type recorder struct{ file *os.File }

func (r recorder) Event(object runtime.Object, eventtype, reason, message string) {
	name := ""
	if o, ok := object.(metav1.Object); ok {
		name = o.GetName()
	}
	line, _ := json.Marshal(event{name, eventtype, reason, message})
	r.file.Write(append(line, '\n'))
}

func (r recorder) Eventf(object runtime.Object, eventtype, reason, format string, args ...any) {
	r.Event(object, eventtype, reason, fmt.Sprintf(format, args...))
}

func (r recorder) AnnotatedEventf(object runtime.Object, _ map[string]string, eventtype, reason, format string, args ...any) {
	r.Eventf(object, eventtype, reason, format, args...)
}
