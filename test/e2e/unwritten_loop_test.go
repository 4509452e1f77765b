//go:build !vm

package e2e

import (
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The filesystem with a volume's file is full, so the kernel cannot write what a pod wrote
// last. The last unmount succeeds, and flexd reports the loss.
func TestUnwritten(t *testing.T) {
	t.Parallel()
	var dir string
	h := newHost(t, func(h *host) {
		dir = h.Dir + "/disk"
		h.disk(dir, "size=24m")
		h.settings.groups = "  - {name: small, provider: loopdev, directory: " + dir + ", create: true, maxSize: 1GiB" + roomy + ", namespaces: ['*']}\n"
	})
	v := h.vol("data", "ext4").With("volumegroup", "small", "volumeID", "data", "size", "20Mi")
	p, q := podN(1), podN(2)
	lost := func() int {
		text, _ := h.client("events", "small/data")
		return strings.Count(text, "writes to it have failed")
	}
	h.ok(h.up(noAttach, v, p))
	h.ok(h.up(noAttach, v, q))
	hog := dir + "/.hog"
	if err := os.WriteFile(hog, make([]byte, 24*mib), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%s does not fill up: %v", dir, err)
	}
	data := make([]byte, 10*mib)
	rand.Read(data)
	h.must(os.WriteFile(h.PodDir(p, v)+"/f", data, 0o600))
	h.ok(h.unmount(v, p))
	if lost() != 0 {
		t.Error("reported while another pod has it mounted")
	}
	h.ok(h.unmount(v, q))
	if n := lost(); n != 1 {
		t.Errorf("reported %d times, want once", n)
	}
	if !strings.Contains(h.LogTail(100), "writes to it have failed") {
		t.Error("not in the log")
	}
	h.must(os.Remove(hog))
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "g", "x")
	h.ok(h.unmount(v, p))
	if n := lost(); n != 1 {
		t.Errorf("reported %d times, want once", n)
	}
}
