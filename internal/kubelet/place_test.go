package kubelet

import (
	"strings"
	"testing"
)

const (
	globalDir = "/var/lib/kubelet/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/pv1"
	podDir    = "/var/lib/kubelet/pods/uid-a/volumes/flexd~lvm/pv1"
)

func TestPlace(t *testing.T) {
	const root = "/var/lib/kubelet"
	staged := Place{Staged: true, Driver: "flexd/lvm", Name: "pv1"}
	pod := Place{PodUID: "uid-a", Driver: "flexd/lvm", Name: "pv1"}
	for _, tt := range []struct {
		root, driver, dir string
		want              Place
	}{
		{root, "flexd/lvm", globalDir, staged},
		{root, "flexd/lvm", podDir, pod},
		{root, "", podDir, pod},
		{root, "other/lvm", podDir, Place{}},
		{root, "other/lvm", globalDir, Place{}},
		{"/var/lib", "flexd/lvm", podDir, Place{}},
		{"/var/lib/kube", "flexd/lvm", podDir, Place{}},
		{"", "flexd/lvm", podDir, Place{}},
		{root, "", root, Place{}},
		{root, "", root + "/pods/uid-a/volumes/flexd~lvm", Place{}},
		{root, "", podDir + "/sub", Place{}},
		{root, "", globalDir + "/sub", Place{}},
		{root, "", podDir + "/", Place{}},
		{root, "", root + "/pods/../volumes/flexd~lvm/pv1", Place{}},
		{root, "", root + "/pods/uid-a/volumes/flexd~lvm/..", Place{}},
		{root, "", root + "/pods/uid-a/volumes/flexd/pv1", Place{}},
		{root, "", root + "/pods/uid-a/volumes/a~b~c/pv1", Place{}},
		{root, "", root + "/pods/uid-a/volume-subpaths/flexd~lvm/pv1", Place{}},
		{root, "", root + "/pods//volumes/flexd~lvm/pv1", Place{}},
		{root, "", root + "/plugins/kubernetes.io/flexvolume/flexd/lvm/mount/pv1", Place{}},
		{root, "", root + "/plugins/kubernetes.io/flexvolume/../lvm/mounts/pv1", Place{}},
	} {
		got, ok := ParsePlace(tt.root, tt.driver, tt.dir)
		if got != tt.want || ok != (tt.want != Place{}) {
			t.Errorf("%s %s %s: got %+v, %v", tt.root, tt.driver, tt.dir, got, ok)
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

func FuzzParsePlace(f *testing.F) {
	f.Add("/var/lib/kubelet", "flexd/lvm", globalDir)
	f.Add("/var/lib/kubelet/", "", podDir)
	f.Fuzz(func(t *testing.T, root, driver, dir string) {
		p, ok := ParsePlace(root, driver, dir)
		if !ok {
			if p != (Place{}) {
				t.Errorf("%+v", p)
			}
			return
		}
		back := PodDir(root, p.Driver, p.PodUID, p.Name)
		if p.Staged {
			back = GlobalDir(root, p.Driver, p.Name)
		}
		if back != dir || strings.Contains(p.Name, "/") || driver != "" && driver != p.Driver {
			t.Errorf("%q is %+v is %q", dir, p, back)
		}
	})
}

func TestIsOtherDriver(t *testing.T) {
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
		if got := IsOtherDriver(root, "flexd/lvm", dir); got != want {
			t.Errorf("%s: %t", dir, got)
		}
	}
}
