package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/emicklei/go-restful/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	appsv1 "k8s.io/kubernetes/pkg/apis/apps/v1"
	"k8s.io/kubernetes/pkg/apis/coordination"
	coordinationv1 "k8s.io/kubernetes/pkg/apis/coordination/v1"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	storageapi "k8s.io/kubernetes/pkg/apis/storage"
	storagev1 "k8s.io/kubernetes/pkg/apis/storage/v1"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	leases "k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/event"
	nodes "k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageobjectinuseprotection"
)

func init() {
	s := legacyscheme.Scheme
	for _, add := range []func(*runtime.Scheme) error{
		apps.AddToScheme, appsv1.AddToScheme, storageapi.AddToScheme, storagev1.AddToScheme, coordination.AddToScheme, coordinationv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
}

// A kind of objects is stored as in kube-apiserver: pkg/registry's strategies (defaults, validation, allowed
// updates) over etcd and the watch cache. Only kubectl's tables are left out, which link all groups of the
// API.
type kind struct {
	name, singular string
	object, list   func() runtime.Object
	strategy       strategy
	status         strategy // of the subresource; nil: there is none
	match          func(labels.Selector, fields.Selector) storage.SelectionPredicate
	attributes     storage.AttrFunc
	triggers       storage.IndexerFuncs
}

type strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
}

// resources by group.
var resources = map[schema.GroupVersion][]kind{
	{Version: "v1"}: {
		{name: "pods", singular: "pod", strategy: pod.Strategy, status: pod.StatusStrategy, match: pod.MatchPod, attributes: pod.GetAttrs,
			object: func() runtime.Object { return &api.Pod{} }, list: func() runtime.Object { return &api.PodList{} },
			triggers: storage.IndexerFuncs{"spec.nodeName": pod.NodeNameTriggerFunc}},
		{name: "nodes", singular: "node", strategy: nodes.Strategy, status: nodes.StatusStrategy, match: nodes.MatchNode, attributes: nodes.GetAttrs,
			object: func() runtime.Object { return &api.Node{} }, list: func() runtime.Object { return &api.NodeList{} }},
		{name: "persistentvolumes", singular: "persistentvolume", strategy: persistentvolume.Strategy, status: persistentvolume.StatusStrategy,
			match: persistentvolume.MatchPersistentVolumes, attributes: persistentvolume.GetAttrs,
			object: func() runtime.Object { return &api.PersistentVolume{} }, list: func() runtime.Object { return &api.PersistentVolumeList{} }},
		{name: "persistentvolumeclaims", singular: "persistentvolumeclaim", strategy: persistentvolumeclaim.Strategy, status: persistentvolumeclaim.StatusStrategy,
			match: persistentvolumeclaim.MatchPersistentVolumeClaim, attributes: persistentvolumeclaim.GetAttrs,
			object: func() runtime.Object { return &api.PersistentVolumeClaim{} }, list: func() runtime.Object { return &api.PersistentVolumeClaimList{} }},
		{name: "secrets", singular: "secret", strategy: secret.Strategy, match: secret.Matcher, attributes: secret.GetAttrs,
			object: func() runtime.Object { return &api.Secret{} }, list: func() runtime.Object { return &api.SecretList{} }},
		{name: "configmaps", singular: "configmap", strategy: configmap.Strategy, match: configmap.Matcher, attributes: configmap.GetAttrs,
			object: func() runtime.Object { return &api.ConfigMap{} }, list: func() runtime.Object { return &api.ConfigMapList{} }},
		{name: "events", singular: "event", strategy: event.Strategy, match: event.Matcher, attributes: event.GetAttrs,
			object: func() runtime.Object { return &api.Event{} }, list: func() runtime.Object { return &api.EventList{} }},
	},
	{Group: "apps", Version: "v1"}: {
		{name: "statefulsets", singular: "statefulset", strategy: statefulset.Strategy, status: statefulset.StatusStrategy,
			object: func() runtime.Object { return &apps.StatefulSet{} }, list: func() runtime.Object { return &apps.StatefulSetList{} }},
		{name: "controllerrevisions", singular: "controllerrevision", strategy: controllerrevision.Strategy,
			object: func() runtime.Object { return &apps.ControllerRevision{} }, list: func() runtime.Object { return &apps.ControllerRevisionList{} }},
	},
	{Group: "storage.k8s.io", Version: "v1"}: {
		{name: "storageclasses", singular: "storageclass", strategy: storageclass.Strategy,
			object: func() runtime.Object { return &storageapi.StorageClass{} }, list: func() runtime.Object { return &storageapi.StorageClassList{} }},
	},
	{Group: "coordination.k8s.io", Version: "v1"}: {
		{name: "leases", singular: "lease", strategy: leases.Strategy,
			object: func() runtime.Object { return &coordination.Lease{} }, list: func() runtime.Object { return &coordination.LeaseList{} }},
	},
}

