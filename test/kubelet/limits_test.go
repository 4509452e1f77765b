package kubelet

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/flexvolume"
	"k8s.io/mount-utils"

	"github.com/flexd/flexd/test/host"
)

// volume changes the PersistentVolume of a claim.
func (n *node) volume(lv string, change func(*v1.PersistentVolume)) {
	n.t.Helper()
	n.change(func(w *World) {
		i := slices.IndexFunc(w.PVs, func(pv *v1.PersistentVolume) bool { return pv.Name == "pv-"+lv })
		w.PVs[i] = w.PVs[i].DeepCopy()
		change(w.PVs[i])
	})
}

// never holds kubelet to an event that says so, and to no call that sets up.
func (n *node) never(p *v1.Pod, words ...string) {
	n.t.Helper()
	n.want(p)
	n.warned(p, words...)
	if c := n.trace().of("mount", "mountdevice", "waitforattach"); len(c) > 0 {
		n.t.Errorf("kubelet calls:\n%s", c)
	}
	n.end(p)
}

// nodeAffinity keeps a volume's pods on its node. A pod that gets to another one
// all the same is refused by kubelet, and flexd makes nothing there.
func TestVolumeOfAnotherNode(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.failures = true
		n.claim("a", 16*mib)
		n.volume("a", func(pv *v1.PersistentVolume) {
			pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{"node-2"}
		})
		n.never(pod("web", "a"), "NodeAffinity check failed")
	})
}

// A FlexVolume's mount options are options of the driver.
func TestMountOptionsOfAPersistentVolume(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.failures = true
		n.claim("a", 16*mib)
		n.volume("a", func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = []string{"noatime"} })
		n.never(pod("web", "a"), "mount options are not supported")
		n.claim("b", 16*mib, "mountOptions", "noatime")
		n.run(pod("other", "b"))
	})
}

// A pod that wants a block device waits, and only kubelet's log says why.
func TestBlockVolume(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.failures = true
		n.claim("a", 16*mib)
		block := v1.PersistentVolumeBlock
		n.volume("a", func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = &block })
		n.change(func(w *World) {
			w.PVCs[0] = w.PVCs[0].DeepCopy()
			w.PVCs[0].Spec.VolumeMode = &block
		})
		p := pod("web", "a")
		p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].VolumeDevices = nil, []v1.VolumeDevice{{Name: "a", DevicePath: "/dev/a"}}
		n.want(p)
		n.eventually("kubelet's log says why", func() string {
			if log := host.Tail(n.Dir+"/kubelet.log", 5); !strings.Contains(log, "failed to find BlockVolumeMapper plugin") {
				return log
			}
			return ""
		})
		n.noWarnings()
		if c := n.trace().of("mount", "mountdevice"); len(c) > 0 {
			t.Errorf("kubelet calls:\n%s", c)
		}
		n.end(p)
	})
}

// Whether a pod may write is said by its own volume, not by the PersistentVolume.
func TestReadOnlyOfAPersistentVolume(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.claim("a", 16*mib)
		n.volume("a", func(pv *v1.PersistentVolume) { pv.Spec.FlexVolume.ReadOnly = true })
		p := pod("web", "a")
		n.run(p)
		n.write(p, 0, "all the same")
	})
}

// Volumes are made by flexd or an operator, and removed by an operator alone: Kubernetes
// has no provisioner.
func TestProvisioning(t *testing.T) {
	t.Parallel()
	n := newNode(t, noAttach)
	tracer, err := newTracer("prober", n.calls())
	n.must(err)
	client := fake.NewClientset()
	host := &volumeHost{client: client, informers: informers.NewSharedInformerFactory(client, 0), mounter: mount.New("")}
	plugins := &volume.VolumePluginMgr{}
	n.must(plugins.InitPlugins(nil, flexvolume.GetDynamicPluginProber(t.Context(), n.plugins, tracer), host))
	n.claim("a", 16*mib)
	spec := volume.NewSpecFromPersistentVolume(n.world.PVs[0], false)
	plugin, err := plugins.FindPersistentPluginBySpec(spec)
	n.must(err)
	if _, ok := plugin.(volume.ProvisionableVolumePlugin); ok {
		t.Error("it provisions")
	}
	if _, ok := plugin.(volume.DeletableVolumePlugin); ok {
		t.Error("it deletes")
	}
}

// The examples are what the API server takes, and each volume's node is named.
func TestExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, legacyscheme.Scheme, legacyscheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	found := map[string]int{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range bytes.SplitSeq(text, []byte("---\n")) {
			if !regexp.MustCompile(`(?m)^apiVersion: v1$`).Match(doc) {
				continue // flexd's configuration, or another group's
			}
			object, _, err := strict.Decode(doc, nil, nil)
			if err != nil {
				t.Errorf("%s: %v", f, err)
				continue
			}
			legacyscheme.Scheme.Default(object)
			internal, err := legacyscheme.Scheme.ConvertToVersion(object, runtime.InternalGroupVersioner)
			if err != nil {
				t.Fatal(err)
			}
			var wrong []string
			switch o := internal.(type) {
			case *core.PersistentVolume:
				found["volume"]++
				for _, e := range validation.ValidatePersistentVolume(o, validation.PersistentVolumeSpecValidationOptions{}) {
					wrong = append(wrong, e.Error())
				}
				if o.Spec.NodeAffinity == nil {
					wrong = append(wrong, "no nodeAffinity")
				}
			case *core.PersistentVolumeClaim:
				found["claim"]++
				o.Namespace = "default"
				for _, e := range validation.ValidatePersistentVolumeClaim(o, validation.PersistentVolumeClaimSpecValidationOptions{}) {
					wrong = append(wrong, e.Error())
				}
			case *core.Pod:
				found["pod"]++
				o.Namespace = "default"
				if o.Spec.NodeSelector[v1.LabelHostname] == "" {
					wrong = append(wrong, "no node")
				}
				for _, e := range validation.ValidatePodCreate(o, validation.PodValidationOptions{}) {
					wrong = append(wrong, e.Error())
				}
			default:
				wrong = append(wrong, "what is that?")
			}
			if len(wrong) > 0 {
				t.Errorf("%s: %s", f, strings.Join(wrong, "; "))
			}
		}
	}
	if found["volume"] < 1 || found["claim"] < 1 || found["pod"] < 2 {
		t.Errorf("found %v", found)
	}
}

// The names and defaults that the documentation states and the installer relies on.
func TestNamesAndDefaults(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, says string }{
		{"pkg/kubelet/apis/config/v1beta1/defaults.go", `VolumePluginDir\s+=\s+"/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"`},
		{"pkg/kubelet/apis/config/v1beta1/defaults.go", `EnableControllerAttachDetach = ptr\.To\(true\)`},
		{"cmd/kubelet/app/options/options.go", `"volume-plugin-dir"`},
		{"cmd/kubelet/app/options/options.go", `"enable-controller-attach-detach"`},
		{"cmd/kube-controller-manager/app/options/persistentvolumebindercontroller.go", `"flex-volume-plugin-dir"`},
		{"pkg/controller/volume/persistentvolume/config/v1alpha1/defaults.go", `FlexVolumePluginDir = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"`},
	} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), c.file))
		if err != nil || !regexp.MustCompile(c.says).Match(text) {
			t.Errorf("%s does not say %s (%v)", c.file, c.says, err)
		}
	}
}
