package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/apps"
	appsinstall "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	coreinstall "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"

	"github.com/flexd/flexd/internal/config"
)

// The API server accepts the manifests of the DaemonSet, without unknown fields, and the
// removal over the installation; flexd accepts the configuration.
func TestManifests(t *testing.T) {
	capabilities.Setup(true, 0) // as kubeadm sets it
	scheme := runtime.NewScheme()
	appsinstall.Install(scheme)
	coreinstall.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder()
	objects := map[string]runtime.Object{}
	files, _ := filepath.Glob("../../examples/kubernetes/*.yaml")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(text, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		objects[filepath.Base(file)] = object
		var errs field.ErrorList
		switch o := object.(type) {
		case *core.Namespace:
			errs = corevalidation.ValidateNamespace(o)
		case *core.ConfigMap:
			errs = corevalidation.ValidateConfigMap(o)
			for key, text := range o.Data {
				for _, text := range []string{text, strings.ReplaceAll(text, "# ", "")} { // with the example, too
					if _, err := config.Parse(key, []byte(text)); err != nil {
						t.Error(err)
					}
				}
			}
		case *apps.DaemonSet:
			errs = appsvalidation.ValidateDaemonSet(o, corevalidation.PodValidationOptions{})
		default:
			t.Errorf("%s: a %T", file, object)
		}
		if len(errs) > 0 {
			t.Errorf("%s: %v", file, errs.ToAggregate())
		}
	}
	install, ok := objects["daemonset.yaml"].(*apps.DaemonSet)
	remove, also := objects["remove.yaml"].(*apps.DaemonSet)
	if !ok || !also || len(objects) < 4 {
		t.Fatalf("missing manifests: %v", files)
	}
	remove.ResourceVersion, remove.Spec.TemplateGeneration = "1", 1
	if errs := appsvalidation.ValidateDaemonSetUpdate(remove, install, corevalidation.PodValidationOptions{}); len(errs) > 0 {
		t.Errorf("remove.yaml over daemonset.yaml: %v", errs.ToAggregate())
	}
	if install.Name != remove.Name || install.Namespace != remove.Namespace {
		t.Error("remove.yaml does not take the place of daemonset.yaml")
	}
}
