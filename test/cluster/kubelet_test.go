package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	cadvisor "github.com/google/cadvisor/info/v1"
	cadvisor2 "github.com/google/cadvisor/info/v2"
	"go.opentelemetry.io/otel/trace/noop"
	v1 "k8s.io/api/core/v1"
	"k8s.io/cri-client/pkg"
	"k8s.io/cri-client/pkg/fake"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	probes "k8s.io/kubernetes/pkg/kubelet/prober/testing"
	"k8s.io/kubernetes/pkg/kubelet/util"
	"k8s.io/kubernetes/pkg/util/oom"
	"k8s.io/kubernetes/pkg/volume/flexvolume"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
	"k8s.io/mount-utils"
)

// statusPeriod is kubelet's period for its status, including the volumes in use [10 s].
const statusPeriod = time.Second

// serveKubelet is this process as a whole kubelet, without cgroups and real containers.
func serveKubelet() error {
	dir, name, api := os.Getenv(place), os.Getenv(nodeName), os.Getenv(apiDir)
	// The simulated containers have no log, and kubelet removes the logs of an ended one by
	// the pattern LOG*: every file of its working directory, such as the link /bin.
	nothing := dir + "/nothing"
	if err := errors.Join(os.MkdirAll(nothing, 0o755), os.Chdir(nothing)); err != nil {
		return err
	}
	ctx := context.Background()
	flags := options.NewKubeletFlags()
	flags.RootDirectory = dir + "/kubelet"
	flags.HostnameOverride = name
	flags.NodeLabels = map[string]string{v1.LabelHostname: name}
	config, err := options.NewKubeletConfiguration()
	if err != nil {
		return err
	}
	config.VolumePluginDir = dir + "/plugins"
	config.EnableServer = false
	config.EnableControllerAttachDetach = true
	config.FailSwapOn = false
	config.CgroupsPerQOS = false
	config.EnforceNodeAllocatable = nil
	config.PodLogsDir = dir + "/logs"
	config.ContainerRuntimeEndpoint = "unix://" + dir + "/cri.sock"
	config.ReadOnlyPort = 0
	config.MakeIPTablesUtilChains = false
	config.NodeStatusUpdateFrequency.Duration = statusPeriod
	if d, err := time.ParseDuration(os.Getenv("FLEXD_TEST_STATUS")); err == nil {
		config.NodeStatusUpdateFrequency.Duration = d
	}
	config.SyncFrequency.Duration = 2 * time.Second // [1 min]
	config.NodeLeaseDurationSeconds = 4             // [40]; it is renewed at a quarter of it
	config.EvictionHard = nil
	runtime, err := cri.NewRemoteRuntimeService(ctx, config.ContainerRuntimeEndpoint, 15*time.Second, noop.NewTracerProvider(), false)
	if err != nil {
		return err
	}
	images, err := cri.NewRemoteImageService(ctx, config.ContainerRuntimeEndpoint, 15*time.Second, noop.NewTracerProvider(), false)
	if err != nil {
		return err
	}
	exec, err := newCounter("kubelet", os.Getenv(callsFile))
	if err != nil {
		return err
	}
	mounter, client := mount.New(""), newClient(api, 50, 100)
	return app.RunKubelet(ctx, &options.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *config}, &kubelet.Dependencies{
		KubeClient: client, HeartbeatClient: newClient(api, 50, 100), EventClient: client.CoreV1(),
		ProbeManager: probes.FakeManager{}, RemoteRuntimeService: runtime, RemoteImageService: images,
		CAdvisorInterface: machine{}, OSInterface: kubecontainer.RealOS{}, ContainerManager: cm.NewStubContainerManager(),
		DynamicPluginProber: flexvolume.GetDynamicPluginProber(ctx, config.VolumePluginDir, exec),
		OOMAdjuster:         oom.NewFakeOOMAdjuster(), Mounter: mounter, HostUtil: hostutil.NewHostUtil(), Subpather: subpath.New(mounter),
		PodStartupLatencyTracker: util.NewPodStartupLatencyTracker(), NodeStartupLatencyTracker: util.NewNodeStartupLatencyTracker(),
		TracerProvider: noop.NewTracerProvider(),
	})
}

// machine replaces cAdvisor.
type machine struct{}

func (machine) Start() error { return nil }
func (machine) MachineInfo() (*cadvisor.MachineInfo, error) {
	return &cadvisor.MachineInfo{NumCores: 8, MemoryCapacity: 32 << 30}, nil
}
func (machine) VersionInfo() (*cadvisor.VersionInfo, error) { return &cadvisor.VersionInfo{}, nil }
func (machine) ContainerInfoV2(string, cadvisor2.RequestOptions) (map[string]cadvisor2.ContainerInfo, error) {
	return nil, nil
}
func (machine) GetRequestedContainersInfo(string, cadvisor2.RequestOptions) (map[string]*cadvisor.ContainerInfo, error) {
	return nil, nil
}

var space = cadvisor2.FsInfo{Capacity: 1 << 40, Available: 1 << 40}

func (machine) ImagesFsInfo(context.Context) (cadvisor2.FsInfo, error)    { return space, nil }
func (machine) RootFsInfo() (cadvisor2.FsInfo, error)                     { return space, nil }
func (machine) ContainerFsInfo(context.Context) (cadvisor2.FsInfo, error) { return space, nil }
func (machine) GetDirFsInfo(string) (cadvisor2.FsInfo, error)             { return space, nil }

// serveRuntime is the container runtime of a node. It outlives kubelet.
func serveRuntime(dir string) error {
	r := fake.NewFakeRemoteRuntime()
	r.ImageService.SetFakeImageSize(1)
	return r.Start("unix://" + filepath.Join(dir, "cri.sock"))
}
