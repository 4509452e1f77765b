package kubelet

import (
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

const (
	globalDir = "/var/lib/kubelet/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/pv1"
	podDir    = "/var/lib/kubelet/pods/uid-a/volumes/flexd~lvm/pv1"
)

func TestPlace(t *testing.T) {
	const root = "/var/lib/kubelet"
	staged := volume.Place{Kind: volume.Staged, Name: "pv1"}
	pod := volume.Place{Kind: volume.Published, Name: "pv1", Pod: "uid-a"}
	for _, tt := range []struct {
		root, driver, dir string
		want              volume.Place
	}{
		{root, "flexd/lvm", globalDir, staged},
		{root, "flexd/lvm", podDir, pod},
		{root + "/", "flexd/lvm", podDir, pod},
		{root, "other/lvm", podDir, volume.Place{}},
		{root, "other/lvm", globalDir, volume.Place{}},
		{"/var/lib", "flexd/lvm", podDir, volume.Place{}},
		{"/var/lib/kube", "flexd/lvm", podDir, volume.Place{}},
		{"", "flexd/lvm", podDir, volume.Place{}},
		{root, "flexd/lvm", root, volume.Place{}},
		{root, "flexd/lvm", root + "/pods/uid-a/volumes/flexd~lvm", volume.Place{}},
		{root, "flexd/lvm", podDir + "/sub", volume.Place{}},
		{root, "flexd/lvm", globalDir + "/sub", volume.Place{}},
		{root, "flexd/lvm", podDir + "/", volume.Place{}},
		{root, "flexd/lvm", root + "/pods/../volumes/flexd~lvm/pv1", volume.Place{}},
		{root, "flexd/lvm", root + "/pods/uid-a/volumes/flexd~lvm/..", volume.Place{}},
		{root, "flexd", root + "/pods/uid-a/volumes/flexd/pv1", volume.Place{}},
		{root, "flexd/lvm", root + "/pods/uid-a/volumes/a~b~c/pv1", volume.Place{}},
		{root, "flexd/lvm", root + "/pods/uid-a/volume-subpaths/flexd~lvm/pv1", volume.Place{}},
		{root, "flexd/lvm", root + "/pods/uid-a/volume-subpaths/pv1/c/0", volume.Place{Bind: true, Pod: "uid-a"}},
		{root, "flexd/lvm", root + "/pods//volumes/flexd~lvm/pv1", volume.Place{}},
		{root, "flexd/lvm", root + "/plugins/kubernetes.io/flexvolume/flexd/lvm/mount/pv1", volume.Place{}},
		{root, "../lvm", root + "/plugins/kubernetes.io/flexvolume/../lvm/mounts/pv1", volume.Place{}},
	} {
		got := Layout{Driver: tt.driver}.Place(tt.root, tt.dir)
		got.OtherDriver = false
		if got != tt.want {
			t.Errorf("%s %s %s: got %+v", tt.root, tt.driver, tt.dir, got)
		}
	}
	if got := GlobalDir(root, "flexd/lvm", "pv1"); got != globalDir {
		t.Error(got)
	}
	if got := PodDir(root+"/", "flexd/lvm", "uid-a", "pv1"); got != podDir {
		t.Error(got)
	}
	for _, name := range []string{"", ".", "..", "a/b", "a\nb"} {
		if got := GlobalDir(root, "flexd/lvm", name); got != "" {
			t.Errorf("%q: %s", name, got)
		}
		if got := PodDir(root, "flexd/lvm", name, "pv1"); got != "" {
			t.Errorf("%q: %s", name, got)
		}
	}
}

func FuzzPlace(f *testing.F) {
	f.Add("/var/lib/kubelet", "flexd/lvm", globalDir)
	f.Add("/var/lib/kubelet/", "flexd/lvm", podDir)
	f.Fuzz(func(t *testing.T, root, driver, dir string) {
		p := Layout{Driver: driver}.Place(root, dir)
		if p.Kind == "" {
			if p.Name != "" || p.Pod != "" && !p.Bind {
				t.Errorf("%+v", p)
			}
			return
		}
		back := PodDir(root, driver, p.Pod, p.Name)
		if p.Kind == volume.Staged {
			back = GlobalDir(root, driver, p.Name)
		}
		if back != dir || strings.Contains(p.Name, "/") || p.Bind || p.OtherDriver {
			t.Errorf("%q is %+v is %q", dir, p, back)
		}
	})
}

func TestOtherDriver(t *testing.T) {
	const root = "/var/lib/kubelet"
	for dir, want := range map[string]bool{
		podDir:          false,
		podDir + "/sub": false,
		globalDir:       false,
		root + "/pods/uid-a/volumes/other~lvm/pv1":                      true,
		root + "/pods/uid-a/volumes/kubernetes.io~csi/pv1/mount":        true,
		root + "/pods/uid-a/volumes/kubernetes.io~csi":                  false,
		root + "/plugins/kubernetes.io/csi/x.example.org/1/globalmount": true,
		root + "/plugins/kubernetes.io/flexvolume/flexd/lvm2/mounts/a":  true,
		root + "/plugins/topolvm.io":                                    false,
		root + "/pods":                                                  false,
		"/mnt/pods/u/volumes/a~b/c":                                     false,
	} {
		if got := (Layout{Driver: "flexd/lvm"}).Place(root, dir); got.OtherDriver != want {
			t.Errorf("%s: %+v", dir, got)
		}
	}
}
