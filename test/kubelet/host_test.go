package kubelet

import (
	"context"
	"errors"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
	"k8s.io/mount-utils"
)

// A volumeHost is what kubelet (pkg/kubelet/volume_host.go) and the controller
// manager give to their volume plugins. Directories are named as in
// pkg/kubelet/kubelet_getters.go.
type volumeHost struct {
	root      string
	client    clientset.Interface
	informers informers.SharedInformerFactory
	mounter   mount.Interface
	recorder  record.EventRecorder
}

var (
	_ volume.VolumeHost        = &volumeHost{}
	_ volume.KubeletVolumeHost = &volumeHost{}
)

var errNotPlayed = errors.New("not played here")

func (h *volumeHost) GetPodsDir() string { return filepath.Join(h.root, "pods") }
func (h *volumeHost) GetPluginDir(plugin string) string {
	return filepath.Join(h.root, "plugins", plugin)
}
func (h *volumeHost) GetVolumeDevicePluginDir(plugin string) string {
	return filepath.Join(h.root, "plugins", plugin, "volumeDevices")
}
func (h *volumeHost) GetPodVolumeDir(uid types.UID, plugin, name string) string {
	return filepath.Join(h.root, "pods", string(uid), "volumes", plugin, name)
}
func (h *volumeHost) GetPodPluginDir(uid types.UID, plugin string) string {
	return filepath.Join(h.root, "pods", string(uid), "plugins", plugin)
}
func (h *volumeHost) GetPodVolumeDeviceDir(uid types.UID, plugin string) string {
	return filepath.Join(h.root, "pods", string(uid), "volumeDevices", plugin)
}

func (h *volumeHost) GetKubeClient() clientset.Interface     { return h.client }
func (h *volumeHost) GetMounter() mount.Interface            { return h.mounter }
func (h *volumeHost) GetHostUtil() hostutil.HostUtils        { return hostutil.NewHostUtil() }
func (h *volumeHost) GetSubpather() subpath.Interface        { return subpath.New(h.mounter) }
func (h *volumeHost) GetEventRecorder() record.EventRecorder { return h.recorder }
func (h *volumeHost) GetNodeName() types.NodeName            { return nodeName }

func (h *volumeHost) node() (*v1.Node, error) {
	return h.client.CoreV1().Nodes().Get(context.Background(), nodeName, metav1.GetOptions{})
}

func (h *volumeHost) GetNodeLabels() (map[string]string, error) {
	n, err := h.node()
	if err != nil {
		return nil, err
	}
	return n.Labels, nil
}

func (h *volumeHost) GetAttachedVolumesFromNodeStatus() (map[v1.UniqueVolumeName]string, error) {
	n, err := h.node()
	if err != nil {
		return nil, err
	}
	all := map[v1.UniqueVolumeName]string{}
	for _, a := range n.Status.VolumesAttached {
		all[a.Name] = a.DevicePath
	}
	return all, nil
}

func (h *volumeHost) GetInformerFactory() informers.SharedInformerFactory { return h.informers }
func (h *volumeHost) CSIDriverLister() storagelisters.CSIDriverLister {
	return h.informers.Storage().V1().CSIDrivers().Lister()
}
func (h *volumeHost) CSIDriversSynced() cache.InformerSynced {
	return h.informers.Storage().V1().CSIDrivers().Informer().HasSynced
}
func (h *volumeHost) WaitForCacheSync() error { return nil }

// What no FlexVolume asks for.

func (h *volumeHost) SetKubeletError(error) {}
func (h *volumeHost) NewWrapperMounter(string, volume.Spec, *v1.Pod) (volume.Mounter, error) {
	return nil, errNotPlayed
}
func (h *volumeHost) NewWrapperUnmounter(string, volume.Spec, types.UID) (volume.Unmounter, error) {
	return nil, errNotPlayed
}
func (h *volumeHost) GetNodeAllocatable() (v1.ResourceList, error) { return nil, errNotPlayed }
func (h *volumeHost) GetSecretFunc() func(namespace, name string) (*v1.Secret, error) {
	return func(string, string) (*v1.Secret, error) { return nil, errNotPlayed }
}
func (h *volumeHost) GetConfigMapFunc() func(namespace, name string) (*v1.ConfigMap, error) {
	return func(string, string) (*v1.ConfigMap, error) { return nil, errNotPlayed }
}
func (h *volumeHost) GetServiceAccountTokenFunc() func(namespace, name string, tr *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return func(string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		return nil, errNotPlayed
	}
}
func (h *volumeHost) DeleteServiceAccountTokenFunc() func(types.UID) { return func(types.UID) {} }
func (h *volumeHost) GetTrustAnchorsByName(string, bool) ([]byte, error) {
	return nil, errNotPlayed
}
func (h *volumeHost) GetTrustAnchorsBySigner(string, *metav1.LabelSelector, bool) ([]byte, error) {
	return nil, errNotPlayed
}
func (h *volumeHost) GetPodCertificateCredentialBundle(context.Context, string, string, string, string, int) ([]byte, []byte, error) {
	return nil, nil, errNotPlayed
}