// none are resources that are watched and have no objects here.
var none = map[string]string{
	"/api/v1/services":                                "ServiceList",
	"/api/v1/namespaces":                              "NamespaceList",
	"/api/v1/replicationcontrollers":                  "ReplicationControllerList",
	"/apis/apps/v1/daemonsets":                        "DaemonSetList",
	"/apis/apps/v1/replicasets":                       "ReplicaSetList",
	"/apis/node.k8s.io/v1/runtimeclasses":             "RuntimeClassList",
	"/apis/policy/v1/poddisruptionbudgets":            "PodDisruptionBudgetList",
	"/apis/resource.k8s.io/v1/deviceclasses":          "DeviceClassList",
	"/apis/resource.k8s.io/v1/resourceclaims":         "ResourceClaimList",
	"/apis/resource.k8s.io/v1/resourceslices":         "ResourceSliceList",
	"/apis/resource.k8s.io/v1beta2/devicetaintrules":  "DeviceTaintRuleList",
	"/apis/storage.k8s.io/v1/csidrivers":              "CSIDriverList",
	"/apis/storage.k8s.io/v1/csinodes":                "CSINodeList",
	"/apis/storage.k8s.io/v1/csistoragecapacities":    "CSIStorageCapacityList",
	"/apis/storage.k8s.io/v1/volumeattachments":       "VolumeAttachmentList",
	"/apis/storage.k8s.io/v1/volumeattributesclasses": "VolumeAttributesClassList",
}

// serveAPI serves the API on a socket, from its own etcd, in a directory.
func serveAPI(dir string) (func(), error) {
	e, err := startEtcd(dir)
	if err != nil {
		return nil, err
	}
	handler, destroy, err := newAPI("unix://" + dir + "/etcd.sock")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", dir+"/api.sock")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: handler}
	go server.Serve(l)
	return func() { server.Close(); destroy(); e.Close() }, nil
}

func startEtcd(dir string) (*embed.Etcd, error) {
	c := embed.NewConfig()
	c.Dir = dir + "/etcd"
	c.ListenClientUrls, c.ListenPeerUrls = []url.URL{{Scheme: "unix", Path: dir + "/etcd.sock"}}, []url.URL{{Scheme: "unix", Path: dir + "/peer.sock"}}
	c.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}} // it has no peer
	c.AdvertiseClientUrls = c.AdvertisePeerUrls
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.UnsafeNoFsync = true
	c.LogLevel, c.LogOutputs = "error", []string{dir + "/etcd.log"}
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.Server.ReadyNotify():
		return e, nil
	case err := <-e.Err():
		return nil, err
	}
}

// newAPI returns kube-apiserver without its authentication and queues.
func newAPI(etcd string) (h http.Handler, destroy func(), err error) {
	plugins := admission.NewPlugins()
	storageobjectinuseprotection.Register(plugins)
	admit, err := plugins.NewFromPlugins([]string{storageobjectinuseprotection.PluginName}, noConfig{}, admission.PluginInitializers{}, nil)
	if err != nil {
		return nil, nil, err
	}
	var all []rest.Storage
	container := restful.NewContainer()
	container.Router(restful.CurlyRouter{})
	for version, kinds := range resources {
		stores, err := newStores(etcd, version, kinds)
		if err != nil {
			return nil, nil, err
		}
		served := map[string][]string{}
		for name, s := range stores {
			all = append(all, s)
			served[name] = []string{version.String()}
		}
		root := "/apis"
		if version.Group == "" {
			root = "/api"
		}
		scheme := legacyscheme.Scheme
		g := &endpoints.APIGroupVersion{
			Storage: stores, Root: root, GroupVersion: version, AllServedVersionsByResource: served,
			Serializer: legacyscheme.Codecs, ParameterCodec: legacyscheme.ParameterCodec,
			Typer: scheme, Creater: scheme, Convertor: scheme, ConvertabilityChecker: scheme, Defaulter: scheme,
			UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme), Namer: runtime.Namer(meta.NewAccessor()),
			TypeConverter: managedfields.NewDeducedTypeConverter(), EquivalentResourceRegistry: runtime.NewEquivalentResourceRegistry(),
			Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(), Admit: admit,
			MinRequestTimeout: 30 * time.Minute, MaxRequestBodyBytes: 3 << 20,
		}
		if _, _, err := g.InstallREST(container); err != nil {
			return nil, nil, err
		}
	}
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	installed := filters.WithRequestReceivedTimestamp(filters.WithAuditInit(filters.WithRequestInfo(container, resolver)))
	h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if list := none[r.URL.Path]; list != "" && r.Method == http.MethodGet {
			serveNone(w, r, list)
			return
		}
		installed.ServeHTTP(w, r)
	})
	destroy = func() {
		for _, s := range all {
			s.Destroy()
		}
	}
	return h, destroy, nil
}

