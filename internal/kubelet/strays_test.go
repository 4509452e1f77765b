package kubelet

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/flexd/flexd/test/umount"
	"golang.org/x/sys/unix"
)

// Ensure that files that keep kubelet from removing a directory are found without entering a mount, whose
// volume may hang.
func TestStrays(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	root := t.TempDir()
	l := Layout{Dirs: []string{root}, Driver: "flexd/lvm"}
	dir := PodDir(root, l.Driver, "uid", "data")
	put := func() {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put()
	if all := l.Strays(); len(all) != 1 || all[0].Dir != dir || all[0].Pod != "uid" || len(all[0].Names) != 1 {
		t.Fatalf("got %+v", all)
	}
	for _, at := range []string{filepath.Join(root, "pods"), filepath.Dir(dir), dir} {
		put()
		if err := unix.Mount("none", at, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		put()
		all := l.Strays()
		if err := umount.Plain(at); err != nil {
			t.Fatal(err)
		}
		if len(all) != 0 {
			t.Errorf("%s is a mount, and was entered: %+v", at, all)
		}
	}
}
