package kubelet

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// Link returns only links below kubelet's root in the path of a volume.
func TestLink(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.MkdirAll(base+"/real/pods.disk/u/volumes/flexd~lvm", 0o755), os.Symlink("pods.disk", base+"/real/pods"), os.Symlink("real", base+"/link"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	l := Layout{Dirs: []string{base + "/link"}, Driver: "flexd/lvm"}
	const dir = "/u/volumes/flexd~lvm/a"
	for path, want := range map[string]string{
		"/link/pods" + dir:      "/link/pods",
		"/real/pods" + dir:      "/real/pods",
		"/real/pods.disk" + dir: "",
		"/link/pods/u":          "",
	} {
		if want != "" {
			want = base + want
		}
		if got := l.Link(base + path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

// Any directory may have been kubelet's root.
func TestAnyRoot(t *testing.T) {
	l := Layout{Driver: "flexd/lvm"}
	for path, want := range map[string]volume.Place{
		"/a/b/pods/u/volumes/flexd~lvm/v":                           {Kind: volume.Published, Name: "v", Pod: "u"},
		"/pods/pods/u/volumes/flexd~lvm/pods":                       {Kind: volume.Published, Name: "pods", Pod: "u"},
		"/a/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/v":    {Kind: volume.Staged, Name: "v"},
		"/a/pods/u/volumes/other~lvm/v":                             {},
		"/a/pods/u/volumes/flexd~lvm/v/x":                           {},
		"/a/pods/u/volumes/flexd~lvm":                               {},
		"/a/pods/u/volume-subpaths/v/c/0":                           {Bind: true, Pod: "u"},
		"/a/plugins/kubernetes.io/flexvolume/flexd/other/mounts/v/": {},
		"": {}, "/": {}, "/etc": {},
	} {
		if got := l.AnyRoot(path); got != want {
			t.Errorf("%q: %+v", path, got)
		}
	}
}

func TestResolve(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	real, link := filepath.Join(base, "real"), filepath.Join(base, "kubelet")
	must(os.MkdirAll(filepath.Join(real, "pods"), 0o755))
	must(os.MkdirAll(filepath.Join(base, "outside"), 0o755))
	must(os.Symlink(real, link))
	must(os.Symlink(filepath.Join(base, "outside"), filepath.Join(real, "out")))
	must(os.Symlink(filepath.Join(base, "nowhere"), filepath.Join(real, "dangling")))
	must(os.Symlink(filepath.Join(real, "pods"), filepath.Join(real, "in")))
	must(os.WriteFile(filepath.Join(real, "file"), nil, 0o600))
	must(os.Symlink(filepath.Join(real, "file/x"), filepath.Join(real, "below")))
	r := Layout{Dirs: []string{base, link}} // the longer one counts
	if _, root, err := r.Resolve(real + "/pods/x"); err != nil || root != real {
		t.Errorf("got root %q, %v; want %q", root, err, real)
	}
	r = Layout{Dirs: []string{link}}
	for _, c := range []struct{ dir, want string }{
		{link + "/pods/x", real + "/pods/x"},
		{real + "/pods/x", real + "/pods/x"},
		{link + "/in/x", real + "/pods/x"},
		{link + "/pods/not/there/x", real + "/pods/not/there/x"},
		{link + "/file/not/there", real + "/file/not/there"},
		{link + "/below/x", ""},
		{link + "/in", real + "/in"}, // the last part is not followed: it may be a mount that hangs
		{link + "/out/x", ""},
		{link + "/dangling/x", ""},
		{base + "/outside/x", ""},
		{base + "/realm/x", ""},
		{real, ""},
		{"/", ""},
	} {
		got, root, err := r.Resolve(c.dir)
		if err == nil && got != c.want || (err != nil) != (c.want == "") || err == nil && root != real {
			t.Errorf("%s: got %q below %q, %v; want %q", c.dir, got, root, err, c.want)
		}
	}
}
