package kubelet

import (
	"os"
	"path/filepath"
	"testing"
)

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
