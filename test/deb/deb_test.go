//go:build vm

package deb

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const (
	inside = "FLEXD_TEST_DEBS" // in the VM: the directory of the packages
	first  = "v7.0.1"
	second = "v7.0.2"
)

// TestDeb is the host's part, and in the VM that it boots the node's.
func TestDeb(t *testing.T) {
	if dir := os.Getenv(inside); dir != "" {
		life(t, dir)
		return
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), root+"/scripts/packages")
	build.Env = append(os.Environ(), "ARCHES="+runtime.GOARCH, "VERSION="+first, "DIST="+dir)
	// The other version is the same but for its name, which spares a second build.
	other := exec.CommandContext(t.Context(), "sh", "-ec", `
		dpkg-deb -R flexd_*.deb x
		mv flexd_*.deb `+first+`.deb
		sed -i 's/`+first+`/`+second+`/g' x/usr/bin/flexd x/usr/lib/flexd/flexdriver
		sed -i 's/^Version: .*/Version: `+second[1:]+`/' x/DEBIAN/control
		dpkg-deb -Znone -b x `+second+`.deb`)
	other.Dir = dir
	vm := exec.CommandContext(t.Context(), root+"/scripts/vm", "-yq", "-d", "1", "-m", "2048", "-t", "900",
		"-e", inside+"="+dir, "--", self, "-test.v", "-test.run", "^TestDeb$")
	for _, c := range []*exec.Cmd{build, other, vm} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v:\n%s", c.Args[0], err, out)
		} else if c == vm {
			t.Log(strings.TrimSpace(string(out)))
		}
	}
}
