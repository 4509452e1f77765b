package cluster

import (
	"context"
	"net"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
	"k8s.io/kubernetes/pkg/controller/podgc"
	"k8s.io/kubernetes/pkg/controller/statefulset"
	"k8s.io/kubernetes/pkg/controller/tainteviction"
	"k8s.io/kubernetes/pkg/controller/volume/attachdetach"
	"k8s.io/kubernetes/pkg/controller/volume/expand"
	"k8s.io/kubernetes/pkg/controller/volume/persistentvolume"
	"k8s.io/kubernetes/pkg/controller/volume/pvcprotection"
	"k8s.io/kubernetes/pkg/controller/volume/pvprotection"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/volume/csimigration"
	"k8s.io/kubernetes/pkg/volume/flexvolume"
)

// newClient returns a client of the API in a directory, with the rate limits of kubelet, a controller or the
// scheduler.
func newClient(dir string, qps float32, burst int) *clientset.Clientset {
	return clientset.NewForConfigOrDie(&rest.Config{
		Host: "http://api", QPS: qps, Burst: burst,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON},
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", dir+"/api.sock")
		},
	})
}

// startScheduler starts one with its default configuration.
func startScheduler(ctx context.Context, dir string) error {
	client := newClient(dir, 50, 100)
	all := scheduler.NewInformerFactory(client, 0)
	s, err := scheduler.New(ctx, client, all, nil, func(string) events.EventRecorderLogger { return unrecorded{} })
	if err != nil {
		return err
	}
	all.Start(ctx.Done())
	all.WaitForCacheSync(ctx.Done())
	if err := s.WaitForHandlersSync(ctx); err != nil {
		return err
	}
	go s.Run(ctx)
	return nil
}

// unrecorded drops the scheduler's events, which are also conditions of the pods.
type unrecorded struct{}

func (unrecorded) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}
func (u unrecorded) WithLogger(klog.Logger) events.EventRecorderLogger                           { return u }

// Periods of the controllers; those of a controller manager are in brackets.
const (
	binderSync    = time.Second      // [15 s] looks at claims that are not bound
	monitorPeriod = time.Second      // [5 s] looks at the nodes
	monitorGrace  = 6 * time.Second  // [50 s] until a node that is not heard of is not ready
	gcPeriod      = time.Second      // [20 s] looks at pods without a node
	gcQuarantine  = 2 * time.Second  // [40 s] until a node that is not found is gone
	isAttached    = 5 * time.Second  // [60 s] asks the driver what is attached
	waitsUnmount  = 10 * time.Second // [6 min] before a detach from a node that is not ready
)

// serveControllers is this process as the controller manager: its controllers for pods, nodes and volumes, on
// a machine without flexd.
func serveControllers() error {
	dir, plugins := os.Getenv(place), os.Getenv(pluginDir)
	ctx := context.Background()
	all := informers.NewSharedInformerFactory(newClient(dir, 20, 30), 12*time.Hour)
	client := func() clientset.Interface { return newClient(dir, 20, 30) }
	core, storage, apps := all.Core().V1(), all.Storage().V1(), all.Apps().V1()
	exec, err := newCounter("controller", os.Getenv(callsFile))
	if err != nil {
		return err
	}
	// In the order of NewControllerDescriptors.
	sets := statefulset.NewStatefulSetController(ctx, core.Pods(), apps.StatefulSets(), core.PersistentVolumeClaims(), apps.ControllerRevisions(), client())
	gc := podgc.NewPodGCInternal(ctx, client(), core.Pods(), core.Nodes(), 12500, gcPeriod, gcQuarantine)
	grace := monitorGrace
	if d, err := time.ParseDuration(os.Getenv("FLEXD_TEST_GRACE")); err == nil {
		grace = d
	}
	nodes, err := nodelifecycle.NewNodeLifecycleController(ctx, all.Coordination().V1().Leases(), core.Pods(), core.Nodes(), apps.DaemonSets(),
		client(), monitorPeriod, time.Minute, grace, 10, 10, 50, 2) // of many dead nodes none is spared
	if err != nil {
		return err
	}
	taints, err := tainteviction.New(ctx, client(), core.Pods(), core.Nodes(), "taint-eviction-controller")
	if err != nil {
		return err
	}
	binder, err := persistentvolume.NewController(ctx, persistentvolume.ControllerParameters{
		KubeClient: client(), SyncPeriod: binderSync, VolumeInformer: core.PersistentVolumes(), ClaimInformer: core.PersistentVolumeClaims(),
		ClassInformer: storage.StorageClasses(), PodInformer: core.Pods(), NodeInformer: core.Nodes(),
	})
	if err != nil {
		return err
	}
	timers := attachdetach.DefaultTimerConfig
	timers.ReconcilerMaxWaitForUnmountDuration = waitsUnmount
	timers.DesiredStateOfWorldPopulatorLoopSleepPeriod = 2 * time.Second // [60 s]
	timers.DesiredStateOfWorldPopulatorListPodsRetryDuration = 5 * time.Second
	attach, err := attachdetach.NewAttachDetachController(ctx, client(), core.Pods(), core.Nodes(), core.PersistentVolumeClaims(), core.PersistentVolumes(),
		storage.CSINodes(), storage.CSIDrivers(), storage.VolumeAttachments(), nil, flexvolume.GetDynamicPluginProber(ctx, plugins, exec),
		false, isAttached, false, timers)
	if err != nil {
		return err
	}
	translator := csitrans.New()
	expander, err := expand.NewExpandController(ctx, client(), core.PersistentVolumeClaims(), nil, translator, csimigration.NewPluginManager(translator))
	if err != nil {
		return err
	}
	claims, err := pvcprotection.NewPVCProtectionController(klog.FromContext(ctx), core.PersistentVolumeClaims(), core.Pods(), client())
	if err != nil {
		return err
	}
	volumes := pvprotection.NewPVProtectionController(klog.FromContext(ctx), core.PersistentVolumes(), client())
	all.Start(ctx.Done())
	go sets.Run(ctx, 5)
	go gc.Run(ctx)
	go nodes.Run(ctx)
	go taints.Run(ctx)
	go binder.Run(ctx)
	go attach.Run(ctx)
	go expander.Run(ctx)
	go claims.Run(ctx, 1)
	go volumes.Run(ctx, 1)
	return nil
}
