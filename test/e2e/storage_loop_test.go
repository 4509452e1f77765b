//go:build !vm

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	testhost "github.com/flexd/flexd/test/host"
)

const (
	// soon is how long the slowest of these machines may take for what is quick.
	soon = time.Minute
	// pace is how much slower than this machine it is.
	pace = 1
	// With FLEXD_SOAK flexd is killed at each system call, and each damage is done to its files;
	// otherwise strikes of the calls are drawn for each verb, and twice as many damages.
	exhaustive, strikes = true, 2
	// slowSize makes mkfs take long enough to be caught at it; slowText is how it is shown.
	slowSize, slowText = "20Gi", "20.0 GiB"
	// block is how the kernel calls the device of a volume.
	block = "/dev/loop"
)

// long are the tests that run only with FLEXD_SOAK: none.
var long []string

// restricted is empty: systemd need not be process 1.
var restricted []string

// tools are the required programs.
var tools = []string{"losetup"}

// lacks returns why there can be no storage on this machine, "" if there can.
func lacks() string {
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return "loop devices: " + err.Error()
	}
	return ""
}

// executables builds flexd and flexdriver into dir.
func executables(dir string) (string, error) {
	for _, name := range []string{"flexd", "flexdriver"} {
		c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dir, name), "../../cmd/"+name)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build %s: %w\n%s", name, err, out)
		}
	}
	return dir, nil
}

// files is the storage of loopdev: a group is a directory of the host's.
type files struct {
	testhost.Loops
	h *host
}

func newStorage(h *host) storage { return files{testhost.Loops{Dir: h.Dir}, h} }

func (s files) path(name string) string { return s.Dir + "/" + name }

// roomy lets tests use a machine whose disk is nearly full.
const roomy = ", overcommit: true, reserve: 0%"

func (s files) group(vg string) string {
	s.h.must(os.MkdirAll(s.path(vg), 0o755))
	return "provider: loopdev, directory: " + s.path(vg) + roomy + everyNamespace
}

func (s files) missing(string) (config, called string) {
	return "provider: loopdev, directory: " + s.path("not-there") + everyNamespace, s.path("not-there")
}

func (s files) volume(name string, size int64, fill func(path string)) {
	s.h.t.Helper()
	s.h.must(os.WriteFile(s.path(name), nil, 0o600))
	s.h.must(os.Truncate(s.path(name), size))
	if fill != nil {
		fill(s.path(name))
	}
	s.handOver(name)
}

// handOver makes a volume of a file with setfattr, as an operator does.
func (s files) handOver(name string) {
	s.h.t.Helper()
	uuid := fmt.Sprintf("00000000-0000-4000-8000-%012x", rand.Uint64N(1<<48))
	s.h.must(unix.Setxattr(s.path(name), "trusted.flexd.uuid", []byte(uuid), 0))
}

func (s files) volumes() (all []string) {
	paths, _ := filepath.Glob(s.path("vg*/*"))
	for _, path := range paths {
		all = append(all, strings.TrimPrefix(path, s.Dir+"/"))
	}
	return all
}

func (s files) remove(name string) {
	s.h.t.Helper()
	s.h.must(os.Remove(s.path(name)))
}

func (s files) extend(name string, size int64) {
	s.h.t.Helper()
	s.h.must(os.Truncate(s.path(name), size))
}

func (s files) open(name string, f func(path string)) { f(s.path(name)) }

func (s files) device(name string) string { return s.h.Run + "/dev/" + name }

func (s files) deactivate(name string) {
	s.h.t.Helper()
	s.h.sh("losetup", "-d", s.Devices()[name])
}