type noConfig struct{}

func (noConfig) ConfigFor(string) (io.Reader, error) { return nil, nil }

// newStores are the resources of one group and their subresources.
func newStores(etcd string, version schema.GroupVersion, all []kind) (map[string]rest.Storage, error) {
	config := storagebackend.NewDefaultConfig("/registry", legacyscheme.Codecs.LegacyCodec(version))
	config.Transport.ServerList = []string{etcd}
	stores := map[string]rest.Storage{}
	for _, r := range all {
		qualified := schema.GroupResource{Group: version.Group, Resource: r.name}
		s := &registry.Store{
			NewFunc: r.object, NewListFunc: r.list, PredicateFunc: r.match, DefaultQualifiedResource: qualified,
			SingularQualifiedResource: schema.GroupResource{Group: version.Group, Resource: r.singular},
			CreateStrategy:            r.strategy, UpdateStrategy: r.strategy, DeleteStrategy: r.strategy,
			ReturnDeletedObject: r.name != "nodes", TableConvertor: rest.NewDefaultTableConvertor(qualified),
		}
		err := s.CompleteWithOptions(&generic.StoreOptions{AttrFunc: r.attributes, TriggerFunc: r.triggers, RESTOptions: generic.RESTOptions{
			StorageConfig: config.ForResource(qualified), Decorator: registry.StorageWithCacher(), DeleteCollectionWorkers: 1, ResourcePrefix: r.name,
		}})
		if err != nil {
			return nil, err
		}
		stores[r.name] = s
		if r.status != nil {
			of := *s
			of.UpdateStrategy = r.status
			stores[r.name+"/status"] = &status{&of}
		}
		if r.name == "pods" {
			stores["pods/binding"] = &binding{s}
		}
	}
	return stores, nil
}

// status is a subresource, as each of pkg/registry has it.
type status struct{ store *registry.Store }

var _ = rest.Patcher(&status{})

func (s *status) New() runtime.Object { return s.store.New() }
func (s *status) Destroy()            {}
func (s *status) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}
func (s *status) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, info, create, update, false, options)
}

// binding assigns a pod to a node for the scheduler.
type binding struct{ store *registry.Store }

var _ = rest.NamedCreater(&binding{})

func (b *binding) New() runtime.Object { return &api.Binding{} }
func (b *binding) Destroy()            {}
func (b *binding) Create(ctx context.Context, name string, obj runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	to := obj.(*api.Binding)
	key, err := b.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	of := &storage.Preconditions{}
	if to.UID != "" {
		of.UID = &to.UID
	}
	err = b.store.Storage.GuaranteedUpdate(ctx, key, &api.Pod{}, false, of, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		p := obj.(*api.Pod)
		if p.DeletionTimestamp != nil || p.Spec.NodeName != "" {
			return nil, fmt.Errorf("pod %s is being deleted, or is on node %q already", name, p.Spec.NodeName)
		}
		p.Spec.NodeName = to.Target.Name
		podutil.UpdatePodCondition(&p.Status, &api.PodCondition{Type: api.PodScheduled, Status: api.ConditionTrue})
		return p, nil
	}), false, nil)
	return &metav1.Status{Status: metav1.StatusSuccess}, err
}

// serveNone serves an empty list, or a watch without events.
func serveNone(w http.ResponseWriter, r *http.Request, list string) {
	group := strings.TrimPrefix(strings.TrimPrefix(path.Dir(r.URL.Path), "/apis/"), "/api/")
	w.Header().Set("Content-Type", "application/json")
	object := map[string]any{"apiVersion": group, "kind": list, "metadata": map[string]any{"resourceVersion": "1"}, "items": []any{}}
	if r.URL.Query().Get("watch") == "" {
		json.NewEncoder(w).Encode(object)
		return
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		json.NewEncoder(w).Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{
			"apiVersion": group, "kind": strings.TrimSuffix(list, "List"),
			"metadata": map[string]any{"resourceVersion": "1", "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}},
		}})
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}
